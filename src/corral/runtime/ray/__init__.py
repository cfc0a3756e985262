"""Ray's processes on a machine, and the entry points of ours that use it."""
