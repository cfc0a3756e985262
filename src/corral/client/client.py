"""The SDK: ``corral.Client()`` finds the pool and has one typed method for each thing that it can be asked."""

from __future__ import annotations

import os
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self, TypeVar, Unpack

import msgspec

from corral.client.calls import Caller, decoded, segment
from corral.client.discovery import Discovery
from corral.client.handle import JobHandle
from corral.client.services import ServiceCalls
from corral.client.submitting import Submitter
from corral.client.transport import PlainTransport, Transport
from corral.model.errors import UsageError

if TYPE_CHECKING:
    from corral.client.fields import JobFields
    from corral.model.ask import JobAsk
    from corral.model.job import Job
    from corral.model.plan import PlanAsk, PlanReport
    from corral.model.report import (
        JobRows,
        JobSummary,
        Ledger,
        MaintenanceReport,
        NodeReport,
        PoolStatus,
        QueueLine,
        Receipt,
        TenantReport,
        WhyReport,
    )
    from corral.model.tenant import Queue, Role, Tenant, Token
    from corral.ports.engine import LogChunk
    from corral.ports.store import JournalEntry, UsageRow

T = TypeVar("T")
WAIT_S = 20.0
"""How long one call of `wait` may stay unanswered; longer waits are several calls."""
ANSWER_MARGIN_S = 10.0
RETRY_S = 10.0
RETRY_HEADS_S = 20.0
"""A takeover takes up to 6 s, and a head that was cut off as long as a connection may take to be made."""


class Client(ServiceCalls):
    """A pool, seen from outside. Without arguments it finds the pool of this machine and user.

    A pool with several heads is given as ``urls``, or as one ``url`` with commas: the client follows the leader.
    ``url`` and ``token`` default to ``CORRAL_URL`` and ``CORRAL_TOKEN``, else to what the daemon of ``state_dir``
    (``CORRAL_STATE_DIR``, ``~/.corral``) wrote there. ``timeout_s`` limits one answer. While the daemon restarts,
    or another head takes over, reads, changes that may be repeated and submits (each has a key of its own) are repeated
    for up to ``retry_s`` (10 s, with several URLs 20 s).
    ``ca_file`` (``CORRAL_CA_FILE``) holds the certificate of a pool that has its own authority; the pool of this
    machine is known by the certificate that it was started with. Threads may share a client.

    Every method raises the errors of :mod:`corral.model.errors`; ``DaemonNotRunning`` when nobody answers.
    """

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        state_dir: str | os.PathLike[str] | None = None,
        *,
        timeout_s: float = 30.0,
        retry_s: float | None = None,
        ca_file: str | os.PathLike[str] | None = None,
        transport: Transport | None = None,
        urls: Sequence[str] = (),
    ) -> None:
        discovery = Discovery(",".join(urls) or url or None, token, state_dir)
        patience_s = retry_s if retry_s is not None else RETRY_S if len(discovery.urls) < 2 else RETRY_HEADS_S
        self._transport = transport or PlainTransport(ca_file or discovery.ca_file, discovery.certificate)
        self._caller = Caller(discovery, self._transport, timeout_s=timeout_s, retry_s=patience_s)
        self._submitter = Submitter(self._caller)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections; the client can be used again."""
        self._transport.close()

    # ---- jobs ------------------------------------------------------------------------------------------------------

    def submit(
        self, job: JobAsk | None = None, /, *, idempotency_key: str | None = None, **fields: Unpack[JobFields]
    ) -> JobHandle:
        """Submit one job, given as a :class:`JobAsk` or in keyword arguments as in a job file.

        ``client.submit(run=["python", "train.py"], gpus=2, num_nodes=2)``. The call is safe to repeat: it has an
        idempotency key, a fresh one unless it is given.
        """
        if job is not None and fields:
            raise UsageError("give a job or keyword arguments, not both")
        if job is None:
            from corral.client.fields import ask_of_keywords

            job = ask_of_keywords(fields)
        return self.submit_all([job], idempotency_key=idempotency_key)[0]

    def submit_all(self, jobs: Sequence[JobAsk], *, idempotency_key: str | None = None) -> list[JobHandle]:
        """Submit jobs together: all are admitted or none; ``after`` may name others of them.

        Raises ``InvalidField`` for a job's own proposer that is surely not to be found in its ``workdir``.
        """
        key = idempotency_key or os.urandom(16).hex()
        if not key.isascii() or not key.isprintable():
            raise UsageError("an idempotency key must be printable ASCII")
        return [JobHandle(self, job.id, job.name) for job in self._submitter.submit(jobs, key, user_name())]

    def fetch(self, ref: str, directory: str | os.PathLike[str]) -> list[Path]:
        """Write what the tasks of a job gave back into a directory, and return the files.

        Of one task they lie in the directory itself; an array has a directory for each element, called by its index,
        a gang ``rank-N`` for each rank in it. ``ref`` may be a gang, ``12.3``. Raises ``NotFound`` when nothing came
        back (yet).
        """
        from corral.client.fetching import fetched

        return fetched(self, ref, Path(directory), self._caller)

    def handle(self, ref: str) -> JobHandle:
        """Return the handle of a job by its number or name."""
        found = self.summary(ref)
        return JobHandle(self, found.id, found.name)

    def summary(self, ref: str) -> JobSummary:
        """Return one job as a row."""
        from corral.model.report import JobSummary

        return self._get(f"/jobs/{segment(ref)}/summary", JobSummary)

    def job(self, ref: str, *, gangs_from: int = 0, gangs_max: int = 1_000) -> Job:
        """Return one job with its tasks; of a large array only ``gangs_max`` gangs from ``gangs_from`` on."""
        from corral.model.job import Job

        return self._get(f"/jobs/{segment(ref)}", Job, gangs_from=gangs_from, gangs_max=gangs_max)

    def jobs(
        self,
        *,
        live: bool = True,
        finished: bool = False,
        tenant: str | None = None,
        name: str | None = None,
        state: str | None = None,
        since: float | None = None,
        before: int | None = None,
        limit: int = 100,
    ) -> JobRows:
        """Return jobs as rows, newest first; ``before`` is a job number (``next_before`` of the page before)."""
        from corral.model.report import JobRows

        return self._get(
            "/jobs",
            JobRows,
            live=live,
            finished=finished,
            tenant=tenant,
            name=name,
            state=state,
            since=since,
            before=before,
            limit=limit,
        )

    def wait(self, ref: str, timeout_s: float | None = None) -> JobSummary:
        """Return the job once it ended, or as it is after ``timeout_s`` (``None``: however long it takes)."""
        import time

        from corral.model.report import JobSummary

        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            part_s = WAIT_S if deadline is None else max(0.0, min(WAIT_S, deadline - time.monotonic()))
            reply = self._caller.call(
                "GET",
                f"/jobs/{segment(ref)}/wait",
                query={"timeout_s": part_s},
                timeout_s=part_s + ANSWER_MARGIN_S,
                long_poll=True,
            )
            found = decoded(reply.body, JobSummary)
            if found.state.ended or (deadline is not None and time.monotonic() >= deadline):
                return found

    def cancel(self, ref: str) -> JobSummary:
        """Ask for the end of a job. Raises ``Conflict`` when it has ended."""
        from corral.model.report import JobSummary

        return decoded(self._caller.call("DELETE", f"/jobs/{segment(ref)}").body, JobSummary)

    def why(self, ref: str) -> WhyReport:
        """Explain where a job stands and why."""
        from corral.model.report import WhyReport

        return self._get(f"/jobs/{segment(ref)}/why", WhyReport)

    def receipt(self, ref: str) -> Receipt:
        """Return what a job cost so far or in all."""
        from corral.model.report import Receipt

        return self._get(f"/jobs/{segment(ref)}/receipt", Receipt)

    def history(self, ref: str) -> list[JournalEntry]:
        """Return the journaled facts of a job, oldest first; kinds that this version does not know are left out."""
        from corral.client.facts import entries_of

        return entries_of(self._caller.call("GET", f"/jobs/{segment(ref)}/history").body)

    def logs(
        self,
        ref: str,
        *,
        rank: int | None = None,
        incarnation: int | None = None,
        offset: int = 0,
        follow: bool = False,
    ) -> Generator[LogChunk]:
        """Yield the log of one task in pieces; ``ref`` may be a gang, ``12.3``; ``follow`` waits until the job ended.

        Each start of a task, an ``incarnation``, has a log of its own: read is the newest, or the one that is named;
        followed are those after it, too. ``offset`` counts bytes from the first of that log; bytes that rotation
        removed are skipped, as the pieces' offsets show.
        """
        from corral.client.follow import follow_log, read_log

        query = {"rank": rank, "incarnation": incarnation, "offset": offset}
        return (follow_log if follow else read_log)(self._caller, f"/jobs/{segment(ref)}/log", query)

    def events(self, ref: str | None = None, *, after_seq: int | None = None) -> Generator[JournalEntry]:
        """Yield journaled facts as they happen, of one job or of all; ``after_seq`` begins with older ones."""
        from corral.client.facts import follow_facts

        return follow_facts(self._caller, ref, after_seq)

    # ---- the pool --------------------------------------------------------------------------------------------------

    def status(self) -> PoolStatus:
        """Return the pool at a glance."""
        from corral.model.report import PoolStatus

        return self._get("/status", PoolStatus)

    def nodes(self) -> tuple[NodeReport, ...]:
        """Return all nodes with their devices."""
        from corral.model.report import NodeReport

        return self._get("/nodes", dict[str, tuple[NodeReport, ...]])["nodes"]

    def cordon(self, node: str, reason: str = "", *, drain: bool = False) -> None:
        """Give a node no new tasks (admin); with ``drain`` have those that run there save themselves and give way."""
        body = msgspec.json.encode({"reason": reason, "drain": drain})
        self._caller.call("POST", f"/nodes/{segment(node)}/cordon", body=body)

    def uncordon(self, node: str) -> None:
        """Give a node tasks again (admin)."""
        self._caller.call("POST", f"/nodes/{segment(node)}/uncordon")

    def remove_node(self, node: str) -> None:
        """Forget a lost node without tasks (admin)."""
        self._caller.call("DELETE", f"/nodes/{segment(node)}")

    def maintenance(self) -> MaintenanceReport:
        """Return how far a planned outage of the controller is prepared."""
        from corral.model.report import MaintenanceReport

        return self._get("/maintenance", MaintenanceReport)

    def start_maintenance(self, duration_s: float, reason: str = "") -> MaintenanceReport:
        """Grant leases for so long from now on (admin). The outage may begin when no node is ``missing``."""
        from corral.model.report import MaintenanceReport

        body = msgspec.json.encode({"duration_s": duration_s, "reason": reason})
        return decoded(self._caller.call("POST", "/maintenance", body=body).body, MaintenanceReport)

    def stop_maintenance(self) -> None:
        """Take the long leases back (admin)."""
        self._caller.call("DELETE", "/maintenance")

    def queue(self, limit: int = 100) -> tuple[QueueLine, ...]:
        """Return pending gangs in the order in which they are considered."""
        from corral.model.report import QueueLine

        return self._get("/queue", dict[str, tuple[QueueLine, ...]], limit=limit)["lines"]

    def ledger(self, hours: float = 24.0) -> Ledger:
        """Return who received, owes and was preempted in the last ``hours`` (a week is kept)."""
        from corral.model.report import Ledger

        return self._get("/ledger", Ledger, hours=hours)

    def plan(self, ask: PlanAsk) -> PlanReport:
        """Return what changes would do, tried on a copy of the pool; nothing is changed."""
        from corral.model.plan import PlanReport
        from corral.wire.planning import document_of_plan

        body = msgspec.json.encode(document_of_plan(ask))
        return decoded(self._caller.call("POST", "/plan", body=body, timeout_s=180.0).body, PlanReport)

    def queues(self) -> tuple[Queue, ...]:
        """Return the queues."""
        from corral.model.tenant import Queue

        return self._get("/queues", dict[str, tuple[Queue, ...]])["queues"]

    def set_queue(self, queue: Queue, *, create: bool = False) -> None:
        """Change a queue, or add it with ``create`` (admin); adding an existing one raises ``DuplicateName``."""
        self._set("/queues", queue.name, queue, "name", create=create)

    def remove_queue(self, name: str) -> None:
        """Remove an unused queue (admin)."""
        self._caller.call("DELETE", f"/queues/{segment(name)}")

    def tenants(self) -> tuple[TenantReport, ...]:
        """Return all tenants (admin) or one's own, with their standing."""
        from corral.model.report import TenantReport

        return self._get("/tenants", dict[str, tuple[TenantReport, ...]])["tenants"]

    def set_tenant(self, tenant: Tenant, *, create: bool = False) -> None:
        """Change a tenant, or add it with ``create`` (admin); adding an existing one raises ``DuplicateName``."""
        self._set("/tenants", tenant.id, tenant, "id", create=create)

    def remove_tenant(self, tenant: str) -> None:
        """Remove a tenant without unfinished jobs (admin)."""
        self._caller.call("DELETE", f"/tenants/{segment(tenant)}")

    def tokens(self) -> tuple[Token, ...]:
        """Return the tokens of one's tenant (admin: all), without digests."""
        from corral.client.facts import tokens_of

        return tokens_of(self._caller.call("GET", "/tokens").body)

    def issue_token(self, tenant: str, role: Role | str = "user", label: str = "") -> tuple[Token, str]:
        """Make a token (admin); return it and its secret, which is shown this once."""
        from corral.client.facts import issued_token_of

        body = msgspec.json.encode({"tenant": tenant, "role": role, "label": label})
        return issued_token_of(self._caller.call("POST", "/tokens", body=body, repeatable=False).body)

    def revoke_token(self, token_id: str) -> None:
        """Refuse a token from now on (admin)."""
        self._caller.call("DELETE", f"/tokens/{segment(token_id)}")

    def usage(self, since: float, until: float, tenant: str | None = None) -> tuple[UsageRow, ...]:
        """Return used milli-GPU and milli-CPU seconds by tenant and hour; times in seconds since the epoch."""
        from corral.ports.store import UsageRow

        return self._get("/usage", dict[str, tuple[UsageRow, ...]], since=since, until=until, tenant=tenant)["rows"]

    def stop(self, tasks: Literal["refuse", "stop", "leave"] = "refuse") -> int:
        """Stop the daemon (admin); return how many tasks are left running.

        With live tasks ``refuse`` raises ``JobsRunning``, ``stop`` ends them (their jobs are queued again) and
        ``leave`` lets them run on.
        """
        reply = self._caller.call(
            "POST", "/stop", body=msgspec.json.encode({"tasks": tasks}), timeout_s=120.0, repeatable=False
        )
        return decoded(reply.body, dict[str, int])["tasks_left"]

    def _get(self, path: str, kind: type[T], **query: str | float | bool | None) -> T:
        return decoded(self._caller.call("GET", path, query=query).body, kind)

    def _set(self, path: str, name: str, thing: Queue | Tenant, key: str, *, create: bool) -> None:
        said = msgspec.to_builtins(thing)
        del said[key]
        if create:
            body = msgspec.json.encode({key: name, **said})
            self._caller.call("POST", path, body=body, repeatable=False)
        else:
            self._caller.call("PUT", f"{path}/{segment(name)}", body=msgspec.json.encode(said))


def user_name() -> str:
    """Return the name of the user who runs this process, as it is written on jobs: for information only."""
    import pwd

    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())
