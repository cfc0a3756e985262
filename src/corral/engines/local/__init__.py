"""The embedded engine: one agent process per node on this machine."""
