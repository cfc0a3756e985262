"""A corral pool of our own in a temporary directory, started and stopped by the product's own commands."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from bench.processes import kill_carriers
from corral.client import Client

COMMAND_LIMIT_S = 120.0


class PoolFailed(Exception):
    """A command of the pool failed; the message is what it said."""


class Pool:
    """A running pool of simulated nodes. Nothing of it is left after the block, its tasks included.

    ``start_command`` and ``flags`` are how it is started.
    ``environment`` is what its commands get: that of this process without what points to another pool.
    """

    start_command = "up"

    def __init__(self, nodes: int = 4, gpus_per_node: int = 8, model: str = "h100") -> None:
        shape = {"--nodes": nodes, "--gpus-per-node": gpus_per_node, "--simulated": model}
        self.flags = ["--port", "0", *(str(word) for pair in shape.items() for word in pair)]
        self._cleanup = contextlib.ExitStack()
        self.directory = Path()
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith("CORRAL_")}

    @property
    def state_dir(self) -> Path:
        """Return the state directory."""
        return self.directory / "state"

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as cleanup:
            self.directory = Path(tempfile.mkdtemp(prefix="bench-pool-"))
            cleanup.callback(shutil.rmtree, self.directory, ignore_errors=True)
            cleanup.callback(kill_carriers, self.directory)
            cleanup.callback(self._down)
            try:
                self.run(self.start_command, *self.flags)
            except PoolFailed as error:
                raise PoolFailed(f"{error}{self._last_words()}") from None
            self._cleanup = cleanup.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._cleanup.close()

    def client(self) -> Client:
        """Return a client of this pool."""
        return Client(state_dir=self.state_dir)

    def command(self, name: str, *arguments: str) -> list[str]:
        """Return the argument list of a command for this pool."""
        return [*corral(), name, "--state-dir", str(self.state_dir), *arguments]

    def run(self, name: str, *arguments: str) -> str:
        """Run a command to its end and return what it printed. Raises ``PoolFailed``."""
        return _printed(self.command(name, *arguments), self.environment, self.directory)

    def _last_words(self) -> str:
        # The log goes with the directory: what it ends with is told now.
        log = self.state_dir / "logs" / "daemon.log"
        lines = log.read_text(errors="replace").splitlines()[-5:] if log.exists() else []
        return f"; its log ends: {' | '.join(lines)}" if lines else ""

    def _down(self) -> None:
        # A pool that is half up, or broken, may be unable to stop itself: what is left is killed next.
        with contextlib.suppress(PoolFailed):
            self.run("down", "--force")


def corral() -> list[str]:
    """Return the command `corral` of the environment that this interpreter belongs to."""
    beside = Path(sys.executable).with_name("corral")
    return [str(beside)] if beside.exists() else [sys.executable, "-m", "corral"]


def _printed(argv: Sequence[str], environment: dict[str, str], directory: Path) -> str:
    # In a session of its own: Ctrl-C is for the benchmark, which then stops the pool in good order.
    try:
        ended = subprocess.run(
            argv,
            env=environment,
            cwd=directory,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=COMMAND_LIMIT_S,
            start_new_session=True,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise PoolFailed(f"{' '.join(argv)} did not end within {COMMAND_LIMIT_S:g} s") from None
    if ended.returncode != 0:
        raise PoolFailed(f"{' '.join(argv)} ended with {ended.returncode}: {ended.stderr.strip()}")
    return ended.stdout
