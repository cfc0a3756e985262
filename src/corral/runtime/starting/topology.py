"""Which nodes a start makes: those that it is asked for, else those of the last start on the same state directory."""

from __future__ import annotations

import contextlib
from pathlib import Path

from msgspec.structs import replace

from corral.agent.shim.handle import TaskHandle
from corral.model.errors import Conflict, StateUnusable
from corral.runtime.options import REAL_MACHINE, PoolOptions
from corral.runtime.paths import StatePaths
from corral.runtime.poolfile import load_pool

GPUS_PER_NODE = 8


def as_before(paths: StatePaths, options: PoolOptions) -> tuple[PoolOptions, tuple[str, ...]]:
    """Return the options with their nodes settled, and what to tell about it.

    Options that say nothing about nodes take those of the last start, which ``pool.json`` keeps.
    """
    if options.head is None:
        check_alone(paths)
    asked = (options.nodes, options.gpus_per_node, options.simulated)
    if asked == (None, None, None):
        with contextlib.suppress(StateUnusable):
            last = load_pool(paths.pool)
            if last.simulated is not None:
                count = len(last.agents)
                settled = replace(options, nodes=count, gpus_per_node=last.gpus_per_node, simulated=last.simulated)
                gpus = GPUS_PER_NODE if last.gpus_per_node is None else last.gpus_per_node
                what = f"{count} SIMULATED {'node' if count == 1 else 'nodes'} of {gpus} x {last.simulated}"
                return settled, (f"as before: {what}; --simulated none takes the real machine",)
    model = None if options.simulated == REAL_MACHINE else options.simulated
    return replace(options, nodes=options.nodes or 1, simulated=model), ()


def is_node(state_dir: Path) -> bool:
    """Return whether a machine was made a node of another's pool on this state directory."""
    try:
        return load_pool(StatePaths(state_dir.absolute()).pool).role == "node"
    except StateUnusable:
        return False


def check_alone(paths: StatePaths) -> None:
    """Raise ``Conflict`` where the last start on a state directory made the machine part of a pool of several."""
    with contextlib.suppress(StateUnusable):
        role = load_pool(paths.pool).role
        if role == "head":
            raise Conflict(f"{paths.root} is that of a head", hint="`corral head` starts it again")
        if role == "node":
            raise Conflict(
                f"{paths.root} is that of a node of another's pool",
                hint="`corral join` joins again; for a pool of its own choose another directory with --state-dir",
            )


def check_left_tasks(paths: StatePaths, nodes: set[str]) -> None:
    """Raise ``Conflict`` where a task still runs on a node that is not one of ``nodes``."""
    lost = {
        place.name: running
        for place in sorted(paths.nodes.iterdir())
        if place.name not in nodes and (running := running_tasks(paths, place.name))
    }
    if lost:
        count, names = sum(lost.values()), ", ".join(lost)
        raise Conflict(
            f"{count} running {'task' if count == 1 else 'tasks'} of {names} would be lost: "
            "the new pool has no such node",
            hint="plain `corral up` takes the nodes as before; --drop-nodes gives them up and starts their jobs anew",
        )


def counted_tasks(count: int) -> str:
    """Return ``1 task runs``, ``2 tasks run``."""
    return f"{count} {'task runs' if count == 1 else 'tasks run'}"


def running_tasks(paths: StatePaths, node: str) -> int:
    """Return how many tasks of a node have a living shim on this machine."""
    return sum(TaskHandle(task).shim_lives() for task in (paths.nodes / node / "tasks").glob("*/"))
