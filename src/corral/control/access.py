"""Who may see what: tokens to principals, references to jobs."""

from __future__ import annotations

import hashlib

import msgspec
from msgspec.structs import replace

from corral.control.shell import ControlShell
from corral.model.errors import AmbiguousName, Forbidden, NotFound, Unauthenticated
from corral.model.events import GangStopping, ServiceSet
from corral.model.ids import JobId, TenantId
from corral.model.job import Job
from corral.model.tenant import Role, Token
from corral.policy.explain import HIDDEN
from corral.ports.pool import Principal
from corral.ports.store import JobQuery, JournalEntry, Store

DIGITS_MAX = 12
"""Digits of a job's or an element's number: beyond any pool, and short enough to be read as a number."""


def digest_of(secret: str) -> str:
    """Return the form in which a token is kept: the SHA-256 of its secret in hex (secrets are 256-bit random)."""
    return hashlib.sha256(secret.encode()).hexdigest()


def require_admin(who: Principal) -> None:
    """Raise ``Forbidden`` unless the principal is an admin."""
    if who.role is not Role.ADMIN:
        raise Forbidden("this needs an admin token")


def scope(who: Principal) -> TenantId | None:
    """Return the tenant that a principal is bound to, ``None`` for an admin."""
    return None if who.role is Role.ADMIN else who.tenant


def seen_by(entry: JournalEntry, tenant: TenantId | None) -> JournalEntry:
    """Return an entry as a tenant may see it (``None``: an admin): without the numbers of other tenants' jobs.

    Nobody sees the secrets of a service there.
    """
    fact = entry.fact
    if isinstance(fact, ServiceSet) and fact.secrets is not None:
        return replace(entry, fact=replace(fact, secrets=None))
    if tenant is None or not isinstance(fact, GangStopping) or fact.preemption is None:
        return entry
    if fact.preemption.beneficiary is None or fact.preemption.tenant in (None, tenant):
        return entry
    return replace(entry, fact=replace(fact, preemption=replace(fact.preemption, beneficiary=HIDDEN)))


class Ref(msgspec.Struct, frozen=True):
    """A resolved reference: a job, live or finished, and the gang that was named, if any."""

    job: Job
    gang: int | None
    live: bool


class Access:
    """Authentication and lookup over the live state and the store."""

    def __init__(self, shell: ControlShell, store: Store) -> None:
        self._shell = shell
        self._store = store
        self._digests: dict[str, Token] = {}
        self._tokens_seen: dict[str, Token] | None = None

    def authenticate(self, secret: str) -> Principal:
        """Return the principal of a bearer token."""
        tokens = self._shell.core.book.state.tokens
        if self._tokens_seen != tokens:
            self._tokens_seen = dict(tokens)
            self._digests = {t.digest: t for t in tokens.values()}
        token = self._digests.get(digest_of(secret))
        if token is None:
            raise Unauthenticated("this token is not known here", hint="ask the administrator for a new one")
        return Principal(token.tenant, token.role, token.id)

    async def find(self, who: Principal, ref: str) -> Ref:
        """Return the job of a number, a gang (``12.3``, ``name.3``) or a name. Foreign jobs are not found."""
        number, _, index = ref.partition(".")
        tenant = scope(who)
        if number.isdecimal():
            job, live = await self._by_number(JobId(number), tenant)
            if job is not None:
                return Ref(job, self._gang(job, index, ref), live)
        else:
            found = await self._by_name(ref, tenant)
            if found is not None:
                return Ref(found[0], None, found[1])
            # A name may hold dots itself: what is called so goes first.
            name, _, last = ref.rpartition(".")
            found = await self._by_name(name, tenant) if name and last.isdecimal() else None
            if found is not None:
                return Ref(found[0], self._gang(found[0], last, ref), found[1])
        raise NotFound(f"there is no job {ref[:128]!r}", hint="`corral ps --all` lists them")

    async def ended(self, job: JobId) -> Job | None:
        """Return a finished job by its number."""
        found, live = await self._by_number(job, None)
        return None if live else found

    async def finished(self, tenant: TenantId, ref: str) -> Job | None:
        """Return the finished job that a tenant means by a number, or by a name that no live job of its has."""
        if ref.isdecimal():
            job, live = await self._by_number(JobId(ref), tenant)
            return None if live else job
        return await self._finished_by_name(ref, tenant)

    @staticmethod
    def _gang(job: Job, index: str, ref: str) -> int | None:
        if not index:
            return None
        first = index.split(".", maxsplit=1)[0]
        if not first.isdecimal() or len(first) > DIGITS_MAX or int(first) not in job.gangs:
            raise NotFound(f"job {job.id} has no element {ref[:64]!r}", hint=f"it has {len(job.gangs)}, counted from 0")
        return int(first)

    async def _by_number(self, number: JobId, tenant: TenantId | None) -> tuple[Job | None, bool]:
        live = self._shell.core.book.state.jobs.get(number)
        if live is not None:
            return (live, True) if tenant in (None, live.spec.tenant) else (None, True)
        leaving = self._shell.core.book.leaving.get(number)
        if leaving is not None:
            return (leaving, False) if tenant in (None, leaving.spec.tenant) else (None, False)
        row = await self._shell.read(self._store.finished_job, number)
        if row is None or tenant not in (None, row.tenant):
            return None, False
        return msgspec.json.decode(row.document, type=Job), False

    async def _by_name(self, name: str, tenant: TenantId | None) -> tuple[Job, bool] | None:
        same = [
            j
            for j in self._shell.core.book.state.jobs.values()
            if j.spec.name == name and tenant in (None, j.spec.tenant)
        ]
        if len({j.spec.tenant for j in same}) > 1:
            listed = ", ".join(f"{j.id} ({j.spec.tenant})" for j in same[:5])
            raise AmbiguousName(f"several tenants have a job named {name!r}: {listed}", hint="use the number")
        if same:
            return max(same, key=lambda j: int(j.id)), True
        ended = await self._finished_by_name(name, tenant)
        return (ended, False) if ended is not None else None

    async def _finished_by_name(self, name: str, tenant: TenantId | None) -> Job | None:
        leaving = [
            j for j in self._shell.core.book.leaving.values() if j.spec.name == name and tenant in (None, j.spec.tenant)
        ]
        if leaving:
            return max(leaving, key=lambda j: int(j.id))
        rows = await self._shell.read(self._store.finished_jobs, JobQuery(tenant=tenant, name=name, limit=1))
        return (await self._by_number(rows[0].id, tenant))[0] if rows else None
