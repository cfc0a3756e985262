"""What engines need of the directories of nodes on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol


class NodeFiles(Protocol):
    """A node's directories on this machine; ``corral.agent.nodefiles`` has it. Every method blocks."""

    def read_log(self, directory: Path, offset: int, limit: int) -> tuple[int, bytes, int]:
        """Return the offset of the first byte, up to ``limit`` bytes from ``offset`` on, and the offset of the end."""

    def has_ended(self, directory: Path) -> bool:
        """Return whether a task writes nothing any more."""

    def fence(self, node_dir: Path, machine: str, epoch: int | None) -> bool | None:
        """Kill everything of a node if this is its machine; return whether it is proven that nothing is left.

        ``epoch`` is that of the leader who asks: for an older one than the node has heard nothing is done, and for none
        while the agent of the node lives: then the answer is ``None``.
        """
