"""Readers of traces: every format becomes a :class:`corral.sim.workload.Workload`."""
