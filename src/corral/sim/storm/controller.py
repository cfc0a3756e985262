"""A virtual head: the production shell, control core and leadership in a process that can be stopped and killed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from corral.appmaster.core import AppMasterCore
from corral.control.config import ControlConfig
from corral.control.core import Answer, ControlCore, Input
from corral.control.leadership import Change, Leadership, Terms
from corral.control.shell import ControlShell
from corral.model.errors import CorralError, NotLeader, StoreAway, StoreConflict
from corral.model.ids import NodeId
from corral.ports.faults import FaultPoint
from corral.ports.leadership import Candidate
from corral.sim.storm.clocks import HostClock, SteadyClock
from corral.sim.storm.course import Course
from corral.sim.storm.database import Calls, Database, Session
from corral.sim.storm.gambler import Gambler
from corral.sim.storm.network import Network
from corral.sim.storm.process import Process
from corral.sim.storm.relay import Relay, VirtualEngine

RESTART_S = (0.3, 1.5)
TERMS = Terms()
Reply = Callable[["Answer | CorralError"], None]


class NoFaultPoints:
    """Implements ``ports.faults.FaultPoints``: a storm kills from outside."""

    def armed(self, point: FaultPoint) -> bool:
        """Return ``False``."""
        return False

    def reach(self, point: FaultPoint) -> None:
        """Go on."""


class Head:
    """One head. ``shell`` is set while it leads, ``faults`` are what must never happen, ``calm`` ends the gambling."""

    def __init__(
        self,
        course: Course,
        name: str,
        clock: HostClock,
        network: Network,
        database: Database,
        relays: dict[NodeId, Relay],
        config: ControlConfig,
        power_off: Callable[[NodeId, Callable[[bool], None]], None],
    ) -> None:
        self.name = name
        self.clock = clock
        self.calm = False
        self.faults: list[str] = []
        self.shell: ControlShell | None = None
        self.leadership: Leadership | None = None
        self.process: Process | None = None
        self._course = course
        self._network = network
        self._database = database
        self._relays = relays
        self._config = config
        self._power_off = power_off
        self._engine: VirtualEngine | None = None
        self._starts = 0
        self._paused = 0
        self._leading: asyncio.Task[None] | None = None

    # ---- life ------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """The supervisor starts the daemon."""
        if self.process is not None:
            return
        self._starts += 1
        calls = Calls(self._course, self._network, self._database, self.name)
        process = self.process = Process(self._course, self.clock, calls.call)
        process.stopped = self._paused > 0
        me = Candidate(f"{self.name}/{self._starts}", self.name, f"https://{self.name}")
        self.leadership = Leadership(me, TERMS)
        process.call_soon(lambda: process.create_task(self._campaign(process)))

    def kill(self) -> None:
        """SIGKILL; the supervisor starts another."""
        if self.process is not None:
            self._course.note(self.name, "is killed")
            self.end()
            self._course.after(self._course.chance.uniform(*RESTART_S), self.start)

    def end(self) -> None:
        """Be gone."""
        process, engine = self.process, self._engine
        if process is None:
            return
        self._gather(process)
        self.process = self.shell = self.leadership = self._engine = self._leading = None
        process.kill()
        if engine is not None:
            engine.drop()

    def pause(self) -> None:
        """SIGSTOP."""
        self._paused += 1
        self._course.note(self.name, "is paused")
        if self.process is not None:
            self.process.stop_running()

    def unpause(self) -> None:
        """SIGCONT."""
        self._paused -= 1
        self._course.note(self.name, "goes on")
        if self.process is not None and not self._paused:
            self.process.go_on()

    def _gather(self, process: Process) -> None:
        self.faults += [f"{self.name}: {fault}" for fault in process.faults]
        process.faults.clear()

    def look(self) -> None:
        """Collect what went wrong."""
        if self.process is not None:
            self._gather(self.process)

    @property
    def leads(self) -> bool:
        """Return whether it leads and may acknowledge leases now."""
        return self.leadership is not None and self.leadership.valid(self.clock.boottime())

    # ---- leading ---------------------------------------------------------------------------------------------------

    async def _campaign(self, process: Process) -> None:
        leadership, session = self.leadership, Session(self._database)
        assert leadership is not None
        while True:
            await asyncio.sleep(max(0.0, leadership.due - self.clock.boottime()))
            sent_at = self.clock.boottime()
            ask = leadership.ask(sent_at)
            try:
                answer = await process.run_in_executor(None, session.campaign, leadership.me, ask)
            except StoreAway:
                leadership.failed(self.clock.boottime())
                continue
            change = leadership.answered(sent_at, self.clock.boottime(), ask, answer)
            if change is Change.ELECTED:
                self._course.note(self.name, f"leads with epoch {leadership.epoch}")
                self._leading = process.create_task(self._lead(process, session, leadership))
            elif change is Change.DEPOSED:
                self._course.note(self.name, "is deposed")
                if self.shell is not None:
                    self.shell.depose(NotLeader("another controller leads"))
            if self._leading is not None and self._leading.done():
                self._check(self._leading)
                # What broke its store's rules, or lost its epoch, begins again as the supervisor would have it.
                process.call_soon(self.kill)
                return

    def _check(self, leading: asyncio.Task[None]) -> None:
        error = None if leading.cancelled() else leading.exception()
        if error is not None and not isinstance(error, NotLeader | StoreConflict | StoreAway):
            self.faults.append(f"{self.name} stopped leading: {type(error).__name__}: {error}")

    async def _lead(self, process: Process, session: Session, leadership: Leadership) -> None:
        epoch = leadership.epoch
        assert epoch is not None
        recovered = await process.run_in_executor(None, session.recover)
        core = ControlCore(recovered, self._config, AppMasterCore, epoch)
        engine = self._engine = VirtualEngine(
            self._course, self._network, process, self.name, self._relays, epoch, self._power_off
        )
        shell = ControlShell(
            core,
            session,
            engine,
            SteadyClock(self.clock, core.book.state.at),
            NoFaultPoints(),
            last_seq=recovered.entries[-1].seq if recovered.entries else recovered.snapshot_seq,
            solver=Gambler(self._course.chance, lambda: self.calm),
        )
        shell.valid = lambda: leadership.valid(self.clock.boottime())
        await engine.start(shell.hear)
        self.shell = shell
        try:
            await shell.run()
        finally:
            if self.shell is shell:
                self.shell = None
            await engine.stop()
            await shell.close()

    # ---- callers ---------------------------------------------------------------------------------------------------

    def ask(self, item: Input, reply: Reply) -> None:
        """Serve a request that has arrived. A dead head answers nothing."""
        process = self.process
        if process is not None:
            process.call_soon(lambda: process.create_task(self._serve(item, reply)))

    async def _serve(self, item: Input, reply: Reply) -> None:
        process = self.process
        try:
            if self.shell is None:
                raise NotLeader("this controller does not lead")
            answer: Answer | CorralError = await self.shell.ask(item)
        except CorralError as error:
            answer = error
        if process is not None and process.alive and process is self.process:
            reply(answer)
