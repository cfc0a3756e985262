"""What holds one agent per node: a lock in the node's directory, and a name that is the machine's.

The lock keeps two agents off one directory. The name, of a unix socket in the abstract namespace (unix(7)), is that of
the machine's id: it keeps agents off that use copies of one state directory on one machine. It belongs to a network
namespace and is gone with its holder. Copies on machines that are apart are told apart by the heads.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

from corral.agent.machine import machine_of
from corral.model.errors import AlreadyRunning, MachineCloned, StateUnusable

LOCK_NAME = "agent.lock"
GIVEN_BACK_S = 1.0
"""So long after an agent's lock its name may still be taken: the kernel closes what a dead process had one by one."""
_AGAIN_S = 0.01


@contextlib.contextmanager
def only_agent(node_dir: Path, state_dir: Path) -> Iterator[None]:
    """Be the one agent of a node. Raises ``AlreadyRunning``, ``MachineCloned`` and ``StateUnusable``."""
    try:
        node_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = os.open(node_dir / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StateUnusable(f"cannot use {node_dir}: {error.strerror}") from None
    try:
        if not _locked(lock):
            raise AlreadyRunning(f"node {node_dir.name} has an agent already")
        with _named(state_dir):
            yield
    finally:
        os.close(lock)


def check_not_copied(state_dir: Path) -> None:
    """Raise ``MachineCloned`` where an agent runs on this machine with another copy of this state directory."""
    for path in (state_dir / "nodes").glob(f"*/{LOCK_NAME}"):
        with path.open("rb") as file:
            if not _locked(file.fileno()):
                # Its own agent runs still: the name is its.
                return
    with _named(state_dir):
        pass


def _locked(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextlib.contextmanager
def _named(state_dir: Path) -> Iterator[None]:
    machine = machine_of(state_dir)
    if not machine:
        # A pool of one machine.
        yield
        return
    deadline = time.monotonic() + GIVEN_BACK_S
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as name:
        while True:
            try:
                name.bind(f"\0corral-machine-{machine}")
            except OSError:
                if time.monotonic() > deadline:
                    raise MachineCloned(
                        f"{state_dir} is a copy: this machine's agent runs in another state directory",
                        hint="remove the copy, or its file machine-id together with its file node.token, and join anew",
                    ) from None
                time.sleep(_AGAIN_S)
            else:
                break
        yield
