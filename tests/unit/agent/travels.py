"""A node whose files travel, and the blobs of its pool."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from corral.agent.config import AgentConfig
from corral.agent.depot import Depot
from corral.agent.travelling import Packed, Travelling
from corral.wire.treefiles import gather, scan
from tests.unit.agent.words import key, launch

MIB = 1 << 20


class Pool:
    """The blobs of a pool; counts what is fetched of it."""

    def __init__(self) -> None:
        self.blobs: dict[str, bytes] = {}
        self.fetched: list[str] = []

    def fetch(self, names: Sequence[str]) -> list[bytes | None]:
        """Give two at a time."""
        self.fetched += names[:2]
        return [self.blobs.get(name) for name in names[:2]]

    def send(self, directory: Path, *, timed: bool = False) -> str:
        gathered = gather(scan(str(directory), bytes_max=1 << 30), timed=timed)
        self.blobs |= {name: gathered.read(name) for name in gathered.sizes}
        return gathered.tree.name


class Node:
    def __init__(self, config: AgentConfig, pool: Pool, *, bytes_max: int = 64 * MIB) -> None:
        self.config = config
        self.cache = config.node_dir / "cache"
        self.depot = Depot(self.cache, bytes_max, pool.fetch)
        self.travelling = Travelling(config, self.depot)

    def lay_out(self, job: int = 1, incarnation: int = 1, **changes: Any) -> tuple[Path, Packed]:
        directory = self.config.tasks_dir / f"{job}.0.0.{incarnation}"
        directory.mkdir()
        return directory, self.travelling.lay_out(launch(key(job), incarnation, **changes), str(directory))

    def blobs(self) -> set[str]:
        return {path.name for path in (self.cache / "blobs").rglob("*") if path.is_file()}
