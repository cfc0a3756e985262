"""The devices of nodes as the board has to know them: what nodes see of them, which failed, which are in doubt."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from corral.control.board import NodeView
from corral.control.book import Book
from corral.control.holdings import tasks_on
from corral.control.observed import Contact
from corral.control.stopping import stop_gang
from corral.model.events import DeviceFailed, DeviceRecovered
from corral.model.ids import DeviceId, GangKey, JobId, NodeId, TaskKey
from corral.model.job import StopReason
from corral.model.resources import DeviceState, Health

RECOVERY_STREAK = 3


class Devices:
    """Keeps the book and the board in step with what nodes see of their devices."""

    def __init__(self, book: Book) -> None:
        self._book = book

    def observe(self, node: NodeId, contact: Contact, devices: Sequence[DeviceState], shards: Iterable[str]) -> None:
        """Take in what a node sees of its devices and which shards it holds, and tell the board."""
        held = self._book.state.held.get(node)
        holders: dict[DeviceId, list[GangKey]] = {}
        if held is not None and held.devices:
            for job, gang, task in tasks_on(self._book.state, node):
                for share in task.placement.devices if task.placement else ():
                    holders.setdefault(share.uuid, []).append(GangKey(job.id, gang.index))
        blocked: set[str] = set()
        for state in devices:
            contact.devices[state.uuid] = state
            self._book.observed.sample_device(state, holders.get(state.uuid, []))
            if state.foreign:
                blocked.add(state.uuid)
        contact.shards = frozenset(shards)
        contact.doubted -= {state.uuid for state in devices}
        blocked |= contact.doubted
        view = NodeView(
            contact.answering,
            contact.shards,
            frozenset(blocked),
            clock_wrong=contact.clock_wrong,
            unfit=bool(contact.unfit),
        )
        before = self._book.board.view(node).shards
        if self._book.board.observe(node, view):
            self._book.dirty = True
            if before != contact.shards:
                self._book.waiting.jobs_with_data(self._book.state.jobs.values())

    def judge(self, now: float, node: NodeId, contact: Contact, states: Sequence[DeviceState]) -> None:
        """Take failed devices out, and in again after ``RECOVERY_STREAK`` healthy looks in a row."""
        known = self._book.state.nodes.get(node)
        if known is None:
            return
        present = {spec.uuid for spec in known.spec.devices}
        for state in states:
            if state.uuid not in present:
                continue
            if state.health is Health.HEALTHY and state.uuid in known.failed:
                streak = contact.healthy_streak.get(state.uuid, 0) + 1
                contact.healthy_streak[state.uuid] = streak
                if streak >= RECOVERY_STREAK:
                    contact.healthy_streak.pop(state.uuid)
                    self._book.record(DeviceRecovered(at=now, node=node, device=state.uuid))
                continue
            contact.healthy_streak.pop(state.uuid, None)
            if state.health is Health.FAILED and state.uuid not in known.failed:
                self._failed(now, node, state.uuid, state.detail or "the device failed")

    def _failed(self, now: float, node: NodeId, device: DeviceId, reason: str) -> None:
        """Take a device out and move the gangs that hold it."""
        self._book.record(DeviceFailed(at=now, node=node, device=device, reason=reason))
        for job, gang, task in tasks_on(self._book.state, node):
            if task.placement and any(s.uuid == device for s in task.placement.devices):
                stop_gang(self._book, now, job, gang.index, StopReason.DEVICE_FAILED)

    def gone(self, now: float, node: NodeId) -> None:
        """Move the gangs that hold devices which their node does not have any more."""
        present = {spec.uuid for spec in self._book.state.nodes[node].spec.devices}
        for job, gang, task in tasks_on(self._book.state, node):
            if task.placement is not None and any(share.uuid not in present for share in task.placement.devices):
                stop_gang(self._book, now, job, gang.index, StopReason.DEVICE_FAILED)

    def doubt(self, job: JobId, key: TaskKey) -> None:
        """Give the devices of a task that lost one to nobody until their node has looked at them again."""
        placement = self._book.state.jobs[job].gangs[key.gang].tasks[key.rank].placement
        if placement is not None:
            contact = self._book.observed.contact(placement.node)
            contact.doubted |= {share.uuid for share in placement.devices}
            view = self._book.board.view(placement.node)
            blocked = view.blocked | contact.doubted
            self._book.board.observe(placement.node, replace(view, blocked=blocked))

    def unfit(self, job: JobId, key: TaskKey, why: str) -> None:
        """Give a node that could start no task no more of them, until a heartbeat says that it can."""
        placement = self._book.state.jobs[job].gangs[key.gang].tasks[key.rank].placement
        if placement is not None:
            self._book.observed.contact(placement.node).unfit = why
            self._book.board.observe(placement.node, replace(self._book.board.view(placement.node), unfit=True))

    def judge_clock(self, node: NodeId, contact: Contact) -> None:
        """Tell the board that the judgement of a node's clock has changed."""
        if self._book.board.observe(node, replace(self._book.board.view(node), clock_wrong=contact.clock_wrong)):
            self._book.dirty = True
