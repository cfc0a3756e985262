"""Every constant of the policy room, with its reason. Set once for all pools and traces, never fitted to one.

Times in seconds, shares as parts of the pool (0..1).
"""

from __future__ import annotations

import msgspec

from corral.model.job import Fencing

PRIORITY_MAX = 1000
"""Priorities lie in -1000..1000: enough for any house order, small enough to be read."""

ARRAY_MAX = 10_000
"""Elements of one array. Every element is a gang in memory (about 1 KB): 10,000 keep a job near 10 MB."""

RANKS_MAX = 100_000
"""Ranks of one gang: above any pool that this project aims at (100k GPUs); stops absurd numbers early."""

BIDS_MAX = 32
"""Bids of one proposal (design: phase 1)."""

NAME_LENGTH_MAX = 128
"""Names of jobs and shards: a file name has 255 bytes, and names become parts of file names."""

ARGUMENT_BYTES_MAX = 131_071
"""Linux refuses one argument or environment string of more (MAX_ARG_STRLEN, 32 pages, with its NUL: execve(2))."""

COMMAND_BYTES_MAX = 1_048_576
"""All arguments and variables of a task together: half of Linux' ARG_MAX at the default 8 MiB stack (execve(2))."""

SCRIPT_BYTES_MAX = 1_048_576
"""A script of up to a job file's size; one too long for an argument reaches the shell as a file."""

PATH_LENGTH_MAX = 4_095
"""Linux: PATH_MAX with its NUL is 4,096."""

INDEX_MAX = 1_000_000_000
"""The largest index of an array element: a name, not a count."""

QUANTITY_MAX = 10**12
"""Milli-GPUs, milli-CPUs and MiB of one rank: beyond any machine, small enough for every sum to stay exact."""

ENTRIES_MAX = 1_000
"""Environment variables, file mounts, shards or dependencies of one job: more is a generator gone wild."""

DURATION_MAX_S = 10 * 365 * 86_400.0
"""The longest ``max_duration``: ten years outlast the machine; who wants more declares none."""

GRACE_MAX_S = 86_400.0
"""The longest grace, a day: a node that is drained waits this long for one task."""

LEASE_MIN_S = 10.0
"""Below this a few lost heartbeats (one a second) and a slow leader change would freeze healthy tasks."""

LEASE_MAX_S = 7 * 86_400.0
"""A week: longer means that a partitioned job blocks its devices for longer than anybody waits."""

LEASE_MARGIN_S = 10.0
"""The checkpoint signal is sent at ``lease - checkpoint grace - 10 s`` (architecture, decision 4)."""

RESTART_COST_MAX_S = 86_400.0
"""The longest ``restart_cost``, a day: with ten times as much tenure nothing would be preempted for ten."""

RESTARTS_MAX = 1_000_000
"""``max_restarts``: more than once a minute for a year."""

LAUNCH_MOVES_MAX = 5
"""Free moves after which a failed launch, a vanished shim or a failed device is charged: the job may be the cause."""


class SchedulingConfig(msgspec.Struct, frozen=True):
    """The dials of arbitration.

    ``usage_half_life_s``: one hour. A tenant that had the pool to itself over night is level again after a morning's
    coffee, not after a week (Slurm's default is seven days), yet history outlasts any single short job.

    ``history_weight``: how much the decayed share counts against the share held now. Below 1, a tenant that was idle
    can get at most ``(1 + history_weight) / 2`` of a pool that one equal tenant had alone: it never has all of it.

    ``reservations``: EASY keeps one reservation (Lifka, JSSPP'95); each further one costs utilisation.

    ``unknown_end_s``: the least time for which a holder without declared end is expected to go on. Above it the
    expectation is its age (a Pareto tail: what has run long will run long), which only orders choices, never promises.

    ``replan_ratio``: a reservation without a known start moves to other nodes only when these are expected within
    this part of the time that the old ones need: without such a margin it would wander.

    ``backfill_scan``: candidates of one shape that are looked at, in order, for one that ends before a reservation;
    after that the one with the shortest declared duration is taken.

    ``cold_start_weight``: devices per second. Leaving ten seconds of data loading out is worth breaking up one device
    of an otherwise whole island.

    ``cold_start_unlisted_s``: what a node that a bid does not list costs more than the worst one that it lists.

    ``cold_start_per_shard_s``: loading one missing shard (about 10 GB at 1 GB/s, a 10 GbE link).

    ``avoid_back_off_s`` doubles with each node in the avoid list up to ``avoid_back_off_max_s``: so long a retry waits
    for another node to come free before it goes back to where it failed.

    ``tenure_s`` and ``tenure_restarts``: no preemption before max(10 min, 10 x restart cost) (design: tenure).

    ``round_s``: the time between global rounds.

    ``fairness`` is the dial, 0..1, that trades average completion time against the worst finish-time ratio: how little
    is staked on a guess of what remains and how much waiting counts (see ``valuation``). At 0 everybody is served by
    what is expected to remain; at 1 gangs that declare nothing are served by least attained service, and the worth of
    every gang is in proportion to the finish-time ratio that is expected of it. At 0.15 a guess that is ten times
    longer counts as seven times longer, and a ratio of 1,000 makes a gang worth 1.17 times as much.

    ``remaining_exponent``: that of size over remaining time. Any above 0 serves the least remaining service first
    where devices are alike; 0.5 damps what a short gang can pay for fast ones (see ``valuation``).

    ``critical_weight`` and ``critical_exponent``: what faster devices are worth to the gang that all of its tenant
    waits for in the end, in those of usual gangs, and how fast that fades for gangs that will be done earlier (at half
    of the way to the end, 1/4,096 is left).

    ``patience_s``: a gang that has waited for so long goes before nearly all that came after it, whatever they need.
    A quarter of a year: in a pool that is overloaded for months (its users ask for more than it has) anything shorter
    lets the largest jobs stop all others. ``patience_exponent``: at 1.4 times as long a gang is worth sixteen times as
    much, more than what the usual spread of services makes.

    ``prior_gangs``: so many gangs' worth of evidence has the scale-free prior of service times, which runs from
    ``prior_shortest_s`` to ``prior_longest_s``. Thirty: the number from which a sample counts as large. The ends are
    the shortest run that a preemption costs as much as, and two months, the longest that pools commonly allow.
    ``pool_gangs``: the evidence that a class takes from all others, so that its own hundred outweighs them.

    ``round_early_s``: so soon after the last round the next one may come where a tenant below its guarantee or a gang
    of higher priority in its tenant waits for what others hold. ``round_rest``: after so many intervals a round comes
    although nothing changed, since the worth of waiting gangs moves with time.
    """

    usage_half_life_s: float = 3_600.0
    history_weight: float = 0.5
    reservations: int = 1
    unknown_end_s: float = 60.0
    replan_ratio: float = 0.5
    backfill_scan: int = 512
    cold_start_weight: float = 0.1
    cold_start_unlisted_s: float = 30.0
    cold_start_per_shard_s: float = 10.0
    avoid_back_off_s: float = 5.0
    avoid_back_off_max_s: float = 60.0
    tenure_s: float = 600.0
    tenure_restarts: float = 10.0
    round_s: float = 60.0
    round_early_s: float = 5.0
    round_rest: int = 10
    fairness: float = 0.15
    remaining_exponent: float = 0.5
    critical_weight: float = 1.0
    critical_exponent: float = 12.0
    patience_s: float = 90 * 86_400.0
    patience_exponent: float = 8.0
    prior_gangs: float = 30.0
    prior_shortest_s: float = 30.0
    prior_longest_s: float = 60 * 86_400.0
    pool_gangs: float = 100.0


class AdmissionDefaults(msgspec.Struct, frozen=True):
    """What a job gets where it says nothing. CPU and memory defaults are for jobs without GPUs only.

    A job with GPUs gets its nodes' CPUs and memory in proportion to the devices that it takes; one without gets memory
    in proportion to its CPUs, and ``memory_mib`` at least.
    """

    cpus_milli: int = 1_000
    memory_mib: int = 1_024
    max_duration_s: float | None = None
    grace_s: float = 10.0
    max_restarts: int = 0
    fencing: Fencing = Fencing.EXCLUSIVE
    lease_s: float = 90.0
    restart_cost_s: float = 30.0
    jobs_max: int = 100_000
