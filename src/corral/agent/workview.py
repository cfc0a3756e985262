"""The working directory of a task with mounts: a directory of its own that shows the user's and the mounts in it.

Entries are symbolic links, so nothing is copied and a mount never lands in the user's own directory. A directory in
which something is mounted further down becomes a real one with links to its entries. What the task creates at the top
of the view stays in the view.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

import msgspec

ENTRIES_MAX = 100_000


class ViewFailed(Exception):
    """The view cannot be built; the text is for the user."""


class _Branch(msgspec.Struct):
    """A directory of the view: ``mounts`` are the sources at its own entries, ``branches`` the directories below."""

    mounts: dict[str, str] = {}
    branches: dict[str, _Branch] = {}


def build_view(view: Path, workdir: Path | None, mounts: Mapping[str, str]) -> None:
    """Build the directory ``view`` out of ``workdir`` and ``mounts`` (target in the view to source).

    Raises :class:`ViewFailed` when a source is missing, or a target leaves the view or contradicts another.
    """
    root = _Branch()
    for target, source in sorted(mounts.items()):
        _plan(root, target, source)
    try:
        _lay(view, workdir, root, left=ENTRIES_MAX)
    except OSError as error:
        where = f": {error.filename}" if error.filename else ""
        raise ViewFailed(f"cannot lay out the working directory: {error.strerror}{where}") from None


def _plan(root: _Branch, target: str, source: str) -> None:
    path = PurePosixPath(target)
    parts = path.parts
    if path.is_absolute() or not parts or ".." in parts or "\0" in target:
        raise ViewFailed(f"file_mounts: the target {target!r} is not a relative path inside the working directory")
    if "\0" in source or not Path(source).is_absolute() or not Path(source).exists():
        raise ViewFailed(f"file_mounts: the source {source!r} is no absolute path of this node")
    branch = root
    for part in parts[:-1]:
        if part in branch.mounts:
            raise ViewFailed(f"file_mounts: {target!r} lies inside another mount")
        branch = branch.branches.setdefault(part, _Branch())
    if parts[-1] in branch.branches:
        raise ViewFailed(f"file_mounts: another mount lies inside {target!r}")
    branch.mounts[parts[-1]] = source


def _lay(view: Path, below: Path | None, branch: _Branch, *, left: int) -> int:
    """Make one directory of the view; return how many more entries are allowed."""
    view.mkdir()
    if below is not None and below.is_dir():
        with os.scandir(below) as entries:
            for entry in entries:
                if entry.name in branch.mounts or entry.name in branch.branches:
                    continue
                left -= 1
                if left < 0:
                    raise ViewFailed(f"the working directory has more than {ENTRIES_MAX} entries beside its mounts")
                (view / entry.name).symlink_to(Path(entry.path).absolute())
    for name, source in branch.mounts.items():
        (view / name).symlink_to(Path(source).absolute())
    for name, deeper in branch.branches.items():
        left = _lay(view / name, below / name if below is not None else None, deeper, left=left)
    return left
