"""How services, their replicas and rollouts are shown."""

from __future__ import annotations

from msgspec.structs import replace

from corral.cli.render.layout import as_text
from corral.cli.render.services import rollout, service, services
from corral.model.ask import JobAsk
from corral.model.ids import JobId, NodeId, ServiceName, TenantId
from corral.model.routes import BackendLoad, RouteLoad
from corral.model.service import ReplicaPhase, Revision, Rollout, ServiceSpec
from corral.model.service_report import ReplicaReport, ServiceReport

NOW = 1_700_000_000.0
CHAT = ServiceName("chat")
SPEC = ServiceSpec(CHAT, TenantId("ann"), JobAsk(argv=("serve", "--fast")))
SEEN = BackendLoad("r7-1", up=True, outstanding=2, requests=1_200, errors=12)
FIRST = ReplicaReport(
    JobId("7"), 1, 1, ReplicaPhase.SERVING, "running", NodeId("n1"), "10.0.0.1:20000", NOW - 60, True, SEEN
)
SECOND = ReplicaReport(JobId("9"), 2, 2, ReplicaPhase.STARTING, "pending", None, "", NOW - 5, None, None, "full")
CHATS = ServiceReport(
    CHAT, TenantId("ann"), 1, 2, 1, 2, 8, "llama", ("http://10.0.0.9:7480/chat/",), NOW - 90, (FIRST, SECOND),
    Rollout(2, NOW - 5, "ann/t1", 10), (Revision(1, SPEC, NOW - 90, "ann/t1"), Revision(2, SPEC, NOW - 5, "ann/t1")),
    RouteLoad(CHAT, 1_200, 12, 3, 1, 2, 1, 0.02, 0.75, (SEEN,)), waits_for="replicas wait for room",
)  # fmt: skip


def lines(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


def test_the_table_of_services_says_what_each_has_and_wants() -> None:
    quiet = replace(CHATS, name=ServiceName("idle"), wanted=0, ready=0, replicas=(), replicas_min=0, load=None,
                    rollout=None)  # fmt: skip
    steady = replace(CHATS, name=ServiceName("web"), ready=2, rollout=None, waits_for="", replicas_max=2)
    ending = replace(steady, name=ServiceName("old"), removing=True)
    head, chat, idle, web, old = lines(as_text(services([CHATS, quiet, steady, ending]), width=200))
    assert head == "SERVICE TENANT REPLICAS LIMITS REVISION UNDER WAY REQUESTS ERRORS P50 P99 STATE".split()
    assert " ".join(chat) == "chat ann 1/2 2-8 1 -> 2 (10 %) 3 1,200 12 (1.0%) 0.02s 0.75s replicas wait for room"
    assert " ".join(idle) == "idle ann 0/0 0-8 1 - - - - - at rest"
    assert " ".join(web) == "web ann 2/2 2 1 3 1,200 12 (1.0%) 0.02s 0.75s serves"
    assert " ".join(old[-6:]) == "ends: finishes what is under way"
    assert as_text(services([]), width=80) == "no services\n"


def test_a_service_is_shown_with_its_replicas_and_revisions() -> None:
    text = as_text(service(CHATS, now=NOW), width=200)
    for said in (
        "service    chat of tenant ann",
        "state      replicas wait for room",
        "replicas   1 of 2 ready, limits 2-8",
        "url        http://10.0.0.9:7480/chat/",
        "requests   1,200, 2 under way, 1 waiting, 3 tried again",
        "latency    p50 0.02s, p99 0.75s",
    ):
        assert said in text
    rows = lines(text)
    assert "1 7 1 n1 10.0.0.1:20000 1m00s 2 1,200 12 (1.0%) serving".split() in rows
    assert "2 9 2 - - 5.0s - - - starting (pending): full".split() in rows
    assert [row[-4:] for row in rows if row and row[-1] == "--fast"] == [
        ["brought", "out", "serve", "--fast"],
        ["ann/t1", "stable", "serve", "--fast"],
    ]


def test_an_ejected_replica_and_one_that_is_not_ready_stand_out() -> None:
    ejected = replace(FIRST, load=replace(SEEN, ejected=True))
    sick = replace(FIRST, ready=False, message="HTTP 500")
    text = as_text(service(replace(CHATS, replicas=(ejected, sick)), now=NOW), width=200)
    assert "serving, ejected\n" in text
    assert "serving, not ready: HTTP 500\n" in text


def test_a_service_without_a_front_end_says_so() -> None:
    assert "no front end reports" in as_text(service(replace(CHATS, urls=(), load=None), now=NOW), width=200)


def test_a_rollout_says_how_far_it_is() -> None:
    text = as_text(rollout(CHATS, now=NOW), width=200)
    assert "replicas   0 of 1 new replica ready; 1 of 2 in all" in text
    assert "canary     held at 10 %: corral rollout widen chat goes on" in text
    done = as_text(rollout(replace(CHATS, rollout=None, message="undone by ann/t1"), now=NOW), width=200)
    assert done.startswith("revision 1 serves; none follows (undone by ann/t1)\n")
