"""Settings of the controller's core. Times in seconds."""

from __future__ import annotations

import msgspec

from corral.policy.config import SchedulingConfig


class ControlConfig(msgspec.Struct, frozen=True):
    """Constants of control. They come from the pool's settings, never from the environment of this room.

    Ports are given out from ``port_start`` on (``None``: from the first): one that begins somewhere else in each term
    gives no port to a task that somebody may still think to be another's. Without ``fill`` only the awards of global
    rounds start gangs.
    """

    scheduling: SchedulingConfig = SchedulingConfig()
    node_silent_s: float = 5.0
    node_lost_s: float = 10.0
    master_silent_s: float = 2.0
    port_first: int = 20_000
    port_last: int = 29_999
    port_start: int | None = None
    grace_default_s: float = 10.0
    jobs_max: int = 100_000
    leases: bool = False
    fill: bool = True
