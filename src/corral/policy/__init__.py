"""Pure decisions: ordering, offering, feasibility, bidding, arbitration, placement, fairness, recovery, admission."""
