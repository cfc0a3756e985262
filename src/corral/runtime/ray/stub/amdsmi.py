# ruff: noqa: INP001 -- no package: a folder for PYTHONPATH
"""Stands before AMD's ``amdsmi`` on the module path of Ray's processes: corral finds devices, Ray is not to look.

Ray takes what it misses here for "not installed". The real one ends the import of Ray with a ``KeyError`` on machines
that have the wheel, but not AMD's library.
"""
