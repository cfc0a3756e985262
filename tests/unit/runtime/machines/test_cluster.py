from __future__ import annotations

import os
import stat
from multiprocessing import get_context
from pathlib import Path

import pytest

from corral.model.errors import StateUnusable
from corral.runtime.machines.cluster import ClusterFile, Head, load_cluster, save_cluster
from corral.runtime.wholefile import write_whole

WRITES = 300


def write_again_and_again(path: Path, number: int) -> None:
    for _ in range(WRITES):
        save_cluster(path, ClusterFile(gcs=f"10.0.0.{number}:7421", heads=(Head("https://h:1", "x" * 2000 * number),)))


def test_what_is_written_is_read(tmp_path: Path) -> None:
    cluster = ClusterFile(gcs="10.0.0.1:7421", heads=(Head("https://10.0.0.1:7420", "PEM"),), node="n1")
    save_cluster(tmp_path / "cluster.json", cluster)
    assert load_cluster(tmp_path / "cluster.json") == cluster
    (tmp_path / "cluster.json").write_text('{"gcs": 7}')
    with pytest.raises(StateUnusable, match=r"cluster\.json cannot be read"):
        load_cluster(tmp_path / "cluster.json")


def test_a_secret_is_never_readable_by_others(tmp_path: Path) -> None:
    write_whole(tmp_path / "token", b"secret", mode=0o600)
    assert stat.S_IMODE((tmp_path / "token").stat().st_mode) == 0o600


def test_several_processes_may_write_it_at_once(tmp_path: Path) -> None:
    path = tmp_path / "cluster.json"
    context = get_context("spawn")
    writers = [context.Process(target=write_again_and_again, args=(path, number)) for number in (1, 2, 3)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert [writer.exitcode for writer in writers] == [0, 0, 0]
    assert load_cluster(path).gcs.startswith("10.0.0.")
    assert os.listdir(tmp_path) == ["cluster.json"]  # noqa: PTH208 - names are all that is wanted
