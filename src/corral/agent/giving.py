"""What a task gives back: its outputs, and its checkpoint. Blocking calls for threads of the agent.

A checkpoint is complete when nothing of it has changed from one look to the next, two seconds later, and a task's end
completes it at once. Names that end in ``.tmp``, ``.part``, ``.partial`` or ``.incomplete`` are still being written:
they stay here. A task that writes under such a name and renames at the end never has a torn checkpoint given back.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import msgspec

from corral.agent.courier import Courier
from corral.agent.travelling import Luggage, last_returned, note_returned
from corral.model.errors import FilesTooLarge
from corral.model.files import ReturnKind
from corral.model.ids import NodeId, TaskKey
from corral.wire.treefiles import MIB, Changed, Found, Gathered, found_entry, gather, scan
from corral.wire.trees import Kind

UNFINISHED = (b".tmp", b".part", b".partial", b".incomplete")
GATHER_TRIES = 3

Signature = tuple[tuple[bytes, int, tuple[int, int]], ...]
"""Paths, sizes and stamps of all entries of a directory: it changes when anything in it does."""


class Giver:
    """Gives trees of one node back."""

    def __init__(self, node: NodeId, courier: Courier, depot: Path, bytes_max: int) -> None:
        """``depot`` is where the node keeps its own files: links into it stay here."""
        self._node = node
        self._courier = courier
        self._depot = os.fsencode(depot) + b"/"
        self._bytes_max = bytes_max

    def outputs(self, task: TaskKey, incarnation: int, luggage: Luggage) -> None:
        """Give back what a task made, if it made anything: what matches its patterns, and all of CORRAL_OUTPUT_DIR.

        Raises ``Stale`` for a task that was started again elsewhere, ``FilesTooLarge``, ``NoHead`` or ``OSError``.
        """
        for _ in range(GATHER_TRIES):
            gathered = gather(self._made(luggage))
            if not gathered.tree.root.files:
                return
            try:
                self._send(gathered)
            except Changed:
                continue
            self._give(task, incarnation, ReturnKind.OUTPUTS, gathered)
            return

    def _made(self, luggage: Luggage) -> list[Found]:
        found: dict[bytes, Found] = {}
        if luggage.work is not None and luggage.patterns:
            found = _matching(luggage.work, luggage.patterns, self._bytes_max)
        if luggage.output is not None and Path(luggage.output).is_dir():
            for one in scan(luggage.output, bytes_max=self._bytes_max, what="CORRAL_OUTPUT_DIR"):
                before = found.get(one.path)
                if before is None or before.kind is not Kind.DIRECTORY:
                    found[one.path] = one
        found = {path: one for path, one in found.items() if not one.target.startswith(self._depot)}
        files = [one for one in found.values() if one.kind is not Kind.DIRECTORY]
        total = sum(one.size for one in files)
        if total > self._bytes_max:
            raise FilesTooLarge(
                f"the outputs are {total / MIB:,.0f} MiB, more than return_max_mib ({self._bytes_max / MIB:,.0f} MiB)"
            )
        return _standing(found)

    # ---- checkpoints -----------------------------------------------------------------------------------------------

    def look(self, checkpoint: str) -> Signature:
        """Return the signature of what is complete in a checkpoint directory. Raises ``FilesTooLarge``, ``OSError``."""
        return tuple(sorted((one.path, one.size, one.stamp) for one in self._saved(checkpoint)))

    def checkpoint(self, task: TaskKey, incarnation: int, directory: str) -> bool:
        """Give back a checkpoint; return whether it is given back as it is now.

        It is not when something changed meanwhile: then try again later. Raises as :meth:`outputs` does.
        """
        found = self._saved(directory)
        if not any(one.kind is Kind.FILE for one in found):
            return True
        before = tuple(sorted((one.path, one.size, one.stamp) for one in found))
        gathered = gather(found, timed=True)
        if gathered.tree.name == last_returned(directory):
            return True
        try:
            self._send(gathered)
        except Changed:
            return False
        if self.look(directory) != before:
            return False
        self._give(task, incarnation, ReturnKind.CHECKPOINT, gathered)
        note_returned(directory, gathered.tree.name)
        return True

    def _saved(self, directory: str) -> list[Found]:
        if not Path(directory).is_dir():
            return []
        return scan(directory, bytes_max=self._bytes_max, ignored=_unfinished, what="the checkpoint")

    # ---- sending ---------------------------------------------------------------------------------------------------

    def _send(self, gathered: Gathered) -> None:
        sizes = gathered.sizes
        absent = self._courier.missing(list(sizes))
        self._courier.send([(name, sizes[name]) for name in absent], gathered.read)

    def _give(self, task: TaskKey, incarnation: int, what: ReturnKind, gathered: Gathered) -> None:
        said = {
            "node": self._node,
            "task": str(task),
            "incarnation": incarnation,
            "what": what,
            "tree": gathered.tree.name,
        }
        self._courier.call("/files/returned", msgspec.json.encode(said))


def _unfinished(path: bytes, _is_directory: bool) -> bool:  # noqa: FBT001 - an Ignored
    return path.endswith(UNFINISHED)


def _matching(work: str, patterns: Iterable[str], bytes_max: int) -> dict[bytes, Found]:
    """Return what patterns match below a directory: files, links, and directories with all that is in them.

    ``**`` goes through no symbolic link: two that lead upwards would make more paths than anybody can look at.
    """
    found: dict[bytes, Found] = {}
    for pattern in patterns:
        parts = [part if part == "**" else part.replace("**", "*") for part in pattern.split("/")]
        if set(parts) <= {"", "."}:
            continue
        for match in Path(work).glob("/".join(parts)):
            path = os.fsencode(match.relative_to(work))
            one = found_entry(path, match) if path != b"." else None
            if one is None or path in found:
                continue
            found[path] = one
            if one.kind is Kind.DIRECTORY:
                for inner in scan(one.source, bytes_max=bytes_max, what="the outputs"):
                    place = path + b"/" + inner.path
                    found[place] = inner._replace(path=place)
    return found


def _standing(found: dict[bytes, Found]) -> list[Found]:
    """Return entries with the directories above them, which no pattern may have named."""
    complete = dict(found)
    for path in found:
        above = path.rpartition(b"/")[0]
        while above:
            # A link may stand there (a pattern went through it): what lies behind it comes back as a directory.
            if above not in complete or complete[above].kind is not Kind.DIRECTORY:
                complete[above] = Found(above, Kind.DIRECTORY, b"")
            above = above.rpartition(b"/")[0]
    return list(complete.values())
