"""The environment of Ray's processes, and of whoever connects to them. Standard library only."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from corral.runtime.paths import StatePaths

RECONNECT_S = 86_400
"""How long raylets and workers bear that the GCS is away before they give up: a day."""

NODE_LABEL = "corral/node"
"""The label by which a raylet tells whose node it is."""

STATE_DIR_VARIABLE = "CORRAL_STATE_DIR"
"""Where a relay finds what belongs to its machine: workers inherit the environment of their raylet."""

SECRETS = ("CORRAL_JOIN_TOKEN", "CORRAL_STORE", "CORRAL_TOKEN", "RAY_AUTH_TOKEN")
STUBS = Path(__file__).with_name("stub")


def ray_environment(paths: StatePaths, inherited: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment for ``ray start`` and for drivers. Secrets are named by path only.

    What was inherited of Ray's own variables is left out: it is meant for another cluster.
    """
    base = os.environ if inherited is None else inherited
    env = {name: value for name, value in base.items() if not name.startswith("RAY_") and name not in SECRETS}
    python_path = env.get("PYTHONPATH")
    env["PYTHONPATH"] = f"{STUBS}{os.pathsep}{python_path}" if python_path else str(STUBS)
    return env | {
        STATE_DIR_VARIABLE: str(paths.root),
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(paths.ray_token),
        "RAY_gcs_rpc_server_reconnect_timeout_s": str(RECONNECT_S),
        "RAY_gcs_storage": "rocksdb",
        "RAY_gcs_storage_path": str(paths.gcs_store),
        # Ray is not to kill a relay because tasks, which it does not know, need the memory.
        "RAY_memory_monitor_refresh_ms": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
        # Relays have nothing to bring to an end.
        "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0",
    }
