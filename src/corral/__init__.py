"""corral: many GPU servers, one pool.

Importing the package costs nothing: `Client` is loaded when it is first asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

__version__ = "0.1.0"
__all__ = ["Client", "__version__"]

if TYPE_CHECKING:
    from corral.client import Client
else:

    def __getattr__(name: str) -> object:
        """Load `corral.Client` on first use, so that `import corral` stays free of the HTTP stack."""
        if name == "Client":
            from corral.client import Client

            return Client
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
