from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from bench.scale import cpu_of, measure, percentile
from bench.scale_fleet import node_specs


@pytest.mark.parametrize("share,expected", [(0.5, 50.0), (0.99, 99.0), (1.0, 100.0), (0.001, 1.0)])
def test_a_percentile_is_the_nearest_rank(share: float, expected: float) -> None:
    assert percentile([float(value) for value in range(100, 0, -1)], share) == expected


def test_nodes_have_names_addresses_and_devices_of_their_own() -> None:
    specs = node_specs(1_000, 8)
    assert len({spec.address for spec in specs}) == 1_000
    assert len({device.uuid for spec in specs for device in spec.devices}) == 8_000
    assert len({spec.rack for spec in specs}) == 25


def test_the_cpu_time_of_nobody_is_nothing() -> None:
    assert cpu_of(None) == 0.0


def test_a_small_pool_is_measured(tmp_path: Path) -> None:
    figures = asyncio.run(measure(5, 1.0, 10.0, 0.2, tmp_path))
    assert figures["nodes"] == 5
    assert figures["admitted"] == figures["placed"] == 10
    assert figures["heartbeats_per_s"] > 0
    assert figures["placement_ms_p50"] <= figures["placement_ms_p99"]
