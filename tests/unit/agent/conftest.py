"""Fixtures of the agent's tests."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from corral.agent import runner, sampler, shell
from corral.agent.config import AgentConfig
from tests.unit.agent.scene import Play, Scenario, Scene
from tests.unit.agent.travels import Node, Pool
from tests.unit.agent.words import NODE


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


@pytest.fixture
def pool() -> Pool:
    return Pool()


@pytest.fixture
def config(tmp_path: Path) -> AgentConfig:
    made = AgentConfig(
        node=NODE,
        state_dir=str(tmp_path / "state"),
        engine_socket="/e",
        fork_socket="/f",
        notify_socket="/n",
        cpus_milli=8000,
        memory_mib=65536,
        cluster_path=str(tmp_path / "cluster.json"),
    )
    made.tasks_dir.mkdir(parents=True)
    return made


@pytest.fixture
def node(config: AgentConfig, pool: Pool) -> Node:
    return Node(config, pool)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    (root / "src").mkdir(parents=True)
    (root / "src" / "main.py").write_text("print(1)")
    (root / "run.sh").write_text("#!/bin/sh\n")
    (root / "run.sh").chmod(0o755)
    (root / "link").symlink_to("src/main.py")
    return root
