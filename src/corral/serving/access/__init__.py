"""The access log of a front end, and the metrics that follow from it."""
