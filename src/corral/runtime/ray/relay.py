"""The relay's entry point: what a worker of Ray calls to make the relay of its machine."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from corral.agent.nodefiles import NodeFiles
from corral.engines.ray.relay import Relay
from corral.runtime.paths import StatePaths
from corral.runtime.ray.environment import STATE_DIR_VARIABLE


def make_relay(on_replaced: Callable[[], None]) -> Relay:
    """Return the relay of this machine: its raylet was started with the state directory in its environment."""
    paths = StatePaths(Path(os.environ[STATE_DIR_VARIABLE]))
    return Relay(paths.engine_socket, paths.nodes, NodeFiles(), on_replaced)
