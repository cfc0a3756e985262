"""Entry point of a front end's process: ``python -m corral.runtime.fronting.process --state-dir DIR``."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import fcntl
import logging
import sys
from collections.abc import Iterator
from pathlib import Path

from corral.model.errors import CorralError, StateUnusable, Unavailable
from corral.runtime.fronting.frontfile import check_installed, load_front
from corral.runtime.paths import StatePaths

log = logging.getLogger(__name__)


@contextlib.contextmanager
def only_front_end(paths: StatePaths) -> Iterator[None]:
    """Hold the lock of the state directory's only front end. Raises ``Unavailable`` while another one lives."""
    with (paths.root / "front.lock").open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Unavailable(f"another front end lives on {paths.root}") from None
        yield


def main(arguments: list[str] | None = None) -> int:
    """Run it; an error ends it with one line, and its supervisor starts it again."""
    import uvloop

    parser = argparse.ArgumentParser(prog="corral-front-end")
    parser.add_argument("--state-dir", type=Path, required=True)
    paths = StatePaths(parser.parse_args(arguments).state_dir)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    return_code = 0
    try:
        front = load_front(paths.front)
        if front is None:
            raise StateUnusable(f"{paths.root} is no front end", hint="`corral frontend` makes it one")
        check_installed()
        # Only now: it needs what is not installed everywhere.
        from corral.runtime.fronting.running import until_told

        with only_front_end(paths), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(until_told(paths, front))
    except* (CorralError, OSError) as group:
        log.error("%s", first_of(group))  # noqa: TRY400 - expected: one line, no traceback
        sys.stderr.flush()
        return_code = 1
    return return_code


def first_of(error: BaseException) -> BaseException:
    """Return the first error of a group of groups."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


if __name__ == "__main__":
    raise SystemExit(main())
