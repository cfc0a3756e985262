"""`corral services` and `corral rollout`: services with what their front ends see, their replicas and revisions."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import RenderableType
from rich.text import Text

from corral.cli.render.layout import Column, facts, heading, stack, state, table
from corral.cli.render.units import NOTHING, counted, duration, moment, percent
from corral.model.service import ServiceSpec
from corral.model.service_report import ReplicaReport, ServiceReport


def services(reports: Sequence[ServiceReport]) -> RenderableType:
    """Return the table of services."""
    if not reports:
        return Text("no services")
    heads = (
        Column("SERVICE", cut=True, least=8),
        Column("TENANT", cut=True, least=6, optional=True),
        Column("REPLICAS", right=True),
        Column("LIMITS", right=True, optional=True),
        Column("REVISION", right=True),
        Column("UNDER WAY", right=True, optional=True),
        Column("REQUESTS", right=True),
        Column("ERRORS", right=True),
        Column("P50", right=True, optional=True),
        Column("P99", right=True),
        Column("STATE", wide=True, least=10),
    )
    rows = []
    for one in reports:
        load = one.load
        rows.append(
            (
                one.name,
                one.tenant,
                f"{one.ready}/{one.wanted}",
                limits_words(one),
                revision_words(one),
                NOTHING if load is None else str(load.outstanding + load.waiting),
                NOTHING if load is None else f"{load.requests:,}",
                NOTHING if load is None else errors_words(load.requests, load.errors),
                NOTHING if load is None else duration(load.latency_p50_s),
                NOTHING if load is None else duration(load.latency_p99_s),
                service_state(one),
            )
        )
    return table(heads, rows)


def limits_words(one: ServiceReport) -> str:
    """Return between which numbers of replicas a service stays: ``3`` or ``2-8``."""
    low, high = one.replicas_min, one.replicas_max
    return str(low) if low == high else f"{low}-{high}"


def revision_words(one: ServiceReport) -> str:
    """Return the stable revision, and the one that follows it: ``3``, ``3 -> 4`` or ``3 -> 4 (10 %)``."""
    if one.rollout is None:
        return str(one.stable)
    held = f" ({one.rollout.canary_percent} %)" if one.rollout.canary_percent is not None else ""
    return f"{one.stable} -> {one.rollout.revision}{held}"


def errors_words(requests: int, errors: int) -> str:
    """Return how many requests failed, and which part of all that is."""
    return "0" if not errors else f"{errors:,} ({percent(errors / max(requests, errors))})"


def service_state(one: ServiceReport) -> Text:
    """Return in words how a service is."""
    if one.removing:
        return state("pending", "ends: finishes what is under way")
    if one.wanted == 0 and not one.replicas:
        return state("cancelled", "at rest")
    if one.ready >= one.wanted:
        # What happened last is of interest where it explains a number that was not asked for.
        return state("running", "serves" + (f"; {one.message}" if one.message else ""))
    word = "suspect" if one.ready else "pending"
    return state(word, one.waits_for or one.message or "replicas are starting")


def service(one: ServiceReport, *, now: float) -> RenderableType:
    """Return a service with its replicas and revisions."""
    load = one.load
    pairs: list[tuple[str, str | Text]] = [
        ("service", f"{one.name} of tenant {one.tenant}"),
        ("state", service_state(one)),
        ("replicas", f"{one.ready} of {one.wanted} ready, limits {limits_words(one)}"),
        ("revision", revision_words(one)),
    ]
    if one.model is not None:
        pairs.append(("model", one.model))
    pairs += [("url" if len(one.urls) == 1 else f"url {i}", url) for i, url in enumerate(one.urls, 1)]
    if not one.urls:
        pairs.append(("url", "no front end reports"))
    if load is not None:
        said = f"{load.requests:,}, {load.outstanding} under way, {load.waiting} waiting, {load.retries:,} tried again"
        pairs.append(("requests", said))
        pairs.append(("errors", errors_words(load.requests, load.errors)))
        pairs.append(("latency", f"p50 {duration(load.latency_p50_s)}, p99 {duration(load.latency_p99_s)}"))
        pairs.append(("ejections", f"{load.ejections:,}"))
    return stack(
        facts(pairs),
        heading("replicas") if one.replicas else None,
        _replicas(one.replicas, now) if one.replicas else None,
        heading("revisions"),
        _revisions(one, now),
    )


def _replicas(replicas: Sequence[ReplicaReport], now: float) -> RenderableType:
    heads = (
        Column("REPLICA", right=True),
        Column("JOB", right=True),
        Column("REVISION", right=True),
        Column("NODE", cut=True, least=6),
        Column("ADDRESS", optional=True),
        Column("SINCE", right=True, optional=True),
        Column("UNDER WAY", right=True),
        Column("REQUESTS", right=True),
        Column("ERRORS", right=True),
        Column("STATE", wide=True, least=10),
    )
    rows = []
    for one in replicas:
        load = one.load
        rows.append(
            (
                str(one.ordinal),
                one.job,
                str(one.revision),
                one.node or NOTHING,
                one.address or NOTHING,
                duration(now - one.since),
                NOTHING if load is None else str(load.outstanding),
                NOTHING if load is None else f"{load.requests:,}",
                NOTHING if load is None else errors_words(load.requests, load.errors),
                _replica_state(one),
            )
        )
    return table(heads, rows)


def _replica_state(one: ReplicaReport) -> Text:
    words = one.phase.value if one.state == "running" else f"{one.phase.value} ({one.state})"
    if one.load is not None and one.load.ejected:
        return state("failed", f"{words}, ejected")
    if one.ready is False:
        return state("suspect", f"{words}, not ready" + (f": {one.message}" if one.message else ""))
    word = {"serving": "running", "draining": "cancelled"}.get(one.phase.value, "pending")
    return state(word, words + (f": {one.message}" if one.message and one.phase.value == "starting" else ""))


def _revisions(one: ServiceReport, now: float) -> RenderableType:
    heads = (
        Column("REVISION", right=True),
        Column("MADE", right=True),
        Column("BY", cut=True, least=6),
        Column("", wide=True),
        Column("RUNS", cut=True, least=10),
    )
    following = one.rollout.revision if one.rollout is not None else None
    marks = {one.stable: "stable", following: "is brought out"}
    rows = [
        (str(kept.number), moment(kept.at, now), kept.by, marks.get(kept.number, ""), run_words(kept.spec))
        for kept in reversed(one.revisions)
    ]
    return table(heads, rows)


def run_words(spec: ServiceSpec) -> str:
    """Return what replicas of a revision run, on one line."""
    return " ".join((" ".join(spec.replica.argv) or spec.replica.script or "").split())


def rollout(one: ServiceReport, *, now: float) -> RenderableType:
    """Return how far a rollout is, with the revisions that are kept."""
    under_way = one.rollout
    if under_way is None:
        told = f"revision {one.stable} serves; none follows" + (f" ({one.message})" if one.message else "")
        return stack(Text(told), heading("revisions"), _revisions(one, now))
    new = [replica for replica in one.replicas if replica.revision == under_way.revision]
    ready = sum(replica.phase.value == "serving" for replica in new)
    pairs: list[tuple[str, str | Text]] = [
        ("rollout", f"revision {under_way.revision} follows {one.stable}, since {moment(under_way.began_at, now)}"),
        ("by", under_way.by),
        ("replicas", f"{ready} of {counted(len(new), 'new replica')} ready; {one.ready} of {one.wanted} in all"),
    ]
    if under_way.canary_percent is not None:
        pairs.append(("canary", f"held at {under_way.canary_percent} %: corral rollout widen {one.name} goes on"))
    if one.waits_for:
        pairs.append(("waits for", one.waits_for))
    return stack(facts(pairs), heading("revisions"), _revisions(one, now))
