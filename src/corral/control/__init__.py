"""The controller: a sans-I/O core that turns events into commands, and the shell around it."""
