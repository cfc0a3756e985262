"""The few shapes that all output has: tables without frames, lists of facts, headings, paragraphs."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from typing import IO, NamedTuple

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from corral.cli.terminal import safe

UNCUT_COLUMNS = 4000
"""Width of a pipe or file: nothing is cut or wrapped there."""

STATE_STYLES = {
    "pending": "yellow",
    "placed": "cyan",
    "starting": "cyan",
    "running": "cyan",
    "succeeded": "green",
    "failed": "red",
    "lost": "red",
    "cancelled": "dim",
    "up": "green",
    "suspect": "yellow",
    "healthy": "green",
    "unknown": "yellow",
    "cordoned": "yellow",
}


class Column(NamedTuple):
    """A column of a table.

    ``right`` aligns numbers. Where room is short, ``wide`` columns wrap and ``cut`` ones end in an ellipsis, down to
    ``least`` cells; then ``optional`` ones are left out, the last first; then the others are cut, too.
    """

    head: str
    right: bool = False
    wide: bool = False
    cut: bool = False
    optional: bool = False
    least: int = 1


class Sheet:
    """An aligned table without lines: two spaces between columns, heads in capitals."""

    GAP = 2

    def __init__(self, columns: Sequence[Column], rows: Iterable[Sequence[str | Text]]) -> None:
        self._columns = list(columns)
        self._rows = [[cell(value) for value in row] for row in rows]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        columns = dict(enumerate(self._columns))
        natural = {
            index: max([cell_len(column.head), *(row[index].cell_len for row in self._rows)])
            for index, column in columns.items()
        }
        widths = fitted(columns, natural, options.max_width, self.GAP)
        made = Table(box=None, padding=(0, self.GAP, 0, 0), pad_edge=False, show_edge=False, header_style="bold")
        for index, width in widths.items():
            column = columns[index]
            made.add_column(
                column.head,
                justify="right" if column.right else "left",
                no_wrap=not column.wide,
                overflow="fold" if column.wide else "ellipsis",
                width=width,
            )
        for row in self._rows:
            made.add_row(*(row[index] for index in widths))
        yield made


def fitted(columns: dict[int, Column], natural: dict[int, int], room: int, gap: int) -> dict[int, int]:
    """Return the width of each column that is shown, so that all together fit into ``room`` cells where possible."""
    widths = dict(natural)

    def excess() -> int:
        return sum(widths.values()) + gap * (len(widths) - 1) - room

    def narrow(indices: list[int]) -> None:
        while excess() > 0:
            able = [index for index in indices if widths[index] > columns[index].least]
            if not able:
                return
            widths[max(able, key=lambda index: widths[index])] -= 1

    flexible = [index for index in widths if columns[index].wide or columns[index].cut]
    narrow(flexible)
    for index in reversed(columns):
        if excess() > 0 and columns[index].optional:
            del widths[index]
    narrow([index for index in widths if index not in flexible])
    # What was left out may have made more room than was missing.
    for index in [index for index in flexible if index in widths]:
        widths[index] = min(natural[index], widths[index] + max(0, -excess()))
    return widths


def console(stream: IO[str] | None = None, *, width: int | None = None, colours: bool | None = None) -> Console:
    """Return a console on ``stream`` (standard output).

    The width is that of the terminal or $COLUMNS, unlimited elsewhere; colours only on a terminal and without NO_COLOR.
    """
    stream = stream if stream is not None else sys.stdout
    tty = stream.isatty()
    if width is None and not tty and not os.environ.get("COLUMNS", "").isdigit():
        width = UNCUT_COLUMNS
    if colours is None:
        colours = tty and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return Console(
        file=stream,
        width=width,
        force_terminal=colours,
        color_system="auto" if colours else None,
        no_color=not colours,
        highlight=False,
        markup=False,
        emoji=False,
        soft_wrap=False,
        legacy_windows=False,
    )


def cell(value: str | Text) -> Text:
    """Return text for a table or line, with what could harm a terminal escaped."""
    return value if isinstance(value, Text) else Text(safe(value))


def state(word: str, text: str | None = None) -> Text:
    """Return a state in its colour; ``text`` is shown instead of the word when given."""
    return Text(safe(text or word), style=STATE_STYLES.get(word, ""))


def table(columns: Sequence[Column], rows: Iterable[Sequence[str | Text]]) -> Sheet:
    """Return a table that fits itself to the width at hand."""
    return Sheet(columns, rows)


def facts(pairs: Iterable[tuple[str, str | Text]]) -> Table:
    """Return names and values as two aligned columns; long values wrap under themselves."""
    made = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, show_edge=False, show_header=False)
    made.add_column(no_wrap=True, style="bold")
    made.add_column(overflow="fold")
    for name, value in pairs:
        made.add_row(name, cell(value))
    return made


def heading(text: str) -> Text:
    """Return a line that names what follows, with a blank line before it."""
    return Text("\n" + safe(text), style="bold")


def indented(inner: RenderableType) -> Padding:
    """Return something moved two columns to the right."""
    return Padding(inner, (0, 0, 0, 2), expand=False)


def stack(*parts: RenderableType | None) -> Group:
    """Return parts one below the other; ``None`` is nothing."""
    return Group(*(part for part in parts if part is not None))


def as_text(part: RenderableType, *, width: int) -> str:
    """Return something as plain text of a width, without trailing blanks."""
    from io import StringIO

    out = StringIO()
    console(out, width=width, colours=False).print(part)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"


def show(part: RenderableType, *, stream: IO[str] | None = None) -> None:
    """Print something on a stream (standard output) without trailing blanks where it is no terminal."""
    out = console(stream)
    if out.is_terminal:
        out.print(part)
    else:
        print(as_text(part, width=out.width), end="", file=out.file)
