"""The scene of these tests."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from corral.engines.ray import bridge as bridge_module
from corral.engines.ray import engine as engine_module
from corral.engines.ray import line as line_module
from tests.unit.engines.ray.scene import Play, Scene


@pytest.fixture
def play(state_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Play:
    monkeypatch.setattr(bridge_module, "DISCOVER_S", 0.01)
    monkeypatch.setattr(line_module, "RETRY_FIRST_S", 0.01)
    monkeypatch.setattr(line_module, "DEPOSED_RETRY_S", 0.01)
    monkeypatch.setattr(engine_module, "RESTART_FIRST_S", 0.01)
    monkeypatch.setattr(engine_module, "FOLLOW_S", 0.05)

    def run(scenario: Callable[[Scene], Awaitable[None]]) -> None:
        async def whole() -> None:
            scene = Scene(state_dir)
            await scene.engine.start(scene.heard.append)
            try:
                await asyncio.wait_for(scenario(scene), 30.0)
            finally:
                await scene.close()

        asyncio.run(whole())

    return run
