"""Questions about a pool that nobody has to try on the pool itself: the production cores on a copy of its state."""
