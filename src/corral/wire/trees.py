"""Directories as content: the one format in which files travel between clients, controllers and nodes.

Every *blob* is at most 4 MiB and is called by the SHA-256 of its bytes. A file is a sequence of chunks of 4 MiB (the
last one shorter), each a blob. A directory is a list of entries, sorted by path, in MessagePack; that list is cut into
blobs, too, and a small last blob, the *root*, names them: its hash names the *tree*. So equal directories have equal
names, and of a changed one only the changed chunks travel.

Paths are bytes, as Linux has them. A *pack* is several blobs one after the other, each behind its length (4 bytes,
big-endian); ``0xFFFFFFFF`` stands for one that is not there.
"""

from __future__ import annotations

import hashlib
import re
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import IntEnum
from typing import Annotated, Any, Final

import msgspec

from corral.model.errors import FilesDamaged, FilesTooLarge

CHUNK_BYTES = 4 << 20
PACK_BYTES_MAX = 8 << 20
PACK_BLOBS_MAX = 2_000
BLOBS_ASKED_MAX = 20_000
ENTRIES_MAX = 200_000
LISTING_BYTES_MAX = 64 << 20
"""What the list of entries may be: 320 bytes an entry. Who reads a stranger's tree holds all of it in memory."""

PATH_BYTES_MAX = 4_095
"""PATH_MAX of Linux less the final NUL (limits.h)."""
NAME = re.compile(r"[0-9a-f]{64}")
_VERSION = 1
_DIGEST_BYTES = 32
_LISTING_BLOBS_MAX: Final = LISTING_BYTES_MAX // CHUNK_BYTES
_TIME_MAX: Final = 1 << 62
_LENGTH = struct.Struct(">I")
_ABSENT = 0xFFFFFFFF


class Kind(IntEnum):
    """What an entry of a tree is."""

    FILE = 0
    DIRECTORY = 1
    LINK = 2


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """One entry: ``size`` in bytes and ``chunks`` (raw digests) of a file, or the ``target`` of a symbolic link.

    ``modified_ns`` is when it was written (nanoseconds since the epoch), 0 in trees that are for their content alone.
    """

    path: bytes
    kind: Kind
    executable: bool = False
    size: int = 0
    chunks: tuple[bytes, ...] = ()
    target: bytes = b""
    modified_ns: int = 0


class Root(msgspec.Struct, frozen=True, array_like=True):
    """The root blob: the format's version, files and bytes in all, and the blobs of the list of entries."""

    version: int
    files: int
    size_bytes: int
    listing: Annotated[tuple[bytes, ...], msgspec.Meta(max_length=_LISTING_BLOBS_MAX)]


_Entries = Annotated[tuple[Entry, ...], msgspec.Meta(max_length=ENTRIES_MAX)]


class Tree(msgspec.Struct, frozen=True):
    """A tree with everything that has to be stored for it beside its files' chunks: ``blobs`` by name, root last."""

    name: str
    root: Root
    entries: tuple[Entry, ...]
    blobs: dict[str, bytes]

    @property
    def chunks(self) -> dict[str, None]:
        """Return the names of its files' chunks, each once, in the order of the entries."""
        return {digest.hex(): None for entry in self.entries for digest in entry.chunks}


def name_of(blob: bytes) -> str:
    """Return the name of a blob."""
    return hashlib.sha256(blob).hexdigest()


def is_name(text: object) -> bool:
    """Return whether a text is the name of a blob."""
    return isinstance(text, str) and NAME.fullmatch(text) is not None


def tree_of(entries: Iterable[Entry]) -> Tree:
    """Return the tree of entries (in any order).

    Raises ``FilesDamaged`` for what is no directory, ``FilesTooLarge`` when its list is.
    """
    listed = tuple(sorted(entries, key=lambda entry: entry.path))
    _check(listed)
    data = msgspec.msgpack.encode(listed)
    if len(data) > LISTING_BYTES_MAX:
        raise FilesTooLarge(f"the list of {len(listed):,} entries is larger than {LISTING_BYTES_MAX >> 20} MiB")
    blobs: dict[str, bytes] = {}
    listing = []
    for start in range(0, len(data), CHUNK_BYTES):
        piece = data[start : start + CHUNK_BYTES]
        blobs[name_of(piece)] = piece
        listing.append(hashlib.sha256(piece).digest())
    files = sum(entry.kind is Kind.FILE for entry in listed)
    root = Root(_VERSION, files, sum(entry.size for entry in listed), tuple(listing))
    encoded = msgspec.msgpack.encode(root)
    name = name_of(encoded)
    blobs.pop(name, None)
    blobs[name] = encoded
    return Tree(name, root, listed, blobs)


def load_tree(name: str, get: Callable[[Sequence[str]], Sequence[bytes | None]]) -> Tree:
    """Read a tree by its name; ``get`` returns blobs, ``None`` for those that are not there.

    Raises ``FilesDamaged`` when something is missing, or is not what its name says.
    """
    (encoded,) = _checked([name], get)
    root: Root = _decoded(encoded, Root)
    if root.version != _VERSION:
        raise FilesDamaged(f"tree {name[:12]} has version {root.version}, this corral knows {_VERSION}")
    names = [digest.hex() for digest in root.listing]
    pieces = _checked(names, get)
    entries: tuple[Entry, ...] = _decoded(b"".join(pieces), _Entries)
    _check(entries)
    if root.size_bytes != sum(entry.size for entry in entries):
        raise FilesDamaged(f"tree {name[:12]} is not as large as it says")
    return Tree(name, root, entries, {**dict(zip(names, pieces, strict=True)), name: encoded})


def _checked(names: Sequence[str], get: Callable[[Sequence[str]], Sequence[bytes | None]]) -> list[bytes]:
    found: list[bytes] = []
    for name, blob in zip(names, get(names), strict=True):
        if blob is None:
            raise FilesDamaged(f"blob {name[:12]} is not there")
        if name_of(blob) != name:
            raise FilesDamaged(f"blob {name[:12]} is not what its name says")
        found.append(blob)
    return found


def _decoded(data: bytes, kind: Any) -> Any:
    try:
        return msgspec.msgpack.decode(data, type=kind)
    except msgspec.MsgspecError as error:
        raise FilesDamaged(f"a list of files cannot be read: {error}") from None


def _check(entries: Sequence[Entry]) -> None:
    """Refuse what could land outside of the directory, or through a symbolic link of the tree itself."""
    if len(entries) > ENTRIES_MAX:
        raise FilesDamaged(f"a directory may have {ENTRIES_MAX:,} entries, this one has {len(entries):,}")
    directories = {b""}
    before = None
    for entry in entries:
        path = entry.path
        parts = path.split(b"/")
        parent = path.rpartition(b"/")[0]
        if before is not None and path <= before:
            raise FilesDamaged("the entries of a directory are not in order")
        if not path or b"\0" in path or len(path) > PATH_BYTES_MAX or {b"", b".", b".."} & set(parts):
            raise FilesDamaged(f"{path[:64]!r} is no path inside a directory")
        if not 0 <= entry.modified_ns < _TIME_MAX:
            raise FilesDamaged(f"{path[:64]!r} was written at no time that a file can have")
        if parent not in directories:
            raise FilesDamaged(f"{path[:64]!r} does not lie in a directory of the same tree")
        if entry.kind is Kind.DIRECTORY:
            directories.add(path)
        elif entry.kind is Kind.LINK and (not entry.target or b"\0" in entry.target):
            raise FilesDamaged(f"{path[:64]!r} is a symbolic link to nowhere")
        elif entry.kind is Kind.FILE and not _whole(entry):
            raise FilesDamaged(f"{path[:64]!r} is not made of as many chunks as its size says")
        before = path


def _whole(entry: Entry) -> bool:
    """Return whether a file has a size and the digests of as many chunks as that needs."""
    enough = entry.size >= 0 and len(entry.chunks) == -(-entry.size // CHUNK_BYTES)
    return enough and all(len(digest) == _DIGEST_BYTES for digest in entry.chunks)


# ---- packs ---------------------------------------------------------------------------------------------------------


def pack(blobs: Iterable[bytes | None]) -> bytes:
    """Return blobs as one pack; ``None`` stands for one that is not there."""
    parts: list[bytes] = []
    for blob in blobs:
        parts.append(_LENGTH.pack(_ABSENT if blob is None else len(blob)))
        parts.append(blob or b"")
    return b"".join(parts)


def unpack(data: bytes) -> list[bytes | None]:
    """Return the blobs of a pack.

    Raises ``FilesDamaged`` when it is cut off, one is larger than a chunk, or there are more than anybody asks for.
    """
    found: list[bytes | None] = []
    position = 0
    while position < len(data):
        if len(found) == BLOBS_ASKED_MAX:
            raise FilesDamaged(f"a pack holds more than {BLOBS_ASKED_MAX:,} blobs")
        if len(data) - position < _LENGTH.size:
            raise FilesDamaged("a pack ends within a length")
        (length,) = _LENGTH.unpack_from(data, position)
        position += _LENGTH.size
        if length == _ABSENT:
            found.append(None)
            continue
        if length > CHUNK_BYTES or len(data) - position < length:
            raise FilesDamaged("a pack ends within a blob, or one is larger than 4 MiB")
        found.append(data[position : position + length])
        position += length
    return found


def batches(sizes: Iterable[tuple[str, int]]) -> Iterator[list[str]]:
    """Divide blobs (name and size in bytes) among packs of at most ``PACK_BYTES_MAX`` and ``PACK_BLOBS_MAX``."""
    batch: list[str] = []
    size = 0
    for name, length in sizes:
        if batch and (size + length + _LENGTH.size > PACK_BYTES_MAX or len(batch) == PACK_BLOBS_MAX):
            yield batch
            batch, size = [], 0
        batch.append(name)
        size += length + _LENGTH.size
    if batch:
        yield batch
