"""Typed settings and wiring: the one place that builds things."""
