"""Fixtures of the contract suites. An engine joins its suite as one more parameter of `scene`."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.contract.engine_world import Scenario, Scene, World
from tests.contract.ray_cluster import RayGround
from tests.contract.ray_world import RayWorld


@pytest.fixture(scope="session")
def ray_ground() -> Iterator[RayGround]:
    """Give a machine on which Ray runs: once for all tests, for it takes seconds to start."""
    root = Path(tempfile.mkdtemp(prefix="r", dir="/tmp"))
    ground = RayGround(root)
    try:
        ground.start()
        yield ground
    finally:
        ground.close()
        shutil.rmtree(root)


# Ray takes its time to start on a busy machine.
@pytest.fixture(params=["local", pytest.param("ray", marks=pytest.mark.timeout(300))])
def new_world(request: pytest.FixtureRequest) -> Callable[[], World]:
    """Give what makes a world with the engine of this run."""
    if request.param == "ray":
        ground = request.getfixturevalue("ray_ground")
        return lambda: RayWorld(ground)
    state_dir = request.getfixturevalue("state_dir")
    return lambda: World(state_dir)


@pytest.fixture
def scene(new_world: Callable[[], World]) -> Scene:
    """Run a scenario in a fresh world, and clean up whatever it leaves."""

    def play(scenario: Scenario) -> None:
        async def whole() -> None:
            world = new_world()
            try:
                await asyncio.wait_for(scenario(world), world.limit_s)
            except BaseException:
                print(world.agent_logs())  # noqa: T201 - shown when the test fails
                raise
            finally:
                await world.close()

        asyncio.run(whole())

    return play
