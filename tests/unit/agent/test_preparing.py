from __future__ import annotations

import os
import signal
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from corral.agent import taskdir
from corral.agent.affinity import CpuChooser
from corral.agent.cgroup import CgroupSupport, Controller
from corral.agent.config import AgentConfig
from corral.agent.depot import Depot
from corral.agent.ports import port_is_free
from corral.agent.preparing import PreparationFailed, Preparer
from corral.agent.shim.lease import read_deadline
from corral.agent.shim.spec import TaskSpec, parse
from corral.agent.travelling import Travelling
from corral.model.files import JobFiles
from corral.model.job import CheckpointSpec
from corral.model.resources import Placement
from tests import needs
from tests.unit.agent.words import NODE, key, launch


@pytest.fixture
def config(tmp_path: Path) -> AgentConfig:
    made = AgentConfig(
        node=NODE,
        state_dir=str(tmp_path),
        engine_socket="/e",
        fork_socket="/f",
        notify_socket="/run/n.sock",
        cpus_milli=8000,
        memory_mib=65536,
        log_max_bytes=1000,
        log_files=7,
    )
    made.tasks_dir.mkdir(parents=True)
    return made


def prepare(preparer: Preparer, deadline: float | None = None, **changes: Any) -> TaskSpec:
    prepared = preparer.prepare(launch(key(12, 3, 1), 5, **changes), deadline)
    return parse(Path(prepared.directory, "spec.json").read_bytes())


def simulated(config: AgentConfig) -> Preparer:
    return Preparer(config, None, None, {"PATH": "/bin", "LD_PRELOAD": "evil", "SECRET": "s"})


def test_the_shim_understands_what_is_written(config: AgentConfig) -> None:
    spec = prepare(simulated(config), argv=("python", "train.py"), workdir="/", max_duration_s=60.0)
    assert (spec.task, spec.incarnation, spec.argv, spec.script) == ("12.3.1", 5, ("python", "train.py"), None)
    assert (spec.cwd, spec.max_duration_s, spec.grace_s) == ("/", 60.0, 5.0)
    assert (spec.log_max_bytes, spec.log_files, spec.notify) == (1000, 7, "/run/n.sock")
    assert (spec.memory_mib, spec.cgroup, spec.cpus, spec.lease) == (256, None, None, None)
    assert spec.env["CORRAL_TASK"] == "12.3.1.5"
    assert spec.env["CORRAL_TASK_DIR"] == str(config.tasks_dir / "12.3.1.5")
    assert spec.env["PATH"] == "/bin"
    assert not {"SECRET", "LD_PRELOAD"} & set(spec.env)
    assert Path(spec.env["CORRAL_CHECKPOINT_DIR"]).is_dir()
    assert Path(spec.env["CORRAL_OUTPUT_DIR"]).is_dir()


def test_the_shim_learns_how_long_a_checkpoint_takes(config: AgentConfig) -> None:
    asked = prepare(simulated(config), checkpoint=CheckpointSpec("USR1", 45.0))
    assert (asked.checkpoint_signal, asked.checkpoint_grace_s) == (signal.SIGUSR1, 45.0)


def test_a_script_runs_where_the_output_goes_unless_told(config: AgentConfig) -> None:
    spec = prepare(simulated(config), argv=(), script="echo hi")
    assert (spec.argv, spec.script) == (None, "echo hi")
    assert spec.cwd == f"{config.state_dir}/jobs/12/output"
    assert Path(spec.cwd).is_dir()


def test_mounts_make_a_working_directory_of_the_task_s_own(config: AgentConfig, tmp_path: Path) -> None:
    (tmp_path / "user").mkdir()
    (tmp_path / "user" / "main.py").write_text("main")
    spec = prepare(simulated(config), workdir=str(tmp_path / "user"), file_mounts={"in/passwd": "/etc/passwd"})
    assert spec.cwd == str(config.tasks_dir / "12.3.1.5" / "work")
    assert (Path(spec.cwd) / "main.py").read_text() == "main"
    assert (Path(spec.cwd) / "in" / "passwd").read_text() == Path("/etc/passwd").read_text()


def test_the_same_setup_has_the_same_marker(config: AgentConfig) -> None:
    preparer = simulated(config)

    def marker(job: int, **changes: Any) -> str:
        prepared = preparer.prepare(launch(key(job), **changes), None)
        setup = parse(Path(prepared.directory, "spec.json").read_bytes()).setup
        assert setup is not None
        assert Path(setup.marker).parent == config.node_dir / "setups"
        return setup.marker

    first = marker(1, setup="pip install x", workdir="/tmp")
    assert marker(2, setup="pip install x", workdir="/tmp") == first
    others = {marker(3, setup="pip install y", workdir="/tmp"), marker(4, setup="pip install x", workdir="/")}
    assert len(others | {first}) == 3


def test_an_exclusive_task_has_its_lease_before_it_starts(config: AgentConfig) -> None:
    checkpoint = CheckpointSpec("USR2", grace_s=30.0)
    spec = prepare(simulated(config), 1234.5, lease_s=90.0, checkpoint=checkpoint)
    assert spec.lease is not None
    assert read_deadline(spec.lease.path) == 1234.5
    assert (spec.lease.checkpoint_before_s, spec.lease.freeze_max_s) == (40.0, 3600.0)
    assert spec.checkpoint_signal == 12


def test_real_nodes_bind_cpus_where_no_group_limits_them(config: AgentConfig) -> None:
    nothing = Preparer(config, CgroupSupport({}, {}), CpuChooser(range(4)), {})
    prepared = nothing.prepare(launch(key(1), placement=Placement(0, NODE, (), 2000, 0)), None)
    spec = parse(Path(prepared.directory, "spec.json").read_bytes())
    assert spec.cpus == prepared.cpus == (0, 1)
    assert (spec.cgroup, spec.memory_mib) == (None, None)
    nothing.give_back(prepared.cpus, 2000)
    again = nothing.prepare(launch(key(2), placement=Placement(0, NODE, (), 3000, 0)), None)
    assert again.cpus == (0, 1, 2)


def test_real_nodes_ask_for_groups_where_there_are_some(config: AgentConfig) -> None:
    support = CgroupSupport({"cpu": Controller(2, "/cg"), "memory": Controller(2, "/cg")}, {})
    preparer = Preparer(config, support, CpuChooser(range(4)), {})
    prepared = preparer.prepare(launch(key(1), placement=Placement(0, NODE, (), 1500, 512)), None)
    spec = parse(Path(prepared.directory, "spec.json").read_bytes())
    assert spec.cgroup is not None
    assert (spec.cgroup["cpu"], spec.cgroup["memory"]) == ([2, "/cg"], [2, "/cg"])
    assert (spec.cgroup["cpu_limit_milli"], spec.memory_mib, spec.cpus) == (1500, 512, None)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"workdir": "relative"}, "is not an absolute path"),
        ({"file_mounts": {"x": "/no/such"}}, "/no/such"),
        ({"file_mounts": {"../x": "/etc"}}, "is not a relative path"),
        ({"argv": ("\udcff",)}, "cannot be written down"),
    ],
)
def test_what_cannot_be_prepared_says_why(config: AgentConfig, changes: dict[str, Any], message: str) -> None:
    chooser = CpuChooser(range(4))
    preparer = Preparer(config, CgroupSupport({}, {}), chooser, {})
    with pytest.raises(PreparationFailed, match=message):
        preparer.prepare(launch(key(1), placement=Placement(0, NODE, (), 1000, 0), **changes), None)
    assert chooser.take(1000) == (0,), "its CPUs are free again"


def test_a_directory_is_prepared_once(config: AgentConfig) -> None:
    simulated(config).prepare(launch(key(1)), None)
    with pytest.raises(PreparationFailed, match="File exists"):
        simulated(config).prepare(launch(key(1)), None)


def test_a_full_or_read_only_disk_is_named(config: AgentConfig) -> None:
    needs.not_root()
    config.tasks_dir.chmod(0o500)
    with pytest.raises(PreparationFailed, match="Permission denied"):
        simulated(config).prepare(launch(key(1)), None)
    config.tasks_dir.chmod(0o700)


def test_a_busy_rendezvous_port_fails_the_launch(config: AgentConfig) -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        assert not port_is_free(port)
        with pytest.raises(PreparationFailed, match=f"port {port} is busy"):
            simulated(config).prepare(launch(key(1), master_port=port), None)
        # Only rank 0 listens there.
        simulated(config).prepare(launch(key(1, 0, 1), master_port=port), None)
    assert port_is_free(port)
    simulated(config).prepare(launch(key(1), master_port=port), None)


def test_a_directory_that_nobody_forked_can_be_closed(tmp_path: Path) -> None:
    assert taskdir.forbid_fork(tmp_path)
    assert not taskdir.forbid_fork(tmp_path)
    assert os.listdir(tmp_path) == ["forked"]  # noqa: PTH208 - names are all that is wanted


def test_of_a_task_whose_files_do_not_come_nothing_large_is_left(config: AgentConfig) -> None:
    def fetch(names: Sequence[str]) -> list[bytes | None]:
        return [None for _ in names]

    travelling = Travelling(config, Depot(config.node_dir / "cache", 1 << 20, fetch))
    preparer = Preparer(config, None, None, {"PATH": "/bin"}, travelling)
    assert preparer.slow(launch(key(12), files=JobFiles("ab" * 32)))
    assert not preparer.slow(launch(key(12), workdir="/"))
    with pytest.raises(PreparationFailed, match="submit the job again"):
        prepare(preparer, files=JobFiles("ab" * 32))
    assert {path.name for path in (config.tasks_dir / "12.3.1.5").iterdir()} == set()
