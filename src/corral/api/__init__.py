"""The HTTP API: routes parse and answer, nothing more."""
