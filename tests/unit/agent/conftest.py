"""Fixtures of the agent's tests."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from corral.agent import runner, sampler, shell
from tests.unit.agent.scene import Play, Scenario, Scene


@pytest.fixture
def play(state_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Play:
    """Run a scenario with an engine; its agents have quick hearts and little patience."""
    monkeypatch.setattr(shell, "BEAT_S", 0.05)
    monkeypatch.setattr(shell, "DISCOVERY_PATIENCE_S", 0.2)
    monkeypatch.setattr(sampler, "HANGING_S", 0.1)
    monkeypatch.setattr(runner, "LOOK_AFTER_S", 0.0)
    monkeypatch.setattr(runner, "SHIM_PATIENCE_S", 0.2)

    def run(scenario: Scenario, **changes: Any) -> None:
        async def whole() -> None:
            scene = Scene(state_dir, **changes)
            await scene.engine.start(scene.heard.append)
            try:
                await asyncio.wait_for(scenario(scene), 60.0)
            finally:
                await scene.close()

        asyncio.run(whole())

    return run
