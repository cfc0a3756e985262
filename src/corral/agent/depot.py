"""What a node keeps of files that travelled: blobs by their content, and directories that a setup was run in.

Tasks get copies (shared blocks where the file system can), never links into the depot: what a task does to its files
harms nobody else's. What was used least recently goes when it grows too large; what is in use stays. Nothing is
flushed: what an earlier boot of the machine left may be half, and goes.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from weakref import WeakValueDictionary

from corral.agent.taskdir import replace_file
from corral.model.errors import FilesDamaged
from corral.wire.trees import Entry, Tree, load_tree, name_of

_NO_SHARED_COPY = frozenset({errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP})
_COPY_BYTES = 1 << 20

Fetch = Callable[[Sequence[str]], Sequence[bytes | None]]
"""Returns the first of the blobs asked for, at least one; ``None`` for those that are not there."""


class Unwanted(Exception):
    """Whoever was served does not want it any more."""


class Depot:
    """One node's. Every method blocks; threads may share it.

    Attributes:
        bytes_max: What is kept beside what is in use.
    """

    def __init__(self, directory: Path, bytes_max: int, fetch: Fetch) -> None:
        self._blobs = directory / "blobs"
        self._bases = directory / "bases"
        self.bytes_max = bytes_max
        self._fetch = fetch
        self._lock = threading.Lock()
        self._of_tree: WeakValueDictionary[str, _Turn] = WeakValueDictionary()
        self._held: Counter[str] = Counter()
        self._size: int | None = None
        self._serving = threading.local()
        _begin_boot(directory, (self._blobs, self._bases))

    @contextlib.contextmanager
    def serving(self, wanted: Callable[[], bool]) -> Iterator[None]:
        """Let what this thread does here meanwhile raise ``Unwanted`` as soon as it is not ``wanted`` any more."""
        self._serving.wanted = wanted
        try:
            yield
        finally:
            del self._serving.wanted

    def _check_wanted(self) -> None:
        wanted: Callable[[], bool] | None = getattr(self._serving, "wanted", None)
        if wanted is not None and not wanted():
            raise Unwanted("it is not wanted any more")

    # ---- trees -----------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def holding(self, name: str) -> Iterator[Tree]:
        """Have a tree with all its chunks here. Raises ``FilesDamaged``, ``OSError``, and what fetching raises."""
        tree = self.tree(name)
        with self.having(name, list(tree.chunks)):
            yield tree

    def tree(self, name: str) -> Tree:
        """Return a tree without its chunks. Raises as :meth:`holding` does."""
        with self._turn(name).lock:
            return load_tree(name, self._get)

    @contextlib.contextmanager
    def having(self, name: str, chunks: Sequence[str]) -> Iterator[None]:
        """Have some chunks of a tree here. Raises as :meth:`holding` does."""
        try:
            with self._hold(chunks):
                # Tasks of one job that start together fetch its files once.
                with self._turn(name).lock:
                    self._get_all(chunks)
                yield
        finally:
            self._trim()

    @contextlib.contextmanager
    def _hold(self, names: Sequence[str]) -> Iterator[None]:
        """Count things as in use."""
        with self._lock:
            self._held.update(names)
        try:
            yield
        finally:
            with self._lock:
                self._held.subtract(names)
                self._held += Counter()

    def _turn(self, name: str) -> _Turn:
        with self._lock:
            return self._of_tree.setdefault(name, _Turn())

    def write(self, entry: Entry, descriptor: int) -> None:
        """Write the content of a file of a held tree. Raises ``FilesDamaged`` when it is not as long as it says."""
        written = 0
        for digest in entry.chunks:
            self._check_wanted()
            source = os.open(self._path(digest.hex()), os.O_RDONLY | os.O_CLOEXEC)
            try:
                written += _copy(source, descriptor)
            finally:
                os.close(source)
        if written != entry.size:
            raise FilesDamaged(f"{entry.path[:64]!r} has {written} bytes instead of {entry.size}")

    def _get(self, names: Sequence[str]) -> list[bytes | None]:
        with self._hold(names):
            self._get_all(names)
            return [self._path(name).read_bytes() for name in names]

    def _get_all(self, names: Sequence[str]) -> None:
        """Fetch what is not here."""
        absent = [name for name in dict.fromkeys(names) if not self._use(name)]
        while absent:
            self._check_wanted()
            found = self._fetch(absent)
            for name, blob in zip(absent, found, strict=False):
                if blob is None:
                    raise FilesDamaged(f"the pool does not hold blob {name[:12]} any more: submit the job again")
                if name_of(blob) != name:
                    raise FilesDamaged(f"blob {name[:12]} is not what its name says")
                self._keep(name, blob)
            absent = absent[len(found) :]

    def _use(self, name: str) -> bool:
        try:
            os.utime(self._path(name))
        except FileNotFoundError:
            return False
        return True

    def _keep(self, name: str, blob: bytes) -> None:
        path = self._path(name)
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        new = path.with_name(f".{name}.{threading.get_ident()}")
        try:
            new.write_bytes(blob)
            new.rename(path)
        except OSError:
            new.unlink(missing_ok=True)
            raise
        with self._lock:
            if self._size is not None:
                self._size += len(blob)

    def _path(self, name: str) -> Path:
        return self._blobs / name[:2] / name

    # ---- bases -----------------------------------------------------------------------------------------------------

    def base(self, key: str, build: Callable[[Path], None]) -> Path:
        """Return the directory of a key in which a setup runs, built by ``build`` when it is not there yet.

        It counts as in use until :meth:`leave`.
        """
        path = self._bases / key
        self.enter(key)
        try:
            with self._turn(key).lock:
                if not path.is_dir():
                    self._bases.mkdir(parents=True, exist_ok=True, mode=0o700)
                    new = self._bases / f".{key}.new"
                    shutil.rmtree(new, ignore_errors=True)
                    new.mkdir()
                    build(new)
                    new.rename(path)
                os.utime(path)
        except BaseException:
            self.leave(key)
            raise
        return path

    def enter(self, key: str) -> None:
        """Count a base as in use by one more task."""
        with self._lock:
            self._held[key] += 1

    def leave(self, key: str) -> None:
        """Count a base as in use by one task less."""
        with self._lock:
            self._held[key] -= 1
            self._held += Counter()
            # What its setup made in it was not counted yet.
            self._size = None

    # ---- room ------------------------------------------------------------------------------------------------------

    def _trim(self) -> None:
        """Remove what was used least recently until the rest fits."""
        with self._lock:
            if self._size is not None and self._size <= self.bytes_max:
                return
            kept = sorted(self._inventory())
            total = sum(size for _, size, _ in kept)
            for _, size, path in kept:
                if total <= self.bytes_max:
                    break
                # What is being written now is under another name, and about to be used.
                if path.name not in self._held and not path.name.startswith("."):
                    _remove(path)
                    total -= size
            self._size = total

    def _inventory(self) -> Iterator[tuple[float, int, Path]]:
        """Yield (last use, size in bytes, path) of all that is kept."""
        for folder in self._blobs.iterdir() if self._blobs.is_dir() else ():
            for path in folder.iterdir():
                with contextlib.suppress(FileNotFoundError):
                    status = path.stat()
                    yield status.st_mtime, status.st_size, path
        for path in self._bases.iterdir() if self._bases.is_dir() else ():
            if not path.name.startswith("."):
                yield path.stat().st_mtime, size_of(path), path


class _Turn:
    """One does it, others wait. Gone with the last of them."""

    def __init__(self) -> None:
        self.lock = threading.Lock()


def _begin_boot(directory: Path, kept: Sequence[Path]) -> None:
    """Forget what an earlier boot left: it was never flushed, and a power cut leaves names without content."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    note = directory / "boot"
    with contextlib.suppress(FileNotFoundError):
        if note.read_text() == boot:
            return
    for path in kept:
        shutil.rmtree(path, ignore_errors=True)
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    replace_file(str(note), boot.encode())


def _remove(path: Path) -> None:
    if path.is_dir():
        gone = path.with_name(f".{path.name}.gone")
        path.rename(gone)
        shutil.rmtree(gone, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def size_of(directory: Path) -> int:
    """Return the bytes of all files below a directory, 0 when there is none."""
    total = 0
    for folder, _, names in os.walk(directory):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                total += (Path(folder) / name).lstat().st_size
    return total


def _copy(source: int, target: int) -> int:
    """Copy a whole file to the end of another, without reading it where the kernel can; return the bytes."""
    copied = 0
    try:
        while count := os.copy_file_range(source, target, _COPY_BYTES << 10):
            copied += count
    except OSError as error:
        if error.errno not in _NO_SHARED_COPY or copied:
            raise
    else:
        return copied
    while data := os.read(source, _COPY_BYTES):
        view = memoryview(data)
        while view:
            view = view[os.write(target, view) :]
        copied += len(data)
    return copied
