"""Rows of text files whose mistakes are told by file, line and column."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from corral.model.errors import TraceInvalid, TraceUnreadable

WHOLE_MAX = 10**9
"""More devices, CPUs or MiB are a mistake in a trace."""


class Row:
    """The fields of one line, with the columns (from 1) at which they begin."""

    __slots__ = ("_columns", "_fields", "_names", "line", "path")

    def __init__(self, path: Path, line: int, fields: Sequence[str], names: Sequence[str], separator: str) -> None:
        self.path = path
        self.line = line
        self._fields = fields
        self._names = {name: i for i, name in enumerate(names)}
        self._columns = [1]
        for field in fields:
            self._columns.append(self._columns[-1] + len(field) + len(separator))

    def text(self, name: str) -> str:
        """Return a field, without blanks around it."""
        return self._fields[self._names[name]].strip()

    def number(self, name: str, *, low: float = 0.0, above: bool = False) -> float:
        """Return a finite number of at least (or above) ``low``."""
        text = self.text(name)
        try:
            value = float(text)
        except ValueError:
            raise self.wrong(name, f"{text!r} is not a number") from None
        if not math.isfinite(value) or value < low or (above and value <= low):
            raise self.wrong(name, f"{text} is not {'above' if above else 'at least'} {low:g}")
        return value

    def whole(self, name: str, *, low: int = 0) -> int:
        """Return a whole number of at least ``low``."""
        value = self.number(name, low=low)
        if value != int(value) or value > WHOLE_MAX:
            raise self.wrong(name, f"{self.text(name)} is not a whole number up to {WHOLE_MAX:,}")
        return int(value)

    def wrong(self, name: str, message: str) -> TraceInvalid:
        """Return the error that a field makes."""
        return TraceInvalid(f"{name}: {message}", where=self.where(name))

    def where(self, name: str) -> str:
        """Return ``path:line:column`` of a field, of the beginning of the line when it has none of this name."""
        index = self._names.get(name)
        return f"{self.path}:{self.line}:{1 if index is None else self._columns[index]}"


def finder(read: Callable[[], Iterator[Row]]) -> Callable[[int, str], str]:
    """Return what finds a field of a line in rows that are read again, as :class:`corral.sim.workload.Rows` wants."""
    return lambda line, name: next(row.where(name) for row in read() if row.line == line)


def read_text(path: Path) -> str:
    """Return the text of a trace. Raises ``TraceUnreadable``."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise TraceUnreadable("the trace is not UTF-8 text", where=str(path)) from None
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise TraceUnreadable(f"the trace cannot be read: {reason}", where=str(path)) from None


def csv_rows(path: Path, needed: Sequence[str]) -> Iterator[Row]:
    """Yield the rows of a comma-separated file whose first line names its columns, ``needed`` among them."""
    records = _records(path)
    _, first = next(records, (1, []))
    names = [name.strip() for name in first]
    missing = [name for name in needed if name not in names]
    if missing:
        raise TraceInvalid(f"the first line names no column {missing[0]!r}", where=f"{path}:1:1")
    for line, fields in records:
        if not fields:
            continue
        if len(fields) != len(names):
            message = f"the line has {len(fields)} fields, the first line names {len(names)}"
            raise TraceInvalid(message, where=f"{path}:{line}:1")
        yield Row(path, line, fields, names, ",")


def _records(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield the number of a line and its fields."""
    reader = csv.reader(read_text(path).splitlines())
    try:
        for fields in reader:
            yield reader.line_num, fields
    except csv.Error as error:
        raise TraceInvalid(str(error), where=f"{path}:{reader.line_num}:1") from None


def tab_rows(path: Path, layouts: Sequence[Sequence[str]]) -> Iterator[Row]:
    """Yield the rows of a tab-separated file without a first line of names; the number of fields tells the layout."""
    by_length = {len(layout): layout for layout in layouts}
    for number, line in enumerate(read_text(path).splitlines(), 1):
        if not line.strip():
            continue
        fields = line.split("\t")
        names = by_length.get(len(fields))
        if names is None:
            wanted = " or ".join(str(length) for length in sorted(by_length))
            raise TraceInvalid(f"the line has {len(fields)} fields, not {wanted}", where=f"{path}:{number}:1")
        yield Row(path, number, fields, names, "\t")
