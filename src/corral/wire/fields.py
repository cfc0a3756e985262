"""How each kind of field of a job is read from a node.

A reader notes problems and answers ``None`` for what is wrong.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable
from typing import TypeVar

from corral.model.ask import AfterAsk
from corral.model.errors import DuplicateName, InvalidField, MissingField
from corral.model.job import CheckpointSpec, DependencyKind
from corral.wire import units
from corral.wire.document import Node, Problems, field_path, shown

T = TypeVar("T")
NAME_LENGTH_MAX = 128
TEXT_BYTES_MAX = 120_000
"""Of a script, an argument or a variable: Linux gives a process none longer than 131,072 bytes (MAX_ARG_STRLEN)."""
ENTRIES_MAX = 10_000
_NAME = re.compile(r"[^\W_][\w.@+=:-]*")
_REFERENCE = re.compile(r"[0-9.]+")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SIGNALS = frozenset(
    {"ABRT", "ALRM", "CONT", "HUP", "INT", "IO", "PROF", "PWR", "QUIT", "TERM", "URG", "USR1", "USR2", "VTALRM"}
    | {"WINCH", "XCPU", "XFSZ"}
)


class FieldReader:
    """Reads the fields of one job."""

    def __init__(self, problems: Problems) -> None:
        self.problems = problems

    def wrong(self, node: Node, path: str, message: str, hint: str | None = None) -> None:
        """Note an invalid value."""
        self.problems.add(InvalidField, node, path, message, hint)

    def text(self, node: Node, path: str, *, length_max: int = TEXT_BYTES_MAX, words: bool = False) -> str | None:
        """Read text. With ``words`` numbers and booleans are taken as written: ``[sleep, 10]``."""
        if node.kind in {"bool", "int", "float"} and not words:
            self.wrong(node, path, f"must be text, not {node.described()}", f"write '{node.text}' in quotes")
        elif not node.scalar or node.kind == "null":
            self.wrong(node, path, f"must be text, not {node.described()}")
        elif "\0" in node.text:
            self.wrong(node, path, "must not hold a NUL byte")
        elif not _encodable(node.text):
            self.wrong(node, path, "is not valid Unicode")
        elif len(node.text.encode()) > length_max:
            hint = "put it into a file in workdir" if length_max == TEXT_BYTES_MAX else None
            self.wrong(node, path, f"is longer than {length_max:,} bytes", hint)
        else:
            return node.text
        return None

    def name(self, node: Node, path: str) -> str | None:
        """Read the name of a job, tenant or queue: no blanks, and nothing that looks like a job's number."""
        numeric = node.kind in {"int", "float"}
        text = self.text(node, path, length_max=NAME_LENGTH_MAX, words=numeric)
        if text is None:
            return None
        if numeric or _REFERENCE.fullmatch(text):
            self.wrong(node, path, f"{shown(text)} looks like a job's number", "begin the name with a letter")
            return None
        if not _NAME.fullmatch(text):
            self.wrong(node, path, f"{shown(text)} is not a name", "letters, digits and . _ - @ + = : without blanks")
            return None
        return text

    def script(self, node: Node, path: str) -> str | None:
        """Read a shell script."""
        text = self.text(node, path, words=node.kind == "bool")
        if text is not None and not text.strip():
            self.problems.add(MissingField, node, path, "is empty", "say what to run")
            return None
        return text

    def words(self, node: Node, path: str) -> tuple[str, ...]:
        """Read one text or a list of texts."""
        items = node.items if node.kind == "list" else [node]
        if len(items) > ENTRIES_MAX:
            self.wrong(node, path, f"has more than {ENTRIES_MAX:,} entries")
            return ()
        listed = node.kind == "list"
        read = [self.text(item, f"{path}[{i}]" if listed else path, words=True) for i, item in enumerate(items)]
        return tuple(text for text in read if text is not None)

    def whole(self, node: Node, path: str, low: int, high: int) -> int | None:
        """Read a whole number from ``low`` to ``high``; text that is one counts."""
        number = node.number
        if node.kind == "text" and re.fullmatch(r"[-+]?[0-9]{1,18}", node.text):
            number = int(node.text)
        elif node.kind not in {"int", "float"} or not math.isfinite(number) or number != int(number):
            self.wrong(node, path, f"must be a whole number, not {node.described()}")
            return None
        if not low <= number <= high:
            self.wrong(node, path, f"must be between {low:,} and {high:,}, not {node.described()}")
            return None
        return int(number)

    def quantity(self, node: Node, path: str, read: Callable[[str], T]) -> T | None:
        """Read a number or text through a reader of :mod:`corral.wire.units`."""
        if node.kind not in {"int", "float", "text"}:
            self.wrong(node, path, f"must be a number or text, not {node.described()}")
            return None
        if node.number < 0:
            self.wrong(node, path, f"must not be negative, but is {node.text}")
            return None
        try:
            return read(_decimal(node))
        except units.Unreadable as error:
            self.wrong(node, path, f"{node.described()} {error.message}", error.hint)
            return None

    def duration_s(self, node: Node, path: str, low: float, high: float = units.DURATION_S_MAX) -> float | None:
        """Read a duration of at least ``low`` and at most ``high`` seconds."""
        seconds = self.quantity(node, path, units.read_duration_s)
        if seconds is not None and not low <= seconds <= high:
            self.wrong(node, path, f"must be between {low:g} s and {high:g} s, not {node.described()}")
            return None
        return seconds

    def indices(self, node: Node, path: str) -> tuple[int, ...] | None:
        """Read ``0-23``, ``0-23:2``, a list of indices, or a single number, which is a count."""
        if node.kind == "list":
            read = [self.whole(item, f"{path}[{i}]", 0, units.INDEX_MAX) for i, item in enumerate(node.items)]
            numbers = [number for number in read if number is not None]
            return self.checked_indices(node, path, numbers) if len(numbers) == len(read) else None
        single = node.kind in {"int", "float"} or re.fullmatch(r"\s*[0-9]+\s*", node.text)
        if single and node.scalar:
            count = self.whole(_trimmed(node), path, 1, units.ELEMENTS_MAX)
            return None if count is None else tuple(range(count))
        return self.quantity(node, path, units.read_indices)

    def checked_indices(self, node: Node, path: str, numbers: list[int]) -> tuple[int, ...] | None:
        """Return the indices of a list, or note what is wrong with them."""
        try:
            return units.checked_indices(numbers)
        except units.Unreadable as error:
            self.wrong(node, path, error.message, error.hint)
            return None

    def variables(self, node: Node, path: str) -> dict[str, str]:
        """Read environment variables; numbers and booleans as written."""
        found: dict[str, str] = {}
        for name, key, value in self.problems.entries(node, path):
            here = field_path(path, name)
            if not self.variable_name(key, here):
                continue
            if value.kind == "null":
                self.wrong(value, here, "has no value", f'write {name}: "" for an empty one')
                continue
            text = self.text(value, here, words=True)
            if text is not None:
                found[name] = text
        return found

    def variable_name(self, key: Node, path: str) -> bool:
        """Return whether a key may name an environment variable; note why not."""
        if not _VARIABLE.fullmatch(key.text) or len(key.text) > NAME_LENGTH_MAX:
            hint = "merge keys are not supported: write the fields out" if key.text == "<<" else None
            self.wrong(key, path, "is not a name of an environment variable", hint or "letters, digits and _")
        elif key.text.upper().startswith("CORRAL_"):
            self.wrong(key, path, "names that begin with CORRAL_ are corral's own", "choose another name")
        else:
            return True
        return False

    def points(self, node: Node, path: str) -> tuple[dict[str, str], ...]:
        """Read a sweep: lists by parameter (all combinations, the last parameter fastest) or a list of points."""
        if node.kind == "list":
            if not 1 <= len(node.items) <= units.ELEMENTS_MAX:
                self.wrong(node, path, f"must have 1 to {units.ELEMENTS_MAX:,} points, not {len(node.items):,}")
                return ()
            return tuple(self.variables(item, f"{path}[{i}]") for i, item in enumerate(node.items))
        axes: list[list[tuple[str, str]]] = []
        entries = self.problems.entries(node, path)
        for name, key, value in entries:
            here = field_path(path, name)
            values = self.words(value, here) if self.variable_name(key, here) else ()
            if value.kind == "list" and not value.items:
                self.wrong(value, here, "has no values")
            axes.append([(name, text) for text in values])
        if node.kind == "map" and not node.pairs:
            self.wrong(node, path, "has no parameters")
        count = math.prod(len(axis) for axis in axes)
        if count > units.ELEMENTS_MAX:
            self.wrong(node, path, f"has {count:,} combinations, more than {units.ELEMENTS_MAX:,}")
            return ()
        # Written out, each value stands in all combinations with the values of the other axes.
        size = sum(len(text) * (count // len(axis)) for axis in axes for _, text in axis)
        if size > units.POINTS_BYTES_MAX:
            message = f"its combinations hold {size:,} characters, more than {units.POINTS_BYTES_MAX:,}"
            self.wrong(node, path, message, "put long values into files")
            return ()
        return tuple(dict(point) for point in itertools.product(*axes)) if axes else ()

    def after(self, node: Node, path: str) -> tuple[AfterAsk, ...]:
        """Read a name, a number, a list of them, or ``{job: ended|succeeded|failed}``."""
        found: dict[str, AfterAsk] = {}
        listed = node.kind == "list"
        for i, item in enumerate(node.items if listed else [node]):
            here = f"{path}[{i}]" if listed else path
            for entry in self.dependencies(item, here):
                if entry.ref in found:
                    self.problems.add(DuplicateName, item, here, f"names {shown(entry.ref)} twice")
                found[entry.ref] = entry
        return tuple(found.values())

    def dependencies(self, node: Node, path: str) -> list[AfterAsk]:
        """Read one entry of ``after``."""
        if node.kind != "map":
            ref = self.reference(node, path)
            return [] if ref is None else [AfterAsk(ref)]
        found = []
        for name, key, value in self.problems.entries(node, path):
            here = field_path(path, name)
            ref, kind = self.reference(key, here), self.choice(value, here, DependencyKind)
            if ref is not None and kind is not None:
                found.append(AfterAsk(ref, kind))
        return found

    def reference(self, node: Node, path: str) -> str | None:
        """Read a job's number or name."""
        if node.kind == "int" and node.text.isdigit():
            return node.text
        text = self.text(node, path, length_max=NAME_LENGTH_MAX)
        if text is not None and not (_REFERENCE.fullmatch(text) or _NAME.fullmatch(text)):
            self.wrong(node, path, f"{shown(text)} is neither a job's number nor a name")
            return None
        return text

    def choice(self, node: Node, path: str, kind: Callable[[str], T]) -> T | None:
        """Read a member of an enumeration by its value."""
        try:
            return kind(node.text.lower())
        except ValueError:
            values = [str(member) for member in kind]  # type: ignore[attr-defined]
            near = self.problems.nearest(node.text, values)
            self.wrong(
                node,
                path,
                f"must be one of {', '.join(values)}, not {node.described()}",
                f"did you mean {near}?" if near else None,
            )
            return None

    def checkpoint(self, node: Node, path: str) -> CheckpointSpec | None:
        """Read ``{signal, grace, path}``."""
        fields = self.problems.fields(node, path, ("signal", "grace", "path"))
        told: dict[str, object] = {}
        if "signal" in fields:
            told["signal"] = self.signal(fields["signal"][1], f"{path}.signal")
        if "grace" in fields:
            told["grace_s"] = self.duration_s(fields["grace"][1], f"{path}.grace", 0.0, 86_400.0)
        if "path" in fields:
            told["path"] = self.text(fields["path"][1], f"{path}.path", length_max=4096)
        if node.kind != "map" or None in told.values():
            return None
        return CheckpointSpec(**told)  # type: ignore[arg-type]

    def signal(self, node: Node, path: str) -> str | None:
        """Read a signal by name, with or without ``SIG``."""
        text = self.text(node, path, length_max=16)
        if text is None:
            return None
        name = text.upper().removeprefix("SIG")
        if name not in _SIGNALS:
            near = self.problems.nearest(name, _SIGNALS)
            self.wrong(
                node,
                path,
                f"{shown(text)} is not a signal that asks a program to save itself",
                f"did you mean {near}?" if near else "USR1 is usual",
            )
            return None
        return name


def _decimal(node: Node) -> str:
    """Return a number without an exponent, as the readers of units expect it; text as it is."""
    if node.kind == "int":
        return str(node.number)
    if node.kind == "float":
        if not math.isfinite(node.number):
            return node.text
        return f"{node.number:.9f}".rstrip("0").rstrip(".")
    return node.text


def _encodable(text: str) -> bool:
    return text.isascii() or not any("\ud800" <= c <= "\udfff" for c in text)


def _as_text(node: Node) -> Node:
    return Node("text", node.text, line=node.line, column=node.column)


def _trimmed(node: Node) -> Node:
    trimmed = _as_text(node)
    trimmed.kind, trimmed.number, trimmed.text = node.kind, node.number, node.text.strip()
    return trimmed
