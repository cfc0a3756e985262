"""The Python SDK: :class:`Client` and what it returns; :func:`report_progress` for programs that run in the pool.

Light to import: a name is loaded when it is first asked for. The client needs the standard library and msgspec,
``report_progress`` the standard library alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

__all__ = ["Client", "JobHandle", "report_progress"]

if TYPE_CHECKING:
    from corral.client.client import Client
    from corral.client.handle import JobHandle
    from corral.client.progress import report_progress
else:

    def __getattr__(name: str) -> object:
        """Load a part of the SDK on first use."""
        if name == "Client":
            from corral.client.client import Client

            return Client
        if name == "JobHandle":
            from corral.client.handle import JobHandle

            return JobHandle
        if name == "report_progress":
            from corral.client.progress import report_progress

            return report_progress
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
