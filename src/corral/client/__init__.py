"""The Python SDK: :class:`Client` and what it returns. Light to import: the standard library and msgspec."""

from corral.client.client import Client
from corral.client.handle import JobHandle

__all__ = ["Client", "JobHandle"]
