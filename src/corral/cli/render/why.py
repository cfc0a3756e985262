"""`corral why`: each constraint node by node, the shortfall, who holds what, the share arithmetic, the way out."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import tzinfo
from typing import NamedTuple

from rich.console import RenderableType
from rich.text import Text

from corral.cli.render.layout import Column, cell, facts, heading, stack, state, table
from corral.cli.render.units import (
    amount_words,
    counted,
    duration,
    gang_name,
    memory,
    milli,
    moment,
    percent,
    span,
    trimmed,
)
from corral.model.job import JobState
from corral.model.offer import Reservation
from corral.model.report import ForecastQuality, NodeConstraint, PriceTerms, ShareArithmetic, WhyReport
from corral.model.resources import Amount, GangShape

NODES_SHOWN = 20
HOLDERS_SHOWN = 10
LOOSE = 0.2
"""A round that is further from its bound than this says more of the bound than of the round."""


def why(report: WhyReport, *, now: float, everything: bool = False, zone: tzinfo | None = None) -> RenderableType:
    """Return the whole answer. ``everything`` lists all nodes and holders however many they are."""
    about = f"job {gang_name(report.job, report.gang)}"
    title = Text.assemble((about, "bold"), " ", state(report.state.value), ": ", cell(report.verdict))
    waits = report.state is JobState.PENDING
    return stack(
        title,
        Text(""),
        facts(_summary(report, now, zone)),
        *(_constraints(report, everything) if report.constraints else ()),
        *(_holders(report, now, everything, zone) if waits and any(c.holders for c in report.constraints) else ()),
        *((heading("shares"), Text(shares(report.share))) if report.share else ()),
        *((heading("price"), Text(price(report.terms, now, zone))) if report.terms else ()),
        *(_reservation(report, now, zone) if report.reservation else ()),
    )


def _summary(report: WhyReport, now: float, zone: tzinfo | None) -> list[tuple[str, str]]:
    pairs = [("needs", shape_words(report.shape))]
    if report.largest is not None:
        pairs = [("needs at least", shape_words(report.shape)), ("up to", shape_words(report.largest))]
    if report.pending_gangs > 1:
        pairs.append(("array", f"{report.pending_gangs} elements like this one wait"))
    if report.position is not None:
        pairs.append(("position", f"{report.position}, {counted(report.ahead, 'gang')} ahead"))
    if report.shortfall:
        pairs.append(("shortfall", f"{report.shortfall} of {counted(report.shape.ranks, 'rank')} find no place now"))
    pairs += [("blocked by" if index == 0 else "", text) for index, text in enumerate(report.blocked_by)]
    if report.estimate is not None:
        when = span(report.estimate.earliest, report.estimate.latest, now, zone)
        pairs.append(("expected start", f"{when} ({report.estimate.basis})" if report.estimate.basis else when))
        if report.quality is not None:
            pairs.append(("", quality(report.quality)))
    if report.cheapest_change:
        pairs.append(("cheapest change", report.cheapest_change))
    elif report.shortfall:
        pairs.append(("cheapest change", "none: no smaller request would start now"))
    pairs += [("note", text) for text in report.notes]
    return pairs


def shape_words(shape: GangShape) -> str:
    """Return what a gang needs in words: ``4 nodes, each 8 H100, 32 CPUs, 256 GiB``."""
    need = amount_words(Amount.of(shape.demand))
    if shape.demand.gpu_model and shape.demand.gpu_milli:
        _, _, rest = need.partition(", ")
        need = f"{milli(shape.demand.gpu_milli)} {shape.demand.gpu_model}" + (f", {rest}" if rest else "")
    return need if shape.ranks == 1 else f"{shape.ranks} nodes at once, each {need}"


def shape_brief(shape: GangShape) -> str:
    """Return what a gang needs in a few characters: ``4 x 8 H100``, ``0.5 GPUs``, ``2 x 16 CPUs``."""
    demand = shape.demand
    if demand.gpu_milli:
        each = f"{milli(demand.gpu_milli)} {demand.gpu_model or ('GPU' if demand.gpu_milli == 1000 else 'GPUs')}"
    else:
        each = amount_words(Amount(cpus_milli=demand.cpus_milli))
    return each if shape.ranks == 1 else f"{shape.ranks} x {each}"


def _constraints(report: WhyReport, everything: bool) -> list[RenderableType]:
    fits = sum(constraint.fits for constraint in report.constraints)
    shown = list(report.constraints if everything else report.constraints[:NODES_SHOWN])
    heads = (
        Column("NODE", least=6),
        Column("FITS", right=True),
        Column("FREE GPU", right=True),
        Column("CPU", right=True),
        Column("MEMORY", right=True),
        Column("WHY NOT", wide=True, least=16),
    )
    rows = [
        (
            constraint.node,
            str(constraint.fits),
            f"{milli(constraint.free.gpu_milli)}/{milli(constraint.total.gpu_milli)}",
            f"{milli(constraint.free.cpus_milli)}/{milli(constraint.total.cpus_milli)}",
            memory(constraint.free.memory_mib),
            "; ".join(constraint.blocks) or "nothing against it",
        )
        for constraint in shown
    ]
    left = len(report.constraints) - len(shown)
    parts: list[RenderableType] = [
        heading(f"nodes ({counted(min(fits, report.shape.ranks), 'rank')} of {report.shape.ranks} would fit now)"),
        table(heads, rows),
    ]
    if left:
        parts.append(Text(f"and {counted(left, 'more node')} (--all shows them)", style="dim"))
    return parts


class Held(NamedTuple):
    """What one gang holds over all nodes of the report."""

    key: str
    tenant: str
    gpu_milli: int
    cpus_milli: int
    nodes: int
    ends_at: float | None


def held_by_gang(constraints: Sequence[NodeConstraint]) -> list[Held]:
    """Return what each gang holds, summed over nodes, the largest holders first."""
    held: dict[str, Held] = {}
    # The first element of an array is called by its number beside the others of it.
    arrays = {holder.job for constraint in constraints for holder in constraint.holders if holder.gang}
    for constraint in constraints:
        for holder in constraint.holders:
            key = f"{holder.job}.{holder.gang}" if holder.job in arrays else gang_name(holder.job, holder.gang)
            before = held.get(key) or Held(key, holder.tenant, 0, 0, 0, holder.ends_at)
            held[key] = before._replace(
                gpu_milli=before.gpu_milli + holder.gpu_milli,
                cpus_milli=before.cpus_milli + holder.cpus_milli,
                nodes=before.nodes + 1,
            )
    return sorted(held.values(), key=lambda one: (-one.gpu_milli, -one.cpus_milli, one.key))


def _holders(report: WhyReport, now: float, everything: bool, zone: tzinfo | None) -> list[RenderableType]:
    held = held_by_gang(report.constraints)
    shown = held if everything else held[:HOLDERS_SHOWN]
    heads = (
        Column("JOB", least=4),
        Column("TENANT", least=6),
        Column("GPUS", right=True),
        Column("CPUS", right=True),
        Column("NODES", right=True),
        Column("ENDS", wide=True),
    )
    rows = [
        (
            one.key,
            one.tenant,
            milli(one.gpu_milli),
            milli(one.cpus_milli),
            str(one.nodes),
            "unknown (declares no max_duration)" if one.ends_at is None else f"by {moment(one.ends_at, now, zone)}",
        )
        for one in shown
    ]
    parts: list[RenderableType] = [heading("who holds these nodes"), table(heads, rows)]
    if len(held) > len(shown):
        parts.append(Text(f"and {counted(len(held) - len(shown), 'more gang')} (--all shows them)", style="dim"))
    return parts


def shares(share: ShareArithmetic) -> str:
    """Return the numbers behind the order as sentences."""
    gap = share.decayed_share - share.due_share
    standing = (
        "exactly its due"
        if abs(gap) < 0.0005
        else f"{abs(gap) * 100:.1f} points {'above' if gap > 0 else 'below'} its due"
    )
    order = (
        f"Of {share.tenants_waiting} tenants that wait it is number {share.rank_among_tenants} to be served."
        if share.tenants_waiting > 1
        else "No other tenant waits."
    )
    return safe_sentence(
        f"Tenant {share.tenant} has weight {trimmed(share.weight, 2)}, which makes {percent(share.due_share)} of the "
        f"pool its due. It holds {percent(share.held_share)} now; its average, in which older use counts less, is "
        f"{percent(share.decayed_share)}: {standing}. {order}"
    )


def quality(measured: ForecastQuality) -> str:
    """Return how good such ranges were so far."""
    return (
        f"of the last {counted(measured.forecasts, 'expected start')} {percent(measured.inside, 0)} came within the "
        f"range; half were off its middle by {duration(measured.off_s)} or less"
    )


def price(terms: PriceTerms, now: float, zone: tzinfo | None = None) -> str:
    """Return why a gang did not win the last global round, in sentences."""
    ago = duration(max(0.0, now - terms.at))
    worth, cost = trimmed(terms.worth, 2), trimmed(terms.cost, 2)
    paid = f"With the price of one device as 1, what it asks for costs {cost} and running it is worth {worth}"
    why = {
        "price": f"{paid}: others are worth more",
        "placement": f"{paid}: it could pay, but its ranks find no room together",
        "limit": "A limit of its tenant or queue keeps it out, whatever it is worth",
        "tenure": f"{paid}, but those who would have to give way are protected still",
        "unplaceable": "None of its bids fits the nodes that were available, even if they were empty",
    }.get(terms.reason, f"{paid} ({terms.reason})")
    if terms.reason == "tenure" and terms.protected_until is not None:
        why += f", the first of them until {moment(terms.protected_until, now, zone)}"
    near = f"at most {percent(terms.gap, 2)} below the best possible"
    exact = f"The round was {ago} ago" + (
        f" and {near}." if terms.gap < LOOSE else "; its bound is too loose to judge it."
    )
    return safe_sentence(f"{why}. {exact}")


def safe_sentence(text: str) -> str:
    """Return a sentence that holds other people's names, escaped."""
    return cell(text).plain


def _reservation(report: WhyReport, now: float, zone: tzinfo | None) -> list[RenderableType]:
    assert report.reservation is not None
    text = reservation(report.reservation, own=report.own_reservation, now=now, zone=zone)
    return [heading("reservation"), cell(text)]


def reservation(kept: Reservation, *, own: bool, now: float, zone: tzinfo | None = None) -> str:
    """Return who keeps which nodes from when."""
    nodes: dict[str, int] = {}
    for placement in kept.placements:
        nodes[placement.node] = nodes.get(placement.node, 0) + placement.gpu_milli
    where = ", ".join(f"{node} ({milli(gpu)} GPUs)" if gpu else node for node, gpu in nodes.items())
    when = "as they become free" if kept.start_at is None else f"from {moment(kept.start_at, now, zone)}"
    whom = "This job" if own else f"Job {gang_name(kept.key.job, kept.key.gang)} of tenant {kept.tenant}"
    other = "" if own else " What would end later is not started there."
    return f"{whom} keeps {where} {when}.{other}"
