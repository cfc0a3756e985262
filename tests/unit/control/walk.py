"""Walks over controller and agents: the steps that they are made of, and what must hold at their end.

A step is a name and two numbers that choose; one that makes no sense where it stands does nothing. So any part of a
walk is a walk too.
"""

from __future__ import annotations

from random import Random

import msgspec

from corral.control.config import ControlConfig
from corral.control.inputs import Administer, Cancel, Quiesce
from corral.control.waiting import satisfies
from corral.model.ask import AfterAsk, JobAsk
from corral.model.events import JobCancelRequested, NodeCordoned, NodeRemoved, NodeUncordoned
from corral.model.ids import JobId, NodeId
from corral.model.job import Cause, DependencyKind, Job, JobState
from corral.model.messages import Hello, TaskReported
from corral.policy.config import LAUNCH_MOVES_MAX, SchedulingConfig
from tests.unit.control.cluster import Cluster
from tests.unit.control.machine import Machine, Run

Step = tuple[str, int, int]
NODES = {"n1": 2, "n2": 4, "n3": 1}
HEAL_ROUNDS = 400
SHAPES: tuple[dict[str, object], ...] = (
    {"gpu_milli": 1000},
    {"gpu_milli": 500},
    {"gpu_milli": 0, "cpus_milli": 30_000},
    {"gpu_milli": 1000, "num_nodes": 3},
    {"gpu_milli": 2000, "num_nodes": 2, "max_restarts": 1},
    {"gpu_milli": 1000, "max_restarts": 2},
    {"gpu_milli": 300, "indices": (0, 1, 2, 3)},
    {"gpu_milli": 1000, "num_nodes": 2, "indices": (0, 1), "max_restarts": 1},
    {"gpu_milli": 1000, "max_duration_s": 60.0},
    {"gpu_milli": 1000, "num_nodes": 3, "node_counts": (3, 2, 1), "max_restarts": 1},
    {"gpu_milli": 2000, "gpu_counts": (2, 1)},
    {"gpu_milli": 1000, "priority": 7},
)
QUICK = ControlConfig(scheduling=SchedulingConfig(round_s=0.05, tenure_s=0.05, tenure_restarts=0.0))


class Walk:
    """A cluster and the steps that it can take."""

    def __init__(self, *, orderly: bool) -> None:
        self.cluster = Cluster(NODES, QUICK)
        self.names = list(NODES)
        self.orderly = orderly
        for name in self.names:
            self.cluster.machines[name].start_agent()
            self.cluster.connect(name)
        self.cluster.quiet()

    def machine(self, choice: int) -> tuple[str, Machine]:
        name = self.names[choice % len(self.names)]
        return name, self.cluster.machines[name]

    def take(self, step: Step) -> None:
        name, a, b = step
        getattr(self, name)(a, b)
        for machine in self.names:
            self.cluster.collect(machine)
        self.cluster.now += 0.01
        self.cluster.check_machines()

    # ---- people ----------------------------------------------------------------------------------------------------

    def submit(self, a: int, b: int) -> None:
        ask = JobAsk(argv=("x",), **SHAPES[a % len(SHAPES)])  # type: ignore[arg-type]
        live = list(self.cluster.core.book.state.jobs)
        if live and b % 3 == 0:
            kind = list(DependencyKind)[b % 7 % 3]
            ask = msgspec.structs.replace(ask, after=(AfterAsk(live[b % len(live)], kind),))
        if b % 5 == 0:
            key = f"key-{a}-{b}"
            first = self.cluster.try_submit(ask, key=key)
            assert self.cluster.try_submit(ask, key=key) == first
        else:
            self.cluster.try_submit(ask)

    def cancel(self, a: int, b: int) -> None:
        live = list(self.cluster.core.book.state.jobs)
        if live:
            self.cluster.tell(Cancel(JobId(live[a % len(live)]), "me"))

    def cordon(self, a: int, b: int) -> None:
        node, at = NodeId(self.machine(a)[0]), self.cluster.now
        if b % 2:
            self.cluster.tell(Administer(NodeCordoned(at=at, node=node, by="me", drain=b % 4 == 1)))
        else:
            self.cluster.tell(Administer(NodeUncordoned(at=at, node=node, by="me")))

    def remove(self, a: int, b: int) -> None:
        self.cluster.tell(Administer(NodeRemoved(at=self.cluster.now, node=NodeId(self.machine(a)[0]), by="me")))

    def quiesce(self, a: int, b: int) -> None:
        if a % 4 == 0:
            self.cluster.tell(Quiesce(stop_tasks=b % 2 == 0))
            self.cluster.paused_at = len(self.cluster.journal)

    # ---- the controller --------------------------------------------------------------------------------------------

    def batch(self, a: int, b: int) -> None:
        self.cluster.batch(1 + a % 4)

    def commit(self, a: int, b: int) -> None:
        self.cluster.commit()

    def tick(self, a: int, b: int) -> None:
        self.cluster.now += (0.5, 2.0, 6.0, 11.0)[a % 4]
        self.cluster.tick()

    def restart(self, a: int, b: int) -> None:
        self.cluster.restart(durable=a % 2 == 0, from_snapshot=b % 2 == 0)

    def crash(self, a: int, b: int) -> None:
        """The daemon dies after it appended what it was just told, before anybody hears of it."""
        name, machine = self.machine(a)
        run = machine.pick(lambda r: r.alive and r.stop is None, b)
        if run is not None:
            _end(machine, run, 0)
            self.cluster.collect(name)
        while self.cluster.hear(name):
            pass
        self.cluster.batch()
        self.cluster.restart(durable=True, from_snapshot=b % 2 == 0)

    def solve(self, a: int, b: int) -> None:
        """A round that is due is asked for, and solved; its plan is in the inbox."""
        self.cluster.now += 0.1
        self.cluster.batch()
        self.cluster.commit()
        self.cluster.solve(Random(a * 1_000 + b))

    def snapshot(self, a: int, b: int) -> None:
        self.cluster.save_snapshot()

    def replay(self, a: int, b: int) -> None:
        self.cluster.check_replay()

    # ---- the network -----------------------------------------------------------------------------------------------

    def hear(self, a: int, b: int) -> None:
        self.cluster.hear(self.machine(a)[0])

    def obey(self, a: int, b: int) -> None:
        self.cluster.obey(self.machine(a)[0])

    def quiet(self, a: int, b: int) -> None:
        self.cluster.quiet()

    def cut(self, a: int, b: int) -> None:
        self.cluster.cut(self.machine(a)[0], heard=b % 3, obeyed=b % 5 % 3)

    def connect(self, a: int, b: int) -> None:
        self.cluster.connect(self.machine(a)[0])

    def beat(self, a: int, b: int) -> None:
        machine = self.machine(a)[1]
        if machine.core is not None:
            machine.beat()

    def fence(self, a: int, b: int) -> None:
        self.cluster.answer_fence(works=b % 3 > 0)

    def repeat(self, a: int, b: int) -> None:
        """Say something again, later: an engine that is worse than its contract."""
        link = self.cluster.links.get(self.machine(a)[0])
        said = [m for m in link.up if not isinstance(m, Hello)] if link is not None and not self.orderly else []
        if link is not None and said:
            link.up.append(said[b % len(said)])

    def swap(self, a: int, b: int) -> None:
        """Let one message overtake another."""
        link = self.cluster.links.get(self.machine(a)[0])
        if link is None or self.orderly or len(link.up) < 2:
            return
        place = b % (len(link.up) - 1)
        if not isinstance(link.up[place], Hello):
            link.up[place], link.up[place + 1] = link.up[place + 1], link.up[place]

    def ghost(self, a: int, b: int) -> None:
        """A report of long ago arrives from a node that is connected."""
        name, machine = self.machine(a)
        run = machine.pick(lambda r: r.exit is not None, b)
        link = self.cluster.links.get(name)
        if self.orderly or run is None or link is None or machine.core is None:
            return
        for report in machine.core.reports():
            if report.task == run.task:
                link.up.append(TaskReported(node=machine.spec.id, report=report))

    # ---- machines --------------------------------------------------------------------------------------------------

    def fork(self, a: int, b: int) -> None:
        machine = self.machine(a)[1]
        run = machine.pick(lambda r: not r.forked, b)
        if run is not None:
            machine.fork(run)

    def fail_launch(self, a: int, b: int) -> None:
        machine = self.machine(a)[1]
        run = machine.pick(lambda r: not r.forked, b)
        if run is not None and machine.core is not None:
            machine.fail_launch(run, "no space")

    def begin(self, a: int, b: int) -> None:
        machine = self.machine(a)[1]
        run = machine.pick(lambda r: r.alive and r.began_at is None, b)
        if run is not None:
            machine.begin(run)

    def end(self, a: int, b: int) -> None:
        machine = self.machine(a)[1]
        run = machine.pick(lambda r: r.alive, b)
        if run is not None:
            _end(machine, run, (0, 0, 0, 1)[b % 4])

    def obey_stop(self, a: int, b: int) -> None:
        machine = self.machine(a)[1]
        run = machine.pick(lambda r: r.alive and r.stop is not None, b)
        if run is not None and run.stop is not None:
            machine.end(run, run.stop)

    def kill_shim(self, a: int, b: int) -> None:
        machine = self.machine(a)[1]
        run = machine.pick(lambda r: r.alive, b)
        if run is not None:
            run.alive = False
            machine.notice(run)

    def notice(self, a: int, b: int) -> None:
        machine = self.machine(a)[1]
        if machine.core is not None:
            machine.notice_all()

    def kill_agent(self, a: int, b: int) -> None:
        name, machine = self.machine(a)
        self.cluster.cut(name, heard=b % 3, obeyed=0)
        machine.kill_agent()

    def start_agent(self, a: int, b: int) -> None:
        machine = self.machine(a)[1]
        if machine.core is None:
            machine.start_agent()

    def kill_node(self, a: int, b: int) -> None:
        self.cluster.lose(self.machine(a)[0])

    def reboot(self, a: int, b: int) -> None:
        name, machine = self.machine(a)
        self.cluster.lose(name)
        machine.reboot()

    def device(self, a: int, b: int) -> None:
        machine = self.machine(a)[1]
        machine.failed ^= {machine.spec.devices[b % len(machine.spec.devices)].uuid}

    def retire(self, a: int, b: int) -> None:
        machine = self.machine(a)[1]
        run = machine.pick(lambda r: r.acknowledged, b)
        if run is not None:
            machine.retire(run)

    # ---- the end ---------------------------------------------------------------------------------------------------

    def heal(self) -> None:
        """From here on everything works; every job must end."""
        self.orderly = True
        cluster = self.cluster
        if cluster.core.cycle.paused:
            cluster.restart(durable=True, from_snapshot=False)
        for name, machine in cluster.machines.items():
            machine.failed.clear()
            cluster.tell(Administer(NodeUncordoned(at=cluster.now, node=NodeId(name), by="me")))
        for _ in range(HEAL_ROUNDS):
            self._live_a_little()
            if not cluster.core.book.state.jobs:
                break
        left = {job.id: (job.state, dict(job.gangs)) for job in cluster.core.book.state.jobs.values()}
        assert not left, f"never ended: {left}"
        for machine in cluster.machines.values():
            assert not any(run.alive for run in machine.runs.values()), "something runs that nobody knows"
        held = cluster.core.book.state.held.values()
        assert not any(h.devices or h.gangs or h.ports or h.cpus_milli or h.memory_mib for h in held)
        cluster.check_replay()
        for number in cluster.admitted:
            cluster.assert_known(number)
        jobs = {row.id: msgspec.json.decode(row.document, type=Job) for row in cluster.finished}
        for job in jobs.values():
            self._judge(job)
            self._judge_dependencies(job, jobs)

    def _live_a_little(self) -> None:
        cluster = self.cluster
        for name, machine in cluster.machines.items():
            if machine.core is None:
                machine.start_agent()
            cluster.connect(name)
            machine.notice_all()
            for run in list(machine.runs.values()):
                if not run.forked:
                    machine.fork(run)
                elif run.alive and run.began_at is None:
                    machine.begin(run)
                elif run.alive:
                    _end(machine, run, 0)
            machine.beat()
            cluster.collect(name)
        cluster.solve(Random(int(cluster.now * 2)))
        cluster.quiet()
        cluster.check_machines()
        cluster.now += 0.5
        cluster.answer_fence(works=True)
        cluster.tick()
        cluster.commit()

    def _judge(self, job: Job) -> None:
        """Check a job's end against what its processes did and what people asked for."""
        states = {gang.state for gang in job.gangs.values()}
        for gang in job.gangs.values():
            exits = [task.exit for task in gang.tasks]
            if gang.state is not JobState.CANCELLED:
                assert gang.restarts + gang.moves == gang.incarnation - 1
            if gang.state is JobState.SUCCEEDED:
                assert all(exit_ is not None and exit_.ok for exit_ in exits), gang
            elif gang.state is JobState.FAILED:
                assert any(exit_ is not None and not exit_.ok for exit_ in exits), gang
                assert gang.restarts == job.spec.max_restarts or gang.moves >= LAUNCH_MOVES_MAX, gang
        if job.state is JobState.SUCCEEDED:
            assert states == {JobState.SUCCEEDED}
        elif job.state is JobState.FAILED:
            assert JobState.FAILED in states
        assert job.ended_at is not None
        assert job.submitted_at <= job.ended_at
        assert job.started_at is None or job.submitted_at <= job.started_at <= job.ended_at

    def _judge_dependencies(self, job: Job, jobs: dict[JobId, Job]) -> None:
        """A job ran only after what it waits for, and is cancelled only when somebody asked or it could never run."""
        met = all(satisfies(after.kind, jobs[after.job].state) for after in job.spec.after)
        if not met:
            assert all(gang.incarnation == 0 for gang in job.gangs.values())
        for gang in job.gangs.values():
            if gang.placed_at is not None:
                assert all((jobs[after.job].ended_at or 0.0) <= gang.placed_at for after in job.spec.after)
        if job.state is JobState.CANCELLED and met:
            assert any(f.job == job.id for f in self.cluster.journal if isinstance(f, JobCancelRequested))


def _end(machine: Machine, run: Run, code: int) -> None:
    if run.stop is not None:
        machine.end(run, run.stop)
        return
    if run.began_at is None:
        run.began_at = machine.now()
    machine.end(run, Cause.EXITED, code)
