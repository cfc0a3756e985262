from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from corral.agent.config import AgentConfig
from corral.agent.environment import task_environment
from corral.model.ids import DeviceId, ServiceName
from corral.model.job import CheckpointSpec
from corral.model.messages import Peer
from corral.model.resources import DeviceShare, Placement
from corral.model.service import Guard, Probes, Secrets, ServingTask
from tests.unit.agent.words import GPU, NODE, OTHER_GPU, key, launch

CONFIG = AgentConfig(
    node=NODE,
    state_dir="/state",
    engine_socket="/e",
    fork_socket="/f",
    notify_socket="/n",
    cpus_milli=8000,
    memory_mib=65536,
)
NVIDIA = {GPU: "nvidia", OTHER_GPU: "nvidia"}


def environment(vendors: dict[DeviceId, str] = NVIDIA, **changes: Any) -> dict[str, str]:
    return task_environment(launch(key(12, 3, 1), 5, **changes), CONFIG, vendors, "/t", {"PATH": "/bin", "HOME": "/h"})


def placement(*uuids: DeviceId, milli: int = 1000) -> Placement:
    return Placement(1, NODE, tuple(DeviceShare(uuid, milli) for uuid in uuids), 1000, 256)


def test_ranks_find_each_other_as_torchrun_expects() -> None:
    env = environment(peers=(Peer(0, NODE, "10.0.0.1"), Peer(1, NODE, "10.0.0.2")), master_port=20007)
    assert (env["MASTER_ADDR"], env["MASTER_PORT"]) == ("10.0.0.1", "20007")
    assert (env["NODE_RANK"], env["NNODES"], env["NPROC_PER_NODE"], env["WORLD_SIZE"]) == ("1", "2", "1", "2")


def test_a_task_is_told_the_size_that_it_got() -> None:
    three = tuple(Peer(rank, NODE, "10.0.0.1") for rank in range(3))
    env = environment(peers=three, placement=placement(GPU, OTHER_GPU))
    assert (env["CORRAL_NUM_NODES"], env["CORRAL_NUM_GPUS"], env["WORLD_SIZE"]) == ("3", "2", "6")
    env = environment(placement=placement())
    assert (env["CORRAL_NUM_NODES"], env["CORRAL_NUM_GPUS"], env["WORLD_SIZE"]) == ("1", "0", "1")


def test_devices_are_named_by_uuid() -> None:
    env = environment(placement=placement(GPU, OTHER_GPU))
    assert env["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert env["CUDA_VISIBLE_DEVICES"] == env["CORRAL_DEVICES"] == "GPU-0,GPU-1"
    assert (env["NPROC_PER_NODE"], env["CORRAL_GPU_MILLI"]) == ("2", "2000")
    assert "CORRAL_SIMULATED" not in env
    assert "ROCR_VISIBLE_DEVICES" not in env


def test_a_share_is_told_in_milli_gpus() -> None:
    env = environment(placement=placement(GPU, milli=250))
    assert (env["CUDA_VISIBLE_DEVICES"], env["CORRAL_GPU_MILLI"]) == ("GPU-0", "250")


def test_a_task_without_devices_sees_none() -> None:
    env = environment(placement=placement())
    assert env["CUDA_VISIBLE_DEVICES"] == ""
    assert (env["CORRAL_GPU_MILLI"], env["NPROC_PER_NODE"]) == ("0", "1")
    on_amd = environment({GPU: "amd"}, placement=placement())
    assert (on_amd["CUDA_VISIBLE_DEVICES"], on_amd["ROCR_VISIBLE_DEVICES"]) == ("", "")


def test_amd_devices_have_their_own_variable_and_are_not_hidden_by_the_other() -> None:
    env = environment({GPU: "amd", OTHER_GPU: "amd"}, placement=placement(OTHER_GPU))
    assert env["ROCR_VISIBLE_DEVICES"] == "GPU-1"
    assert "CUDA_VISIBLE_DEVICES" not in env


def test_simulated_devices_are_labelled() -> None:
    assert environment({GPU: "simulated"})["CORRAL_SIMULATED"] == "1"


def test_a_task_knows_who_it_is() -> None:
    env = environment(array_index=9, restarts=2, lease_s=90.0)
    assert env["CORRAL_TASK"] == "12.3.1.5"
    assert env["CORRAL_CHECKPOINT_DIR"] == "/state/jobs/12/checkpoint/3"
    assert env["CORRAL_OUTPUT_DIR"] == "/state/jobs/12/output"
    assert env["CORRAL_DATA_DIR"] == "/state/nodes/node-1/data"
    assert env["CORRAL_TASK_DIR"] == "/t"
    assert (env["CORRAL_ARRAY_INDEX"], env["CORRAL_RESTARTS"], env["CORRAL_LEASE_S"]) == ("9", "2", "90.0")
    assert environment(checkpoint=CheckpointSpec(path="/ckpt"))["CORRAL_CHECKPOINT_DIR"] == "/ckpt"


def test_the_user_s_variables_win_except_over_the_truth() -> None:
    env = environment(envs={"PATH": "/mine", "MASTER_PORT": "1", "CORRAL_JOB": "7", "LR": "0.1"})
    assert (env["PATH"], env["MASTER_PORT"], env["LR"]) == ("/mine", "1", "0.1")
    assert env["CORRAL_JOB"] == "12"


SERVING = ServingTask(ServiceName("chat"), 3, 7, None, Probes(), Guard.TOKEN, 30.0)


def as_replica(**changes: Any) -> dict[str, str]:
    command: dict[str, Any] = {
        "placement": Placement(0, NODE, (), 1000, 256, 20001),
        "master_port": 20001,
        "serving": SERVING,
        "secrets": Secrets("s3cret", "authority", "replica"),
    }
    return task_environment(launch(key(12), 5, **{**command, **changes}), CONFIG, {}, "/t", {"PATH": "/bin"})


def test_a_replica_is_told_its_port_its_service_and_how_it_knows_front_ends() -> None:
    env = as_replica()
    assert (env["PORT"], env["CORRAL_SERVICE"], env["CORRAL_REPLICA"], env["CORRAL_REVISION"]) == (
        "20001",
        "chat",
        "7",
        "3",
    )
    assert env["CORRAL_FRONT_END_TOKEN"] == "s3cret"
    assert "CORRAL_TLS_KEY" not in env
    # Its only port is for requests: a library that meets there would take it.
    assert "MASTER_PORT" not in env


def test_a_port_of_the_program_s_own_is_told_too_and_not_changed_by_the_user() -> None:
    fixed = replace(SERVING, port=8000)
    assert as_replica(serving=fixed, envs={"PORT": "9", "CORRAL_SERVICE": "other"})["PORT"] == "8000"
    assert as_replica(serving=fixed, envs={"PORT": "9", "CORRAL_SERVICE": "other"})["CORRAL_SERVICE"] == "chat"


def test_a_replica_with_mutual_tls_is_told_where_its_files_are() -> None:
    env = as_replica(serving=replace(SERVING, guard=Guard.MTLS))
    assert [env[f"CORRAL_TLS_{what}"] for what in ("CERT", "KEY", "CA")] == [
        "/t/tls/cert.pem",
        "/t/tls/key.pem",
        "/t/tls/ca.pem",
    ]
    assert "CORRAL_FRONT_END_TOKEN" not in env


def test_a_replica_without_a_guard_is_told_no_secret() -> None:
    env = as_replica(serving=replace(SERVING, guard=Guard.NONE), secrets=None)
    assert env["PORT"] == "20001"
    assert not [name for name in env if "TOKEN" in name or "TLS" in name]


def test_a_task_that_serves_nothing_has_no_port() -> None:
    assert "PORT" not in environment(placement=Placement(1, NODE, (), 1000, 256, 20001))
