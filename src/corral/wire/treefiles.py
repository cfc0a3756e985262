"""Trees on the disk: from a directory to its tree, and from a tree to a directory.

A file that changes while it is read never becomes a wrong blob: what is sent is what was hashed, or the reading begins
anew. Nothing is ever written through a symbolic link of a tree: :mod:`corral.wire.trees` refuses such trees, and every
file is new under its name.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from hashlib import sha256
from typing import NamedTuple

from corral.model.errors import FilesTooLarge
from corral.wire.trees import CHUNK_BYTES, ENTRIES_MAX, Entry, Kind, Tree, tree_of

MIB = 1 << 20
KEPT_BYTES = 64 * MIB
"""So much of what was hashed stays in memory: most directories are read once."""

PSEUDO = ("/proc", "/sys")

Ignored = Callable[[bytes, bool], bool]
"""Whether the entry at a relative path (a directory or not) is left out."""


class Found(NamedTuple):
    """An entry of a directory: its path in the tree and on the disk; ``stamp`` changes when its content may have."""

    path: bytes
    kind: Kind
    source: bytes
    executable: bool = False
    size: int = 0
    target: bytes = b""
    stamp: tuple[int, int] = (0, 0)


class Changed(Exception):
    """A file is not what it was when it was hashed; its path."""


class _Place(NamedTuple):
    source: bytes
    offset: int
    length: int


class Gathered(NamedTuple):
    """A tree of files on this disk, and where each of its chunks is."""

    tree: Tree
    places: Mapping[str, _Place]
    kept: Mapping[str, bytes]

    @property
    def sizes(self) -> dict[str, int]:
        """Return the size of every blob, in bytes: chunks first, the root last."""
        chunks = {name: place.length for name, place in self.places.items()}
        return chunks | {name: len(blob) for name, blob in self.tree.blobs.items()}

    def read(self, name: str) -> bytes:
        """Return a blob. Raises :class:`Changed` or ``OSError``."""
        blob = self.tree.blobs.get(name) or self.kept.get(name)
        if blob is not None:
            return blob
        place = self.places[name]
        try:
            with open(place.source, "rb") as file:  # noqa: PTH123 - paths are bytes
                file.seek(place.offset)
                blob = file.read(place.length)
        except (FileNotFoundError, NotADirectoryError):
            raise Changed(os.fsdecode(place.source)) from None
        if sha256(blob).hexdigest() != name:
            raise Changed(os.fsdecode(place.source))
        return blob


def nothing_ignored(_path: bytes, _is_directory: bool) -> bool:  # noqa: FBT001 - an Ignored
    """Leave nothing out."""
    return False


def scan(
    directory: str | bytes, *, bytes_max: int, ignored: Ignored = nothing_ignored, what: str = "the directory"
) -> list[Found]:
    """Return what is in a directory: files, directories and symbolic links; sockets, pipes and devices are left out.

    ``what`` names it in ``FilesTooLarge``, which is raised as soon as its files are more than ``bytes_max`` or its
    entries too many. A directory below that goes meanwhile is empty. Raises ``OSError`` where it cannot be read.
    """
    found: list[Found] = []
    total = 0
    endless = _endless()
    waiting = [(os.fsencode(directory), b"")]
    while waiting:
        here, prefix = waiting.pop()
        if endless and _device(here) in endless:
            raise FilesTooLarge(f"{what} holds {os.fsdecode(here)}, where the kernel makes files without end")
        with _opened(here, may_go=bool(prefix)) as entries:
            for entry in entries:
                path = prefix + entry.name
                one = found_entry(path, entry.path)
                if one is None or ignored(path, one.kind is Kind.DIRECTORY):
                    continue
                found.append(one)
                total += one.size
                if one.kind is Kind.DIRECTORY:
                    waiting.append((entry.path, path + b"/"))
                if total > bytes_max:
                    raise FilesTooLarge(f"{what} holds more than {bytes_max / MIB:,.0f} MiB")
                if len(found) > ENTRIES_MAX:
                    raise FilesTooLarge(f"{what} has more than {ENTRIES_MAX:,} entries")
    return found


def _endless() -> frozenset[int]:
    """Return the devices of the file systems in which the kernel makes up what is read."""
    return frozenset(os.stat(place).st_dev for place in PSEUDO if os.path.ismount(place))  # noqa: PTH116


def _device(directory: bytes) -> int | None:
    try:
        return os.stat(directory).st_dev  # noqa: PTH116 - bytes
    except OSError:
        return None


def overlaid(trees: Sequence[Tree]) -> dict[bytes, tuple[Tree, Entry]]:
    """Return the entries of timed trees laid over one another, each with its tree, by path.

    Of a file or link that several have, what was written last counts, of equals the first. Where one has a directory
    and another a file, the first wins.
    """
    found: dict[bytes, tuple[Tree, Entry]] = {b"": (trees[0], Entry(b"", Kind.DIRECTORY))} if trees else {}
    for tree in trees:
        for entry in tree.entries:
            known = found.get(entry.path)
            if known is None:
                above = found.get(entry.path.rpartition(b"/")[0])
                if above is not None and above[1].kind is Kind.DIRECTORY:
                    found[entry.path] = (tree, entry)
            elif Kind.DIRECTORY not in (known[1].kind, entry.kind) and entry.modified_ns > known[1].modified_ns:
                found[entry.path] = (tree, entry)
    found.pop(b"", None)
    return found


def _opened(directory: bytes, *, may_go: bool) -> AbstractContextManager[Iterator[os.DirEntry[bytes]]]:
    try:
        return os.scandir(directory)
    except (FileNotFoundError, NotADirectoryError):
        if not may_go:
            raise
        return nullcontext(iter(()))


def _of_status(path: bytes, source: bytes, status: os.stat_result) -> Found | None:
    if stat.S_ISDIR(status.st_mode):
        return Found(path, Kind.DIRECTORY, source)
    if not stat.S_ISREG(status.st_mode):
        return None
    executable = bool(status.st_mode & stat.S_IXUSR)
    stamp = (status.st_mtime_ns, status.st_ino)
    return Found(path, Kind.FILE, source, executable, status.st_size, stamp=stamp)


def found_entry(path: bytes, source: str | bytes | os.PathLike[str], *, follow: bool = False) -> Found | None:
    """Return one file, directory or link (``follow``: what it leads to) as an entry of a tree.

    ``None`` when nothing is there, or a socket, pipe or device. Raises ``OSError``.
    """
    place = os.fsencode(source)
    try:
        status = os.stat(place, follow_symlinks=follow)  # noqa: PTH116 - bytes
        if stat.S_ISLNK(status.st_mode):
            stamp = (status.st_mtime_ns, status.st_ino)
            return Found(path, Kind.LINK, place, target=os.readlink(place), stamp=stamp)  # noqa: PTH115 - bytes
    except FileNotFoundError:
        return None
    return _of_status(path, place, status)


def gather(found: Iterable[Found], *, timed: bool = False) -> Gathered:
    """Read and hash what was found. A file that is gone meanwhile is left out. Raises ``OSError``.

    A ``timed`` tree says when each entry was written, so that trees can be laid over one another.
    """
    entries: list[Entry] = []
    places: dict[str, _Place] = {}
    kept: dict[str, bytes] = {}
    room = KEPT_BYTES
    for one in found:
        modified_ns = max(0, one.stamp[0]) if timed and one.kind is not Kind.DIRECTORY else 0
        if one.kind is not Kind.FILE:
            entries.append(Entry(one.path, one.kind, target=one.target, modified_ns=modified_ns))
            continue
        digests: list[bytes] = []
        size = 0
        try:
            for chunk in _chunks(one.source):
                digest = sha256(chunk)
                digests.append(digest.digest())
                name = digest.hexdigest()
                if name not in places:
                    places[name] = _Place(one.source, size, len(chunk))
                    if len(chunk) <= room:
                        kept[name] = chunk
                        room -= len(chunk)
                size += len(chunk)
        except FileNotFoundError:
            continue
        entries.append(Entry(one.path, one.kind, one.executable, size, tuple(digests), modified_ns=modified_ns))
    tree = tree_of(entries)
    return Gathered(tree, {name: places[name] for name in tree.chunks}, kept)


def _chunks(source: bytes) -> Iterator[bytes]:
    """Yield a file's chunks: all of 4 MiB, but for the last."""
    with open(source, "rb", buffering=0) as file:  # noqa: PTH123 - paths are bytes
        while True:
            parts: list[bytes] = []
            wanted = CHUNK_BYTES
            while wanted and (part := file.read(wanted)):
                parts.append(part)
                wanted -= len(part)
            if parts:
                yield b"".join(parts)
            if wanted:
                return


def lay(
    entries: Iterable[Entry], directory: str | bytes, write: Callable[[Entry, int], None], *, replace: bool = False
) -> None:
    """Make the entries of a tree in a directory that is there.

    ``write`` writes a file's content into an open descriptor. With ``replace`` what is there under the same names goes,
    file by file and at once, and a symbolic link goes where a directory belongs: an earlier tree, or a task, may have
    left it there to lead elsewhere. Without it the directory must be empty. Raises ``OSError``, and what ``write``
    raises.
    """
    base = os.fsencode(directory)
    # Of a part of a tree the directories are not among the entries.
    real = {b""}
    for entry in entries:
        path = base + b"/" + entry.path
        if replace:
            _be_directory(base, entry.path.rpartition(b"/")[0], real)
        if entry.kind is Kind.DIRECTORY:
            if replace:
                _be_directory(base, entry.path, real)
            else:
                os.mkdir(path)  # noqa: PTH102 - bytes
        elif replace:
            _replace(entry, path, write)
        else:
            _make(entry, path, write)


def _be_directory(base: bytes, path: bytes, real: set[bytes]) -> None:
    """Have a directory at a path below another, and at all between them; ``real`` are those that are known to be."""
    if path in real:
        return
    _be_directory(base, path.rpartition(b"/")[0], real)
    place = base + b"/" + path
    try:
        os.mkdir(place)  # noqa: PTH102 - bytes
    except FileExistsError:
        mode = os.lstat(place).st_mode
        if stat.S_ISLNK(mode):
            os.unlink(place)  # noqa: PTH108 - bytes
            os.mkdir(place)  # noqa: PTH102 - bytes
        elif not stat.S_ISDIR(mode):
            raise
    real.add(path)


def _replace(entry: Entry, path: bytes, write: Callable[[Entry, int], None]) -> None:
    new = b"%s/.corral-%d.new" % (os.path.dirname(path), os.getpid())  # noqa: PTH120 - bytes
    _unlink(new)
    try:
        _make(entry, new, write)
        os.rename(new, path)  # noqa: PTH104 - bytes
    except BaseException:
        _unlink(new)
        raise


def _make(entry: Entry, path: bytes, write: Callable[[Entry, int], None]) -> None:
    if entry.kind is Kind.LINK:
        os.symlink(entry.target, path)  # noqa: PTH211 - bytes
        if entry.modified_ns:
            os.utime(path, ns=(entry.modified_ns, entry.modified_ns), follow_symlinks=False)
        return
    mode = 0o777 if entry.executable else 0o666
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    try:
        write(entry, descriptor)
        if entry.modified_ns:
            os.utime(descriptor, ns=(entry.modified_ns, entry.modified_ns))
    finally:
        os.close(descriptor)


def _unlink(path: bytes) -> None:
    try:
        os.unlink(path)  # noqa: PTH108 - bytes
    except FileNotFoundError:
        return
