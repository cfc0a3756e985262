"""Protocols through which the core reaches the world: Clock, Store, Engine, DeviceProbe and others."""
