"""Which ports a head gets."""

from __future__ import annotations

import pytest

from corral.runtime.options import GCS_PORT, RAY_PORT_FIRST, HeadOptions
from corral.runtime.starting import heading

ANY = 50_123


@pytest.mark.parametrize(
    "asked, last, free, expected",
    [
        (None, 0, True, GCS_PORT),
        (None, 0, False, ANY),
        (None, 7600, True, 7600),
        (None, 7600, False, 7600),
        (7500, 7600, True, 7500),
        (0, 0, True, ANY),
        # Any: then why not the one that nodes know?
        (0, 7600, True, 7600),
    ],
)
def test_what_is_asked_for_comes_before_the_last_start_and_that_before_the_usual(
    monkeypatch: pytest.MonkeyPatch, asked: int | None, last: int, free: bool, expected: int
) -> None:
    monkeypatch.setattr(heading, "_free", lambda *_: free)
    monkeypatch.setattr(heading, "_any_port", lambda _: ANY)
    settled = heading._with_ports(HeadOptions(address="10.0.0.1", node=None, gcs_port=asked), last)
    assert settled.gcs_port == expected
    assert settled.ray_port_first == (RAY_PORT_FIRST if free else 0)
