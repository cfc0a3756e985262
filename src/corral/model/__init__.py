"""Frozen types, ids, events, commands, transitions and the error tree."""
