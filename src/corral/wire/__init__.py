"""Versioned data transfer objects of the HTTP boundary (pydantic)."""
