"""The agent as a process: feeds the core with what happens and does what it says.

Nothing here decides anything about a task; the clocks are read here and nowhere else.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import assert_never

from corral.agent import adoption, cgroup, leaders, pulse, replicadir, taskdir
from corral.agent.affinity import CpuChooser
from corral.agent.config import AgentConfig
from corral.agent.core import AgentCore, Identity
from corral.agent.courier import Courier
from corral.agent.depot import Depot
from corral.agent.expected import ExpectedDevices
from corral.agent.fitness import Fitness
from corral.agent.giving import Giver
from corral.agent.inputs import (
    Beat,
    Commanded,
    Connected,
    DevicesSampled,
    Disconnected,
    Input,
    ShardsListed,
    TaskRemoved,
)
from corral.agent.link import Link
from corral.agent.machine import incarnation, machine_of
from corral.agent.members import Members
from corral.agent.outputs import (
    Ask,
    ExtendLease,
    Forget,
    Hush,
    Launch,
    MarkStartedUp,
    Note,
    Output,
    Record,
    SaveEpoch,
    Say,
    Stop,
)
from corral.agent.preparing import Preparer
from corral.agent.probing import Prober
from corral.agent.release import Releases
from corral.agent.retention import Kept, Retention, remove
from corral.agent.returning import Returner
from corral.agent.runner import Runner
from corral.agent.sampler import DeviceSampler, Look
from corral.agent.threads import in_thread
from corral.agent.travelling import Travelling
from corral.agent.usage import memory_available_mib
from corral.model.ids import DeviceId
from corral.model.resources import DeviceSpec, NodeSpec
from corral.ports.master import AppMasterFactory
from corral.ports.probe import DeviceProbe

_log = logging.getLogger(__name__)

BEAT_S = 1.0
DISCOVERY_PATIENCE_S = 5.0
REMOVE_PER_BEAT = 200
SHARDS_MAX = 10_000
ACKNOWLEDGED_NAME = "acknowledged"
MIB = 1 << 20


class Shell:
    """One agent."""

    def __init__(
        self,
        config: AgentConfig,
        probes: Sequence[DeviceProbe],
        factory: AppMasterFactory,
        environment: Mapping[str, str],
    ) -> None:
        """``environment`` is the process's own, of which tasks get a little."""
        self._config = config
        self._factory = factory
        self._members = Members()
        self._sampler = DeviceSampler(probes, self._members, self._on_look)
        self._held: dict[DeviceId, int] = {}
        self._releases = Releases(self._sampler, self._held, config.release_timeout_s)
        real = not config.simulated
        travelling: Travelling | None = None
        self._returner: Returner | None = None
        if config.cluster_path:
            travelling, self._returner = _travelling(config)
        self._preparer = Preparer(
            config,
            cgroup.probe() if real else None,
            CpuChooser(os.sched_getaffinity(0)) if real else None,
            environment,
            travelling,
        )
        self._fitness = Fitness(config.node_dir)
        self._runner = Runner(
            config,
            self._preparer,
            self._members,
            self._tell,
            self._releases.verify,
            self._held,
            self._fitness,
            self._returner,
        )
        self._prober = Prober(config.address, config.tasks_dir, self._tell)
        self._link = Link(
            config.engine_socket,
            on_connected=lambda: self._tell(Connected()),
            on_message=lambda command: self._tell(Commanded(command)),
            on_lost=lambda: self._tell(Disconnected()),
        )
        self._core: AgentCore | None = None
        self._removing: asyncio.Task[None] | None = None
        self._expected = ExpectedDevices(config.node_dir, pretended=config.simulated)
        self._retention = Retention(config.node_dir / ACKNOWLEDGED_NAME, config.tasks_kept, config.tasks_kept_s)

    async def run(self, stop: asyncio.Event) -> None:
        """Be the agent until ``stop`` is set. Raises ``OSError`` when the node's directory or sockets are unusable."""
        config = self._config
        config.tasks_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        config.data_dir.mkdir(exist_ok=True)
        found = adoption.scan(config.tasks_dir, self._retention.load())
        self._retention.open(found.kept)
        pulse.beat(config.node_dir)
        await self._clear({one.marker for one in found.running})
        self._sampler.start()
        pulse.beat(config.node_dir)
        devices = await self._discover()
        identity = self._identity(devices)
        self._core = AgentCore(identity, self._factory, found.known, leaders.newest_epoch(self._config.node_dir))
        self._runner.start()
        if self._returner is not None:
            self._returner.start()
        for running in found.running:
            self._runner.adopt(running)
        self._observe()
        self._link.start()
        beats = asyncio.create_task(self._beat_for_ever())
        stopped = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait((beats, stopped), return_when=asyncio.FIRST_COMPLETED)
            if beats.done():
                beats.result()
        finally:
            for task in (beats, stopped, *((self._removing,) if self._removing is not None else ())):
                task.cancel()
            await self._link.stop()
            await self._prober.stop()
            await self._runner.stop()
            if self._returner is not None:
                await self._returner.stop()
            self._sampler.stop()
            self._retention.close()

    async def _clear(self, running: set[str]) -> None:
        """Let nothing run that the hello does not tell of: nobody hears of this node before."""
        while True:
            swept = await in_thread(lambda: adoption.clear(self._config.tasks_dir, running))
            if swept.killed:
                _log.warning("killed %d processes of tasks without their directories", len(swept.killed))
            if not swept.left:
                return
            _log.error("processes of tasks that are not known do not die: %s", sorted(swept.left))

    # ---- the core --------------------------------------------------------------------------------------------------

    def _tell(self, given: Input) -> None:
        assert self._core is not None, "the core is made before anything happens"
        for output in self._core.handle(time.time(), _boottime_s(), given):
            try:
                self._do(output)
            except OSError as error:
                # A full disk: what was not written down is reported and acknowledged once more after a restart.
                _log.error("%s cannot be done: %s", type(output).__name__, error)

    def _do(self, output: Output) -> None:
        match output:
            case Say(message):
                self._link.send(message)
            case Launch():
                self._runner.launch(output)
            case Stop():
                self._runner.stop_task(output)
            case Ask():
                self._prober.ask(output)
            case Hush():
                self._prober.hush(output)
            case MarkStartedUp(task, incarnation):
                replicadir.mark_started_up(f"{self._config.tasks_dir}/{taskdir.marker(task, incarnation)}")
            case Record():
                self._runner.record(output)
            case ExtendLease():
                self._runner.extend(output)
            case Forget(task, incarnation):
                self._retention.add(Kept(taskdir.marker(task, incarnation), time.time()))
            case SaveEpoch(epoch):
                leaders.remember(self._config.node_dir, epoch)
            case Note(text):
                _log.warning("%s", text)
            case _:
                assert_never(output)

    # ---- devices ---------------------------------------------------------------------------------------------------

    async def _discover(self) -> tuple[DeviceSpec, ...]:
        """Return the node's devices: those found now and on this boot; while the driver hangs, only the latter."""
        if self._sampler.last is not None:
            return self._expected.take(self._sampler.last.devices)
        try:
            look = await asyncio.wait_for(asyncio.shield(self._sampler.request()), DISCOVERY_PATIENCE_S)
        except TimeoutError:
            look = None
            _log.error("the device driver has not answered for %.0f s", DISCOVERY_PATIENCE_S)
        if look is not None and look.fault is None:
            return self._expected.take(look.devices)
        if look is not None:
            _log.error("devices cannot be found: %s", look.fault)
        return self._expected.known or (look.devices if look is not None else ())

    def _identity(self, devices: tuple[DeviceSpec, ...]) -> Identity:
        self._preparer.vendors = {device.uuid: device.vendor for device in devices}
        config = self._config
        spec = NodeSpec(
            id=config.node,
            hostname=config.hostname or socket.gethostname(),
            address=config.address,
            cpus_milli=config.cpus_milli,
            memory_mib=config.memory_mib,
            devices=devices,
            rack=config.rack,
            simulated=config.simulated,
            incarnation=incarnation(),
            machine=machine_of(Path(config.state_dir)),
        )
        return Identity(spec, os.getpid(), config.supervisor_start)

    def _on_look(self, look: Look) -> None:
        if self._core is None:
            return
        devices = self._expected.take(look.devices) if look.fault is None else ()
        if look.fault is None and devices != self._core.identity.spec.devices:
            _log.warning("the node has other devices than it said: introducing it anew")
            self._core.identity = self._identity(devices)
            self._link.reconnect()
        self._releases.observe(look)
        self._observe()

    def _observe(self) -> None:
        assert self._core is not None, "the core is made before anything happens"
        self._tell(DevicesSampled(self._sampler.states(self._core.identity.spec.devices)))

    # ---- every second ----------------------------------------------------------------------------------------------

    async def _beat_for_ever(self) -> None:
        due = time.monotonic()
        while True:
            self._beat()
            if self._removing is None or self._removing.done():
                # Aside: large directories take their time, in which this node must be heard and leases looked after.
                self._removing = asyncio.create_task(self._remove_old())
            # After a pause of the whole process one beat is enough.
            due = max(due + BEAT_S, time.monotonic())
            await asyncio.sleep(due - time.monotonic())

    def _beat(self) -> None:
        pulse.beat(self._config.node_dir)
        self._runner.tend()
        self._releases.give_up()
        self._sampler.request()
        self._observe()
        self._tell(ShardsListed(self._shards()))
        self._tell(
            Beat(
                wall_s=time.time(),
                usage=self._runner.usage(),
                load_1m=os.getloadavg()[0],
                memory_free_mib=memory_available_mib(),
                unfit=self._fitness.look(),
            )
        )

    def _shards(self) -> tuple[str, ...]:
        try:
            names = os.listdir(self._config.data_dir)  # noqa: PTH208 - names are all that is wanted
        except OSError:
            return ()
        return tuple(sorted(name for name in names if not name.startswith("."))[:SHARDS_MAX])

    async def _remove_old(self) -> None:
        try:
            due = self._retention.due(time.time(), REMOVE_PER_BEAT)
        except OSError as error:
            _log.error("the tasks that are kept cannot be written down: %s", error)
            return
        for problem in await in_thread(lambda: remove(self._config.tasks_dir, due)) if due else ():
            _log.warning("%s", problem)
        for kept in due:
            self._tell(TaskRemoved(*taskdir.parse_marker(kept.marker)))


def _travelling(config: AgentConfig) -> tuple[Travelling, Returner]:
    """Return who brings files here, and who brings them back."""
    courier = Courier(config)
    cache = config.node_dir / "cache"
    travelling = Travelling(config, Depot(cache, config.cache_max_mib * MIB, courier.fetch))
    giver = Giver(config.node, courier, cache, config.return_max_mib * MIB)
    return travelling, Returner(config.node, courier, travelling, giver)


def _boottime_s() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)
