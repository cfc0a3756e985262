"""A document as a tree of nodes that remember where they stand, and the collector of what is wrong with it.

Job files (YAML), HTTP bodies (JSON), SDK arguments and flags all become the same tree, so that one set of rules reads
them and one kind of message answers. Scalars keep the text as written: ``FOO: 010`` is the text ``010``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from typing import Literal, NamedTuple

from corral.model.errors import CorralError, DuplicateName, InvalidField, Refusal, UnknownField

Kind = Literal["null", "bool", "int", "float", "text", "list", "map", "other"]
DEPTH_MAX = 32
DIGITS_MAX = 40
PROBLEMS_MAX = 20
_SHOWN_MAX = 60
_KINDS: dict[str, str] = {
    "null": "nothing",
    "list": "a list",
    "map": "a mapping",
}


class Node:
    """One value. ``items`` belongs to lists, ``pairs`` to mappings, ``number`` to numbers; ``line`` counts from 1."""

    __slots__ = ("column", "items", "kind", "line", "number", "pairs", "text")

    def __init__(self, kind: Kind, text: str = "", *, line: int = 0, column: int = 0) -> None:
        self.kind: Kind = kind
        self.text = text
        self.line = line
        self.column = column
        self.number: int | float = 0
        self.items: list[Node] = []
        self.pairs: list[tuple[Node, Node]] = []

    @property
    def scalar(self) -> bool:
        """Return whether this is a single value, null included."""
        return self.kind in {"null", "bool", "int", "float", "text"}

    def described(self) -> str:
        """Return what a message calls this value: its text, shortened, or its kind."""
        if self.kind in {"bool", "int", "float"}:
            return self.text[:_SHOWN_MAX]
        return shown(self.text) if self.kind == "text" else _KINDS.get(self.kind, self.text)


def printable(text: str) -> str:
    """Return ``text`` on one line, without control characters (a message goes to a terminal)."""
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in text)


def shown(text: str) -> str:
    """Return ``text`` printable, quoted and shortened to 60 characters."""
    return f'"{printable(text if len(text) <= _SHOWN_MAX else text[: _SHOWN_MAX - 3] + "...")}"'


def node_of(value: object, depth: int = 0) -> Node:
    """Return the node of a Python value (JSON types, tuples, paths, ``timedelta``). Never raises."""
    if depth > DEPTH_MAX:
        return Node("other", "a value nested too deeply")
    match value:
        case None:
            return Node("null")
        case bool():
            return Node("bool", "true" if value else "false")
        case int():
            big = value.bit_length() > DIGITS_MAX * 3
            node = Node("text" if big else "int", "a number with too many digits" if big else str(value))
            node.number = 0 if big else value
        case float() | timedelta():
            number = value.total_seconds() if isinstance(value, timedelta) else value
            node = Node("float", repr(number))
            node.number = number
        case str():
            node = Node("text", value)
        case os.PathLike():
            node = Node("text", os.fsdecode(value))
        case Mapping():
            node = Node("map")
            node.pairs = [(node_of(key, depth + 1), node_of(item, depth + 1)) for key, item in value.items()]
        case list() | tuple() | range():
            node = Node("list")
            node.items = [node_of(item, depth + 1) for item in value]
        case _:
            node = Node("other", f"a {type(value).__name__}")
    return node


def nearest(wrong: str, names: Iterable[str]) -> str | None:
    """Return the right name closest to a wrong one, or ``None`` when nothing is close."""
    import difflib

    plain = {name.lower().replace("-", "_"): name for name in names}
    close = difflib.get_close_matches(wrong.lower().replace("-", "_")[:_SHOWN_MAX], plain, n=1, cutoff=0.55)
    return plain[close[0]] if close else None


class Checked(NamedTuple):
    """Where a document comes from and how far it is checked.

    ``base`` is what relative paths stand on (``None``: they are refused), ``on_disk`` whether paths must exist,
    ``names`` how a caller calls a field (``{"resources.accelerators": "--gpus"}``).
    """

    source: str | None = None
    base: str | None = None
    on_disk: bool = False
    names: Mapping[str, str] = {}


class Problems:
    """Collects what is wrong, so that one reading reports every mistake: the first 20 are kept, all are counted."""

    def __init__(self, checked: Checked) -> None:
        self.checked = checked
        self.found: list[Refusal] = []
        self.count = 0
        self._places: list[tuple[int, int]] = []

    def add(self, kind: type[CorralError], node: Node | None, path: str, message: str, hint: str | None = None) -> None:
        """Note a problem of the field ``path``, at the place of ``node``."""
        where = None
        if self.checked.source is not None:
            placed = node is not None and node.line > 0
            where = f"{self.checked.source}:{node.line}:{node.column}" if node and placed else self.checked.source
        name = self.checked.names.get(path, path) or None
        refusal = Refusal(kind.code, message, name, hint, where)
        self.count += 1
        if len(self.found) < PROBLEMS_MAX and refusal not in self.found:
            self.found.append(refusal)
            self._places.append((node.line, node.column) if node else (0, 0))

    def nearest(self, wrong: str, names: Iterable[str]) -> str | None:
        """Return the right name closest to a wrong one, while another problem would still be kept.

        Looking costs a tenth of a millisecond: a body of 4 MiB may hold some hundred thousand wrong names.
        """
        return nearest(wrong, names) if len(self.found) < PROBLEMS_MAX else None

    def raise_first(self) -> None:
        """Raise the first problem of the text, the others in its ``also``; return when there is none."""
        if self.found:
            order = sorted(range(len(self.found)), key=self._places.__getitem__)
            first, *others = (self.found[i] for i in order)
            error = CorralError.of(first)
            error.also = tuple(others)
            raise error

    def fields(
        self, node: Node, path: str, known: Iterable[str], misplaced: Mapping[str, str] | None = None
    ) -> dict[str, tuple[Node, Node]]:
        """Return (key, value) of each field of a mapping; note unknown and repeated ones. ``misplaced`` holds hints."""
        fields: dict[str, tuple[Node, Node]] = {}
        names = tuple(known)
        for name, key, value in self.entries(node, path):
            if name in names:
                fields[name] = (key, value)
                continue
            hint = (misplaced or {}).get(name.lower().replace("-", "_"))
            near = hint or self.nearest(name, names)
            self.add(
                UnknownField,
                key,
                field_path(path, name),
                "unknown field",
                f"did you mean {near}?" if near else f"known here: {', '.join(sorted(names))}",
            )
        return fields

    def entries(self, node: Node, path: str) -> list[tuple[str, Node, Node]]:
        """Return (name, key, value) of a mapping with text keys; note keys that are repeated or no text."""
        if node.kind != "map":
            self.add(InvalidField, node, path, f"must be a mapping of names to values, not {node.described()}")
            return []
        entries: dict[str, tuple[str, Node, Node]] = {}
        for key, value in node.pairs:
            if not key.scalar or key.kind == "null" or "\0" in key.text:
                self.add(InvalidField, key, path, "a key must be plain text")
            elif key.text in entries:
                first = entries[key.text][1].line
                seen = f" (first on line {first})" if first else ""
                self.add(DuplicateName, key, field_path(path, key.text), f"given twice{seen}")
            else:
                entries[key.text] = (key.text, key, value)
        return list(entries.values())


def field_path(path: str, name: str) -> str:
    """Return the path of the field ``name`` in the mapping at ``path``."""
    name = shown(name)[1:-1]
    return f"{path}.{name}" if path else name


def json_node(data: bytes, fault: Callable[[str], CorralError]) -> Node:
    """Return the node of a JSON text, repeated keys kept. ``fault`` makes the error for what is not JSON."""
    import json

    try:
        text = data.decode()
        value = json.loads(text, object_pairs_hook=_Pairs, parse_constant=_refuse_constant)
    except UnicodeDecodeError as error:
        raise fault(f"not UTF-8 at byte {error.start}") from None
    except json.JSONDecodeError as error:
        raise fault(f"not JSON: {error.msg} at line {error.lineno}, column {error.colno}") from None
    except RecursionError:
        raise fault("not JSON that can be read: nested too deeply") from None
    except ValueError as error:
        raise fault(f"not JSON that can be read: {str(error).splitlines()[0]}") from None
    return _node_of_pairs(value, 0)


class _Pairs(list[tuple[str, object]]):
    """A JSON object with its keys in order, repeated ones too."""


def _refuse_constant(name: str) -> object:
    raise ValueError(f"{name} is not a JSON number")


def _node_of_pairs(value: object, depth: int) -> Node:
    if depth > DEPTH_MAX:
        return Node("other", "a value nested too deeply")
    if isinstance(value, _Pairs):
        node = Node("map")
        node.pairs = [(Node("text", key), _node_of_pairs(item, depth + 1)) for key, item in value]
        return node
    if isinstance(value, list):
        node = Node("list")
        node.items = [_node_of_pairs(item, depth + 1) for item in value]
        return node
    return node_of(value)
