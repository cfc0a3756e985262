"""Pure decisions about services: how many replicas, of which revision, and who gets a request."""
