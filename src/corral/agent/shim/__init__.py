"""The task shim: a tiny process that owns one task and outlives the agent, the daemon and the fork server.

The modules that run inside a shim (all but ``client``, ``aftermath`` and ``log_reader``) import the standard library
only, and as little of it as they can: a task costs what a fork of these modules costs.
"""
