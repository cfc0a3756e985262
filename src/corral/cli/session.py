"""What the commands of one process share: where the pool is, the client, and how results are printed."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from rich.console import RenderableType

    from corral.client import Client

STATE_DIR_VARIABLE = "CORRAL_STATE_DIR"


class Session:
    """One run of the command line. ``chosen`` is the state directory of ``--state-dir``, if given."""

    def __init__(self) -> None:
        self.chosen: Path | None = None
        self.debug = False
        self._client: Client | None = None

    @property
    def state_dir(self) -> Path:
        """Return the state directory: as chosen, else $CORRAL_STATE_DIR, else ~/.corral."""
        if self.chosen is not None:
            return self.chosen
        from corral.runtime.paths import default_state_dir

        return default_state_dir()

    @property
    def client(self) -> Client:
        """Return the client of the pool, made on first use."""
        if self._client is None:
            from corral.client import Client

            self._client = Client(state_dir=self.chosen)
        return self._client

    def close(self) -> None:
        """Close the client's connections."""
        if self._client is not None:
            self._client.close()

    def answer(self, value: Any, text: Callable[[], RenderableType], *, as_json: bool) -> None:
        """Print a result: the JSON object that the API answers with, or the text of it."""
        if as_json:
            print_json(value)
        else:
            from corral.cli.render.layout import show

            show(text())


def print_json(value: Any) -> None:
    """Print one JSON object: on one line for programs, indented on a terminal."""
    import msgspec

    data = msgspec.json.encode(value)
    if sys.stdout.isatty():
        from corral.cli.terminal import safe_json

        data = safe_json(msgspec.json.format(data, indent=2).decode()).encode()
    sys.stdout.flush()
    sys.stdout.buffer.write(data + b"\n")
    sys.stdout.buffer.flush()


def note(text: str) -> None:
    """Print one line for the person, beside the result."""
    from corral.cli.terminal import safe

    print(safe(text), file=sys.stderr, flush=True)


def confirmed_by_tty() -> bool:
    """Return whether somebody sits there who can be asked."""
    return sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty()
