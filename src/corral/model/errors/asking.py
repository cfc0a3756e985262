"""What is wrong with what somebody asked for."""

from __future__ import annotations

from corral.model.errors.tree import CorralError, UsageError
from corral.model.refusal import Category


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
