"""Who answers offers. The default proposer asks the default bidder of the policy room."""

from __future__ import annotations

from corral.model.job import Job
from corral.model.offer import Offer, Proposal
from corral.policy.bidding import default_bids


class DefaultProposer:
    """Bids from the job's declared needs and the place of its data."""

    def propose(self, job: Job, offer: Offer) -> Proposal:
        """Return the bids that stand for all pending gangs of ``job``."""
        return Proposal(job=job.id, version=offer.snapshot.version, bids=default_bids(job.spec, offer))
