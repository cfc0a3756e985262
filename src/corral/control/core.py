"""The control core: a synchronous object without I/O. Inputs go in, facts and commands come out.

    answer = core.handle(now, input)     any number of times
    core.settle(now)                     fill what is free; ask for a global round when one is due
    outcome = core.drain()               facts to append, then commands to send, then a market to solve

The shell appends the facts before it lets any command or answer go.
"""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from corral.control.book import Book, Image
from corral.control.config import ControlConfig
from corral.control.cycle import Cycle
from corral.control.inputs import Administer, Cancel, Fenced, Outcome, Proposed, Quiesce, Serve, Solved, Submit
from corral.control.intake import Intake
from corral.control.leases import Leases
from corral.control.liveness import Liveness
from corral.control.proposals import Proposals
from corral.control.returns import take_back
from corral.control.rounds import Rounds
from corral.control.scene import scene_of
from corral.control.services import Services
from corral.control.silence import Silence
from corral.control.stopping import stop_all
from corral.model.errors import Refusal, StoreCorrupt
from corral.model.ids import DEFAULT_QUEUE, DEFAULT_TENANT, JobId
from corral.model.messages import Heartbeat, Hello, MasterDecided, MasterProposed, TaskReported
from corral.model.routes import FrontEndReport
from corral.model.state import PoolState
from corral.model.tenant import Queue, Tenant
from corral.ports.engine import AgentGone, EngineSays
from corral.ports.files import Return
from corral.ports.master import AppMasterFactory
from corral.ports.store import Recovered

Asked = Submit | Cancel | Administer | Serve
Input = (
    Submit | Cancel | Administer | Serve | FrontEndReport | Quiesce | Fenced | Solved | Proposed | Return | EngineSays
)
Answer = tuple[JobId, ...] | JobId | Refusal | None


def load_image(recovered: Recovered) -> Image:
    """Return the image of a recovered snapshot, or the one of an empty pool. Raises ``StoreCorrupt``."""
    if recovered.snapshot is None:
        state = PoolState()
        state.tenants[DEFAULT_TENANT] = Tenant(DEFAULT_TENANT)
        state.queues[DEFAULT_QUEUE] = Queue(DEFAULT_QUEUE)
        return Image(state, {})
    try:
        return msgspec.msgpack.decode(recovered.snapshot, type=Image)
    except msgspec.MsgspecError as error:
        raise StoreCorrupt(f"the snapshot after entry {recovered.snapshot_seq} cannot be read: {error}") from error


class ControlCore:
    """One pool's controller."""

    def __init__(self, recovered: Recovered, config: ControlConfig, factory: AppMasterFactory, epoch: int) -> None:
        self.book = Book(load_image(recovered), config, factory, epoch)
        for entry in recovered.entries:
            self.book.record(entry.fact, replay=True)
        self.intake = Intake(self.book)
        self.leases = Leases(self.book)
        self.liveness = Liveness(self.book, self.leases)
        self.silence = Silence(self.book, self.leases, self.liveness)
        self.proposals = Proposals(self.book)
        self.cycle = Cycle(self.book, self.proposals)
        self.rounds = Rounds(self.book, self.cycle)
        self.services = Services(self.book)
        self._last_round_at = 0.0
        self._resumed = False

    def handle(self, now: float, item: Input) -> Answer:
        """Take one input in."""
        match item:
            case Heartbeat():
                self.liveness.heartbeat(now, item)
                self.proposals.observe(now, item.node, item.usage)
                self.book.observed.hear_progress(item.usage, self.book.state.jobs)
                self.services.heartbeat(now, item)
            case TaskReported():
                self.liveness.report(now, item)
            case Submit() | Cancel() | Administer() | Serve():
                return self._asked(now, item)
            case MasterDecided():
                self.liveness.decided(now, item)
            case MasterProposed():
                self.proposals.proposed(now, item)
            case Hello():
                self.liveness.hello(now, item)
            case AgentGone():
                self.liveness.gone(now, item.node)
            case FrontEndReport():
                self.services.report(now, item)
            case Quiesce():
                self._quiesce(now, item)
            case Return():
                return take_back(self.book, now, item)
            case _:
                self._answered(now, item)
        return None

    def _asked(self, now: float, ask: Asked) -> Answer:
        """Answer what people ask for."""
        match ask:
            case Submit():
                return self.intake.submit(now, ask)
            case Cancel():
                return self.intake.cancel(now, ask)
            case Administer():
                return self.intake.administer(now, ask)
            case Serve():
                return self.services.serve(now, ask)

    def _answered(self, now: float, answer: Fenced | Solved | Proposed) -> None:
        """Take in what was asked for in an outcome."""
        match answer:
            case Fenced():
                self.silence.fenced(now, answer)
            case Solved():
                self.services.protect(now)
                self.rounds.solved(now, answer)
            case Proposed():
                self.proposals.answered(now, answer)

    def _quiesce(self, now: float, ask: Quiesce) -> None:
        self.cycle.paused = True
        if ask.stop_tasks:
            stop_all(self.book, now)

    def settle(self, now: float) -> None:
        """Fill what is free when something changed, or when a second has passed while something waits."""
        if not self._resumed:
            self._resumed = True
            self.book.resume(now)
            self.rounds.start(now)
        self.services.settle(now, paused=self.cycle.paused)
        waits = self.book.waiting.count() or self.cycle.awards
        if self.book.dirty or (now - self._last_round_at >= 1.0 and waits):
            self._last_round_at = now
            self.cycle.run(now)
        self.rounds.settle(now)

    def tick(self, now: float, wall_offset_s: float = 0.0) -> None:
        """Let time pass. ``wall_offset_s`` is how far this machine's wall clock is ahead of ``now``."""
        self.liveness.wall_offset_s = wall_offset_s
        self.book.sample_shares(now)
        if self.book.waiting.count() and self.book.forecasts.due(now):
            self.book.forecasts.sample(scene_of(self.book, self.cycle.reservations, now))
        self.silence.tick(now)
        self.leases.settle(now)

    def drain(self) -> Outcome:
        """Return what was decided since the last call."""
        table = self.services.table()
        outcome = replace(self.book.drain(), table=table)
        for row in outcome.finished:
            self.proposals.ended(row.id)
        return outcome

    def image(self) -> bytes:
        """Return the snapshot of the state as it is now."""
        return msgspec.msgpack.encode(self.book.image())
