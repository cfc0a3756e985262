"""Affinity to prefixes for what passes the proxy alone: a hook in the proxy asks a router beside it."""
