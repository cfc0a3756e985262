from __future__ import annotations

from pathlib import Path

from bench.slurm_config import TUNED, Endpoint, Shape, gres_conf, node_names, slurm_conf

HERE = Path("/run/bench")
CONTROLLER = Endpoint("desk", "127.0.0.1", 7000)
NODES = [Endpoint("desk", "127.0.0.1", 7001), Endpoint("other", "10.0.0.2", 7002)]
SHAPE = Shape(nodes=2, gpus_per_node=4, gpu_model="a100", cpus_per_node=6, memory_per_node_mib=9_000)


def test_each_node_is_at_its_endpoint_and_has_what_the_shape_says() -> None:
    lines = slurm_conf(HERE, SHAPE, CONTROLLER, NODES).splitlines()
    assert "SlurmctldHost=desk(127.0.0.1)" in lines
    assert "SlurmctldPort=7000" in lines
    claimed = "CPUs=6 Sockets=2 CoresPerSocket=3 ThreadsPerCore=1 RealMemory=9000 Gres=gpu:a100:4"
    assert f"NodeName=n1 NodeHostname=desk NodeAddr=127.0.0.1 Port=7001 {claimed}" in lines
    assert f"NodeName=n2 NodeHostname=other NodeAddr=10.0.0.2 Port=7002 {claimed}" in lines
    assert "PartitionName=main Nodes=n[1-2] Default=YES MaxTime=INFINITE OverSubscribe=NO" in lines


def test_everything_that_slurm_writes_lies_in_the_directory() -> None:
    text = slurm_conf(HERE, SHAPE, CONTROLLER, NODES)
    paths = [line.partition("=")[2].removeprefix("socket=") for line in text.splitlines() if "=/" in line]
    assert len(paths) == 7
    assert all(path.startswith("/run/bench/") for path in paths)


def test_an_odd_number_of_cpus_is_one_socket() -> None:
    lines = slurm_conf(HERE, Shape(nodes=2, cpus_per_node=7), CONTROLLER, NODES)
    assert lines.count("CPUs=7 Sockets=1 CoresPerSocket=7") == 2


def test_extra_settings_are_added_or_replace() -> None:
    extra = {**TUNED, "ReturnToService": "0"}
    lines = slurm_conf(HERE, Shape(nodes=2, extra=extra), CONTROLLER, NODES).splitlines()
    assert "SchedulerParameters=batch_sched_delay=0,sched_min_interval=0" in lines
    assert [line for line in lines if line.startswith("ReturnToService=")] == ["ReturnToService=0"]


def test_fake_devices_are_named_as_a_range() -> None:
    assert gres_conf(HERE, SHAPE).splitlines()[1] == "NodeName=n[1-2] Name=gpu Type=a100 File=/run/bench/gpu/gpu[0-3]"
    assert gres_conf(HERE, Shape(gpus_per_node=1)).endswith("File=/run/bench/gpu/gpu0\n")
    assert node_names(4) == "n[1-4]"
