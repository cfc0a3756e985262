from __future__ import annotations

from corral.model.ids import ServiceName
from corral.model.routes import BackendLoad, RouteLoad
from corral.policy.serving.loads import merged

CHAT, DRAW = ServiceName("chat"), ServiceName("draw")


def test_what_two_see_is_added_up() -> None:
    one = RouteLoad(
        CHAT, 10, 1, 2, 1, 3, 4, 0.1, 0.5, (BackendLoad("a", up=True, outstanding=2, requests=6, drained=True),)
    )
    other = RouteLoad(
        CHAT,
        5,
        0,
        1,
        0,
        2,
        0,
        None,
        0.7,
        (BackendLoad("a", up=False, ejected=True, outstanding=1, requests=4), BackendLoad("b", up=False)),
    )
    alone = RouteLoad(DRAW, 1)
    assert merged([one, alone, other]) == (
        RouteLoad(
            CHAT,
            15,
            1,
            3,
            1,
            5,
            4,
            0.1,
            0.7,
            (
                # It answers one of them, one of them keeps it out, and it has not ended its requests with both.
                BackendLoad("a", up=True, ejected=True, outstanding=3, requests=10),
                BackendLoad("b", up=False),
            ),
        ),
        alone,
    )
