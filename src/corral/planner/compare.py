"""What changes would do: two courses of the same pool, without and with them, and what differs."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from corral.control.inputs import Administer, Submit
from corral.model.errors import CorralError, NotFound, Refusal, UsageError
from corral.model.events import NodeCordoned, TenantSet
from corral.model.ids import DeviceId, GangKey, JobId, NodeId
from corral.model.messages import PROTOCOL, Hello
from corral.model.plan import Course, NewNodes, PlanAsk, PlanReport, Shift
from corral.model.resources import NodeSpec
from corral.planner.projection import Projection, Seen
from corral.ports.solver import Solver

MOVED_S = 1.0
"""A start or an end that moves by less is told as unmoved: it is within the grid of the rounds."""

NEW_NODES_MAX = 10_000


def compare(seen: Seen, ask: PlanAsk, solver: Solver) -> PlanReport:
    """Return what the changes would do to the pool.

    Raises the error that the pool itself would answer (an unschedulable job, an unknown node), ``UsageError`` when
    nothing is asked, and ``PlanTooLarge`` when the pool changes too often to be followed to the horizon.
    """
    if not ask.changes:
        raise UsageError("nothing to plan: say what to submit, drain, add or weigh", hint="see corral plan --help")
    until = seen.at + ask.horizon_s
    before, after = Projection(seen, solver), Projection(seen, solver)
    before.watch(list(before.core.book.state.jobs))
    after.watch(list(after.core.book.state.jobs))
    new = _change(after, ask)
    known = any(before.history.durations.values())
    before.go(until)
    after.go(until)
    basis = "the median of finished jobs like them" if known else "their age, as nothing has finished yet"
    return replace(_report(seen, until, before, after, new), basis=f"{basis}, their own progress and declared ends")


def _change(course: Projection, ask: PlanAsk) -> tuple[JobId, ...]:
    """Make the changes; return the new jobs."""
    now, state = course.clock.now(), course.core.book.state
    for name, weight in sorted(ask.weights.items()):
        tenant = state.tenants.get(name)
        if tenant is None:
            raise NotFound(f"there is no tenant {name}", field="weights")
        _must(course, Administer(TenantSet(at=now, tenant=replace(tenant, weight=weight), by="plan")))
    for node in ask.drain:
        if node not in state.nodes:
            raise NotFound(f"there is no node {node}", field="drain", hint="corral nodes lists them")
    count = sum(nodes.count for nodes in ask.add)
    if count > NEW_NODES_MAX:
        raise UsageError(f"at most {NEW_NODES_MAX:,} nodes can be added, not {count:,}", field="add")
    for number, nodes in enumerate(ask.add):
        course.tell(list(_hellos(course, nodes, number)))
    for node in ask.drain:
        _must(course, Administer(NodeCordoned(at=now, node=node, by="plan", reason="drained", drain=True)))
    if not ask.submit:
        return ()
    answer = _must(course, Submit(ask.submit))
    assert isinstance(answer, tuple)
    course.watch(answer)
    return answer


def _must(course: Projection, item: Administer | Submit) -> object:
    (answer,) = course.tell([item])
    if isinstance(answer, Refusal):
        raise CorralError.of(answer)
    return answer


def _hellos(course: Projection, nodes: NewNodes, number: int) -> Iterable[Hello]:
    if nodes.count < 1:
        raise UsageError(f"at least 1 node can be added, not {nodes.count:,}", field="add")
    known = course.core.book.state.nodes
    if nodes.like is not None and nodes.like not in known:
        raise NotFound(f"there is no node {nodes.like}", field="add", hint="corral nodes lists them")
    if not known:
        raise UsageError("the pool has no node that new ones could be like", field="add")
    name = nodes.like or max(sorted(known), key=lambda n: (len(known[n].spec.devices), known[n].spec.cpus_milli))
    for index in range(nodes.count):
        spec = _copy(known[name].spec, f"new-{number}-{index}")
        yield Hello(node=spec.id, protocol=PROTOCOL, spec=spec, agent_pid=1, supervisor_start="0", tasks=(), devices=())


def _copy(spec: NodeSpec, name: str) -> NodeSpec:
    devices = tuple(replace(d, uuid=DeviceId(f"{name}-{i}")) for i, d in enumerate(spec.devices))
    return replace(spec, id=NodeId(name), hostname=name, address=name, devices=devices)


def _report(seen: Seen, until: float, before: Projection, after: Projection, new: tuple[JobId, ...]) -> PlanReport:
    old, changed = before.courses(), after.courses()
    shifts = tuple(Shift(old[key], changed[key]) for key in sorted(old, key=_number) if _moved(old[key], changed[key]))
    ends_before, ends_after = _last_end(old.values()), _last_end(c for k, c in changed.items() if k in old)
    span = max(before.clock.now(), after.clock.now()) - seen.at
    return PlanReport(
        at=seen.at,
        until=until,
        gangs=len(old),
        submitted=tuple(changed[key] for key in sorted(changed, key=_number) if key.job in set(new)),
        shifts=shifts,
        hurt=tuple(shift.before.key for shift in shifts if shift.hurts(seen.at)),
        busy_before=before.held_s / span if span > 0 else 0.0,
        busy_after=after.held_s / span if span > 0 else 0.0,
        ends_before=ends_before,
        ends_after=ends_after,
        basis="",
    )


def _number(key: GangKey) -> tuple[int, int]:
    return int(key.job), key.gang


def _moved(before: Course, after: Course) -> bool:
    pairs = ((before.start, after.start), (before.end, after.end))
    return any(
        (a is None) != (b is None) or (a is not None and b is not None and abs(a - b) > MOVED_S) for a, b in pairs
    )


def _last_end(courses: Iterable[Course]) -> float | None:
    """Return when the last of them ends, ``None`` when one does not within the horizon."""
    ends = [course.end for course in courses]
    return None if any(end is None for end in ends) else max((e for e in ends if e is not None), default=None)
