"""The command line on a state directory, as tests call it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

from tests.e2e.terminal import Terminal
from tests.waiting import wait_until


class Ended(NamedTuple):
    """A command that has ended."""

    code: int
    out: str
    err: str
    bytes: bytes


class Corral:
    """The command line on one state directory."""

    def __init__(self, state_dir: Path) -> None:
        self.state_dir = state_dir
        self.home = state_dir / "home"
        self.home.mkdir(parents=True, exist_ok=True)
        self.environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.home),
            "LANG": "C.UTF-8",
            "CORRAL_STATE_DIR": str(state_dir / "pool"),
        }

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "corral", *arguments]

    def __call__(self, *arguments: str, **environment: str) -> Ended:
        done = subprocess.run(
            self.command(*arguments),
            env=self.environment | environment,
            cwd=self.home,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=150,
            check=False,
        )
        out, err = done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")
        return Ended(done.returncode, out, err, done.stdout)

    def ok(self, *arguments: str) -> str:
        done = self(*arguments)
        assert done.code == 0, done.err
        return done.out

    def json(self, *arguments: str) -> Any:
        cut = arguments.index("--") if "--" in arguments else len(arguments)
        return json.loads(self.ok(*arguments[:cut], "--json", *arguments[cut:]))

    def refused(self, *arguments: str, code: str, exit_code: int, **environment: str) -> str:
        done = self(*arguments, **environment)
        assert done.code == exit_code, done.err
        lines = done.err.splitlines()
        assert len(lines) == 1, done.err
        assert lines[0].startswith(f"error[{code}]: ")
        return lines[0]

    def submit(self, *arguments: str) -> str:
        return self.ok("submit", *arguments).strip()

    def terminal(self, *arguments: str, columns: int = 80) -> Terminal:
        return Terminal(self.command(*arguments), self.environment, columns=columns)

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            self.command(*arguments),
            env=self.environment,
            cwd=self.home,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def state(self, job: str) -> str:
        rows = self.json("ps", "--all")["jobs"]
        return str(next(row["state"] for row in rows if row["id"] == job))

    def wait_state(self, job: str, *states: str) -> None:
        wait_until(lambda: self.state(job) in states, 30.0, 0.1, what=f"job {job} to be {' or '.join(states)}")


UP = ("up", "--nodes", "2", "--gpus-per-node", "4", "--simulated", "h100", "--port", "0")
