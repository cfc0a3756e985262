"""Which processes belong to which task of this node."""

from __future__ import annotations

from corral.agent import processes


class Members:
    """The processes of the node's tasks, by the marker of the task.

    ``refresh`` may run in another thread than the rest: every change replaces one value.
    """

    def __init__(self) -> None:
        self._shims: dict[str, int] = {}
        self._pids: dict[str, frozenset[int]] = {}

    def add(self, marker: str, shim: int | None, child: int | None = None) -> None:
        """Note a shim and its child as far as they are known."""
        if shim is not None:
            self._shims[marker] = shim
        if child is not None:
            self._pids[marker] = self._pids.get(marker, frozenset()) | {child}

    def remove(self, marker: str) -> frozenset[int]:
        """Take a task out and return every pid that was seen of it."""
        self._shims.pop(marker, None)
        return self._pids.pop(marker, frozenset())

    def known(self) -> list[int]:
        """Return the pids that are known without looking."""
        return [pid for pids in list(self._pids.values()) for pid in pids]

    def refresh(self) -> list[int]:
        """Look at all tasks anew and return their pids."""
        for marker, shim in list(self._shims.items()):
            found = frozenset(stat.pid for stat in processes.descendants(shim))
            self._pids[marker] = self._pids.get(marker, frozenset()) | found
            if marker not in self._shims:
                # It was taken out meanwhile.
                self._pids.pop(marker, None)
        return self.known()
