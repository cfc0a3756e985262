"""The agent of a node: a sans-I/O core, the shell around it, the task shim and its fork server."""
