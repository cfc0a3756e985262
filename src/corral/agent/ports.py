"""TCP ports of this machine: whether one is free, and who has it."""

from __future__ import annotations

import contextlib
import os
import socket

from corral.agent import processes

_LISTENS = "0A"


def port_is_free(port: int) -> bool:
    """Return whether a program could listen on a TCP port now; connections that are closing do not count."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind(("", port))
            trial.listen(1)
        except OSError:
            return False
    return True


def holder(port: int) -> str:
    """Return who listens on a TCP port, ``process 4711 (nginx)``; empty when that cannot be seen."""
    wanted = {f"socket:[{inode}]" for inode in _listening(port)}
    if not wanted:
        return ""
    for stat in processes.all_processes():
        if not wanted.isdisjoint(_open_files(stat.pid)):
            name = (processes.read_small(f"/proc/{stat.pid}/comm") or b"").decode(errors="replace").strip()
            return f"process {stat.pid} ({name})"
    return ""


def _open_files(pid: int) -> list[str]:
    found: list[str] = []
    with contextlib.suppress(OSError):
        for descriptor in os.listdir(f"/proc/{pid}/fd"):  # noqa: PTH208 - names are all that is wanted
            with contextlib.suppress(OSError):
                found.append(os.readlink(f"/proc/{pid}/fd/{descriptor}"))  # noqa: PTH115 - strings all along
    return found


def _listening(port: int) -> set[str]:
    """Return the inodes of the sockets that listen on a port (``/proc/net/tcp`` of proc(5))."""
    found = set()
    for table in ("tcp", "tcp6"):
        for line in (processes.read_small(f"/proc/net/{table}") or b"").decode().splitlines()[1:]:
            fields = line.split()
            if fields[3] == _LISTENS and int(fields[1].rpartition(":")[2], 16) == port:
                found.add(fields[9])
    return found
