"""Probes in processes of their own, whose drivers are ours."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from corral.devices.release import Unreleased
from corral.devices.xid import XidEvent
from corral.model.resources import DeviceSpec, DeviceState
from tests.native.fake_driver import FakeDriver
from tests.native.fake_nvml import build, driver_with

ROOT = Path(__file__).resolve().parents[3]


class Found(msgspec.Struct, frozen=True):
    specs: tuple[DeviceSpec, ...]
    reason: str | None
    refused: bool


class Refused(msgspec.Struct, frozen=True):
    code: str
    message: str


class AskedProbe:
    """A probe in another process."""

    def __init__(self, vendor: str, environment: Mapping[str, str], options: Mapping[str, Any]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, Path(__file__).with_name("asked.py"), vendor, json.dumps(options)],
            env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def ask(self, what: str, **arguments: Any) -> None:
        """Send a question."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"do": what, **arguments}).encode() + b"\n")
        self.process.stdin.flush()

    def answer(self, kind: Any) -> Any:
        """Wait for the answer to a question."""
        assert self.process.stdout is not None
        return msgspec.json.decode(self.process.stdout.readline(), type=kind)

    def discover(self) -> Found:
        self.ask("discover")
        return self.answer(Found)

    def discover_refused(self) -> Refused:
        self.ask("discover")
        return self.answer(Refused)

    def sample(self, own: tuple[int, ...] = ()) -> tuple[DeviceState, ...]:
        self.ask("sample", own=own)
        return self.answer(tuple[DeviceState, ...])

    def xids(self) -> tuple[XidEvent, ...]:
        self.ask("xids")
        return self.answer(tuple[XidEvent, ...])

    def wait_released(self, uuids: Sequence[str], pids: Sequence[int], timeout_s: float) -> tuple[Unreleased, ...]:
        self.ask("wait-released", uuids=uuids, pids=pids, timeout_s=timeout_s)
        return self.answer(tuple[Unreleased, ...])

    def close(self) -> None:
        self.ask("close")
        assert self.answer(None) is None

    def end(self) -> None:
        """Kill the process."""
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def start() -> Iterator[Callable[..., AskedProbe]]:
    """Give a maker of probes, by vendor and environment."""
    running: list[AskedProbe] = []

    def make(vendor: str, environment: Mapping[str, str], **options: Any) -> AskedProbe:
        running.append(AskedProbe(vendor, environment, options))
        return running[-1]

    yield make
    for probe in running:
        probe.end()


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Give a maker of the fake NVML: ``built(*omitted_functions)`` returns its directory."""
    cache = tmp_path_factory.mktemp("native")
    return lambda *omit: build(cache, *omit)


@pytest.fixture
def driver(tmp_path: Path) -> FakeDriver:
    """Give a driver with two devices."""
    return driver_with(tmp_path / "nvml", 2)


@pytest.fixture
def probe(driver: FakeDriver, built: Callable[..., Path], start: Callable[..., AskedProbe]) -> AskedProbe:
    """Give a probe on that driver."""
    return start("nvidia", driver.environment(built()))
