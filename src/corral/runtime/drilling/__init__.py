"""A service broken on purpose, under a load of its own: what callers would have noticed."""
