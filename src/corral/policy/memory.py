"""What rounds on one pool remember of each other: what fits where, and how free nodes compare, until they change.

It saves time and never changes an answer: a round with a memory and one without decide the same.
"""

from __future__ import annotations

from corral.model.ids import GangKey
from corral.model.offer import Holding, Snapshot
from corral.policy.fragmentation import Mix, Need, learnt, need_of
from corral.policy.pending import PendingIndex
from corral.policy.trial import Trial


class Memory:
    """Kept from round to round by whoever runs them, one for each pool. Offers and holdings are known by identity."""

    def __init__(self) -> None:
        self._ground = Trial(())
        self._needs: dict[GangKey, tuple[Holding, Need | None]] = {}

    def trial(self, snapshot: Snapshot, pending: PendingIndex) -> Trial:
        """Return the working view of a round. Those of earlier rounds are not to be used any more."""
        self._ground.renew(snapshot.nodes, lambda: self._learnt(snapshot, pending))
        return self._ground.branch()

    def _learnt(self, snapshot: Snapshot, pending: PendingIndex) -> Mix:
        if len(self._needs) > 2 * len(snapshot.holdings):
            self._needs.clear()
        return learnt(snapshot.holdings, pending.kinds(), self._need, self._ground.models)

    def _need(self, holding: Holding) -> Need | None:
        known = self._needs.get(holding.key)
        if known is None or known[0] is not holding:
            known = self._needs[holding.key] = (holding, need_of(holding))
        return known[1]
