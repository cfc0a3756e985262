"""Lists of nodes and pods become what the scheduler knows; a bad row is told by file, line and column."""

from __future__ import annotations

from pathlib import Path

import pytest

from corral.model.errors import TraceInvalid, TraceUnreadable
from corral.model.resources import Demand
from corral.sim.formats.openb import read_nodes, read_pods

NODES = "sn,cpu_milli,memory_mib,gpu,model\n"
PODS = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos\n"


def written(folder: Path, text: str) -> Path:
    path = folder / "list.csv"
    path.write_text(text, encoding="utf-8")
    return path


def test_nodes_have_their_devices(tmp_path: Path) -> None:
    one, two = read_nodes(written(tmp_path, NODES + "a,64000,262144,2,P100\nb,8000,1024,0,\n"))
    assert (one.id, one.cpus_milli, one.memory_mib) == ("a", 64_000, 262_144)
    assert [(d.uuid, d.model, d.index) for d in one.devices] == [("a-0", "P100", 0), ("a-1", "P100", 1)]
    assert two.devices == ()


def test_pods_ask_for_shares_whole_devices_or_none_on_the_models_that_they_allow(tmp_path: Path) -> None:
    text = "s,6000,12288,1,460,,LS\nw,12000,1024,8,1000,T4|G2|T4,LS\nc,4000,512,0,0,,BE\n"
    share, whole, cpus = read_pods(written(tmp_path, PODS + text))
    assert share.demands == (Demand(460, None, 6_000, 12_288),)
    assert whole.demands == (Demand(8_000, "T4", 12_000, 1_024), Demand(8_000, "G2", 12_000, 1_024))
    assert whole.gpu_milli == 8_000
    assert cpus.demands == (Demand(0, None, 4_000, 512),)


@pytest.mark.parametrize(
    "row,where",
    [
        ("a,64000,262144,2,P100\na,1,1,1,T4\n", "3:1: sn"),
        (",64000,262144,2,P100\n", "2:1: sn"),
        ("a,x,262144,2,P100\n", "2:3: cpu_milli"),
        ("a,64000,262144,2,\n", "2:18: model"),
        ("", " the list names no node"),
    ],
)
def test_bad_nodes(tmp_path: Path, row: str, where: str) -> None:
    path = written(tmp_path, NODES + row)
    with pytest.raises(TraceInvalid) as caught:
        read_nodes(path)
    assert str(caught.value).startswith(f"{path}:{where}")


@pytest.mark.parametrize(
    "row,where",
    [
        ("s,6000,12288,2,460,,LS\n", "2:16: gpu_milli"),
        ("s,6000,12288,1,1001,,LS\n", "2:16: gpu_milli"),
        ("s,6000,12288,1,0,,LS\n", "2:16: gpu_milli"),
        ("s,6000,12288,1,1000,T4||G2,LS\n", "2:21: gpu_spec"),
        ("s,6000,-1,1,1000,T4,LS\n", "2:8: memory_mib"),
        ("", " the list names no pod"),
    ],
)
def test_bad_pods(tmp_path: Path, row: str, where: str) -> None:
    path = written(tmp_path, PODS + row)
    with pytest.raises(TraceInvalid) as caught:
        read_pods(path)
    assert str(caught.value).startswith(f"{path}:{where}")


def test_a_list_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(TraceUnreadable):
        read_pods(tmp_path / "none.csv")
