"""The one tree of corral's errors: every class has a stable code, a category and a retryable flag.

The category decides the process exit code of the command line and the HTTP status of the API (each maps it in one
place); the code is what programs match on and never changes its meaning. A refusal that is an expected answer
(a job that does not fit a quota, a stale proposal) travels as a :class:`Refusal` value and becomes an exception only
at the edge that has to raise one.
"""

from __future__ import annotations

from typing import ClassVar

from corral.model.refusal import Category as Category  # noqa: PLC0414 - named here for all
from corral.model.refusal import Refusal as Refusal  # noqa: PLC0414 - the same


class CorralError(Exception):
    """Root of the tree. ``code`` is stable; ``retryable`` says whether the same call may succeed later.

    ``also`` holds what else is wrong with the same request, each as a refusal of its own (usually empty).
    """

    code: ClassVar[str] = "CORRAL"
    category: ClassVar[Category] = Category.FAULT
    retryable: ClassVar[bool] = False

    def __init__(
        self, message: str, *, field: str | None = None, hint: str | None = None, where: str | None = None
    ) -> None:
        self.refusal = Refusal(self.code, message, field, hint, where)
        self.also: tuple[Refusal, ...] = ()
        super().__init__(self.refusal.line())

    @classmethod
    def of(cls, refusal: Refusal) -> CorralError:
        """Return the exception of the class whose code the refusal carries (``CorralError`` when unknown)."""
        kind = by_code().get(refusal.code, cls)
        return kind(refusal.message, field=refusal.field, hint=refusal.hint, where=refusal.where)


class UsageError(CorralError):
    """The request is wrong in itself; repeating it cannot help."""

    code = "USAGE"
    category = Category.USAGE


class JobFileUnreadable(UsageError):
    """The job file cannot be read, is too large, or is not YAML."""

    code = "JOB_FILE_UNREADABLE"


class UnknownField(UsageError):
    """A field that corral does not know; the nearest right name is in the hint."""

    code = "UNKNOWN_FIELD"


class InvalidField(UsageError):
    """A field has the wrong type, is out of range, or contradicts another."""

    code = "INVALID_FIELD"


class MissingField(UsageError):
    """A required field is absent."""

    code = "MISSING_FIELD"


class DuplicateName(UsageError):
    """The same key, job, tenant or queue name is given twice."""

    code = "DUPLICATE_NAME"


class DependencyCycle(UsageError):
    """Jobs wait for each other in a circle through ``after``."""

    code = "DEPENDENCY_CYCLE"


class UnknownDependency(UsageError):
    """``after`` names a job that does not exist, or a name that several live jobs share."""

    code = "UNKNOWN_DEPENDENCY"


class PathNotFound(UsageError):
    """A working directory or a file to mount does not exist."""

    code = "PATH_NOT_FOUND"


class PathUnsafe(UsageError):
    """A mount target leaves the task's directory, or a path holds a NUL byte."""

    code = "PATH_UNSAFE"


class FilesTooLarge(UsageError):
    """A working directory, mount or output holds more than may travel (``upload_max_mib``, ``return_max_mib``)."""

    code = "FILES_TOO_LARGE"


class FilesNeeded(UsageError):
    """The nodes do not see the paths of a job: its files must be sent along. Clients do that by themselves."""

    code = "FILES_NEEDED"


class TraceUnreadable(UsageError):
    """A trace, or a file that it needs, does not exist or cannot be read."""

    code = "TRACE_UNREADABLE"


class TraceInvalid(UsageError):
    """A row of a trace is wrong; the message begins with its file, line and column."""

    code = "TRACE_INVALID"


class Unschedulable(UsageError):
    """No arrangement of this pool could ever run the job."""

    code = "UNSCHEDULABLE"


class QuotaExceeded(UsageError):
    """The job alone is larger than the limit of its tenant or queue."""

    code = "QUOTA_EXCEEDED"


class TooManyJobs(CorralError):
    """The tenant or the pool holds as many unfinished jobs as it may."""

    code = "TOO_MANY_JOBS"
    category = Category.CONFLICT
    retryable = True


class NotFound(CorralError):
    """No such job, node, tenant, queue, task or token."""

    code = "NOT_FOUND"
    category = Category.NOT_FOUND


class AmbiguousName(UsageError):
    """A job name that several jobs share; use the number."""

    code = "AMBIGUOUS_NAME"


class Unauthenticated(CorralError):
    """No token, or one that corral does not know."""

    code = "UNAUTHENTICATED"
    category = Category.DENIED


class Forbidden(CorralError):
    """The token is valid but its tenant or role does not allow this."""

    code = "FORBIDDEN"
    category = Category.DENIED


class Conflict(CorralError):
    """The object is not in a state that allows this."""

    code = "CONFLICT"
    category = Category.CONFLICT


class IdempotencyMismatch(Conflict):
    """The idempotency key was used before with another request."""

    code = "IDEMPOTENCY_MISMATCH"


class Stale(Conflict):
    """A proposal, decision or command was made on a state that has moved on."""

    code = "STALE"
    retryable = True


class FilesMissing(Conflict):
    """A job names files that the pool does not hold, or no longer: send them again."""

    code = "FILES_MISSING"


class FilesDamaged(CorralError):
    """Files that travelled are not what their hash says, are cut off, or describe no directory."""

    code = "FILES_DAMAGED"


class Unavailable(CorralError):
    """The pool cannot answer now."""

    code = "UNAVAILABLE"
    category = Category.UNAVAILABLE
    retryable = True


class NotLeader(Unavailable):
    """Another controller leads the pool; ``leader`` is where it answers, empty while none does."""

    code = "NOT_LEADER"
    leader: str = ""

    @classmethod
    def at(cls, leader: str) -> NotLeader:
        """Return the error that names where the leader answers."""
        error = cls("another controller leads the pool", hint=f"it answers at {leader}")
        error.leader = leader
        return error


class StoreAway(Unavailable):
    """The database does not answer. What was asked of it may have been done; nothing acknowledged is lost."""

    code = "STORE_AWAY"


class NoHead(Unavailable):
    """No head answers, or none of them leads, for as long as it was waited for."""

    code = "NO_HEAD"


class DaemonNotRunning(Unavailable):
    """Nothing answers at the pool's address."""

    code = "DAEMON_NOT_RUNNING"


class DaemonStartFailed(CorralError):
    """The daemon did not become ready; the message says why and names its log."""

    code = "DAEMON_START_FAILED"


class AlreadyRunning(Conflict):
    """A pool runs already on this state directory."""

    code = "ALREADY_RUNNING"


class PortTaken(Conflict):
    """The address asked for is in use by another program."""

    code = "PORT_TAKEN"


class VersionMismatch(Conflict):
    """A machine that wants to join has another release of corral, Ray or Python than the head."""

    code = "VERSION_MISMATCH"


class ClockSkew(Conflict):
    """The wall clock of a machine that wants to join is too far from the head's."""

    code = "CLOCK_SKEW"


class NodeNameTaken(Conflict):
    """Another machine is in the pool under this name."""

    code = "NODE_NAME_TAKEN"


class HeadUnreachable(Unavailable):
    """No head of the pool answers at the addresses given."""

    code = "HEAD_UNREACHABLE"


class CertificateMismatch(CorralError):
    """The certificate of a head is not the one that the join token names: somebody else may be listening there."""

    code = "CERTIFICATE_MISMATCH"
    category = Category.DENIED


class JobsRunning(Conflict):
    """``corral down`` with live tasks needs ``--force`` or ``--leave-tasks``."""

    code = "JOBS_RUNNING"


class InsecureBinding(UsageError):
    """Binding beyond loopback needs TLS or an explicit flag."""

    code = "INSECURE_BINDING"


class StateUnusable(CorralError):
    """The state directory is missing, read-only, full, or belongs to somebody else."""

    code = "STATE_UNUSABLE"


class StoreFull(StateUnusable):
    """The disk under the journal is full; nothing acknowledged is lost."""

    code = "STORE_FULL"


class StoreCorrupt(StateUnusable):
    """The journal fails its check; the daemon stops instead of guessing."""

    code = "STORE_CORRUPT"


class StoreConflict(CorralError):
    """Compare-and-append found another writer: this controller is no longer the leader."""

    code = "STORE_CONFLICT"


class SchemaTooNew(StateUnusable):
    """The state was written by a newer corral."""

    code = "SCHEMA_TOO_NEW"


class DeviceProbeFailed(CorralError):
    """The device library is missing, refuses, or hangs."""

    code = "DEVICE_PROBE_FAILED"


class DependencyMissing(CorralError):
    """An optional part is not installed; the message names the extra."""

    code = "DEPENDENCY_MISSING"


class IllegalTransition(CorralError):
    """An event does not fit the state it is applied to: a bug or a damaged journal."""

    code = "ILLEGAL_TRANSITION"


class SimulationStuck(CorralError):
    """A simulation cannot go on: jobs that can never run, or a policy that goes round in circles."""

    code = "SIMULATION_STUCK"


class PlanTooLarge(CorralError):
    """A what-if question cannot be followed so far: the pool changes too often within the horizon, or it took too long.

    Ask with a shorter horizon.
    """

    code = "PLAN_TOO_LARGE"
    category = Category.UNAVAILABLE


class EngineFault(CorralError):
    """An agent or the fork server broke the protocol or cannot be reached."""

    code = "ENGINE_FAULT"
    retryable = True


class SolverFault(CorralError):
    """The process that solves global rounds failed or died; the next round starts it again."""

    code = "SOLVER_FAULT"
    retryable = True


class ProposerFault(CorralError):
    """A job's own proposer broke, was silent or bid nonsense; the default bidder bids for the job meanwhile."""

    code = "PROPOSER_FAULT"
    retryable = True


def by_code() -> dict[str, type[CorralError]]:
    """Return every error class of the tree by its stable code."""
    found: dict[str, type[CorralError]] = {}
    todo: list[type[CorralError]] = [CorralError]
    while todo:
        kind = todo.pop()
        found[kind.code] = kind
        todo.extend(kind.__subclasses__())
    return found
