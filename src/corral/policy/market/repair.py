"""From prices to a choice that keeps within every constraint: those who would lose most by giving way choose first."""

from __future__ import annotations

import numpy as np

from corral.policy.market.auction import Dual, Verdict
from corral.policy.market.ground import Floats, Ints
from corral.policy.market.linear import best_choice

CONTESTED_MAX = 40
"""Contenders that go to the exact solver: the few whose answer prices leave open."""

CONTESTED_WAYS = 4
"""Ways of each that go there: the best at the prices."""

EVERYBODY_WAYS_MAX = 400
"""Ways of all contenders together up to which all of them go there: then its bound is one on every choice."""

NODES_FEW_MAX = 50
"""Branch-and-bound nodes for the few: their gain is small, so most of it comes with the first nodes."""

NODES_ALL_MAX = 200
"""Nodes when all take part: usually a proof."""

SETTLED = 2e-4
"""The relative gap at which nothing is left to contest."""

_SLACK = 1e-7


def choose(dual: Dual, verdict: Verdict, scan: int = 4_096) -> tuple[Ints, Verdict]:
    """Return the way that each contender takes (-1: none), within all constraints, and the verdict.

    Its bound is that of the prices, or of the exact solver where all contenders are few enough for it.
    """
    choice = _improve(dual, _by_regret(dual, verdict), scan)
    value = float(dual.value[choice[choice >= 0]].sum())
    if verdict.value - value > SETTLED * verdict.value:
        choice, bound = _contest(dual, verdict, choice)
        if bound is not None and bound < verdict.value:
            verdict = Verdict(verdict.prices, bound, verdict.choice, verdict.reduced, verdict.use)
    return choice, verdict


def _use(dual: Dual, choice: Ints) -> Floats:
    counts = np.bincount(dual.form[choice[choice >= 0]], minlength=len(dual.coefs)).astype(np.float64)
    return counts @ dual.coefs


def _by_regret(dual: Dual, verdict: Verdict) -> Ints:
    """Let contenders take their best way in the order of regret: what they lose if they have to take the next."""
    count = len(dual.starts)
    choice = np.full(count, -1, dtype=np.int64)
    if not count:
        return choice
    regret = _regrets(dual, verdict)
    wants = np.flatnonzero(verdict.choice >= 0)
    # Per unit of what it uses: a large gang with a little more regret must not crowd out many small ones.
    cost = (dual.coefs @ verdict.prices)[dual.form[verdict.choice[wants]]]
    order = wants[np.argsort(-regret[wants] / np.maximum(cost, cost.max(initial=0.0) * 1e-9 + 1e-200), kind="stable")]
    ways = verdict.choice[order]
    filled = np.cumsum(dual.coefs[dual.form[ways]], axis=0)
    over = (filled > dual.caps + _SLACK).any(axis=1)
    safe = int(np.argmax(over)) if over.any() else len(order)
    choice[order[:safe]] = ways[:safe]
    left = dual.caps - (filled[safe - 1] if safe else 0.0)
    for job in order[safe:].tolist():
        begin = int(dual.starts[job])
        reduced = verdict.reduced[begin : begin + int(dual.sizes[job])]
        for offset in np.argsort(-reduced, kind="stable").tolist():
            use = dual.coefs[dual.form[begin + offset]]
            if (use <= left + _SLACK).all():
                choice[job] = begin + offset
                left = left - use
                break
    return choice


def _regrets(dual: Dual, verdict: Verdict) -> Floats:
    """Return best less second-best reduced value of each contender; going without counts 0."""
    best = np.maximum.reduceat(verdict.reduced, dual.starts)
    second = verdict.reduced.copy()
    taken = verdict.choice[verdict.choice >= 0]
    # A way of the same form is no way out: it needs what the best needs.
    chosen_form = np.repeat(np.where(verdict.choice >= 0, dual.form[verdict.choice], -1), dual.sizes)
    second[dual.form == chosen_form] = -np.inf
    second[taken] = -np.inf
    return best - np.maximum(0.0, np.maximum.reduceat(second, dual.starts))


def _improve(dual: Dual, choice: Ints, scan: int) -> Ints:
    """Give what is left to whoever gains most by it, one by one."""
    left = dual.caps - _use(dual, choice)
    job = np.repeat(np.arange(len(dual.starts)), dual.sizes)
    for _ in range(scan):
        now = np.where(choice >= 0, dual.value[choice], 0.0)
        used = np.where((choice >= 0)[:, None], dual.coefs[dual.form[choice]], 0.0)
        open_forms = (dual.coefs <= left + used.max(axis=0, initial=0.0) + _SLACK).all(axis=1)
        ways = np.flatnonzero(open_forms[dual.form] & (dual.value > now[job] * (1 + 1e-12) + 1e-300))
        if not len(ways):
            break
        fits = (dual.coefs[dual.form[ways]] <= left + used[job[ways]] + _SLACK).all(axis=1)
        ways = ways[fits]
        if not len(ways):
            break
        # Many independent gains at once: best first, each contender once, as far as they fit together.
        gain = dual.value[ways] - now[job[ways]]
        order = ways[np.argsort(-gain, kind="stable")]
        _, firsts = np.unique(job[order], return_index=True)
        order = order[np.sort(firsts)]
        more = np.cumsum(dual.coefs[dual.form[order]] - used[job[order]], axis=0)
        over = (more > left + _SLACK).any(axis=1)
        end = int(np.argmax(over)) if over.any() else len(order)
        end = max(1, end)
        choice[job[order[:end]]] = order[:end]
        left = dual.caps - _use(dual, choice)
    return choice


def _contest(dual: Dual, verdict: Verdict, choice: Ints) -> tuple[Ints, float | None]:
    """Solve the few contenders nearest to the margin exactly, on what they and nobody else uses.

    Returns the better choice, and a bound on every choice when all contenders with all their ways took part.
    """
    reduced = verdict.reduced
    best = np.maximum.reduceat(reduced, dual.starts)
    now = np.where(choice >= 0, reduced[choice], 0.0)
    # What was forgone at the prices comes first, then those who would lose least by another answer.
    forgone = np.maximum(best, 0.0) - now
    nearness = np.where(forgone > 0, -forgone, np.abs(_regrets(dual, verdict)))
    jobs = np.sort(np.argsort(nearness, kind="stable")[:CONTESTED_MAX])
    everybody = len(dual.value) <= EVERYBODY_WAYS_MAX
    if everybody:
        jobs = np.arange(len(dual.starts))
    rest = choice.copy()
    rest[jobs] = -1
    left = dual.caps - _use(dual, rest)
    ways, owner = [], []
    for index, job in enumerate(jobs.tolist()):
        begin, size = int(dual.starts[job]), int(dual.sizes[job])
        mine = begin + np.argsort(-reduced[begin : begin + size], kind="stable")
        if not everybody:
            mine = mine[:CONTESTED_WAYS]
            if choice[job] >= 0 and choice[job] not in mine:
                mine = np.append(mine, choice[job])
        ways.append(mine)
        owner.append(np.full(len(mine), index))
    flat, of = np.concatenate(ways), np.concatenate(owner)
    nodes = NODES_ALL_MAX if everybody else NODES_FEW_MAX
    found = best_choice(dual.value[flat], of, dual.coefs[dual.form[flat]], np.maximum(left, 0.0), nodes)
    if found is None:
        return choice, None
    chosen = flat[found[0]]
    bound = found[1] if everybody else None
    if dual.value[chosen].sum() <= dual.value[choice[jobs][choice[jobs] >= 0]].sum():
        return choice, bound
    rest[jobs[of[found[0]]]] = chosen
    return rest, bound
