"""Builds what keeps the files of a pool: nothing where tasks run on the machine that the files are on."""

from __future__ import annotations

from corral.control.access import Access
from corral.control.files import ControllerFiles
from corral.control.shell import ControlShell
from corral.ports.files import Terms
from corral.ports.store import Store
from corral.runtime.paths import StatePaths
from corral.runtime.poolfile import PoolFile
from corral.runtime.settings import Settings
from corral.runtime.tokens import node_of
from corral.storage.blobs import DirectoryBlobs, DirectoryLogs

MIB = 1 << 20


def make_files(
    asked: PoolFile, settings: Settings, paths: StatePaths, store: Store, shell: ControlShell
) -> ControllerFiles | None:
    """Return the keeper of files of a pool of several machines, ``None`` for the pool of one."""
    if asked.engine == "local":
        return None
    return ControllerFiles(
        shell,
        Access(shell, store),
        DirectoryBlobs(paths.blobs),
        DirectoryLogs(paths.returned_logs, settings.log_returned_mib * MIB),
        Terms(travel=True, upload_max_mib=settings.upload_max_mib, shared_paths=settings.shared_paths),
        kept_s=settings.files_kept_s,
        node_of=node_of,
    )
