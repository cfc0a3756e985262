"""`tenant` and `usage`: who shares the pool, by what weight, and what each has used."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from corral.cli.amounts import milli_of, moment_of
from corral.cli.session import Session, note
from corral.cli.targets import TenantName
from corral.cli.tree import Json, StrictGroup, command
from corral.model.errors import InvalidField, NotFound, UsageError
from corral.model.ids import TenantId
from corral.model.tenant import Quota, Tenant

if TYPE_CHECKING:
    from rich.console import RenderableType

tenant = typer.Typer(cls=StrictGroup, invoke_without_command=True, add_completion=False, rich_markup_mode="rich")


def _amount(flag: str, text: str) -> typer.models.OptionInfo:
    return typer.Option(flag, metavar="N", help=f"{text}; none lifts it.", show_default=False)  # type: ignore[no-any-return]


Weight = Annotated[
    float | None,
    typer.Option("--weight", metavar="W", help="Its part of the pool while others wait.", show_default=False),
]
GuaranteedGpus = Annotated[str | None, _amount("--guaranteed-gpus", "GPUs that it gets before weights are looked at")]
GuaranteedCpus = Annotated[str | None, _amount("--guaranteed-cpus", "CPUs that it gets before weights are looked at")]
LimitGpus = Annotated[str | None, _amount("--limit-gpus", "GPUs that it holds at most, also when the pool is idle")]
LimitCpus = Annotated[str | None, _amount("--limit-cpus", "CPUs that it holds at most, also when the pool is idle")]
JobsMax = Annotated[str | None, _amount("--jobs-max", "Unfinished jobs that it may have at most")]


@tenant.callback()
@command
def standing(ctx: typer.Context, session: Session, as_json: Json = False) -> None:
    """Show the tenants: weight, what is due to each, what each holds and held, quotas."""
    if ctx.invoked_subcommand is None:
        show_tenants(session, as_json)


@tenant.command("list")
@command
def listed(session: Session, as_json: Json = False) -> None:
    """Show the tenants, as corral tenant does."""
    show_tenants(session, as_json)


def show_tenants(session: Session, as_json: bool) -> None:
    """Print all tenants."""
    found = session.client.tenants()

    def text() -> RenderableType:
        from corral.cli.render.pool import tenants as rendered

        return rendered(found)

    session.answer({"tenants": found}, text, as_json=as_json)


@tenant.command()
@command
def add(
    session: Session,
    name: TenantName,
    weight: Weight = None,
    guaranteed_gpus: GuaranteedGpus = None,
    guaranteed_cpus: GuaranteedCpus = None,
    limit_gpus: LimitGpus = None,
    limit_cpus: LimitCpus = None,
    jobs_max: JobsMax = None,
) -> None:
    """Add a tenant."""
    quotas = (guaranteed_gpus, guaranteed_cpus, limit_gpus, limit_cpus)
    session.client.set_tenant(changed(Tenant(TenantId(name)), weight, quotas, jobs_max), create=True)
    note(f"tenant {name} is there; corral token issue {name} makes an access token for it")


@tenant.command("set")
@command
def change(
    session: Session,
    name: TenantName,
    weight: Weight = None,
    guaranteed_gpus: GuaranteedGpus = None,
    guaranteed_cpus: GuaranteedCpus = None,
    limit_gpus: LimitGpus = None,
    limit_cpus: LimitCpus = None,
    jobs_max: JobsMax = None,
) -> None:
    """Change a tenant; what is not given stays as it is."""
    before = {str(report.tenant.id): report.tenant for report in session.client.tenants()}
    if name not in before:
        from corral.cli.failures import did_you_mean

        raise NotFound(f"there is no tenant {name}", hint=did_you_mean(name, before, "corral tenant lists them"))
    quotas = (guaranteed_gpus, guaranteed_cpus, limit_gpus, limit_cpus)
    session.client.set_tenant(changed(before[name], weight, quotas, jobs_max))
    note(f"tenant {name} is changed")


@tenant.command()
@command
def remove(session: Session, name: TenantName) -> None:
    """Remove a tenant without unfinished jobs; its tokens end with it."""
    session.client.remove_tenant(name)
    note(f"tenant {name} is removed")


def changed(
    before: Tenant,
    weight: float | None,
    quotas: tuple[str | None, str | None, str | None, str | None],
    jobs: str | None,
) -> Tenant:
    """Return a tenant with what was given in place of what was."""
    if weight is not None and not 0 < weight <= 1_000_000:
        raise InvalidField(f"must be above 0 and at most 1,000,000, not {weight:g}", field="--weight")
    guaranteed_gpus, guaranteed_cpus, limit_gpus, limit_cpus = quotas
    return Tenant(
        before.id,
        before.weight if weight is None else weight,
        Quota(
            milli_of(guaranteed_gpus, "--guaranteed-gpus", before.guaranteed.gpu_milli),
            milli_of(guaranteed_cpus, "--guaranteed-cpus", before.guaranteed.cpus_milli),
        ),
        Quota(
            milli_of(limit_gpus, "--limit-gpus", before.limit.gpu_milli),
            milli_of(limit_cpus, "--limit-cpus", before.limit.cpus_milli),
        ),
        _jobs_max(jobs, before.jobs_max),
    )


def _jobs_max(text: str | None, before: int | None) -> int | None:
    if text is None or text.strip().lower() == "none":
        return before if text is None else None
    if not text.isdecimal() or len(text) > 8:
        raise InvalidField(f"{text!r} is not a number of jobs", field="--jobs-max", hint="write a number, or none")
    return int(text)


BY = ("tenant", "day", "hour")


@command
def usage(
    session: Session,
    since: Annotated[
        str, typer.Option("--since", metavar="TIME", help="From when: an age like 7d, or a date like 2026-01-31.")
    ] = "7d",
    until: Annotated[str, typer.Option("--until", metavar="TIME", help="Until when.")] = "now",
    by: Annotated[str, typer.Option("--by", metavar="WHAT", help="Sum up by tenant, day or hour.")] = "tenant",
    only: Annotated[
        str | None, typer.Option("--tenant", "-t", metavar="TENANT", help="Only this tenant.", show_default=False)
    ] = None,
    as_json: Json = False,
) -> None:
    """Show used GPU-hours and CPU-hours, what of them was lost, and each tenant's part."""
    if by not in BY:
        from corral.cli.failures import did_you_mean

        raise UsageError(f"--by: cannot sum up by {by}", hint=did_you_mean(by, BY, f"one of {', '.join(BY)}"))
    now = time.time()
    first, last = moment_of(since, "--since", now), moment_of(until, "--until", now)
    if first >= last:
        raise UsageError("--since must be before --until")
    rows = session.client.usage(first, last, only)

    def text() -> RenderableType:
        from corral.cli.render.pool import usage as rendered

        return rendered(rows, since=first, until=last, by=by)

    session.answer({"rows": rows}, text, as_json=as_json)
