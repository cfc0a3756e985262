"""Limits of both cgroup versions, read from trees as real machines have them."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from corral.devices.cpu import cpus_milli, incarnation, memory_total_mib, node_facts

GIB = 1 << 30


class Machine:
    """A root directory with the files of /proc and /sys that are read."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.write("proc/meminfo", "MemTotal:       65951996 kB\nMemFree:        1000 kB\n")
        self.write("proc/self/cgroup", "0::/\n")
        self.write("proc/sys/kernel/random/boot_id", "c5f2e723-7e1b-43e4-ab9f-4aeadf5d3a4d\n")
        (root / "proc/self/ns").mkdir(parents=True)
        (root / "proc/self/ns/pid").symlink_to("pid:[4026531836]")

    def write(self, path: str, text: str) -> None:
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_without_limits_everything_counts(machine: Machine) -> None:
    assert cpus_milli(machine.root, affinity=64) == 64_000
    assert memory_total_mib(machine.root) == 65951996 // 1024


def test_the_smallest_limit_of_all_ancestors_counts_in_version_2(machine: Machine) -> None:
    machine.write("proc/self/cgroup", "0::/kubepods/pod7/box\n")
    machine.write("sys/fs/cgroup/kubepods/pod7/box/cpu.max", "max 100000\n")
    machine.write("sys/fs/cgroup/kubepods/pod7/box/memory.max", "max\n")
    machine.write("sys/fs/cgroup/kubepods/pod7/cpu.max", "250000 100000\n")
    machine.write("sys/fs/cgroup/kubepods/pod7/memory.max", f"{3 * GIB}\n")
    machine.write("sys/fs/cgroup/kubepods/cpu.max", "800000 100000\n")
    machine.write("sys/fs/cgroup/kubepods/memory.max", f"{8 * GIB}\n")
    assert cpus_milli(machine.root, affinity=64) == 2500
    assert memory_total_mib(machine.root) == 3072


def test_a_container_that_sees_the_hosts_path_reads_its_own_mount(machine: Machine) -> None:
    machine.write("proc/self/cgroup", "0::/system.slice/docker-1234.scope\n")
    machine.write("sys/fs/cgroup/cpu.max", "50000 100000\n")
    machine.write("sys/fs/cgroup/memory.max", f"{512 << 20}\n")
    assert cpus_milli(machine.root, affinity=8) == 500
    assert memory_total_mib(machine.root) == 512


@pytest.mark.parametrize("mount", ["cpu,cpuacct", "cpu"])
def test_limits_of_version_1(machine: Machine, mount: str) -> None:
    machine.write("proc/self/cgroup", "5:memory:/slurm/job_7\n4:cpu,cpuacct:/slurm/job_7\n1:name=systemd:/x\n0::/x\n")
    machine.write(f"sys/fs/cgroup/{mount}/slurm/job_7/cpu.cfs_quota_us", "400000\n")
    machine.write(f"sys/fs/cgroup/{mount}/slurm/job_7/cpu.cfs_period_us", "100000\n")
    machine.write(f"sys/fs/cgroup/{mount}/cpu.cfs_quota_us", "-1\n")
    machine.write(f"sys/fs/cgroup/{mount}/cpu.cfs_period_us", "100000\n")
    machine.write("sys/fs/cgroup/memory/slurm/job_7/memory.limit_in_bytes", f"{16 * GIB}\n")
    machine.write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n")
    assert cpus_milli(machine.root, affinity=64) == 4000
    assert memory_total_mib(machine.root) == 16 * 1024


def test_the_affinity_counts_when_it_is_smaller_than_the_quota(machine: Machine) -> None:
    machine.write("sys/fs/cgroup/cpu.max", "800000 100000\n")
    assert cpus_milli(machine.root, affinity=3) == 3000


def test_a_limit_larger_than_the_machine_is_none(machine: Machine) -> None:
    machine.write("sys/fs/cgroup/memory.max", f"{1 << 42}\n")
    assert memory_total_mib(machine.root) == 65951996 // 1024


def test_the_incarnation_names_the_boot_and_the_pid_namespace(machine: Machine) -> None:
    before = incarnation(machine.root)
    assert before == "c5f2e723-7e1b-43e4-ab9f-4aeadf5d3a4d.4026531836"
    machine.write("proc/sys/kernel/random/boot_id", "0b6a8b2f-0000-4000-8000-000000000000\n")
    rebooted = incarnation(machine.root)
    (machine.root / "proc/self/ns/pid").unlink()
    (machine.root / "proc/self/ns/pid").symlink_to("pid:[4026532999]")
    assert len({before, rebooted, incarnation(machine.root)}) == 3


def test_a_kernel_that_tells_nothing_is_unknown(tmp_path: Path) -> None:
    assert incarnation(tmp_path) == "unknown"
    assert cpus_milli(tmp_path, affinity=2) == 2000


def test_this_machine() -> None:
    facts = node_facts()
    assert facts.hostname == socket.gethostname()
    assert 0 < facts.cpus_milli <= len(os.sched_getaffinity(0)) * 1000
    total_kib = int(Path("/proc/meminfo").read_text().split("MemTotal:")[1].split()[0])
    assert 0 < facts.memory_mib <= total_kib // 1024
    assert facts.incarnation.startswith(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
    assert node_facts() == facts
