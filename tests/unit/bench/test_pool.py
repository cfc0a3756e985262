from __future__ import annotations

import pytest

from bench.pool import Pool, PoolFailed
from bench.processes import carriers


def test_a_pool_serves_inside_the_block_and_is_gone_after_it() -> None:
    with Pool(nodes=2, gpus_per_node=3) as pool:
        with pool.client() as client:
            status = client.status()
            assert (status.nodes_up, status.devices, status.simulated_devices) == (2, 6, 6)
            job = client.submit(run=["sleep", "1000"], gpus=1)
        assert job.id in pool.run("ps")
    assert carriers(pool.directory) == []
    assert not pool.directory.exists()


def test_a_pool_that_cannot_start_says_why_and_leaves_nothing() -> None:
    pool = Pool(model="no-such-model")
    with pytest.raises(PoolFailed, match="no-such-model"):
        pool.__enter__()
    assert carriers(pool.directory) == []
    assert not pool.directory.exists()
