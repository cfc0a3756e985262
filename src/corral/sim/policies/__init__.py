"""The policies that a simulation can follow: the production one, and baselines to compare it with.

A baseline is a :class:`corral.ports.solver.Solver`. The production fill between rounds is off for it, and so is the
tenure, which none of the published policies knows.
"""
