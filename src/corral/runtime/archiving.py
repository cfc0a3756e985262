"""`corral state`: the whole state of a pool to a file, and from a file into a new place."""

from __future__ import annotations

from pathlib import Path

import corral
from corral.model.errors import AlreadyRunning, CorralError, StateUnusable
from corral.runtime.paths import StatePaths
from corral.runtime.poolfile import load_pool
from corral.runtime.starting.launcher import prepare, running_supervisor
from corral.storage import PostgresStore, SqliteStore, SqlStore
from corral.storage.archive import Archived, export, restore
from corral.storage.blobs import DirectoryBlobs


def export_state(state_dir: Path, place: Path, store_url: str | None) -> Archived:
    """Write the state of a pool to ``place``; the pool may run. ``store_url`` overrides what its last start used.

    Raises ``StateUnusable`` where there is none, and the errors of the store.
    """
    paths = StatePaths(state_dir.absolute())
    url = store_url or _last_store(paths)
    if url is None and not paths.store.exists():
        raise StateUnusable(f"there is no pool in {paths.root}", hint="name a database with --store")
    store = _store(paths, url)
    store.open()
    try:
        files = store.blobs() if url is not None else DirectoryBlobs(paths.blobs)
        try:
            return export(store, files, place.absolute(), version=corral.__version__)
        finally:
            files.close()
    finally:
        store.close()


def import_state(state_dir: Path, place: Path, store_url: str | None) -> Archived:
    """Fill a new place from ``place``: the database of ``store_url``, else the state directory.

    Raises ``AlreadyRunning`` while a pool runs there, ``Conflict`` when it holds a state already, ``StoreCorrupt`` when
    the file is damaged, and the errors of the store.
    """
    paths = StatePaths(state_dir.absolute())
    if store_url is None:
        pid = running_supervisor(paths)
        if pid is not None:
            raise AlreadyRunning(f"a pool runs on {paths.root} (pid {pid})", hint="import before it is started")
        prepare(paths)
    store = _store(paths, store_url)
    store.open()
    try:
        files = store.blobs() if store_url is not None else DirectoryBlobs(paths.blobs)
        try:
            return restore(store, files, place.absolute())
        finally:
            files.close()
    finally:
        store.close()


def _store(paths: StatePaths, url: str | None) -> SqlStore:
    return PostgresStore(url) if url is not None else SqliteStore(paths.store)


def _last_store(paths: StatePaths) -> str | None:
    try:
        return load_pool(paths.pool).store
    except CorralError:
        return None
