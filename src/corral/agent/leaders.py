"""The newest leader that a node has heard, by its epoch, kept over restarts: older ones may command nothing there."""

from __future__ import annotations

from pathlib import Path

from corral.agent import taskdir

EPOCH_NAME = "epoch"


def newest_epoch(node_dir: Path) -> int:
    """Return the highest epoch that the node has heard, 0 before any."""
    try:
        return int((node_dir / EPOCH_NAME).read_text())
    except (FileNotFoundError, ValueError):
        return 0


def remember(node_dir: Path, epoch: int) -> None:
    """Keep the highest epoch. Raises ``OSError``."""
    taskdir.replace_file(f"{node_dir}/{EPOCH_NAME}", f"{epoch}\n".encode())


def admit(node_dir: Path, epoch: int) -> bool:
    """Return whether a leader may command here; one that may is remembered. Raises ``OSError``."""
    newest = newest_epoch(node_dir)
    if epoch > newest:
        remember(node_dir, epoch)
    return epoch >= newest
