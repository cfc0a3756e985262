"""Builds what keeps the files of a pool: nothing where tasks run on the machine that the files are on."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from corral.control.access import Access
from corral.control.files import ControllerFiles
from corral.control.shell import ControlShell
from corral.model.errors import FilesDamaged
from corral.ports.files import BlobStore, LogStore, Terms
from corral.runtime.machines.tokens import node_of
from corral.runtime.paths import StatePaths
from corral.runtime.poolfile import PoolFile
from corral.runtime.settings import Settings
from corral.storage import SqlStore
from corral.storage.blobs import DirectoryBlobs, DirectoryLogs
from corral.wire.treefiles import lay
from corral.wire.trees import Entry, load_tree, name_of

MIB = 1 << 20


def make_blobs(asked: PoolFile, paths: StatePaths, store: SqlStore) -> BlobStore | None:
    """Return where the files of a pool of several machines are, ``None`` for the pool of one."""
    if asked.engine == "local":
        return None
    return store.blobs() if asked.store is not None else DirectoryBlobs(paths.blobs)


def make_files(
    asked: PoolFile,
    settings: Settings,
    paths: StatePaths,
    store: SqlStore,
    shell: ControlShell,
    blobs: BlobStore | None,
) -> ControllerFiles | None:
    """Return the keeper of files, ``None`` where there are no ``blobs``."""
    if blobs is None:
        return None
    log_bytes_max = settings.log_returned_mib * MIB
    shared = asked.store is not None
    logs: LogStore = store.logs(log_bytes_max) if shared else DirectoryLogs(paths.returned_logs, log_bytes_max)
    return ControllerFiles(
        shell,
        Access(shell, store),
        blobs,
        logs,
        Terms(travel=True, upload_max_mib=settings.upload_max_mib, shared_paths=settings.shared_paths),
        kept_s=settings.files_kept_s,
        node_of=node_of,
    )


def lay_tree(blobs: BlobStore, name: str, directory: Path) -> None:
    """Write a tree into a new directory; one that is there stays as it is. Raises ``FilesDamaged`` and ``OSError``."""
    if directory.is_dir():
        return

    def write(entry: Entry, descriptor: int) -> None:
        for digest in entry.chunks:
            (blob,) = blobs.get([digest.hex()])
            if blob is None or name_of(blob) != digest.hex():
                raise FilesDamaged(f"blob {digest.hex()[:12]} is not whole")
            view = memoryview(blob)
            while view:
                view = view[os.write(descriptor, view) :]

    tree = load_tree(name, blobs.get)
    new = directory.with_name(f".{directory.name}.new")
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir(parents=True)
    lay(tree.entries, str(new), write)
    new.rename(directory)
