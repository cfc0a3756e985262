"""The command line.

Importing the package costs nothing: `app` (typer) and everything heavier is loaded when a command needs it.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from corral.cli.root import app as app

__all__ = ["app", "main"]


def main() -> NoReturn:
    """Run the command `corral` with the arguments of the process and exit with its code."""
    try:
        from corral.cli.entry import run

        code = run(sys.argv[1:])
    except KeyboardInterrupt:  # while modules are loaded, or while what the command held is given up
        code = 130
    sys.exit(code)


def __getattr__(name: str) -> object:
    """Load `app` on first use."""
    if name == "app":
        from corral.cli.root import app

        return app
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
