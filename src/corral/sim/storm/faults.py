"""What fails, when, and for how long. Every fault is repaired after a while, and all of them when the storm is over."""

from __future__ import annotations

from collections.abc import Callable

from corral.model.ids import NodeId
from corral.sim.storm.controller import Head
from corral.sim.storm.course import Course
from corral.sim.storm.database import HOST, Database
from corral.sim.storm.machine import Machine
from corral.sim.storm.network import Network
from corral.sim.storm.run import Run

Repair = Callable[[], None]
SPELLS = (((0.5, 3.0, 8.0), (12, 20, 40)), ((3.0, 8.0, 25.0), (6, 12, 20)), ((25.0, 40.0, 60.0), (3, 5, 8)))
"""How long faults last (s) and how many there are: less than anybody notices, about as long as it takes to notice,
longer than leases. Where all is broken at once nothing is ever moved."""

CLOCK_STEPS_S = (-3_600.0, -30.0, -1.0, 1.0, 30.0, 3_600.0)


class Faults:
    """Breaks things and repairs them. ``counts`` says how often what struck; with ``aim`` it strikes where it hurts."""

    def __init__(
        self, course: Course, network: Network, database: Database, heads: list[Head], machines: list[Machine]
    ) -> None:
        self.counts: dict[str, int] = {}
        self.aim = False
        self._course = course
        self._network = network
        self._database = database
        self._heads = heads
        self._machines = machines
        self._repairs: dict[int, Repair] = {}
        self._struck = 0

    # ---- striking --------------------------------------------------------------------------------------------------

    def plan(self, begin_s: float, end_s: float, theme: tuple[str, ...]) -> None:
        """Plan the faults of a storm: few kinds, and one of them often (swarm testing, Groce et al., ISSTA 2012)."""
        chance = self._course.chance
        kinds = [getattr(self, name) for name in theme]
        weights = [chance.choice((0, 1, 1, 4)) for _ in kinds]
        if not any(weights):
            weights[chance.randrange(len(weights))] = 1
        lasting_s, counts = QUIET_SPELL if theme in QUIET else chance.choice(SPELLS if theme is KINDS else SPELLS[1:])
        for _ in range(chance.choice(counts)):
            kind = chance.choices(kinds, weights)[0]
            lasts_s = chance.choice(lasting_s) * chance.uniform(0.7, 1.3)
            self._course.after(chance.uniform(begin_s, end_s), lambda k=kind, s=lasts_s: self._strike(k, s))  # type: ignore[misc]

    def _strike(self, kind: Callable[[], Repair | None], lasts_s: float) -> None:
        repair = kind()
        name = kind.__name__
        self.counts[name] = self.counts.get(name, 0) + 1
        if repair is None:
            return
        self._struck += 1
        number = self._struck
        self._repairs[number] = repair
        self._course.note("faults", f"{name} begins ({number})")
        self._course.after(lasts_s, lambda: self._repair(number))

    def _repair(self, number: int) -> None:
        repair = self._repairs.pop(number, None)
        if repair is not None:
            self._course.note("faults", f"{number} is repaired")
            repair()

    def heal(self) -> None:
        """Repair everything."""
        for number in list(self._repairs):
            self._repair(number)
        self._network.mend_all()

    def _machine(self) -> Machine:
        """Return a machine: one on which something exclusive runs, as a rule."""
        busy = [one for one in self._machines if any(run.going and run.exclusive for run in one.runs.values())]
        aimed = self.aim or self._course.chance.random() < 0.7
        return self._course.chance.choice(busy if busy and aimed else self._machines)

    def _head(self) -> Head:
        """Return a head: the one that leads, as a rule."""
        leading = [head for head in self._heads if head.leads]
        aimed = self.aim or self._course.chance.random() < 0.7
        return self._course.chance.choice(leading if leading and aimed else self._heads)

    # ---- the network -----------------------------------------------------------------------------------------------

    def _cut(self, ways: list[tuple[str, str]]) -> Repair:
        for way in ways:
            self._network.cut(*way)
        self._course.note("network", "cut " + ", ".join(f"{a}>{b}" for a, b in ways))

        def mend() -> None:
            for way in ways:
                self._network.mend(*way)

        return mend

    def _ways(self, one: str, others: list[str]) -> list[tuple[str, str]]:
        """Return the ways between a host and others: both directions, or only one of them."""
        direction = self._course.chance.choice(("both", "both", "out", "in"))
        ways = [(one, other) for other in others] if direction != "in" else []
        return ways + ([(other, one) for other in others] if direction != "out" else [])

    def node_cut(self) -> Repair:
        """A node is cut from all heads."""
        return self._cut(self._ways(self._machine().name, [head.name for head in self._heads]))

    def pair_cut(self) -> Repair:
        """One head is cut from one node."""
        return self._cut(self._ways(self._machine().name, [self._head().name]))

    def head_cut_from_database(self) -> Repair:
        """A head reaches nodes and not the database."""
        return self._cut(self._ways(self._head().name, [HOST]))

    def head_cut(self) -> Repair:
        """A head reaches neither nodes nor the database."""
        return self._cut(self._ways(self._head().name, [HOST, *(machine.name for machine in self._machines)]))

    def all_nodes_cut(self) -> Repair:
        """A head loses all nodes at once: its own fault, as a rule."""
        return self._cut(self._ways(self._head().name, [machine.name for machine in self._machines]))

    def deposed_with_a_node(self) -> Repair | None:
        """The leader is cut from the database and keeps a node, which is cut from all other heads."""
        leader = self._head()
        others = [head.name for head in self._heads if head is not leader]
        if not others:
            return None
        ways = [(leader.name, HOST), (HOST, leader.name)]
        node = self._machine().name
        return self._cut(ways + [way for other in others for way in ((node, other), (other, node))])

    def stale_leader(self) -> Repair:
        """The leader stands still for as long as another takes over, and cannot ask the database when it goes on."""
        head = self._head()
        head.pause()
        self._course.after(self._course.chance.uniform(8.0, 20.0), head.unpause)
        return self._cut([(head.name, HOST), (HOST, head.name)])

    def takeover_without_a_node(self) -> Repair:
        """A node is cut from all heads, and the leader dies in the same moment."""
        node = self._machine().name
        repair = self._cut([way for head in self._heads for way in ((node, head.name), (head.name, node))])
        self._head().kill()
        return repair

    def slow_network(self) -> Repair:
        """Every message takes many times as long."""
        factor = self._course.chance.choice((10.0, 100.0))
        self._network.slowness *= factor

        def mend() -> None:
            self._network.slowness = max(1.0, self._network.slowness / factor)

        return mend

    # ---- the database ----------------------------------------------------------------------------------------------

    def database_away(self) -> Repair:
        """The database is gone and comes back with all that it had."""
        self._database.up = False

        def back() -> None:
            self._database.up = True

        return back

    def slow_disk_of_database(self) -> Repair:
        """Every transaction takes its time."""
        self._database.slow_s = self._course.chance.choice((0.05, 0.5))

        def back() -> None:
            self._database.slow_s = 0.0

        return back

    # ---- heads -----------------------------------------------------------------------------------------------------

    def head_killed(self) -> None:
        """A daemon is killed; its supervisor starts another."""
        self._head().kill()

    def head_paused(self) -> Repair:
        """A head stands still and goes on, unaware of it."""
        head = self._head()
        head.pause()
        return head.unpause

    # ---- machines --------------------------------------------------------------------------------------------------

    def machine_paused(self) -> Repair | None:
        """A whole machine stands still and goes on, unaware of it."""
        machine = self._machine()
        if not machine.up:
            return None
        machine.pause()
        return machine.unpause

    def power_lost(self) -> Repair:
        """A machine dies and boots again."""
        machine = self._machine()
        machine.power_off()
        return machine.power_on

    def agent_killed(self) -> None:
        """An agent is killed; its supervisor starts another."""
        self._machine().kill_agent()

    def agent_stopped(self) -> Repair | None:
        """An agent stands still; tasks and shims go on."""
        machine = self._machine()
        if any(run.unguarded for run in machine.runs.values()):
            return None
        machine.agent_stops += 1
        go_on = machine.stop_agent()

        def back() -> None:
            machine.agent_stops -= 1
            go_on()

        return back

    def relay_lost(self) -> Repair:
        """What carries messages on a node dies."""
        machine = self._machine()
        machine.lose_relay()
        return machine.restore_relay

    def shim_killed(self) -> None:
        """A shim is killed; some of its task's processes may outlive it."""
        runs = self._shims()
        if runs:
            self._course.chance.choice(runs).kill_shim(leaves_processes=self._course.chance.random() < 0.5)

    def _shims(self) -> list[Run]:
        """Return what runs on a machine whose agent does not stand still: of shim and agent one has to be there."""
        machine = self._machine()
        return [run for run in machine.runs.values() if run.shim and not machine.agent_stops]

    def shim_stopped(self) -> Repair | None:
        """A shim stands still; its task goes on."""
        runs = self._shims()
        if not runs:
            return None
        run = self._course.chance.choice(runs)
        self._course.note("faults", f"shim of {run} is stopped")
        run.shim_stops += 1
        run.gate.stop()

        def back() -> None:
            run.shim_stops -= 1
            run.gate.go_on()

        return back

    def device_failed(self) -> Repair | None:
        """A device fails, and works again later."""
        machine = self._machine()
        device = self._course.chance.choice(machine.spec.devices).uuid
        machine.failed.add(device)
        return lambda: machine.failed.discard(device)

    def slow_disk(self) -> Repair:
        """Launching and noticing take seconds on a machine."""
        machine = self._machine()
        machine.disk_slow_s = self._course.chance.uniform(0.5, 4.0)

        def back() -> None:
            machine.disk_slow_s = 0.0

        return back

    def clock_set(self) -> Repair:
        """Somebody sets a wall clock."""
        hosts = [one.clock for one in self._heads] + [one.clock for one in self._machines]
        clock = self._course.chance.choice(hosts)
        step_s = self._course.chance.choice(CLOCK_STEPS_S)
        clock.ahead_s += step_s

        def back() -> None:
            clock.ahead_s -= step_s

        return back


KINDS = tuple(name for name in vars(Faults) if not name.startswith("_") and name not in {"plan", "heal"})
"""The names of all faults."""

LEADERS = (
    "head_cut_from_database",
    "head_cut",
    "head_killed",
    "head_paused",
    "deposed_with_a_node",
    "stale_leader",
    "takeover_without_a_node",
    "database_away",
    "pair_cut",
)
NODES = (
    "node_cut",
    "pair_cut",
    "machine_paused",
    "power_lost",
    "relay_lost",
    "slow_network",
    "takeover_without_a_node",
)
TASKS = ("agent_killed", "agent_stopped", "shim_killed", "shim_stopped", "device_failed", "slow_disk", "node_cut")
THEMES = (KINDS, KINDS, LEADERS, LEADERS, NODES, TASKS, TASKS)
"""What a storm breaks: everything, or mainly leaders, nodes or what is on them."""


class PowerSwitches:
    """Switches nodes off for the controller where a storm has such switches: proof of death."""

    def __init__(self, course: Course, machines: dict[NodeId, Machine], *, works: bool) -> None:
        self._course = course
        self._machines = machines
        self._works = works

    def off(self, node: NodeId, answer: Callable[[bool], None]) -> None:
        """Switch a node off, and on again later; now and then that fails."""
        machine = self._machines[node]
        if not self._works or self._course.chance.random() < 0.3:
            self._course.after(0.5, lambda: answer(False))
            return

        def act() -> None:
            machine.power_off()
            answer(True)
            self._course.after(5.0, machine.power_on)

        self._course.after(1.0, act)


STEADY = (("stale_leader",),)
QUIET = (*STEADY, ("takeover_without_a_node",), *(2 * (("deposed_with_a_node",), ("node_cut",))))
QUIET_SPELL = ((40.0, 60.0, 80.0), (1, 2, 3))
"""What a quiet storm breaks: a leader or a node now and then, for longer than leases.

In ``STEADY`` ones jobs come all the time: what a stale leader does not know are those of its successor."""
