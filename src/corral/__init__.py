"""corral: many GPU servers, one pool.

Importing the package costs nothing: its names are loaded when they are first asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

__version__ = "0.1.0"
__all__ = ["Client", "__version__", "report_progress", "stopping"]

if TYPE_CHECKING:
    from corral.client import Client, report_progress, stopping
else:

    def __getattr__(name: str) -> object:
        """Load a name on first use, so that `import corral` stays free of the HTTP stack."""
        if name == "Client":
            from corral.client import Client

            return Client
        if name in ("report_progress", "stopping"):
            from corral.client import task

            return getattr(task, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
