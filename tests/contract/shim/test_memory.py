"""The memory limit: the kernel's, and by watching."""

from __future__ import annotations

import re
import signal
import sys
from typing import Any

import pytest

from corral.agent.cgroup import probe
from tests import needs
from tests.contract.shim.shimworld import ShimWorld, log_of

EATER = (
    "import time\nx = []\nwhile True:\n    x.append(b'x' * (8 << 20)); print(len(x), flush=True); time.sleep(0.01)\n"
)


def memory_group(world: ShimWorld, number: int = 0) -> dict[str, Any]:
    needs.root()
    support = probe()
    if "memory" not in support.controllers:
        needs.unmet(f"needs a memory cgroup: {support.missing['memory']}")
    name = f"{number}.0.0.1"
    group = support.for_task(name, str(world.directory / "tasks" / name), memory=True)
    assert group is not None
    return group


def test_the_kernel_holds_the_limit(world: ShimWorld) -> None:
    handle = world.python(code=EATER, memory_mib=64, cgroup=memory_group(world))
    status = world.end(handle)
    assert (status["cause"], status["signal"]) == ("memory", signal.SIGKILL)
    message = "out of memory: the task reached its limit of 64 MiB (peak use 6[0-4] MiB); ask for more with --memory"
    assert re.fullmatch(message.replace("(", r"\(").replace(")", r"\)"), status["message"]), status["message"]
    assert status["degraded"] == []
    assert int(log_of(handle).splitlines()[-2]) < 8


def test_a_worker_that_the_kernel_kills_is_told_as_memory(world: ShimWorld) -> None:
    script = f'{sys.executable} -S -c "$EATER"; exit 3'
    status = world.run(script=script, env={"EATER": EATER}, memory_mib=64, cgroup=memory_group(world))
    assert status["cause"] == "memory"


def test_a_survivor_of_the_kernels_choice_does_not_hang_on(world: ShimWorld) -> None:
    script = f"trap 'exit 4' TERM; {sys.executable} -S -c \"$EATER\"; sleep 600 & wait"
    status = world.run(script=script, env={"EATER": EATER}, memory_mib=64, cgroup=memory_group(world), grace_s=20)
    assert (status["cause"], status["exit_code"]) == ("memory", 4)


def test_within_the_limit_nothing_happens(world: ShimWorld) -> None:
    handle = world.python(code="x = b'x' * (20 << 20)", memory_mib=64, cgroup=memory_group(world))
    assert world.end(handle)["exit_code"] == 0


def test_watching_holds_the_limit_too(world: ShimWorld) -> None:
    script = f'{sys.executable} -S -c "$EATER" & wait'
    status = world.run(script=script, env={"EATER": EATER}, memory_mib=100)
    assert status["cause"] == "memory"
    used = float(status["message"].split("used ")[1].split(" MiB")[0])
    assert used > 100
    assert status["message"].endswith("its limit is 100 MiB; ask for more with --memory")
    assert status["max_rss_mib"] >= used - 1


def test_watching_counts_shared_pages_once(world: ShimWorld) -> None:
    # Four processes that share 60 MiB: 240 MiB when added up, and well below the limit in truth.
    code = """
import os, time
x = b"x" * (60 << 20)
children = []
for _ in range(3):
    children.append(os.fork())
    if children[-1] == 0:
        time.sleep(2.5)
        os._exit(0)
for child in children:
    os.waitpid(child, 0)
"""
    status = world.end(world.python(code=code, memory_mib=150))
    assert (status["cause"], status["exit_code"]) == ("exited", 0)
    assert status["max_rss_mib"] > 150


@pytest.mark.parametrize("broken", ["/no/such/place", "/proc"])
def test_a_group_that_cannot_be_made_is_replaced_by_watching(world: ShimWorld, broken: str) -> None:
    group = {"name": "corral-x", "memory": [1, broken]}
    status = world.end(world.python(code=EATER, memory_mib=60, cgroup=group))
    assert status["cause"] == "memory"
    assert status["degraded"][0].startswith("no memory cgroup")
