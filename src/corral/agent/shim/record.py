"""The files of a task directory, and how they are written.

``shim.json`` is replaced by rename but not flushed: after a crash of the machine no shim lives that it could describe.
``status.json`` is flushed with its directory: once it is seen it is there for ever.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable

SPEC = "spec.json"
FORKED = "forked"
SHIM = "shim.json"
STATUS = "status.json"
STOP = "stop.json"
LOG = "log"
SCRIPT = "script.sh"

_READ_MAX = 1 << 20
_RETRY_S = 1.0


def write(directory: int, name: str, content: dict[str, object], *, durable: bool = False) -> None:
    """Replace the file ``name`` in the open ``directory`` by ``content`` as JSON. Raises ``OSError``.

    ``durable``: the content and the name have reached the disk when this returns.
    """
    temporary = f".{name}.new"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644, dir_fd=directory)
    try:
        rest = json.dumps(content).encode() + b"\n"
        while rest:
            rest = rest[os.write(descriptor, rest) :]
        if durable:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
    os.rename(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
    if durable:
        os.fsync(directory)


def write_first(directory: int, name: str, content: dict[str, object], file: int) -> None:
    """Make the file ``name`` with ``content`` as JSON out of the open, empty ``file`` named ``forked``.

    It appears whole, as by a rename, and costs no new inode. Raises ``OSError``.
    """
    rest = json.dumps(content).encode() + b"\n"
    while rest:
        rest = rest[os.write(file, rest) :]
    os.link(FORKED, name, src_dir_fd=directory, dst_dir_fd=directory)


def read(directory: int, name: str) -> dict[str, object] | None:
    """Return the JSON object in the file ``name``: ``None`` without the file, empty when it cannot be made sense of."""
    try:
        descriptor = os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=directory)
    except FileNotFoundError:
        return None
    except OSError:
        return {}
    try:
        content = json.loads(os.read(descriptor, _READ_MAX))
    except (OSError, ValueError):
        return {}
    finally:
        os.close(descriptor)
    return content if isinstance(content, dict) else {}


def write_status(directory: int, status: dict[str, object], tell: Callable[[], object] = lambda: None) -> bool:
    """Write ``status.json`` for good; return whether that was still possible.

    A full or read-only disk is waited for: the end of a task must not get lost. Meanwhile the agent is told with each
    try. When the task directory was removed there is nobody left to tell.
    """
    while True:
        try:
            write(directory, STATUS, status, durable=True)
        except OSError:
            if os.fstat(directory).st_nlink == 0:
                return False
            tell()
            time.sleep(_RETRY_S)
        else:
            return True
