"""Files that others read at any moment: written whole, or not at all."""

from __future__ import annotations

import os
import threading
from pathlib import Path


def write_whole(path: Path, data: bytes, *, mode: int = 0o644) -> None:
    """Write a file whole, or not at all; from its first moment on it has ``mode``. Raises ``OSError``."""
    # Several processes of a machine, and threads of a daemon, write the same file: each has a new one of its own.
    new = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_native_id()}.new")
    new.unlink(missing_ok=True)
    try:
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            file.write(data)
        new.rename(path)
    except OSError:
        new.unlink(missing_ok=True)
        raise
