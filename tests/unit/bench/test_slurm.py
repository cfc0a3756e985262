from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path

import pytest

from bench import slurm
from bench.processes import carriers
from bench.slurm import PACKAGES, Slurm, SlurmFailed, SlurmUnavailable
from bench.slurm_config import TUNED, Shape
from tests import needs
from tests.waiting import wait_until


def names(pids: Iterable[int]) -> set[str]:
    found = set()
    for pid in pids:
        with contextlib.suppress(OSError):
            found.add(Path(f"/proc/{pid}/comm").read_text().strip())
    return found


@pytest.fixture
def installed() -> None:
    needs.root()
    for name, package in PACKAGES.items():
        needs.program(name, package=package)


def test_missing_programs_are_named_by_their_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurm, "SYSTEM_PATH", str(tmp_path))
    assert slurm.missing_packages() == ["munge", "slurm-client", "slurmctld", "slurmd"]
    with pytest.raises(
        SlurmUnavailable, match=r"apt-get install .*slurm-wlm-basic-plugins munge slurm-client"
    ) as error:
        slurm.require()
    assert "\n" not in str(error.value)


# Slurm's step daemons listen in unix sockets below the directory: its path has to be short.
@pytest.mark.usefixtures("installed")
def test_a_cluster_runs_jobs_on_numbered_gpus_and_is_gone_after_the_block(state_dir: Path) -> None:
    with Slurm(Shape(nodes=2, gpus_per_node=2, extra=TUNED), directory=state_dir) as cluster:
        seen = cluster.run(
            ["srun", "--nodes=2", "--gres=gpu:2", "sh", "-c", "echo $SLURMD_NODENAME $CUDA_VISIBLE_DEVICES"]
        )
        assert sorted(seen.split("\n"))[1:] == ["n1 0,1", "n2 0,1"]
        cluster.run(["sbatch", "--gres=gpu:1", "--output=/dev/null", "--wrap=sleep 1000 & wait"])
        wait_until(lambda: "sleep" in names(carriers(cluster.directory)), 60, what="the job's process")
        assert cluster.unfinished() == 1
    assert carriers(cluster.directory) == []
    assert list(state_dir.iterdir()) == []


@pytest.mark.usefixtures("installed")
def test_a_cluster_that_does_not_come_up_says_why_and_leaves_nothing(state_dir: Path) -> None:
    cluster = Slurm(Shape(nodes=1, extra={"SelectType": "select/no_such_thing"}), directory=state_dir)
    with pytest.raises(SlurmFailed, match=r"(slurmctld|slurmd-n1) ended with 1: .*no_such_thing"):
        cluster.__enter__()
    assert carriers(cluster.directory) == []
    assert list(state_dir.iterdir()) == []
