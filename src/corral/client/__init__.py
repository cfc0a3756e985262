"""The Python SDK: :class:`Client` and what it returns; what programs that run in the pool say and ask.

Light to import: a name is loaded when it is first asked for. The client needs the standard library and msgspec,
``report_progress`` and ``stopping`` the standard library alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

__all__ = ["Client", "JobHandle", "report_progress", "stopping"]

if TYPE_CHECKING:
    from corral.client.client import Client
    from corral.client.handle import JobHandle
    from corral.client.task import report_progress, stopping
else:

    def __getattr__(name: str) -> object:
        """Load a part of the SDK on first use."""
        if name == "Client":
            from corral.client.client import Client

            return Client
        if name == "JobHandle":
            from corral.client.handle import JobHandle

            return JobHandle
        if name in ("report_progress", "stopping"):
            from corral.client import task

            return getattr(task, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
