"""Slurm's allocation as it is read, and the batch script that joins."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

import pytest

from corral.runtime.machines.allocation import Allocation, allocation, pilot_state_dir
from corral.runtime.machines.pilot import pilot_script
from tests.needs import program
from tests.waiting import wait_until

INSIDE = {"SLURM_JOB_ID": "12", "SLURMD_NODENAME": "n1"}


@pytest.mark.parametrize("environment", [{}, {"SLURM_JOB_ID": "12"}, {"SLURMD_NODENAME": "n1"}])
def test_a_login_node_is_in_no_allocation(environment: dict[str, str]) -> None:
    assert allocation(environment) is None


@pytest.mark.parametrize(
    "said, expected",
    [
        ({}, {"devices": ()}),
        (
            {"SLURM_CPUS_ON_NODE": "3", "SLURM_MEM_PER_NODE": "6000", "CUDA_VISIBLE_DEVICES": "0,3"},
            {"cpus_milli": 3000, "memory_mib": 6000, "devices": ("0", "3")},
        ),
        (
            {"SLURM_CPUS_ON_NODE": "4", "SLURM_MEM_PER_CPU": "1000", "SLURM_JOB_GPUS": "1"},
            {"cpus_milli": 4000, "memory_mib": 4000, "devices": ("1",)},
        ),
        # All memory of the node; no devices.
        ({"SLURM_MEM_PER_NODE": "0", "CUDA_VISIBLE_DEVICES": "NoDevFiles"}, {"devices": ()}),
        ({"CUDA_VISIBLE_DEVICES": "GPU-1,GPU-2", "SLURM_JOB_GPUS": "0"}, {"devices": ("GPU-1", "GPU-2")}),
    ],
)
def test_what_slurm_gave_is_read(said: dict[str, str], expected: dict[str, object]) -> None:
    assert allocation(INSIDE | said) == Allocation(job="12", node="n1", **expected)  # type: ignore[arg-type]


def test_every_pilot_has_a_directory_of_its_own_on_its_machine() -> None:
    places = {pilot_state_dir(Allocation(job=job, node=node)) for job in ("1", "2") for node in ("n1", "n2")}
    assert len(places) == 4
    assert pilot_state_dir(Allocation(job="1", node="n1")) == Path(tempfile.gettempdir(), f"corral-{os.getuid()}-1-n1")


def test_the_script_is_shell_and_quotes_what_it_is_given() -> None:
    script = pilot_script(["/opt/my env/bin/python", "-m", "corral"], ["10.0.0.1", "--simulated", "$(reboot)"], 60.0)
    assert subprocess.run([program("bash"), "-n"], input=script, text=True, check=False).returncode == 0
    assert "join 10.0.0.1 --simulated '$(reboot)' --block --drain-timeout 60s &" in script
    assert script.splitlines()[0] == "#!/bin/bash"
    assert [line for line in script.splitlines() if line.startswith("#SBATCH")] == [
        "#SBATCH --job-name=corral",
        "#SBATCH --ntasks-per-node=1",
        "#SBATCH --signal=B:TERM@120",
    ]


def test_the_script_runs_one_join_on_every_node_and_leaves_on_term(tmp_path: Path) -> None:
    """Run it with a stand-in for srun that tells what it was given; the join goes on until the pilot is told to end."""
    srun = tmp_path / "srun"
    srun.write_text(
        '#!/bin/sh\necho "$@" >>"$LOG"\n'
        'case "$*" in *leave*) touch "$LOG.left";; *join*) until [ -e "$LOG.left" ]; do sleep 0.05; done;; esac\n'
    )
    srun.chmod(0o755)
    log = tmp_path / "log"
    script = pilot_script(["a corral"], ["10.0.0.1"], 299.5)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "LOG": str(log), "SLURM_CPUS_ON_NODE": "8"}
    pilot = subprocess.Popen([program("bash"), "-c", script], env=environment)
    try:
        wait_until(log.exists, 20.0, what="the join to start")
        pilot.terminate()
        assert pilot.wait(20.0) == 0
    finally:
        pilot.kill()
        pilot.wait()
    common = "--overlap --ntasks-per-node=1 --cpus-per-task=8 --cpu-bind=none --kill-on-bad-exit=0 a corral"
    assert log.read_text().splitlines() == [
        f"{common} join 10.0.0.1 --block --drain-timeout 300s",
        f"{common} leave --drain-timeout 300s",
    ]
