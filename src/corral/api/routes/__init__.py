"""Routers under ``/v1``: each parses, asks the pool, and answers."""
