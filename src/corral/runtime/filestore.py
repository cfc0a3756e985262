"""Builds what keeps the files of a pool: nothing where tasks run on the machine that the files are on."""

from __future__ import annotations

from corral.control.access import Access
from corral.control.files import ControllerFiles
from corral.control.shell import ControlShell
from corral.ports.files import BlobStore, LogStore, Terms
from corral.runtime.paths import StatePaths
from corral.runtime.poolfile import PoolFile
from corral.runtime.settings import Settings
from corral.runtime.tokens import node_of
from corral.storage import SqlStore
from corral.storage.blobs import DirectoryBlobs, DirectoryLogs

MIB = 1 << 20


def make_files(
    asked: PoolFile, settings: Settings, paths: StatePaths, store: SqlStore, shell: ControlShell
) -> ControllerFiles | None:
    """Return the keeper of files of a pool of several machines, ``None`` for the pool of one."""
    if asked.engine == "local":
        return None
    log_bytes_max = settings.log_returned_mib * MIB
    shared = asked.store is not None
    blobs: BlobStore = store.blobs() if shared else DirectoryBlobs(paths.blobs)
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
