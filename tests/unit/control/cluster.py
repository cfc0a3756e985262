"""The control core, production agents and a lossy network between them, one small step at a time.

The controller's shell is played here as it is: inputs arrive in an inbox, a batch of them is handled, what follows is
appended, and only then commands leave. Between any two of these anything else may happen, a crash included.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random
from typing import TypeVar

import msgspec

from corral.agent.inputs import Commanded, Connected, Disconnected
from corral.appmaster.core import AppMasterCore
from corral.control.config import ControlConfig
from corral.control.core import ControlCore, Input
from corral.control.inputs import Fenced, Outcome, Solved, Submit
from corral.control.ledger import LedgerImage
from corral.model.ask import JobAsk
from corral.model.errors import Refusal
from corral.model.events import GangPlaced, GangStopping, JobSubmitted
from corral.model.ids import DeviceId, GangKey, JobId, NodeId, TaskKey
from corral.model.market import Market
from corral.model.messages import AgentSays, ControllerSays, Hello
from corral.model.offer import Holding
from corral.model.resources import MILLI, DeviceShare
from corral.ports.engine import AgentGone
from corral.ports.store import JournalEntry, Recovered
from corral.sim.storm.gambler import gamble
from tests.unit.control.machine import Machine, Run
from tests.unit.control.world import World, node_spec

T = TypeVar("T")


@dataclass(eq=False)
class Link:
    """One connection of an agent: what is under way in both directions. ``closed`` follows what is still in ``up``."""

    node: NodeId
    up: deque[AgentSays] = field(default_factory=deque)
    down: deque[ControllerSays] = field(default_factory=deque)
    closed: bool = False


class Cluster(World):
    """Machines by name. ``world.journal`` holds what is durable."""

    def __init__(self, nodes: Mapping[str, int], config: ControlConfig | None = None) -> None:
        super().__init__(config)
        skews = (0.0, -4_000.0, 7_000.0)
        self.machines = {
            name: Machine(node_spec(name, gpus), lambda: self.now, skews[i % len(skews)])
            for i, (name, gpus) in enumerate(nodes.items())
        }
        self.links: dict[str, Link] = {}
        self.peers: dict[str, Link] = {}
        self.inbox: list[Input] = []
        self.pending: Outcome | None = None
        self.fence_asked: list[NodeId] = []
        self.admitted: dict[JobId, JobAsk] = {}
        self.snapshot: tuple[int, bytes] = (0, b"")
        self.placed_seq: dict[tuple[JobId, int], int] = {}
        self.placed_at: dict[tuple[JobId, int], float] = {}
        self.market: Market | None = None
        self.epoch = 1
        self.paused_at: int | None = None
        self.preempted = 0
        self._checked = 0
        self._launched: dict[tuple[TaskKey, int], str] = {}

    # ---- the controller's shell ------------------------------------------------------------------------------------

    def tell(self, item: Input) -> object:
        """Do one input for somebody who waits for the answer, and make it durable."""
        self.commit()
        answer = self.core.handle(self.now, item)
        self._settle_shell()
        self.commit()
        return answer

    def batch(self, limit: int = 1_000) -> None:
        """Handle what is in the inbox; what follows is not durable yet."""
        self.commit()
        letters, self.inbox = self.inbox[:limit], self.inbox[limit:]
        for letter in letters:
            before = dict(self.core.book.board.holdings) if isinstance(letter, Solved) else {}
            self.core.handle(self.now, letter)
            if isinstance(letter, Solved) and letter.plan is not None:
                self.check_round(before)
        self._settle_shell()

    def tick(self) -> None:
        self.commit()
        self.core.tick(self.now)
        self._settle_shell()

    def _settle_shell(self) -> None:
        self.core.settle(self.now)
        self.pending = self.core.drain()
        self.check()

    def append(self) -> None:
        """Make what follows from the last batch durable, without letting any command go."""
        if self.pending is not None:
            self.journal.extend(self.pending.facts)
            self.finished.extend(self.pending.finished)

    def commit(self) -> None:
        """Append, then send the commands to whoever is connected now."""
        self.append()
        outcome, self.pending = self.pending, None
        for command in outcome.commands if outcome is not None else ():
            self.commands.append(command)
            link = self.peers.get(command.node)
            if link is not None and not link.closed:
                link.down.append(_over_the_wire(command, ControllerSays))
        self.fence_asked.extend(outcome.fences if outcome is not None else ())
        if outcome is not None and outcome.solve is not None:
            assert self.market is None, "a second round is under way"
            self.market = msgspec.msgpack.decode(msgspec.msgpack.encode(outcome.solve), type=Market)
        self.check_journal()

    def restart(self, *, durable: bool, from_snapshot: bool) -> None:
        """The daemon is killed and comes back: with what it had decided last (``durable``), or without."""
        if durable:
            self.append()
        self.pending = self.market = None
        self.check_journal()
        self.inbox.clear()
        self.fence_asked.clear()
        for name in list(self.links):
            self.cut(name, heard=0, obeyed=0)
        self.peers.clear()
        self.inbox.clear()
        self.epoch += 1
        self.paused_at = None
        self.core = ControlCore(self.recovered(from_snapshot=from_snapshot), self.config, AppMasterCore, self.epoch)
        self.check()
        for job in self.admitted:
            self.assert_known(job)

    def recovered(self, *, from_snapshot: bool) -> Recovered:
        entries = tuple(JournalEntry(i + 1, 1, fact) for i, fact in enumerate(self.journal))
        seq, data = self.snapshot
        return Recovered(seq, data, entries[seq:]) if from_snapshot and data else Recovered(0, None, entries)

    def save_snapshot(self) -> None:
        self.commit()
        self.snapshot = (len(self.journal), self.core.image())

    # ---- the network -----------------------------------------------------------------------------------------------

    def connect(self, name: str) -> None:
        machine = self.machines[name]
        if machine.core is None or name in self.links:
            return
        self.links[name] = Link(machine.spec.id)
        machine.feed(Connected())
        self.collect(name)

    def collect(self, name: str) -> None:
        """Put on the wire what the agent has said."""
        link, machine = self.links.get(name), self.machines[name]
        if link is not None:
            link.up.extend(_over_the_wire(said, AgentSays) for said in machine.outbox)
        machine.outbox.clear()

    def cut(self, name: str, *, heard: int, obeyed: int) -> None:
        """Break a connection; each side still gets a little of what was under way."""
        link, machine = self.links.pop(name, None), self.machines[name]
        if link is None:
            return
        for _ in range(min(heard, len(link.up))):
            self._arrive(link)
        for _ in range(min(obeyed, len(link.down)) if machine.core is not None else 0):
            machine.feed(Commanded(link.down.popleft()))
        link.closed = True
        if self.peers.get(name) is link:
            del self.peers[name]
            self.inbox.append(AgentGone(link.node, "cut"))
        if machine.core is not None:
            machine.feed(Disconnected())
        machine.outbox.clear()

    def hear(self, name: str) -> bool:
        link = self.links.get(name)
        if link is None or not link.up:
            return False
        self._arrive(link)
        return True

    def _arrive(self, link: Link) -> None:
        message = link.up.popleft()
        if isinstance(message, Hello):
            self.peers[link.node] = link
        self.inbox.append(message)

    def obey(self, name: str) -> bool:
        link, machine = self.links.get(name), self.machines[name]
        if link is None or not link.down or machine.core is None:
            return False
        machine.feed(Commanded(link.down.popleft()))
        self.collect(name)
        self._check_launches(name, machine)
        return True

    def solve(self, chance: Random) -> None:
        """Answer the round that is under way, by luck."""
        market, self.market = self.market, None
        if market is not None:
            plan = gamble(market, chance) if chance.random() < 0.95 else None
            self.inbox.append(Solved(market.snapshot.version, plan))

    def check_round(self, before: Mapping[GangKey, Holding]) -> None:
        """Who gives way has something that an award needs, or goes on otherwise itself; all awards fit together."""
        awards = self.core.cycle.awards.all()
        wanted = {share.uuid for award in awards for p in award.placements for share in p.devices}
        nodes = {p.node for award in awards for p in award.placements}
        for key, holding in self.core.book.board.holdings.items():
            if not holding.stopping or key not in before or before[key].stopping:
                continue
            own = [award for award in awards if award.key == key]
            needed = any(
                share.uuid in wanted or (p.node in nodes and p.cpus_milli)
                for p in holding.placements
                for share in (*p.devices, DeviceShare(DeviceId(""), 0))
            )
            assert own or needed, f"{key} gives way for nobody"
            for award in own:
                assert {(p.rank, p.node, p.devices) for p in award.placements} != {
                    (p.rank, p.node, p.devices) for p in holding.placements
                }
        staying = [h for h in self.core.book.board.holdings.values() if not h.stopping]
        used: dict[str, int] = {}
        everything = [p for award in awards for p in award.placements] + [p for h in staying for p in h.placements]
        for placement in everything:
            for share in placement.devices:
                used[share.uuid] = used.get(share.uuid, 0) + share.milli
        assert all(milli <= MILLI for milli in used.values()), used

    def answer_fence(self, *, works: bool) -> None:
        """What the local engine does: kill the agent and all of its tasks, or fail to."""
        if not self.fence_asked:
            return
        node = self.fence_asked.pop(0)
        if works:
            self.lose(node)
        self.inbox.append(Fenced(node, proven=works))

    def lose(self, name: str) -> None:
        self.cut(name, heard=0, obeyed=0)
        self.machines[name].kill()

    def quiet(self) -> None:
        """Deliver everything until nothing is under way."""
        for _ in range(200):
            self.batch()
            self.commit()
            moved = False
            for name in self.machines:
                while self.obey(name):
                    moved = True
                while self.hear(name):
                    moved = True
            if not moved and not self.inbox:
                return
        raise AssertionError("controller and agents never stop talking")

    # ---- people ----------------------------------------------------------------------------------------------------

    def try_submit(self, *asks: JobAsk, key: str | None = None) -> tuple[JobId, ...]:
        answer = self.tell(Submit(asks, key, key))
        if isinstance(answer, Refusal):
            return ()
        assert isinstance(answer, tuple)
        self.admitted.update(zip(answer, asks, strict=True))
        return answer

    # ---- what must hold --------------------------------------------------------------------------------------------

    def assert_known(self, job: JobId) -> None:
        """No job that was acknowledged is lost."""
        assert job in self.core.book.state.jobs or any(row.id == job for row in self.finished), f"job {job} is lost"

    def check(self) -> None:
        super().check()
        ports: set[int] = set()
        for held in self.core.book.state.held.values():
            assert not held.ports & ports, "a rendezvous port is leased twice"
            ports |= held.ports
        for job in self.core.book.state.jobs.values():
            for gang in job.gangs.values():
                if gang.state == "running":
                    assert all(task.placement is not None for task in gang.tasks), "half a gang is placed"

    def check_journal(self) -> None:
        """Time never runs back in the journal, incarnations only rise, numbers are given once."""
        for seq in range(max(1, self._checked), len(self.journal)):
            fact, before = self.journal[seq], self.journal[seq - 1]
            assert fact.at >= before.at, f"{fact} is dated before {before}"
            if isinstance(fact, GangPlaced):
                assert self.paused_at is None or seq < self.paused_at, "a quiesced pool places nothing"
                for placement in fact.placements:
                    node = self.core.book.state.nodes[placement.node]
                    assert not node.lost
                    assert not {share.uuid for share in placement.devices} & node.failed.keys()
                place = (fact.job, fact.gang)
                assert fact.incarnation == self.placed_seq.get(place, 0) + 1
                self.placed_seq[place], self.placed_at[place] = fact.incarnation, fact.at
            elif isinstance(fact, GangStopping) and fact.preemption is not None:
                held_s = fact.at - self.placed_at[fact.job, fact.gang]
                assert held_s >= self.config.scheduling.tenure_s, f"{fact} after {held_s} s"
                self.preempted += 1
        submitted = [int(f.job) for f in self.journal[self._checked :] if isinstance(f, JobSubmitted)]
        assert submitted == sorted(set(submitted))
        self._checked = len(self.journal)
        ended = [row.id for row in self.finished]
        assert len(ended) == len(set(ended)), "a job finished twice"

    def _check_launches(self, name: str, machine: Machine) -> None:
        for run in machine.launched:
            place = (run.task, run.incarnation)
            assert place not in self._launched, f"{place} runs on {self._launched.get(place)} and {name}"
            self._launched[place] = name
        machine.launched.clear()

    def check_machines(self) -> None:
        """No task runs twice at a time, no device carries more than one device's worth."""
        live: dict[TaskKey, Run] = {}
        used: dict[str, int] = {}
        for machine in self.machines.values():
            for run in machine.runs.values():
                if not run.alive:
                    continue
                assert run.task not in live, f"{run} and {live[run.task]} run at once"
                live[run.task] = run
                for share in run.shares:
                    used[share.uuid] = used.get(share.uuid, 0) + share.milli
        assert all(milli <= MILLI for milli in used.values()), used

    def check_replay(self) -> None:
        """The journal alone, or a snapshot and the rest of it, makes the state that is in memory."""
        self.commit()
        live = _comparable(self.core)
        for from_snapshot in (False, True):
            recovered = self.recovered(from_snapshot=from_snapshot)
            assert _comparable(ControlCore(recovered, self.config, AppMasterCore, self.epoch + 1)) == live


def _comparable(core: ControlCore) -> object:
    """The shares of the ledger are sampled, not journaled: snapshots keep them, a journal alone does not."""
    image = core.book.image()
    without = msgspec.structs.replace(image, ledger=LedgerImage({}, image.ledger.entries))
    return msgspec.to_builtins(without, order="deterministic")


def _over_the_wire(message: T, kind: object) -> T:
    copy: T = msgspec.json.decode(msgspec.json.encode(message), type=kind)
    return copy
