"""The process of a front end, beside the daemon or on a machine of its own."""
