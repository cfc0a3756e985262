"""Control groups of this machine, as far as it lets us."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from corral.agent.cgroup import CgroupSupport, Controller, _directory, _upwards, probe
from corral.agent.shim.task_cgroup import TaskCgroup, remove_group
from tests import needs
from tests.waiting import wait_until

V2 = CgroupSupport({role: Controller(2, "/sys/fs/cgroup/unit") for role in ("memory", "cpu", "freezer")}, {})


@pytest.fixture
def support() -> CgroupSupport:
    needs.root()
    return probe()


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "600"])
    yield process
    process.kill()
    process.wait()


def wanted(support: CgroupSupport, role: str, **limits: Any) -> dict[str, Any]:
    if role not in support.controllers:
        needs.unmet(f"needs a {role} cgroup: {support.missing[role]}")
    ask = {"memory": role == "memory", "freezer": role == "freezer", **limits}
    made = support.for_task("9.0.0.1", f"/test/{os.getpid()}", **ask)
    assert made is not None
    return made


def place(made: dict[str, Any], role: str) -> Path:
    return Path(made[role][1]) / made["name"]


def test_probing_leaves_nothing_behind(support: CgroupSupport) -> None:
    for controller in support.controllers.values():
        assert list(Path(controller.parent).glob("corral-probe-*")) == []
    assert set(support.controllers) | set(support.missing) == {"memory", "cpu", "freezer"}
    assert not set(support.controllers) & set(support.missing)


def test_groups_are_made_below_our_own(support: CgroupSupport) -> None:
    own = [line.split(":", 2)[2] for line in Path("/proc/self/cgroup").read_text().splitlines()]
    for controller in support.controllers.values():
        if controller.version == 1:
            assert any(controller.parent.endswith(group.rstrip("/")) for group in own)


def test_a_task_asks_for_what_it_needs() -> None:
    made = V2.for_task("1.0.0.2", "/pool/a/tasks/1.0.0.2", memory=True)
    assert made is not None
    assert made["memory"] == [2, "/sys/fs/cgroup/unit"]
    assert "freezer" not in made
    assert "cpu" not in made
    assert made["name"].startswith("corral-1.0.0.2-")
    other = V2.for_task("1.0.0.2", "/pool/b/tasks/1.0.0.2", memory=True)
    assert other is not None
    assert other["name"] != made["name"]
    assert V2.for_task("1.0.0.2", "/x") is None
    assert CgroupSupport({}, {"memory": "no"}).for_task("1.0.0.2", "/x", memory=True) is None


def test_support_is_described_for_people() -> None:
    mixed = CgroupSupport({"memory": Controller(1, "/m"), "freezer": Controller(2, "/f")}, {"cpu": "not mounted"})
    assert mixed.describe() == "freezer (v2), memory (v1); no cpu: not mounted"


def test_a_container_may_have_mounted_its_own_part() -> None:
    assert _directory(("/sys/fs/cgroup", "/"), "/a/b") == "/sys/fs/cgroup/a/b"
    assert _directory(("/sys/fs/cgroup", "/"), "/") == "/sys/fs/cgroup"
    assert _directory(("/sys/fs/cgroup/memory", "/docker/x"), "/docker/x") == "/sys/fs/cgroup/memory"
    assert _directory(("/sys/fs/cgroup/memory", "/docker/x"), "/docker/x/y") == "/sys/fs/cgroup/memory/y"
    assert _upwards("/sys/fs/cgroup/a/b", "/sys/fs/cgroup") == [
        "/sys/fs/cgroup/a/b", "/sys/fs/cgroup/a", "/sys/fs/cgroup"
    ]  # fmt: skip


def test_a_memory_limit_is_set(support: CgroupSupport) -> None:
    made = wanted(support, "memory")
    group = TaskCgroup.create(made, 64)
    assert group.warnings == []
    name = "memory.max" if made["memory"][0] == 2 else "memory.limit_in_bytes"
    assert (place(made, "memory") / name).read_text().strip() == str(64 << 20)
    assert (group.oom_kills(), group.anonymous_mib()) == (0, 0.0)
    assert group.remove() == []
    assert not place(made, "memory").exists()


def test_cpu_weight_and_limit_are_set(support: CgroupSupport) -> None:
    made = wanted(support, "cpu", cpu_weight_milli=2000, cpu_limit_milli=1500)
    group = TaskCgroup.create(made, None)
    assert group.warnings == []
    path = place(made, "cpu")
    if made["cpu"][0] == 1:
        assert (path / "cpu.shares").read_text().strip() == "2048"
        assert (path / "cpu.cfs_quota_us").read_text().strip() == "150000"
    else:
        # 1 + (2048 - 2) * 9999 / 262142, rounded down.
        assert (path / "cpu.weight").read_text().strip() == "79"
        assert (path / "cpu.max").read_text().strip() == "150000 100000"
    assert group.remove() == []


def versions(support: CgroupSupport) -> list[Controller]:
    """Return the freezer of either version, where there is one."""
    found = [support.controllers["freezer"]]
    if found[0].version == 2 and Path("/sys/fs/cgroup/freezer/cgroup.procs").exists():
        found.append(Controller(1, "/sys/fs/cgroup/freezer"))
    return found


def check_freezer(controller: Controller) -> None:
    process = subprocess.Popen(["bash", "-c", "while :; do sleep 0.01; done"])
    made = {"name": f"corral-test-{os.getpid()}", "freezer": list(controller)}
    group = TaskCgroup.create(made, None)
    assert group.warnings == []
    (place(made, "freezer") / "cgroup.procs").write_text(str(process.pid))
    assert process.pid in group.pids()
    assert not group.is_frozen()
    assert group.freeze()
    assert group.is_frozen()
    group.thaw()
    wait_until(lambda: not group.is_frozen())
    assert group.freeze()
    group.kill()
    assert process.wait(20) == -9
    wait_until(lambda: group.pids() == set())
    assert group.remove() == []
    assert not place(made, "freezer").exists()


def test_freezing_thawing_and_killing(support: CgroupSupport, sleeper: subprocess.Popen[bytes]) -> None:
    wanted(support, "freezer")
    for controller in versions(support):
        check_freezer(controller)
    assert sleeper.poll() is None


def test_removing_kills_who_is_still_inside(support: CgroupSupport, sleeper: subprocess.Popen[bytes]) -> None:
    made = wanted(support, "freezer")
    TaskCgroup.create(made, None)
    (place(made, "freezer") / "cgroup.procs").write_text(str(sleeper.pid))
    assert TaskCgroup.existing(made).remove() == []
    assert sleeper.wait(20) == -9


@pytest.mark.parametrize("alone", [True, False])
def test_room_is_made_only_where_nobody_else_is(
    support: CgroupSupport, sleeper: subprocess.Popen[bytes], *, alone: bool
) -> None:
    if support.controllers.get("freezer", Controller(1, "")).version != 2:
        needs.unmet("needs a cgroup file system of version 2 that can be written")
    group = Path(support.controllers["freezer"].parent) / f"corral-room-{os.getpid()}-{int(alone)}"
    group.mkdir()
    if not alone:
        (group / "cgroup.procs").write_text(str(sleeper.pid))
    code = (
        "import sys; from pathlib import Path; from corral.agent.cgroup import probe\n"
        "Path(sys.argv[1], 'cgroup.procs').write_text('0')\n"
        "print(probe(make_room=True).controllers['freezer'].parent)\n"
        "print([line for line in Path('/proc/self/cgroup').read_text().splitlines() if line.startswith('0::')][0])\n"
    )
    ended = subprocess.run([sys.executable, "-c", code, group], capture_output=True, text=True, timeout=60, check=True)
    parent, own = ended.stdout.splitlines()
    assert parent == str(group)
    assert own.endswith(f"{group.name}/corral-daemon" if alone else group.name)
    sleeper.kill()
    sleeper.wait()
    for path in (group / "corral-daemon", group):
        wait_until(lambda path=path: remove_group(str(path)))  # type: ignore[misc]


def test_groups_that_do_not_exist_do_no_harm() -> None:
    group = TaskCgroup.existing({"name": "corral-none", "memory": [1, "/no/such"], "freezer": [2, "/no/such"]})
    assert group.pids() == set()
    assert not group.freeze()
    assert not group.is_frozen()
    group.thaw()
    group.kill()
    assert (group.oom_kills(), group.remove()) == (0, [])


def test_a_name_cannot_lead_out_of_its_parent() -> None:
    group = TaskCgroup.create({"name": "../../escape", "memory": [1, "/no/such"]}, 64)
    assert group.warnings == ["no memory cgroup: No such file or directory (/no/such/escape)"]
