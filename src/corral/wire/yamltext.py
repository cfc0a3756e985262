"""YAML text to nodes, with lines and columns, by the rules of YAML 1.2's core schema.

The tree is built from PyYAML's events, not by its composer or constructor: no tag runs code, ``no`` and ``on`` are
text, ``010`` is ten and ``1:30`` is text, and an alias costs what it expands to, so that a small file cannot become a
large tree.
"""

from __future__ import annotations

import math
import re

import yaml

from corral.model.errors import InvalidField, JobFileUnreadable
from corral.wire.document import DEPTH_MAX, DIGITS_MAX, Node, Problems, shown

NODES_MAX = 100_000
TEXT_OF_ONE = 64
"""A text counts as one value more for so many characters: aliases repeat long texts, too."""
DOCUMENTS_MAX = 1_000
_NULL = frozenset({"", "~", "null", "Null", "NULL"})
_BOOL = {"true": "true", "True": "true", "TRUE": "true", "false": "false", "False": "false", "FALSE": "false"}
_INT = re.compile(r"[-+]?[0-9]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_INFINITE = re.compile(r"([-+]?)\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_TAG_TEXT = "tag:yaml.org,2002:str"


def plain_scalar(text: str) -> Node:
    """Return the node of an unquoted scalar by YAML 1.2's core schema, its text as written."""
    if text in _NULL:
        return Node("null", text)
    if text in _BOOL:
        return Node("bool", text)
    node = Node("text", text)
    if len(text) > DIGITS_MAX:
        return node
    if _INT.fullmatch(text):
        node.kind, node.number = "int", int(text)
    elif _FLOAT.fullmatch(text):
        node.kind, node.number = "float", float(text)
    elif _INFINITE.fullmatch(text):
        node.kind, node.number = "float", math.nan if "n" in text[1:2].lower() else math.inf
    return node


class _Builder:
    """Turns PyYAML's events into nodes; knows the anchors of the document at hand."""

    def __init__(self, problems: Problems, source: str) -> None:
        self.problems = problems
        self.source = source
        self.roots: list[Node] = []
        self.open: list[tuple[Node, list[Node]]] = []
        self.anchors: dict[str, Node] = {}
        self.sizes: dict[int, int] = {}
        self.count = 0

    def event(self, event: yaml.Event) -> None:
        """Take one event."""
        match event:
            case yaml.DocumentStartEvent():
                self.anchors, self.sizes = {}, {}
            case yaml.ScalarEvent():
                self.add(self.scalar(event), event.anchor, 1 + len(event.value) // TEXT_OF_ONE)
            case yaml.AliasEvent():
                self.alias(event)
            case yaml.MappingStartEvent() | yaml.SequenceStartEvent():
                mapping = isinstance(event, yaml.MappingStartEvent)
                node = self.placed(Node("map" if mapping else "list"), event)
                self.check_tag(node, event.tag)
                self.open.append((node, []))
                if len(self.open) > DEPTH_MAX:
                    raise self.fault(node, f"nested more than {DEPTH_MAX} levels deep")
                if event.anchor:
                    self.anchors[event.anchor] = node
            case yaml.MappingEndEvent() | yaml.SequenceEndEvent():
                self.close()

    def scalar(self, event: yaml.ScalarEvent) -> Node:
        """Return the node of a scalar event."""
        plain = event.implicit[0]
        node = self.placed(plain_scalar(event.value) if plain else Node("text", event.value), event)
        self.check_tag(node, event.tag)
        return node

    def check_tag(self, node: Node, tag: str | None) -> None:
        """Note a tag other than text: types follow from the fields."""
        if tag not in {None, "!", _TAG_TEXT}:
            self.problems.add(InvalidField, node, "", f"the tag {shown(str(tag))} is not supported", "leave it out")

    def alias(self, event: yaml.AliasEvent) -> None:
        """Add what an alias stands for; it counts with all that it expands to."""
        name = str(event.anchor)
        node = self.anchors.get(name)
        here = self.placed(Node("null"), event)
        if node is None:
            raise self.fault(here, f"the alias {shown('*' + name)} has no anchor before it")
        if any(node is parent for parent, _ in self.open):
            raise self.fault(here, f"the alias {shown('*' + name)} stands inside what it repeats")
        self.add(node, None, self.sizes[id(node)])

    def add(self, node: Node, anchor: str | None, size: int) -> None:
        """Put a finished node into its parent, or make it a document."""
        self.count += size
        if self.count > NODES_MAX:
            raise self.fault(node, f"more than {NODES_MAX:,} values once its aliases are written out")
        self.sizes[id(node)] = size
        if anchor:
            self.anchors[anchor] = node
        if self.open:
            self.open[-1][1].append(node)
            return
        self.roots.append(node)
        if len(self.roots) > DOCUMENTS_MAX:
            raise self.fault(node, f"more than {DOCUMENTS_MAX:,} documents")

    def close(self) -> None:
        """Finish the innermost list or mapping."""
        node, children = self.open.pop()
        size = 1 + sum(self.sizes[id(child)] for child in children)
        self.count -= size - 1
        if node.kind == "map":
            node.pairs = list(zip(children[::2], children[1::2], strict=True))
        else:
            node.items = children
        self.add(node, None, size)

    def placed(self, node: Node, event: yaml.Event) -> Node:
        """Set the place of a node."""
        mark = event.start_mark
        if mark is not None:
            node.line, node.column = mark.line + 1, mark.column + 1
        return node

    def fault(self, node: Node, message: str) -> JobFileUnreadable:
        """Return the error for a text that is refused as a whole."""
        return JobFileUnreadable(message, where=f"{self.source}:{node.line}:{node.column}")


def yaml_nodes(text: str, source: str, problems: Problems) -> list[Node]:
    """Return the root of every document of a YAML text; raise ``JobFileUnreadable`` with the place of the fault."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    builder = _Builder(problems, source)
    try:
        for event in yaml.parse(text, Loader=loader):
            builder.event(event)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{source}:{mark.line + 1}:{mark.column + 1}" if mark else source
        what = " ".join(f"{error.context or ''} {error.problem or ''}".split())
        raise JobFileUnreadable(f"not YAML: {what}", where=where) from None
    except yaml.YAMLError as error:
        raise JobFileUnreadable(f"not YAML: {' '.join(str(error).split())}", where=source) from None
    return builder.roots
