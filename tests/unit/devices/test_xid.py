from __future__ import annotations

import pytest

from corral.devices.xid import explain, health_of
from corral.model.resources import Health


@pytest.mark.parametrize("xid", [13, 31, 43, 45, 94])
def test_errors_of_applications_leave_the_device_healthy(xid: int) -> None:
    assert health_of(xid) is Health.HEALTHY
    assert explain(xid) == f"XID {xid}: an application's error"


@pytest.mark.parametrize("xid", [48, 62, 64, 79, 95, 119, 120])
def test_errors_that_need_a_reset_or_more_fail_the_device(xid: int) -> None:
    assert health_of(xid) is Health.FAILED
    assert explain(xid).startswith(f"XID {xid}: ")


@pytest.mark.parametrize("xid", [74, 109, 154, 999])
def test_anything_else_is_suspect(xid: int) -> None:
    assert health_of(xid) is Health.SUSPECT
    assert explain(xid) == f"XID {xid}"
