"""Why the pool, or a machine of it, cannot do something now."""

from __future__ import annotations

from corral.model.errors.asking import Conflict
from corral.model.errors.tree import CorralError, UsageError
from corral.model.refusal import Category


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


class MachineCloned(Conflict):
    """This machine's state directory is a copy of one that another machine uses now."""

    code = "MACHINE_CLONED"


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
