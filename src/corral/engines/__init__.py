"""Engines carry commands to nodes and reports back; no engine knows another."""
