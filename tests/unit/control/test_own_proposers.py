"""Users' own proposers: asked one offer at a time, and never waited for."""

from __future__ import annotations

from msgspec.structs import replace

from corral.control import explaining
from corral.control.config import ControlConfig
from corral.control.inputs import Administer, AskProposer, Outcome, Proposed
from corral.model.events import TenantSet
from corral.model.ids import JobId, TenantId
from corral.model.offer import Bid, Proposal
from corral.model.tenant import Tenant
from corral.policy.config import SchedulingConfig
from tests.unit.control.offers import ONE, bids_of, candidate_bids, submit
from tests.unit.control.world import World

OWN = replace(ONE, appmaster="mine:propose")


class Asking(World):
    """A world that keeps what users' own proposers are asked."""

    def __init__(self, **nodes: int) -> None:
        self.asks: list[AskProposer] = []
        super().__init__(None, **nodes)
        drain = self.core.drain

        def keep() -> Outcome:
            outcome = drain()
            self.asks.extend(outcome.asks)
            return outcome

        self.core.drain = keep  # type: ignore[method-assign]


def busy() -> Asking:
    """Return a pool in which all is taken by another tenant, so that what is submitted waits."""
    world = Asking(n1=2)
    world.submit(replace(ONE, gpu_milli=2000))
    return world


def answer(world: World, job: str, *bids: Bid) -> None:
    world.tell(Proposed(JobId(job), Proposal(JobId(job), 1, bids)))


def test_the_default_bids_stand_until_a_proposer_has_answered() -> None:
    world = busy()
    submit(world, OWN, ONE)
    [ask] = world.asks
    assert (ask.job.id, ask.job.spec.appmaster) == ("2", "mine:propose")
    default = bids_of(world, "2")
    assert candidate_bids(world, "2") == default
    own = replace(default[0], throughput=7.0)
    answer(world, "2", own)
    assert candidate_bids(world, "2") == (own,)
    assert world.notices == []
    world.end("1")
    assert world.job("2").gangs[0].bid == own


def test_nonsense_and_silence_leave_the_default_bids_and_are_told() -> None:
    world = busy()
    submit(world, OWN, OWN)
    default = bids_of(world, "2")
    answer(world, "2", replace(default[0], tenure_s=1e9))
    world.tell(Proposed(JobId("3"), failure="no answer within 5 s"))
    assert candidate_bids(world, "2") == default
    assert candidate_bids(world, "3") == bids_of(world, "2")
    first, second = world.notices
    assert first.startswith("the proposer of job 2 made no bids, the default ones stand: bids[0].tenure_s: is ")
    assert second == "the proposer of job 3 made no bids, the default ones stand: no answer within 5 s"


def test_why_says_that_a_proposer_failed_until_it_bids_again() -> None:
    world = busy()
    submit(world, OWN, ONE)

    def notes(job: str) -> tuple[str, ...]:
        return explaining.why(world.core, world.job(job), None, world.now, TenantId("default")).notes

    assert notes("2") == ()
    world.tell(Proposed(JobId("2"), failure="it has not answered within 10 s and was killed"))
    told = "its own proposer made no bids, those of the default bidder stand: "
    assert notes("2") == (f"{told}it has not answered within 10 s and was killed",)
    assert notes("3") == ()
    world.core.cycle.proposals.priced({"H100": 1.0})
    world.end("1")
    assert world.job("2").gangs[0].placements
    assert notes("2") == (f"{told}it has not answered within 10 s and was killed",), "it is told while the job runs too"
    world.tell(Proposed(JobId("2"), Proposal(JobId("2"), 1, ())))
    [nonsense] = notes("2")
    assert nonsense.startswith(f"{told}bids: ")
    world.core.cycle.proposals.priced({"H100": 2.0})
    world.core.book.dirty = True
    world.settle()
    answer(world, "2", bids_of(world, "2")[0])
    assert notes("2") == ()


def test_own_bids_stand_through_later_offers_until_the_next_answer() -> None:
    world = busy()
    world.submit(replace(OWN, data=("d",)))
    default = bids_of(world, "2")
    own = replace(default[0], throughput=7.0)
    answer(world, "2", own)
    world.heartbeat("n1", shards=("d",))
    assert len(world.asks) == 2
    assert candidate_bids(world, "2") == (own,)
    world.tell(Proposed(JobId("2"), failure="it crashed"))
    # What stands now is the default answer to the newest offer: one that knows where the data is.
    assert [p.node for p in candidate_bids(world, "2")[0].preferred] == ["n1"]


def test_a_proposer_is_asked_one_thing_at_a_time_and_the_newest_last() -> None:
    world = busy()
    world.submit(replace(OWN, data=("d", "e")))
    world.heartbeat("n1", shards=("d",))
    world.heartbeat("n1", shards=("d", "e"))
    assert len(world.asks) == 1
    answer(world, "2", bids_of(world, "2")[0])
    assert len(world.asks) == 2
    assert world.asks[1].offer.snapshot.nodes[0].shards == {"d", "e"}
    answer(world, "2", bids_of(world, "2")[0])
    assert len(world.asks) == 2
    # Nobody asked for this.
    answer(world, "2", replace(bids_of(world, "2")[0], throughput=99.0))
    assert bids_of(world, "2")[0].throughput == 1.0


def test_a_proposer_is_asked_again_when_a_price_moves_by_a_tenth() -> None:
    world = busy()
    submit(world, OWN, ONE)
    proposals = world.core.cycle.proposals
    own = replace(bids_of(world, "2")[0], throughput=7.0)
    for price, asked in ((1.0, 2), (1.05, 2), (1.09, 2), (1.12, 3), (1.05, 3), (0.9, 4)):
        answer(world, "2", own)
        proposals.priced({"H100": price})
        world.core.book.dirty = True
        world.settle()
        assert len(world.asks) == asked, price
    assert world.asks[-1].offer.prices == {"H100": 0.9}


def test_a_proposer_of_a_running_job_is_asked_again_after_a_restart() -> None:
    world = Asking(n1=1)
    submit(world, OWN, ONE)
    again = world.replayed()
    again.settle(world.now)
    again.rounds.market(world.now + 10.0)
    assert [ask.job.id for ask in again.drain().asks] == ["1"]


def test_bids_name_the_tenure_of_the_pool_and_own_ones_may_lower_it() -> None:
    scheduling = SchedulingConfig(tenure_s=50.0, tenure_restarts=0.0)
    world = World(ControlConfig(scheduling=scheduling), n1=1)
    submit(world, ONE, OWN)
    [bid] = bids_of(world, "2")
    assert bid.tenure_s == 50.0
    answer(world, "2", replace(bid, tenure_s=20.0))
    assert world.notices == []
    [first] = world.core.book.board.holdings.values()
    assert first.tenure_until == world.now + 50.0
    world.end("1")
    [second] = world.core.book.board.holdings.values()
    assert second.tenure_until == world.now + 20.0


def test_a_proposer_sees_the_gangs_of_its_own_tenant_only() -> None:
    world = Asking(n1=2)
    for tenant in ("a", "b"):
        world.tell(Administer(TenantSet(at=world.now, tenant=Tenant(TenantId(tenant)), by="me"), create=True))
    submit(world, replace(ONE, tenant="a"), replace(ONE, tenant="b"), replace(OWN, tenant="b"))
    [ask] = world.asks
    assert [holding.tenant for holding in ask.offer.snapshot.holdings] == ["b"]


def test_an_answer_for_a_job_that_is_gone_is_dropped() -> None:
    world = busy()
    world.submit(OWN)
    default = bids_of(world, "2")
    world.end("1")
    world.start("2")
    world.end("2")
    answer(world, "2", *default)
    assert world.core.book.waiting.proposals == {}
    assert world.notices == []
