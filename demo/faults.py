"""The demo's two accidents: a device fails, a node dies with everything that runs on it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from pathlib import Path

from corral.devices.simulated import edit_state


def fail_device(state_dir: Path, node: str, uuid: str) -> None:
    """Let a simulated device fail."""
    edit_state(state_dir / "nodes" / node / "devices.json", uuid, vanished=True)


def _alive(pid: int, start_ticks: int | None) -> bool:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return False
    return fields[0] != "Z" and start_ticks in (None, int(fields[19]))


def _kill(pid: int, start_ticks: int | None) -> int:
    if not _alive(pid, start_ticks):
        return 0
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
        return 1
    return 0


def kill_node(state_dir: Path, node: str) -> int:
    """SIGKILL a node's agent, all its shims and all their tasks; return how many processes died."""
    home = state_dir / "nodes" / node
    agent = json.loads((home / "agent.pid").read_text())
    killed = _kill(agent["pid"], agent["start_ticks"])
    for place in sorted(home.glob("tasks/*/shim.json")):
        if (place.parent / "status.json").exists():
            continue
        with contextlib.suppress(OSError, ValueError):
            shim = json.loads(place.read_text())
            killed += _kill(shim["pid"], shim["start_ticks"])
            if shim.get("child_pid"):
                killed += _kill(shim["child_pid"], shim.get("child_start_ticks"))
    return killed
