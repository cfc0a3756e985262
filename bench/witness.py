"""What tasks say of themselves while machines die, and who judges it.

Every task appends a line to one file of its own, outside of what can be cut, each time it has done a step. The order
of the lines is the order in which the kernel took them, whatever clocks say: a line of an old incarnation after one of
a newer incarnation is proof that both ran at the same time.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Mark:
    """A line: a sign of life of one incarnation of a task at a time (seconds, wall clock), and what it says.

    ``word`` is ``start``, ``step``, ``stop`` (told to give way) or ``end``; ``value`` is the result at the end.
    """

    incarnation: int
    at: float
    word: str
    value: int = 0

    def line(self) -> str:
        """Return the text of the line."""
        return f"{self.incarnation} {self.at:.6f} {self.word} {self.value}\n"


@dataclass(frozen=True)
class Overlap:
    """Two incarnations of one task that ran at the same time, and for how long the older one did (seconds)."""

    task: str
    older: int
    newer: int
    seconds: float


def parse(line: str) -> Mark:
    """Return the mark of a line."""
    incarnation, at, word, value = line.split()
    return Mark(int(incarnation), float(at), word, int(value))


class Witness:
    """The files of all tasks in one folder. Reading goes on where it ended last."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._read: dict[str, int] = {}
        self._marks: dict[str, list[Mark]] = {}

    def tasks(self) -> list[str]:
        """Return the names of the tasks that have said something."""
        return sorted(path.name for path in self.folder.iterdir())

    def marks(self, task: str) -> list[Mark]:
        """Return all that a task has said, in order."""
        marks = self._marks.setdefault(task, [])
        try:
            with (self.folder / task).open("rb") as file:
                file.seek(self._read.get(task, 0))
                text = file.read()
        except FileNotFoundError:
            return marks
        # A line is written in one piece, but may be read in two.
        whole = text.rfind(b"\n") + 1
        self._read[task] = self._read.get(task, 0) + whole
        marks.extend(parse(line) for line in text[:whole].decode().splitlines())
        return marks

    def newest(self, task: str) -> int:
        """Return the newest incarnation that has said something; 0 when none has."""
        return max((mark.incarnation for mark in self.marks(task)), default=0)

    def last(self, task: str) -> float:
        """Return when a task said something last (seconds, wall clock); 0 when it never has."""
        return max((mark.at for mark in self.marks(task)), default=0.0)

    def first(self, task: str, incarnation: int) -> Mark | None:
        """Return the first sign of life of an incarnation or a later one."""
        return next((mark for mark in self.marks(task) if mark.incarnation >= incarnation), None)

    def overlaps(self, tasks: Iterable[str] | None = None) -> list[Overlap]:
        """Return which incarnations of the same task ran at the same time."""
        chosen = self.tasks() if tasks is None else tasks
        return [found for task in chosen for found in overlaps(task, self.marks(task))]


def overlaps(task: str, marks: Iterable[Mark]) -> Iterator[Overlap]:
    """Yield each pair of an older and a newer incarnation that both ran after the newer one had begun.

    ``seconds`` are those between the first and the last sign of life of the older one in that time: a machine that hung
    meanwhile is not counted as running, what it did after it went on is.
    """
    began: set[int] = set()
    late: dict[tuple[int, int], tuple[float, float]] = {}
    for mark in marks:
        began.add(mark.incarnation)
        for newer in began:
            if newer > mark.incarnation:
                first, _ = late.get((mark.incarnation, newer), (mark.at, mark.at))
                late[mark.incarnation, newer] = (first, mark.at)
    for (older, newer), (first, last) in late.items():
        yield Overlap(task, older, newer, max(0.0, last - first))


def append(file: Path, mark: Mark) -> None:
    """Add a line in one piece, whoever else does the same."""
    descriptor = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        os.write(descriptor, mark.line().encode())
    finally:
        os.close(descriptor)
