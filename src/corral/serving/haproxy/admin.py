"""The proxy's own command line: one connection to its master for each question, to whichever of its processes.

HAProxy 2.8 management guide, 9.3 (commands), 9.4 (master). One answer ends with an empty line.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import msgspec

from corral.model.errors import ProxyFault

ANSWER_S = 5.0
COMMANDS_AT_ONCE = 100


class Processes(msgspec.Struct, frozen=True):
    """The processes of a proxy: the one that accepts now, and those that end when their last requests do."""

    master: int
    worker: int | None
    old: tuple[int, ...] = ()
    failed_reloads: int = 0


class Admin:
    """Asks. Raises ``ProxyFault`` when nobody answers in ``ANSWER_S``."""

    def __init__(self, socket: Path) -> None:
        self._socket = socket

    async def ask(self, worker: int, commands: Sequence[str]) -> list[str]:
        """Return the answer of one process to each command: empty when it is done and there is nothing to say."""
        answers: list[str] = []
        for begin in range(0, len(commands), COMMANDS_AT_ONCE):
            some = commands[begin : begin + COMMANDS_AT_ONCE]
            text = await self._exchange("; ".join((f"@!{worker}", *some)))
            if text.startswith("Can't find the target"):
                raise ProxyFault(f"the proxy has no process {worker}")
            found = split(text)
            if len(found) != len(some):
                raise ProxyFault(f"the proxy gave {len(found)} answers to {len(some)} commands")
            answers += found
        return answers

    async def processes(self) -> Processes:
        """Return who is there."""
        return parse_processes(await self._exchange("show proc"))

    async def reload(self) -> None:
        """Let another process take over by the configuration as it is now. ``ProxyFault`` when none came up."""
        before = await self.processes()
        # Newer proxies answer when it is done, older ones close the line at once: what counts is who is there then.
        text = await self._exchange("reload")
        deadline = asyncio.get_running_loop().time() + ANSWER_S
        while True:
            after = await self._processes_soon()
            if after is not None and after.worker not in (None, before.worker):
                return
            if after is not None and after.failed_reloads > before.failed_reloads:
                raise ProxyFault(f"the proxy did not take the configuration: {_alerts(text)}")
            if asyncio.get_running_loop().time() > deadline:
                raise ProxyFault("no new process of the proxy came up")
            await asyncio.sleep(0.01)

    async def _processes_soon(self) -> Processes | None:
        """Return who is there; ``None`` while the master starts itself anew."""
        try:
            return await self.processes()
        except ProxyFault:
            return None

    async def _exchange(self, line: str) -> str:
        try:
            async with asyncio.timeout(ANSWER_S):
                reader, writer = await asyncio.open_unix_connection(self._socket)
                try:
                    writer.write(line.encode() + b"\n")
                    writer.write_eof()
                    return (await reader.read()).decode(errors="replace")
                finally:
                    writer.close()
        except TimeoutError:
            raise ProxyFault(f"the proxy does not answer in {ANSWER_S:g} s") from None
        except OSError as error:
            raise ProxyFault(f"the proxy cannot be asked: {error.strerror or error}") from None


def _alerts(text: str) -> str:
    return "; ".join(line.partition(" : ")[2] for line in text.splitlines() if line.startswith("[ALERT]")) or "refused"


def split(text: str) -> list[str]:
    """Return the answers in a text: each ends with an empty line."""
    answers: list[str] = []
    lines: list[str] = []
    for line in text.splitlines():
        if line:
            lines.append(line)
        else:
            answers.append("\n".join(lines))
            lines = []
    return answers


def parse_processes(text: str) -> Processes:
    """Read what ``show proc`` tells. Raises ``ProxyFault``."""
    worker: int | None = None
    old: list[int] = []
    failed = master = 0
    section = ""
    for line in text.splitlines():
        words = line.split()
        if line.startswith("# "):
            section = line[2:].strip()
        elif len(words) > 1 and words[1] == "master":
            master = int(words[0])
            # 1162  master  5 [failed: 0]  0d00h02m07s  2.8
            failed = int(line.partition("[failed: ")[2].partition("]")[0] or 0)
        elif len(words) > 1 and words[1] == "worker":
            if section == "workers":
                worker = int(words[0])
            else:
                old.append(int(words[0]))
    if not text.startswith("#<PID>"):
        raise ProxyFault("the proxy does not tell its processes")
    return Processes(master, worker, tuple(old), failed)
