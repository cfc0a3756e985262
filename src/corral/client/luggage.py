"""The files of a job, from this machine to a pool whose nodes do not see its disk. Only what is missing is sent."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

import msgspec
from msgspec.structs import replace

from corral.client.calls import Caller, decoded
from corral.client.ignoring import IgnoreFiles
from corral.model.ask import JobAsk
from corral.model.errors import FilesDamaged, FilesTooLarge, PathNotFound, PathUnsafe, UsageError
from corral.model.files import JobFiles
from corral.ports.files import Terms
from corral.wire.treefiles import MIB, Changed, Found, Gathered, found_entry, gather, lay, scan
from corral.wire.trees import BLOBS_ASKED_MAX, Entry, Kind, Tree, batches, load_tree, name_of, pack, unpack

NOTHING_TRAVELS = Terms()
SEND_S = 120.0
BLOBS_TOGETHER = 1_000
TRIES = 3
TOO_LARGE_HINT = (
    "leave out what is not needed with .corralignore, choose another workdir, "
    "or have the administrator name storage that all nodes see in shared_paths"
)
SLOW_S = 1.0
_log = logging.getLogger("corral.client")
BINARY = "application/octet-stream"


class _Missing(msgspec.Struct, frozen=True):
    missing: tuple[str, ...]


class Luggage:
    """Sends and gets files. ``terms`` say what may be sent."""

    def __init__(self, caller: Caller, terms: Terms = NOTHING_TRAVELS) -> None:
        self._caller = caller
        self.terms = terms

    @classmethod
    def of(cls, caller: Caller) -> Luggage:
        """Return one that knows what the pool allows."""
        return cls(caller, decoded(caller.call("GET", "/files/terms").body, Terms))

    # ---- sending ---------------------------------------------------------------------------------------------------

    def packed(self, asks: Sequence[JobAsk]) -> list[JobAsk]:
        """Send the files of jobs along and return the jobs with them.

        Raises ``FilesTooLarge``, ``PathNotFound``, and ``UsageError`` for files that change all the time.
        """
        known: dict[object, JobFiles | None] = {}
        packed: list[JobAsk] = []
        for ask in asks:
            key = (ask.workdir, tuple(sorted(ask.file_mounts.items())))
            if key not in known:
                known[key] = self._sent(ask, self.terms)
            packed.append(replace(ask, files=known[key]))
        return packed

    def _sent(self, ask: JobAsk, terms: Terms) -> JobFiles | None:
        travels = ask.workdir is not None and not _in_place(ask.workdir, terms)
        targets = {target: source for target, source in ask.file_mounts.items() if not _in_place(source, terms)}
        if not travels and not targets:
            return None
        reason = ""
        for _ in range(TRIES):
            try:
                with _told_when_slow(", ".join([*([ask.workdir] if travels and ask.workdir else []), *targets])):
                    gathered = gather(_found(ask, targets, terms.upload_max_mib * MIB, travels=travels))
                    self._send(gathered)
            except Changed as changed:
                reason = str(changed)
                continue
            except OSError as error:
                raise PathNotFound(f"cannot read {error.filename or ask.workdir}: {error.strerror}") from None
            return JobFiles(gathered.tree.name, travels, tuple(targets))
        raise UsageError(f"{reason} changes while it is sent", hint="leave it out with .corralignore")

    def _send(self, gathered: Gathered) -> None:
        sizes = gathered.sizes
        names = list(sizes)
        absent: list[str] = []
        for start in range(0, len(names), BLOBS_ASKED_MAX):
            body = msgspec.json.encode({"blobs": names[start : start + BLOBS_ASKED_MAX]})
            reply = self._caller.call("POST", "/files/missing", body=body, timeout_s=SEND_S)
            absent += decoded(reply.body, _Missing).missing
        for batch in batches((name, sizes[name]) for name in absent):
            body = pack(gathered.read(name) for name in batch)
            headers = {"Content-Type": BINARY}
            self._caller.call("POST", "/files/blobs", body=body, headers=headers, timeout_s=SEND_S)

    # ---- getting ---------------------------------------------------------------------------------------------------

    def fetch(self, name: str, directory: Path) -> Tree:
        """Write a tree that came back into a directory; what is there under the same names is replaced.

        Raises ``FilesDamaged`` when it is no longer whole at the pool, and ``OSError``.
        """
        tree = load_tree(name, self._blobs)
        directory.mkdir(parents=True, exist_ok=True)
        # In the order in which they are written: nothing is held longer than needed.
        chunks = self._chunks([digest.hex() for entry in tree.entries for digest in entry.chunks])

        def write(entry: Entry, descriptor: int) -> None:
            left = entry.size
            for blob in islice(chunks, len(entry.chunks)):
                left -= len(blob)
                if left < 0:
                    break
                view = memoryview(blob)
                while view:
                    view = view[os.write(descriptor, view) :]
            if left:
                raise FilesDamaged(f"{os.fsdecode(entry.path)[:64]!r} is not as long as it says")

        lay(tree.entries, str(directory), write, replace=True)
        return tree

    def _chunks(self, names: Sequence[str]) -> Iterator[bytes]:
        position = 0
        while position < len(names):
            wanted = names[position : position + BLOBS_TOGETHER]
            found = self._get(wanted)
            for name, blob in zip(wanted, found, strict=False):
                if blob is None or name_of(blob) != name:
                    raise FilesDamaged(f"blob {name[:12]} is no longer whole at the pool")
                yield blob
            position += len(found)

    def _blobs(self, names: Sequence[str]) -> list[bytes | None]:
        """Return blobs, however many packs they need."""
        found: list[bytes | None] = []
        while len(found) < len(names):
            found += self._get(names[len(found) : len(found) + BLOBS_TOGETHER])
        return found

    def _get(self, names: Sequence[str]) -> list[bytes | None]:
        """Return the first of some blobs, at least one."""
        reply = self._caller.call(
            "POST", "/files/fetch", body=msgspec.json.encode({"blobs": list(names)}), timeout_s=SEND_S
        )
        found = unpack(reply.body)
        if not 0 < len(found) <= len(names):
            raise FilesDamaged(f"{len(names)} blobs were asked for, {len(found)} came")
        return found


@contextmanager
def _told_when_slow(what: str) -> Iterator[None]:
    """Say what takes long, once: without a word a large directory looks like a pool that hangs."""
    timer = threading.Timer(SLOW_S, _log.warning, ("reading %s and sending what the pool lacks ...", what))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _in_place(path: str, terms: Terms) -> bool:
    """Return whether all nodes see a path."""
    return any(path == base or path.startswith(f"{base.rstrip('/')}/") for base in terms.shared_paths)


def _found(ask: JobAsk, targets: Mapping[str, str], bytes_max: int, *, travels: bool) -> list[Found]:
    """Return the entries of a job's tree: its working directory with the mounts laid over it."""
    found: dict[bytes, Found] = {}
    left = bytes_max
    try:
        if travels and ask.workdir is not None:
            ignored = IgnoreFiles(Path(ask.workdir), skipped=ask.file_mounts)
            what = f"workdir {ask.workdir}"
            found = {one.path: one for one in scan(ask.workdir, bytes_max=left, ignored=ignored, what=what)}
        for target, source in targets.items():
            left = bytes_max - sum(one.size for one in found.values())
            for one in _mounted(os.fsencode(target), source, left):
                found[one.path] = one
    except FilesTooLarge as error:
        raise FilesTooLarge(error.refusal.message, hint=TOO_LARGE_HINT) from None
    for path in [os.fsencode(target) for target in targets]:
        _have_parents(found, path)
    return list(found.values())


def _mounted(target: bytes, source: str, bytes_max: int) -> Iterator[Found]:
    """Yield the entries of a mount, of which git's rules do not hold: that it is wanted was said."""
    top = found_entry(target, source, follow=True)
    if top is None:
        raise PathNotFound(f"the source {source} is no file or directory", field="file_mounts")
    if top.size > bytes_max:
        raise FilesTooLarge(f"{source} is larger than {bytes_max / MIB:,.0f} MiB")
    yield top
    if top.kind is Kind.DIRECTORY:
        ignored = IgnoreFiles(Path(source), git=False)
        for one in scan(source, bytes_max=bytes_max, ignored=ignored, what=f"the mount {source}"):
            yield one._replace(path=target + b"/" + one.path)


def _have_parents(found: dict[bytes, Found], path: bytes) -> None:
    above = path.rpartition(b"/")[0]
    while above:
        there = found.setdefault(above, Found(above, Kind.DIRECTORY, b""))
        if there.kind is not Kind.DIRECTORY:
            text = os.fsdecode(above)
            raise PathUnsafe(f"{text} is no directory in workdir, but a mount lies below it", field="file_mounts")
        above = above.rpartition(b"/")[0]
