"""What front ends tell, added up: load, answers, and whether a backend has any request left."""

from __future__ import annotations

from corral.control.traffic import Traffic
from corral.model.ids import ServiceName
from corral.model.routes import BackendLoad, FrontEndReport, RouteLoad
from corral.policy.serving.renewal import Answers
from corral.policy.serving.scaling import Load

WEB = ServiceName("web")


def report(
    name: str = "a", *, digest: str = "d", backends: tuple[BackendLoad, ...] = (), **load: int
) -> FrontEndReport:
    return FrontEndReport(name, f"http://{name}", 1, digest, (RouteLoad(WEB, backends=backends, **load),))


def listening() -> Traffic:
    traffic = Traffic()
    traffic.tick(0.0, (WEB,))
    return traffic


def test_requests_of_all_front_ends_are_added_up_and_counters_begin_anew_with_their_front_end() -> None:
    traffic = listening()
    traffic.hear(10.0, report("a", requests=1_000))
    traffic.hear(10.0, report("b", requests=50))
    # What came before the first report came at an unknown time.
    assert traffic.load(WEB, 10.0) == Load(outstanding=0.0, waiting=0, requests_s=0.0, idle_s=0.0)
    traffic.hear(12.0, report("a", requests=1_020, outstanding=3))
    traffic.hear(12.0, report("b", requests=4, outstanding=5, waiting=2))
    load = traffic.load(WEB, 12.0)
    assert load is not None
    # 20 of the one, and 4 of the other, which began anew; in two seconds.
    assert load.requests_s == 12.0
    assert load.waiting == 2
    assert traffic.load(WEB, 19.0) is None


def test_requests_under_way_are_averaged_over_three_seconds() -> None:
    traffic = listening()
    for at, outstanding in ((10.0, 90), (20.0, 4), (21.0, 6), (22.0, 8)):
        traffic.hear(at, report(outstanding=outstanding))
    load = traffic.load(WEB, 22.0)
    assert load is not None
    assert load.outstanding == 6.0


def test_a_service_rests_from_its_last_request_on() -> None:
    traffic = listening()
    traffic.hear(10.0, report(requests=5))
    traffic.hear(11.0, report(requests=6))
    for at in range(12, 40):
        traffic.hear(float(at), report(requests=6))
    load = traffic.load(WEB, 39.0)
    assert load is not None
    assert load.idle_s == 28.0


def test_answers_are_those_of_some_backends_at_all_front_ends() -> None:
    traffic = listening()
    for name in ("a", "b"):
        told = (BackendLoad("r1-1", up=True, requests=10, errors=1), BackendLoad("r2-1", up=True, requests=99))
        traffic.hear(1.0, report(name, backends=told))
    assert traffic.answers(WEB, {"r1-1"}, 1.0) == Answers(20, 2)


def test_a_backend_is_drained_when_every_front_end_says_so_after_it_was_told_to_drain() -> None:
    traffic = listening()
    gone = (BackendLoad("r1-1", up=True, drained=True),)
    traffic.hear(9.0, report("a", backends=gone))
    assert not traffic.drained(WEB, "r1-1", since=9.5, now=10.0)
    traffic.hear(10.0, report("a", backends=gone))
    assert traffic.drained(WEB, "r1-1", since=9.5, now=10.0)
    traffic.hear(10.0, report("b", backends=(BackendLoad("r1-1", up=True),)))
    assert not traffic.drained(WEB, "r1-1", since=9.5, now=11.0)
    # The second one is silent: it may have requests under way there until it is forgotten.
    traffic.hear(69.0, report("a", backends=gone))
    traffic.tick(70.0, (WEB,))
    assert not traffic.drained(WEB, "r1-1", since=9.5, now=70.0)
    traffic.tick(70.5, (WEB,))
    assert traffic.drained(WEB, "r1-1", since=9.5, now=70.5)


def test_a_front_end_that_does_not_list_a_backend_has_nothing_there() -> None:
    traffic = listening()
    traffic.hear(10.0, report("a"))
    assert not traffic.drained(WEB, "r1-1", since=9.0, now=10.0)
    traffic.hear(11.0, report("a"))
    assert traffic.drained(WEB, "r1-1", since=9.0, now=11.0)


def test_a_controller_that_has_just_begun_waits_for_front_ends_to_report() -> None:
    traffic = listening()
    assert not traffic.drained(WEB, "r1-1", since=0.0, now=9.9)
    assert traffic.drained(WEB, "r1-1", since=0.0, now=10.0)


def test_front_ends_are_told_of_with_what_they_serve_by() -> None:
    traffic = listening()
    traffic.hear(10.0, report("b", digest="old"))
    traffic.hear(11.0, report("a", digest="new"))
    told = traffic.statuses(13.0, "new")
    assert [(one.name, one.heard_s, one.current) for one in told] == [("a", 2.0, True), ("b", 3.0, False)]


def test_a_service_that_is_gone_is_forgotten() -> None:
    traffic = listening()
    traffic.hear(10.0, report())
    traffic.tick(11.0, ())
    assert traffic.load(WEB, 11.0) is None
    assert traffic.merged(WEB, 11.0) == RouteLoad(WEB)
