"""Looks for a job's own proposer where it will be imported from, and runs nothing of it.

Only what is certain is said: a module that is nowhere, a file that is not Python, a name that a file does not bind.
What importing it may meet (a library that is missing, an error in its code) is found when it is asked first.
"""

from __future__ import annotations

import ast
import importlib.util
import warnings
from collections.abc import Iterator
from importlib.machinery import (
    BYTECODE_SUFFIXES,
    EXTENSION_SUFFIXES,
    SOURCE_SUFFIXES,
    ExtensionFileLoader,
    FileFinder,
    ModuleSpec,
    SourceFileLoader,
    SourcelessFileLoader,
)
from pathlib import Path

from corral.wire.document import printable

SOURCE_BYTES_MAX = 1 << 20
"""A larger file was written by a program, and is not read."""

LOADERS = (
    (ExtensionFileLoader, EXTENSION_SUFFIXES),
    (SourceFileLoader, SOURCE_SUFFIXES),
    (SourcelessFileLoader, BYTECODE_SUFFIXES),
)
"""What a folder of the path may hold, in the order of Python's import system."""


def entry_point_problem(entry_point: str, workdir: str | None) -> str | None:
    """Return why ``module:function`` cannot be imported with ``workdir`` first on the path, ``None`` if it may be.

    A ``workdir`` that is not on this machine is not judged.
    """
    if workdir is not None and not Path(workdir).is_dir():
        return None
    module, _, path = entry_point.partition(":")
    names = module.split(".")
    found = _find(names[0], [workdir]) if workdir is not None else None
    if found is None:
        if _elsewhere(names[0]):
            return None
        place = f"in {printable(workdir)} or" if workdir is not None else "(the job has no workdir)"
        return f"there is no module {names[0]} {place} in this Python"
    known = names[0]
    for name in names[1:]:
        if found.submodule_search_locations is None:
            return f"{known} is a module, not a package: it has no {name}"
        inside = _find(name, list(found.submodule_search_locations))
        if inside is None:
            # What a package binds may be a module from elsewhere, but seldom is.
            return f"there is no module {name} in {printable(next(iter(found.submodule_search_locations)))}"
        found, known = inside, f"{known}.{name}"
    if found.loader is None:
        return f"{known} is a folder without __init__.py, which has no functions"
    return _unbound(found, path.partition(".")[0])


def _find(name: str, folders: list[str]) -> ModuleSpec | None:
    """Return where a module is in folders. The finder is a fresh one: what it sees was not remembered earlier."""
    for folder in folders:
        found = FileFinder(folder, *LOADERS).find_spec(name)
        if found is not None:
            return found
    return None


def _elsewhere(name: str) -> bool:
    """Return whether this Python has a module; a top-level name is found without importing anything."""
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return True


def _unbound(found: ModuleSpec, name: str) -> str | None:
    """Return what is wrong with a module that is a file of source, if it is one and can be read."""
    if not isinstance(found.loader, SourceFileLoader) or found.origin is None:
        return None
    file = Path(found.origin)
    try:
        if file.stat().st_size > SOURCE_BYTES_MAX:
            return None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(importlib.util.decode_source(file.read_bytes()))
    except SyntaxError as error:
        return f"{printable(str(file))} is not Python: {error.msg} (line {error.lineno})"
    except (OSError, ValueError, RecursionError, MemoryError) as error:
        return f"{printable(str(file))} cannot be read ({type(error).__name__})"
    bound = set(_bound(tree))
    if name in bound or bound & {"*", "__getattr__", "globals"}:
        return None
    return f"{printable(str(file))} has no {name}"


def _bound(tree: ast.Module) -> Iterator[str]:
    """Yield all names that a module may have: bound anywhere, or by means that cannot be followed."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.name
            case ast.Import() | ast.ImportFrom():
                yield from ((alias.asname or alias.name).partition(".")[0] for alias in node.names)
            case ast.Name(ctx=ast.Store()):
                yield node.id
            case ast.Name(id="globals" | "vars" | "setattr" | "exec" | "locals"):
                yield "globals"
            case ast.MatchAs(name=str() as captured):
                yield captured
