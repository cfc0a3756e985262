"""The engine of many machines: agents reach the controller's socket through relays, Ray and a bridge.

    agent - unix socket - relay (an actor on its machine) - Ray - bridge (beside the controller) - unix socket - engine

Relay and bridge carry bytes: one tunnel per connection of an agent. What frames mean is for the two ends to know.
"""

from __future__ import annotations

from corral.engines.ray.engine import RayEngine as RayEngine

__all__ = ["RayEngine"]
