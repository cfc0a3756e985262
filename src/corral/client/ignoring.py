"""What of a working directory is not sent along: what git ignores, and what ``.corralignore`` says beside.

Both files hold for the directory that they are in and all below, in git's syntax (gitignore(5)); of two patterns that
match, the one further down wins, then the later one. ``.corralignore`` is read after ``.gitignore``: ``!weights.pt`` in
it brings back what git ignores. ``.git`` is never sent, nor a state directory of corral.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

GIT = ".gitignore"
OWN = ".corralignore"
NEVER = frozenset({b".git", b".corral"})


class IgnoreFiles:
    """The rules below one directory. With ``git`` what git ignores is ignored; ``skipped`` paths are so anyway."""

    def __init__(self, root: Path, *, git: bool = True, skipped: Collection[str] = ()) -> None:
        self._root = os.fsencode(root)
        self._names = (GIT, OWN) if git else (OWN,)
        self._skipped = {os.fsencode(path) for path in skipped}
        self._specs: dict[bytes, GitIgnoreSpec | None] = {}

    def __call__(self, path: bytes, is_directory: bool) -> bool:  # noqa: FBT001 - as scan() calls it
        """Return whether the entry at a relative path is left out."""
        if path.rpartition(b"/")[2] in NEVER or path in self._skipped:
            return True
        ending = "/" if is_directory else ""
        above, _, rest = path.rpartition(b"/")
        while True:
            spec = self._spec(above)
            said = spec.check_file(os.fsdecode(rest) + ending).include if spec is not None else None
            if said is not None:
                return said
            if not above:
                return False
            above, _, name = above.rpartition(b"/")
            rest = name + b"/" + rest

    def _spec(self, directory: bytes) -> GitIgnoreSpec | None:
        if directory not in self._specs:
            lines: list[str] = []
            for name in self._names:
                try:
                    text = Path(os.fsdecode(self._root + b"/" + directory), name).read_bytes()
                except OSError:
                    continue
                lines += os.fsdecode(text).splitlines()
            self._specs[directory] = _compiled(lines) if lines else None
        return self._specs[directory]


def _compiled(lines: list[str]) -> GitIgnoreSpec:
    from pathspec import GitIgnoreSpec

    return GitIgnoreSpec.from_lines(lines)
