"""The running proxy: brought to what was rendered, by words where they do, by a process that takes over where not."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
from collections.abc import Mapping
from pathlib import Path

from corral.model.errors import PortTaken, ProxyFault
from corral.serving.haproxy import listening, process
from corral.serving.haproxy.admin import Admin
from corral.serving.haproxy.config import ProxyConfig
from corral.serving.haproxy.observed import Key, Row, change_map, change_servers, parse_rows, parse_servers
from corral.serving.haproxy.process import MASTER, Master
from corral.serving.haproxy.render import BY_CONTENT, CONFIGURATION, KEYS, NO_RETRY, REASONS, STATE, Rendered

UP_S = 10.0
NO_STATE = b"1\n"
TRIED = "tried.cfg"
_TOLD = (KEYS, REASONS, NO_RETRY)
_BIND = re.compile(r"^    bind '.*:(\d+)'", re.MULTILINE)


class Running:
    """One HAProxy in one folder, with all processes that it has now.

    ``good`` is what it does, or did last; ``ports`` are those that it has bound; ``leaving`` are servers that get
    nothing any more and go when they are idle.
    """

    def __init__(self, config: ProxyConfig) -> None:
        self.good: Rendered | None = None
        self.ports: frozenset[int] = frozenset()
        self.leaving: set[Key] = set()
        self.master: Master | None = None
        self.worker = 0
        self._config = config
        self._folder = config.folder
        self._binary = process.find_binary(config.binary)
        self._admin = Admin(config.folder / MASTER)
        self._current = False
        self._checked = ""

    # ---- taking over -----------------------------------------------------------------------------------------------

    async def adopt(self) -> None:
        """Find the proxy that an earlier program left running in this folder."""
        try:
            there = await self._admin.processes()
            configuration = (self._folder / CONFIGURATION).read_text()
            master = Master(there.master)
        except (ProxyFault, OSError):
            return
        self.master, self.worker = master, there.worker or 0
        self.ports = frozenset(int(port) for port in _BIND.findall(configuration))

    def does(self, rendered: Rendered) -> bool:
        """Return whether the process that accepts can be told the rest."""
        return self._current and self.good is not None and self.good.digest == rendered.digest

    async def bring_to(self, rendered: Rendered) -> list[str]:
        """Let the proxy do what was rendered; return what it said against single commands.

        Raises ``ProxyRefused`` when it does not take it: what ran goes on. Else ``ProxyFault`` and ``PortTaken``.
        """
        if not self.does(rendered):
            await self._check(rendered)
            await self._take_over(rendered)
        return await self._tell(rendered)

    async def _check(self, rendered: Rendered) -> None:
        """Write the files, which are new beside those that are used, and let HAProxy read them."""
        for name, content in rendered.files.items():
            if name != CONFIGURATION and name not in _TOLD:
                self._write(name, content)
        if not (self._folder / STATE).exists():
            self._write(STATE, NO_STATE)
        for name in _TOLD:
            if not (self._folder / name).exists():
                self._write(name, rendered.files[name])
        if self._checked != rendered.digest:
            await process.check(self._binary, self._write(TRIED, rendered.files[CONFIGURATION]))
            self._checked = rendered.digest

    async def _take_over(self, rendered: Rendered) -> None:
        if self.master is not None:
            await self._keep_health()
            self._write_all(rendered)
            await self._admin.reload()
        else:
            why = listening.hindrance(self._config.address, self._config.port)
            if why:
                where = f"port {self._config.port} of {self._config.address}"
                raise PortTaken(f"{where} {why}", hint="let the front end have another port")
            self._write(STATE, NO_STATE)
            self._write_all(rendered)
            self.master = await Master.start(self._binary, self._folder, self._folder / CONFIGURATION)
            await self._wait_until_up(self.master)
        self.worker = await self._accepting()
        self.good, self._current = rendered, True
        self.ports = frozenset((self._config.port, *rendered.ports))
        self._sweep(rendered)

    async def _keep_health(self) -> None:
        """Let the next process know which servers are down, so that it does not find out by requests."""
        with contextlib.suppress(ProxyFault):
            [state] = await self._admin.ask(self.worker, ["show servers state"])
            self._write(STATE, state.encode() + b"\n")

    async def _wait_until_up(self, master: Master) -> None:
        over = asyncio.ensure_future(master.ended())
        try:
            async with asyncio.timeout(UP_S):
                while not over.done():
                    with contextlib.suppress(ProxyFault):
                        if (await self._admin.processes()).worker is not None:
                            return
                    await asyncio.wait((over,), timeout=0.01)
        except TimeoutError:
            await master.stop()
        finally:
            over.cancel()
        self.lost()
        raise ProxyFault(f"the proxy does not start: {process.tail(self._folder)}")

    async def _accepting(self) -> int:
        worker = (await self._admin.processes()).worker
        if worker is None:
            raise ProxyFault("the proxy has no process that accepts")
        return worker

    # ---- telling ---------------------------------------------------------------------------------------------------

    async def _tell(self, rendered: Rendered) -> list[str]:
        assert self.good is not None, "it runs"
        [state] = await self._admin.ask(self.worker, ["show servers state"])
        change = change_servers(rendered.servers, parse_servers(state))
        words = list(change.commands)
        for name, before, after in zip(_TOLD, _told(self.good), _told(rendered), strict=True):
            words += change_map(str(self._folder / name), before, after)
        answers = await self._admin.ask(self.worker, words) if words else []
        if words:
            self._write_all(rendered)
        self.good, self.leaving = rendered, change.leaving
        return [f"{word}: {said}" for word, said in zip(words, answers, strict=True) if said and not _is_done(said)]

    async def rows(self) -> dict[int, dict[Key, Row]]:
        """Return the statistics of every process. Raises ``ProxyFault``."""
        there = await self._admin.processes()
        found = {}
        for worker in (*((there.worker,) if there.worker is not None else ()), *there.old):
            try:
                [text] = await self._admin.ask(worker, ["show stat -1 6 -1"])
            except ProxyFault:
                # An old one may end at any moment.
                if worker == there.worker:
                    raise
                continue
            found[worker] = parse_rows(text)
        return found

    async def remove(self, rows: Mapping[Key, Row]) -> None:
        """Remove the servers that leave and have nothing under way in the accepting process (``rows`` are its)."""
        for key in sorted(self.leaving):
            row = rows.get(key)
            if row is not None and row.outstanding > 0:
                continue
            name = f"s_{key[0]}/{key[1]}"
            commands = [f"disable health {name}", f"set server {name} state maint", f"del server {name}"]
            answers = await self._admin.ask(self.worker, commands)
            # Idle connections may hold it for a moment yet.
            if _is_done(answers[-1]) or answers[-1].startswith("No such server"):
                self.leaving.discard(key)

    # ---- the end ---------------------------------------------------------------------------------------------------

    def lost(self) -> None:
        """Take note that it ended."""
        if self.master is not None:
            self.master.let_go()
        self.master, self._current, self.ports, self.worker = None, False, frozenset(), 0
        self.leaving.clear()

    async def stop(self) -> None:
        """End it with what is under way."""
        if self.master is not None:
            await self.master.stop()
            self.lost()

    # ---- files -----------------------------------------------------------------------------------------------------

    def _write_all(self, rendered: Rendered) -> None:
        for name in (*_TOLD, CONFIGURATION):
            self._write(name, rendered.files[name])

    def _write(self, name: str, content: bytes) -> Path:
        """Write a file as a whole, for its owner only. Raises ``OSError``."""
        path, new = self._folder / name, self._folder / f"{name}.new"
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        new.replace(path)
        return path

    def _sweep(self, rendered: Rendered) -> None:
        """Delete the files of configurations that are no more; others may keep files in the folder as well."""
        for path in self._folder.iterdir():
            if BY_CONTENT.fullmatch(path.name) and path.name not in rendered.files:
                path.unlink(missing_ok=True)


def _told(rendered: Rendered) -> tuple[Mapping[str, str], ...]:
    """Return the content of the maps that a running process is told, in the order of ``_TOLD``."""
    return rendered.keys, rendered.reasons, rendered.no_retry


def _is_done(answer: str) -> bool:
    return answer.startswith(("New server registered", "Server deleted"))
