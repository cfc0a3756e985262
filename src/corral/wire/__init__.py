"""What crosses the HTTP boundary: how a job is written, and versioned data transfer objects (pydantic)."""
