"""Fixtures of the contract suites. An engine joins its suite as one more parameter of `scene`."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.contract.engine_world import Scenario, Scene, World


@pytest.fixture(params=[World], ids=["local"])
def scene(request: pytest.FixtureRequest, state_dir: Path) -> Scene:
    """Run a scenario in a fresh world, and clean up whatever it leaves."""

    def play(scenario: Scenario) -> None:
        async def whole() -> None:
            world = request.param(state_dir)
            try:
                await asyncio.wait_for(scenario(world), 60.0)
            except BaseException:
                print(world.agent_logs())  # noqa: T201 - shown when the test fails
                raise
            finally:
                await world.close()

        asyncio.run(whole())

    return play
