"""The decayed averages of tenants."""

from __future__ import annotations

import pytest

from corral.control.standings import Standings
from corral.model.ids import TenantId
from corral.model.resources import Amount
from corral.model.state import PoolState
from corral.model.tenant import Tenant

A = TenantId("a")
T = 1_000_000.0


def test_an_average_moves_on_by_what_was_held() -> None:
    standings = Standings(100.0)
    capacity = Amount(gpu_milli=1000)
    state = PoolState(tenants={A: Tenant(A)}, tenant_held={A: Amount(gpu_milli=500)})
    standings.advance(A, Amount(), capacity, T)
    assert standings.of_tenants(state, capacity, T + 100.0)[A].decayed_share == pytest.approx(0.25)
    standings.advance(A, Amount(gpu_milli=500), capacity, T + 100.0)
    standings.advance(A, Amount(), capacity, T + 300.0)
    assert standings.averages[A].share == pytest.approx(0.0625)
    # Time that runs back takes nothing away.
    standings.advance(A, Amount(gpu_milli=1000), capacity, T + 200.0)
    assert standings.averages[A].share == pytest.approx(0.0625)
