"""The files of a pool: what may be sent, what a job needs of it, what comes back, and for how long it is kept."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from msgspec.structs import replace

from corral.control.access import Access
from corral.control.returns import belongs
from corral.control.shell import ControlShell
from corral.model.ask import JobAsk
from corral.model.errors import (
    CorralError,
    FilesDamaged,
    FilesMissing,
    FilesNeeded,
    FilesTooLarge,
    Forbidden,
    InvalidField,
    Refusal,
)
from corral.model.files import LogPiece
from corral.model.ids import NodeId, TaskKey
from corral.model.job import Job
from corral.model.tenant import Role, Token
from corral.ports.engine import LogChunk
from corral.ports.files import BlobStore, LogStore, Return, Terms
from corral.ports.pool import Principal
from corral.wire.trees import PACK_BYTES_MAX, Tree, load_tree

T = TypeVar("T")
MIB = 1 << 20
THREADS = 4
log = logging.getLogger(__name__)


class ControllerFiles:
    """Implements ``ports.files.Files`` over the stores of blobs and logs."""

    def __init__(
        self,
        shell: ControlShell,
        access: Access,
        blobs: BlobStore,
        logs: LogStore,
        terms: Terms,
        *,
        kept_s: float,
        node_of: Callable[[Token], NodeId | None],
    ) -> None:
        """``kept_s`` is how long files that no unfinished job needs, and logs, are kept.

        ``node_of`` tells whose a node's token is.
        """
        self._shell = shell
        self._access = access
        self._blobs = blobs
        self._logs = logs
        self._terms = terms
        self._kept_s = kept_s
        self._node_of = node_of
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="files")

    def terms(self, who: Principal) -> Terms:
        """Return what the pool allows."""
        del who
        return self._terms

    # ---- blobs -----------------------------------------------------------------------------------------------------

    async def missing(self, who: Principal, names: Sequence[str]) -> list[str]:
        """Return the blobs that have to be sent."""
        del who
        absent = await self._call(self._blobs.missing, names)
        return [name for name in dict.fromkeys(names) if name in absent]

    async def put(self, who: Principal, blobs: Sequence[bytes]) -> None:
        """Keep blobs."""
        del who
        await self._call(self._blobs.put, blobs)

    async def get(self, who: Principal, names: Sequence[str]) -> list[bytes | None]:
        """Return the first blobs, as many as fit into a pack."""
        del who
        return await self._call(self._blobs.get, names, PACK_BYTES_MAX)

    async def _call(self, call: Callable[..., T], *args: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, call, *args)

    # ---- what jobs bring along -------------------------------------------------------------------------------------

    async def admit(self, asks: Iterable[JobAsk]) -> None:
        """Check that nodes will have the files of jobs.

        Raises ``FilesNeeded`` for paths that nodes do not see and that were not sent along, ``FilesMissing`` when what
        was sent is not there (any more), ``FilesTooLarge`` when it is more than is allowed.
        """
        checked: set[str] = set()
        for ask in asks:
            if ask.files is not None and not self._terms.travel:
                raise InvalidField("this pool's tasks run where the files are: none are sent along", field="files")
            if self._terms.travel:
                self._check_paths(ask)
            if ask.files is not None and ask.files.tree not in checked:
                checked.add(ask.files.tree)
                await self._call(self._check_tree, ask.files.tree)

    def _check_paths(self, ask: JobAsk) -> None:
        files = ask.files
        unseen: list[tuple[str, str]] = []
        if ask.workdir is not None and not (files is not None and files.workdir):
            unseen.append(("workdir", ask.workdir))
        for target, source in ask.file_mounts.items():
            if files is None or target not in files.targets:
                unseen.append((f"file_mounts.{target}", source))
        for field, path in unseen:
            if not in_place(path, self._terms.shared_paths):
                hint = "corral and its SDK send it along; what all nodes see is named in shared_paths"
                raise FilesNeeded(f"the nodes of this pool do not see {path}", field=field, hint=hint)

    def _check_tree(self, name: str) -> None:
        tree = self._load(name)
        if tree.root.size_bytes > self._terms.upload_max_mib * MIB:
            size = f"{tree.root.size_bytes / MIB:,.0f} MiB"
            raise FilesTooLarge(f"{size} are more than may be sent along ({self._terms.upload_max_mib:,} MiB)")
        self._check_chunks(tree)

    def _load(self, name: str) -> Tree:
        try:
            return load_tree(name, self._blobs.get)
        except FilesDamaged as error:
            raise FilesMissing(
                f"the pool does not hold the files {name[:12]}: {error}", hint="send them again"
            ) from None

    def _check_chunks(self, tree: Tree) -> None:
        absent = self._blobs.missing([*tree.chunks, *tree.blobs])
        if absent:
            raise FilesMissing(
                f"{len(absent):,} pieces of the files {tree.name[:12]} are not here", hint="send them again"
            )

    # ---- what comes back -------------------------------------------------------------------------------------------

    async def give_back(self, who: Principal, what: Return) -> None:
        """Take the outputs or the checkpoint of a running task."""
        self._require(who, what.node)
        size_bytes = await self._call(self._check_returned, what.tree)
        answer = await self._shell.ask(replace(what, size_bytes=size_bytes))
        if isinstance(answer, Refusal):
            raise CorralError.of(answer)

    def _check_returned(self, name: str) -> int:
        """Return the size of a tree that is here as a whole: what it says itself, not what a node says of it."""
        tree = self._load(name)
        self._check_chunks(tree)
        return tree.root.size_bytes

    async def add_logs(self, who: Principal, node: NodeId, pieces: Sequence[LogPiece]) -> list[int]:
        """Keep pieces of logs; -1 stands for one of a start that is not the newest, or of another node."""
        self._require(who, node)
        ends: list[int] = []
        for piece in pieces:
            job = await self._job(piece.task)
            if belongs(job, piece.task, piece.incarnation, node):
                ends.append(await self._call(self._logs.append, piece))
            else:
                ends.append(-1)
        return ends

    async def _job(self, task: TaskKey) -> Job | None:
        """Return a job, also one that has just ended: the last of its log comes after its end."""
        live = self._shell.core.book.state.jobs.get(task.job)
        if live is not None:
            return live
        return await self._access.ended(task.job)

    async def read_log(self, task: TaskKey, incarnation: int, offset: int, limit: int) -> LogChunk | None:
        """Return a piece of a log that came back, ``None`` when none of it did."""
        return await self._call(self._logs.read, task, incarnation, offset, limit)

    def _require(self, who: Principal, node: NodeId) -> None:
        """Raise ``Forbidden`` unless it is this node that speaks (an admin may for any)."""
        token = self._shell.core.book.state.tokens.get(who.token_id)
        if who.role is not Role.ADMIN and (token is None or self._node_of(token) != node):
            raise Forbidden(f"this token is not that of node {node}")

    # ---- housekeeping ----------------------------------------------------------------------------------------------

    async def keep_house(self, now: float) -> int:
        """Delete what no unfinished job or service needs and nobody used for long; return how many blobs.

        ``now`` is of the clock by which the stores note when something was used: this machine's, wherever it was set.

        What came back of a finished job is kept as long, from its end on or from when somebody got it.
        """
        trees: set[str] = set()
        for job in self._shell.core.book.state.jobs.values():
            if job.spec.files is not None:
                trees.add(job.spec.files.tree)
            for gang in job.gangs.values():
                trees.update(one.tree for one in (*gang.saved, *gang.outputs))
        # A service that is at rest has no replica, and one may go back to any revision that it keeps.
        for service in self._shell.core.book.state.services.values():
            asks = [revision.spec.replica for revision in service.revisions]
            trees.update(ask.files.tree for ask in asks if ask.files is not None)
        return await self._call(self._sweep, trees, now - self._kept_s)

    def _sweep(self, trees: set[str], unused_since: float) -> int:
        for name in trees:
            try:
                tree = load_tree(name, self._blobs.get)
            except FilesDamaged as error:
                log.warning("files of a job are not whole: %s", error)
                continue
            self._blobs.missing([*tree.chunks, *tree.blobs])
        self._logs.sweep(unused_since)
        return self._blobs.sweep(unused_since)

    def close(self) -> None:
        """Let the threads go."""
        self._threads.shutdown(wait=False)
        self._blobs.close()


def in_place(path: str, shared: Iterable[str]) -> bool:
    """Return whether a path lies in one that all nodes see."""
    return any(path == base or path.startswith(base.rstrip("/") + "/") for base in shared)
