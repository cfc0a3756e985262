"""What broke."""

from __future__ import annotations

from corral.model.errors.tree import CorralError
from corral.model.refusal import Category


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
