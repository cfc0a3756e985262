"""What a daemon does to lead: the campaign, the term and its parts, and where others find it."""
