"""The fields of a job that are paths: where it runs, and what is mounted from where.

As the methods of :class:`corral.wire.fields.FieldReader` these note problems and answer ``None`` for what is wrong.
"""

from __future__ import annotations

import os
import posixpath
import re
import stat
from pathlib import Path

from corral.model.errors import DuplicateName, MissingField, PathNotFound, PathUnsafe
from corral.model.files import JobFiles
from corral.wire.document import Node, field_path, shown
from corral.wire.fields import NAME_LENGTH_MAX, FieldReader

PATH_LENGTH_MAX = 4096
PATTERNS_MAX = 1_000
_TREE = re.compile(r"[0-9a-f]{64}")


def directory(reader: FieldReader, node: Node, path: str) -> str | None:
    """Read a working directory as an absolute path; it must exist where that can be checked."""
    found = absolute(reader, node, path)
    if found is None or not reader.problems.checked.on_disk:
        return found
    mode = _mode(found)
    if mode is None or not stat.S_ISDIR(mode):
        what = "does not exist" if mode is None else "is not a directory"
        reader.problems.add(PathNotFound, node, path, f"{shown(found)} {what}")
        return None
    return found


def absolute(reader: FieldReader, node: Node, path: str) -> str | None:
    """Read a path as an absolute one; relative ones stand on the base of the document."""
    if node.scalar and "\0" in node.text:
        reader.problems.add(PathUnsafe, node, path, "a path must not hold a NUL byte")
        return None
    text = reader.text(node, path, length_max=PATH_LENGTH_MAX)
    if text is None:
        return None
    if re.match(r"[a-z][a-z0-9+.-]*://", text):
        reader.wrong(node, path, f"{shown(text)} is not a path of this machine", "fetch it in setup")
        return None
    base = reader.problems.checked.base
    if base is not None:
        # pathlib would raise for the home of an unknown user; a name that begins with ~ is then just a name.
        text = os.path.normpath(f"{base}/{text}" if text[:1] not in "/~" else os.path.expanduser(text))  # noqa: PTH111
    if not text.startswith("/"):
        reader.wrong(node, path, f"{shown(text)} must be an absolute path")
        return None
    return text


def mounts(reader: FieldReader, node: Node, path: str) -> dict[str, str]:
    """Read ``{target inside the task's directory: source on this machine}``."""
    found: dict[str, str] = {}
    for name, key, value in reader.problems.entries(node, path):
        here = field_path(path, name)
        source = absolute(reader, value, here)
        if source is not None and reader.problems.checked.on_disk and _mode(source) is None:
            reader.problems.add(PathNotFound, value, here, f"the source {shown(source)} does not exist")
        target = mount_target(reader, key, here)
        if target is None or source is None:
            continue
        if target in found:
            reader.problems.add(DuplicateName, key, here, "mounts on the same target as another entry")
        found[target] = source
    for target in found:
        parts = target.split("/")
        above = next((up for up in ("/".join(parts[:n]) for n in range(1, len(parts))) if up in found), None)
        if above is not None:
            reader.problems.add(PathUnsafe, node, f"{path}.{target}", f"lies inside another target, {shown(above)}")
    return found


def mount_target(reader: FieldReader, key: Node, path: str) -> str | None:
    """Read a mount's target: relative, without ``..``, not the task's directory itself."""
    parts = key.text.split("/")
    target = posixpath.normpath(key.text) if key.text else "."
    message = None
    if key.text.startswith(("/", "~")):
        message = "a mount's target must be relative to the task's directory"
    elif ".." in parts:
        message = "a mount's target must not contain .."
    elif target == "." or not key.text.isprintable() or len(key.text) > NAME_LENGTH_MAX * 4:
        message = "is not a path inside the task's directory"
    if message is not None:
        reader.problems.add(PathUnsafe, key, path, message)
        return None
    return target


def patterns(reader: FieldReader, node: Node, path: str) -> tuple[str, ...]:
    """Read patterns of files below the working directory: relative, without ``..``."""
    found = reader.words(node, path)
    if len(found) > PATTERNS_MAX:
        reader.wrong(node, path, f"has more than {PATTERNS_MAX:,} entries")
    for text in found:
        if not text or len(text) > PATH_LENGTH_MAX or text[:1] in "/~" or ".." in text.split("/"):
            message = f"{shown(text)} is not a pattern of files inside the working directory"
            reader.problems.add(PathUnsafe, node, path, message, "write it like results/*.json or logs/**")
    return found


def travelling(reader: FieldReader, node: Node, path: str) -> JobFiles | None:
    """Read which files travel: ``{tree, workdir, targets}`` (HTTP only, written by clients)."""
    fields = reader.problems.fields(node, path, ("tree", "workdir", "targets"))
    tree = fields["tree"][1] if "tree" in fields else None
    if tree is None:
        reader.problems.add(MissingField, node, f"{path}.tree", "is missing")
        return None
    name = reader.text(tree, f"{path}.tree")
    if name is None or not _TREE.fullmatch(name):
        reader.wrong(tree, f"{path}.tree", "must be the name of a tree, 64 hex digits")
        return None
    workdir = fields["workdir"][1] if "workdir" in fields else None
    if workdir is not None and workdir.kind != "bool":
        reader.wrong(workdir, f"{path}.workdir", f"must be true or false, not {workdir.described()}")
        return None
    targets = fields["targets"][1] if "targets" in fields else None
    listed = [] if targets is None else targets.items if targets.kind == "list" else [targets]
    read = [mount_target(reader, item, f"{path}.targets[{i}]") for i, item in enumerate(listed)]
    here = workdir is None or workdir.text == "true"
    return JobFiles(name, here, tuple(target for target in read if target is not None))


def _mode(path: str) -> int | None:
    """Return the mode of a file, or ``None`` when there is none that can be reached."""
    try:
        return Path(path).stat().st_mode
    except OSError:
        return None
