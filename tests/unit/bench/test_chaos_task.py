from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from bench import chaos_task
from bench.witness import Witness
from tests.waiting import wait_until


def start(
    tmp_path: Path, rank: int = 0, ranks: int = 1, incarnation: int = 1, **environment: str
) -> subprocess.Popen[str]:
    for folder in ("witness", f"checkpoint-{rank}"):
        (tmp_path / folder).mkdir(exist_ok=True)
    own = {
        "CORRAL_GANG": "0",
        "CORRAL_RANK": str(rank),
        "CORRAL_NUM_NODES": str(ranks),
        "CORRAL_INCARNATION": str(incarnation),
        "CORRAL_CHECKPOINT_DIR": str(tmp_path / f"checkpoint-{rank}"),
        **environment,
    }
    steps = environment.get("STEPS", "30")
    argv = [sys.executable, chaos_task.__file__, str(tmp_path / "witness"), "sum", "7", steps, "0.001"]
    return subprocess.Popen(argv, env=own, stdout=subprocess.PIPE, text=True)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_the_result_is_a_sum_worked_out_by_hand() -> None:
    # One step: seed * a + (seed * 2654435761 + rank parts) + c, over two ranks.
    parts = (3 * 2654435761) + (3 * 2654435761 + 69069)
    assert chaos_task.result(3, 1, 2) == (3 * 6364136223846793005 + parts + 1442695040888963407) % 2**64
    assert chaos_task.result(3, 0, 2) == 3


def test_a_task_goes_on_from_its_checkpoint_and_ends_with_the_right_value(tmp_path: Path) -> None:
    first = start(tmp_path, STEPS="100000")
    witness = Witness(tmp_path / "witness")
    wait_until(lambda: len(witness.marks("sum.0.0")) > 30, what="some steps")
    first.send_signal(signal.SIGTERM)
    said, _ = first.communicate(timeout=10)
    assert (first.returncode, said) == (128 + signal.SIGTERM, "")
    assert witness.marks("sum.0.0")[-1].word == "stop"
    at = json.loads((tmp_path / "checkpoint-0" / "rank-0.json").read_text())["step"]
    assert at % 10 == 0
    second = start(tmp_path, incarnation=2, STEPS=str(at + 5))
    said, _ = second.communicate(timeout=10)
    assert said == f"result {chaos_task.result(7, at + 5, 1)}\n"
    own = [mark for mark in witness.marks("sum.0.0") if mark.incarnation == 2]
    assert [mark.word for mark in own] == ["start", *["step"] * 5, "end"]
    assert own[-1].value == chaos_task.result(7, at + 5, 1)


def test_elements_of_an_array_have_values_of_their_own(tmp_path: Path) -> None:
    said, _ = start(tmp_path, CORRAL_ARRAY_INDEX="4").communicate(timeout=10)
    assert said == f"result {chaos_task.result(11, 30, 1)}\n"


def test_ranks_of_a_gang_add_up_and_begin_where_rank_0_begins(tmp_path: Path) -> None:
    (tmp_path / "checkpoint-0").mkdir()
    state = {"step": 10, "value": chaos_task.result(7, 10, 2)}
    (tmp_path / "checkpoint-0" / "rank-0.json").write_text(json.dumps(state))
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    ranks = [start(tmp_path, rank, 2, 1, **place) for rank in (1, 0)]
    assert [rank.communicate(timeout=10)[0] for rank in ranks] == [f"result {chaos_task.result(7, 30, 2)}\n"] * 2
    words = [mark.word for mark in Witness(tmp_path / "witness").marks("sum.0.1")]
    assert words == ["start", *["step"] * 20, "end"]


@pytest.mark.parametrize("lost", [0, 1])
def test_a_rank_that_loses_its_peer_ends_without_a_result(tmp_path: Path, lost: int) -> None:
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "STEPS": "1000000"}
    ranks = [start(tmp_path, rank, 2, 1, **place) for rank in (0, 1)]
    witness = Witness(tmp_path / "witness")
    wait_until(lambda: len(witness.marks("sum.0.1")) > 3, what="some steps")
    ranks[lost].kill()
    said, _ = ranks[1 - lost].communicate(timeout=10)
    assert (ranks[1 - lost].returncode, said) == (chaos_task.LOST_A_PEER, "")
    ranks[lost].communicate()
