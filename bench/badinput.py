"""How the pool answers what is wrong: ``python -m bench.badinput --json``.

Starts a pool of 2 simulated nodes x 4 devices and gives it malformed job files (``corral submit``), flags and API
calls. A command must end with exit code 2, print nothing on standard output and exactly one line
``error[CODE]: message`` on standard error; a call must be answered with a 4xx problem document; CODE must be the
expected one of ``docs/reference/errors.md``. Prints one JSON object:

``cases``: how many were tried. ``unclear``: what was answered otherwise, one line each. ``daemon_harmed``: whether the
daemon was restarted, stopped answering, admitted one of the jobs, or cannot run a good one afterwards.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable
from urllib.parse import urlsplit

from bench.badinput_cases import CALLS, FILES, FLAGS, CallCase, FileCase, FlagCase
from bench.parallel import in_threads
from bench.pool import Pool, PoolFailed
from bench.progress import end_tidily_on_signals, say
from corral.client import Client
from corral.model.errors import CorralError, by_code
from corral.model.ids import TenantId
from corral.model.tenant import Quota, Tenant

COMMAND_LIMIT_S = 60.0
CALL_LIMIT_S = 30.0
THREADS = 2
GOOD_JOB = b"run: ['true']\n"
USAGE_EXIT_CODE = 2
_LINE = re.compile(r"error\[([A-Z_]+)\]: (.+)\n")
JUNK = (b"\x00\xff" * 200 + b"\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"\x16\x03\x01" + b"\x00" * 300)
"""What is not HTTP at all; the last is the beginning of a TLS handshake."""


def judge_command(code: str, exit_code: int, stdout: str, stderr: str) -> str | None:
    """Return what is unclear about the answer of a command, or ``None``."""
    line = _LINE.fullmatch(stderr)
    if line is None:
        return f"not exactly one error line: {stderr[:300]!r}"
    if line[1] != code or code not in by_code():
        return f"code {line[1]} instead of {code}: {line[2][:200]}"
    if exit_code != USAGE_EXIT_CODE:
        return f"exit code {exit_code} instead of {USAGE_EXIT_CODE}"
    return f"prints on standard output: {stdout[:200]!r}" if stdout else None


def judge_call(case: CallCase, status: int, kind: str, body: bytes) -> str | None:
    """Return what is unclear about the answer of a call, or ``None``."""
    try:
        document = json.loads(body)
        code, message = document["code"], document["message"]
    except (ValueError, KeyError, TypeError):
        return f"no problem document: {status} {body[:300]!r}"
    if (status, code) != (case.status, case.code) or code not in by_code():
        return f"{status} {code} instead of {case.status} {case.code}: {message[:200]}"
    if kind != "application/problem+json" or document["status"] != status:
        return f"a problem document as {kind} with status {document['status']}"
    return None if message and message.isprintable() else f"no message of one line: {message[:200]!r}"


class Trial:
    """The cases against one pool."""

    def __init__(self, pool: Pool, client: Client, url: str) -> None:
        self.pool = pool
        self.client = client
        self.token = (pool.state_dir / "token").read_text().strip()
        parts = urlsplit(url)
        self.host, self.port = parts.hostname or "", parts.port or 0
        (pool.directory / "good.yaml").write_bytes(GOOD_JOB)

    def file(self, case: FileCase) -> str | None:
        """Submit a job file."""
        path = self.pool.directory / f"{FILES.index(case)}.yaml"
        path.write_bytes(case.data)
        return self._command(("submit", str(path)), case.code)

    def flags(self, case: FlagCase) -> str | None:
        """Run a command line."""
        good = str(self.pool.directory / "good.yaml")
        return self._command(tuple(good if word == "@" else word for word in case.arguments), case.code)

    def _command(self, arguments: tuple[str, ...], code: str) -> str | None:
        ended = subprocess.run(
            self.pool.command(*arguments),
            env=self.pool.environment,
            cwd=self.pool.directory,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=COMMAND_LIMIT_S,
            check=False,
        )
        return judge_command(code, ended.returncode, ended.stdout, ended.stderr)

    def call(self, case: CallCase) -> str | None:
        """Make a call of the API."""
        token = self.token if case.token is None else case.token
        headers = case.headers | ({"Authorization": f"Bearer {token}"} if token else {})
        connection = http.client.HTTPConnection(self.host, self.port, timeout=CALL_LIMIT_S)
        # A body that is refused before it was all sent breaks the pipe; the answer is there to read all the same.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            connection.request(case.method, case.path, case.body, headers)
        try:
            response = connection.getresponse()
            return judge_call(case, response.status, response.headers.get_content_type(), response.read())
        finally:
            connection.close()

    def junk(self) -> None:
        """Send what is not HTTP; the answer does not matter, the daemon's health afterwards does."""
        for data in JUNK:
            with socket.create_connection((self.host, self.port), timeout=CALL_LIMIT_S) as raw:
                raw.sendall(data)
                raw.shutdown(socket.SHUT_WR)
                while raw.recv(65536):
                    pass

    def harm(self, pid: int) -> str | None:
        """Return what the cases did to the daemon that had ``pid``, or ``None``."""
        status = self.client.status()
        if status.pid != pid:
            return f"the daemon was restarted: pid {status.pid} instead of {pid}"
        admitted = self.client.jobs(finished=True).jobs
        if admitted:
            return f"jobs were admitted: {', '.join(f'{job.id} {job.name}' for job in admitted[:5])}"
        ended = self.client.submit(run=["true"], gpus=1).wait(CALL_LIMIT_S)
        return None if ended.exit_code == 0 else f"a good job is {ended.state.value}"


def tried(kind: str, cases: Iterable[FileCase | FlagCase | CallCase], attempt: Callable[..., str | None]) -> list[str]:
    """Try cases, a few at a time; return what is unclear."""
    listed = list(cases)
    say(f"{len(listed)} {kind}")

    found: dict[int, str] = {}

    def one(index: int) -> None:
        try:
            unclear = attempt(listed[index])
        except (OSError, subprocess.TimeoutExpired, http.client.HTTPException) as error:
            unclear = f"no answer: {type(error).__name__}: {error}"
        if unclear is not None:
            found[index] = f"{kind}: {listed[index].name}: {unclear}"

    in_threads(len(listed), THREADS, one)
    return [found[index] for index in sorted(found)]


def measure() -> dict[str, int | bool | list[str]]:
    """Start a pool, try everything, and return the figures."""
    with Pool(nodes=2, gpus_per_node=4) as pool, pool.client() as client:
        before = client.status()
        client.set_tenant(Tenant(TenantId("small"), limit=Quota(gpu_milli=1_000)), create=True)
        trial = Trial(pool, client, before.url)
        unclear = tried("job files", FILES, trial.file)
        unclear += tried("flags", FLAGS, trial.flags)
        unclear += tried("calls", CALLS, trial.call)
        trial.junk()
        try:
            harm = trial.harm(before.pid)
        except CorralError as error:
            harm = f"the daemon does not answer: {error}"
    if harm is not None:
        unclear.append(harm)
    return {
        "cases": len(FILES) + len(FLAGS) + len(CALLS) + len(JUNK),
        "unclear": unclear,
        "daemon_harmed": harm is not None,
    }


def main() -> None:
    """Try and print; the exit code is 1 when something was unclear or the daemon was harmed."""
    parser = argparse.ArgumentParser(description="Give the pool what is wrong and look at its answers.")
    parser.add_argument("--json", action="store_true", help="accepted for likeness; the output is JSON anyway")
    parser.parse_args()
    end_tidily_on_signals()
    try:
        figures = measure()
    except PoolFailed as error:
        sys.exit(f"bench.badinput: {error}")
    print(json.dumps(figures, indent=2))
    sys.exit(1 if figures["unclear"] or figures["daemon_harmed"] else 0)


if __name__ == "__main__":
    main()
