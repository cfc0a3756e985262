"""The process that holds every host of :mod:`bench.hosts` and takes them all along when it ends, however it ends.

    python -m bench.hosts_keeper DIRECTORY

Each line of standard input is a request, each line of standard output its answer, both JSON:

* ``{"start": ARGUMENTS}`` starts a host, the arguments being those of ``unshare``, whose program must print a line once
  it is ready; answered by the process id of that program, which is the first process of the host.
* ``{"end": PID}`` kills a host with all of its processes; answered by 0 once nothing of it is left.

A request that fails is answered by what went wrong, a string.

At the end of standard input (whoever asked is done, or dead) all hosts are killed and the directory is removed. Should
the keeper be killed itself, the kernel ends the hosts: each one's first process dies with its parent, and a process
namespace with its first process. Network devices go with the namespaces that hold one of their ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from bench.namespaces import children_of, doors, signal_all

TIED = ("setpriv", "--pdeathsig", "KILL", "--", "unshare", "--kill-child=SIGKILL")


class Keeper:
    """Running hosts by the process id of their first process."""

    def __init__(self) -> None:
        self._hosts: dict[int, subprocess.Popen[str]] = {}

    def start(self, arguments: Sequence[str]) -> int:
        """Start a host and return the id of its first process. Raises ``ChildProcessError`` when it does not start."""
        host = subprocess.Popen(
            [*TIED, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert host.stdout is not None
        assert host.stderr is not None
        # What unshare says at its end is of no interest: a killed host has nothing to tell.
        with host.stdout, host.stderr:
            if not host.stdout.readline():
                said = host.stderr.read().strip()
                raise ChildProcessError(f"the host ended with {host.wait()}: {said}")
        (first,) = children_of(host.pid)
        self._hosts[first] = host
        return first

    def end(self, first: int) -> None:
        """Kill a host. When this returns none of its processes is left."""
        host = self._hosts.pop(first)
        held = doors(first)
        with contextlib.suppress(ProcessLookupError):
            os.kill(first, signal.SIGKILL)
        signal_all(held, signal.SIGCONT)
        # The first process is gone only after all others of its namespace; unshare waits for it.
        host.wait()

    def end_all(self) -> None:
        """Kill every host."""
        for first in list(self._hosts):
            self.end(first)

    def answer(self, line: str) -> int | str:
        """Do what a request asks and return the answer."""
        try:
            return self._do(json.loads(line))
        except (ChildProcessError, KeyError) as error:
            return str(error)

    def _do(self, request: object) -> int:
        match request:
            case {"start": [*arguments]}:
                return self.start(arguments)
            case {"end": int(first)}:
                self.end(first)
                return 0
            case other:
                raise ValueError(f"no request: {other}")


def main(directory: Path) -> None:
    """Serve until the end of standard input."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    keeper = Keeper()
    try:
        for line in sys.stdin:
            print(json.dumps(keeper.answer(line)), flush=True)
    finally:
        keeper.end_all()
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
