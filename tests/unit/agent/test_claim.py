"""One agent per node, also where its state directory was copied."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from corral.agent.claim import check_not_copied, only_agent
from corral.agent.machine import MACHINE_NAME
from corral.model.errors import AlreadyRunning, MachineCloned

HOLD = """
import sys
from pathlib import Path
from corral.agent.claim import only_agent
with only_agent(Path(sys.argv[1]) / "nodes" / "n1", Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def machine(root: Path, own: str) -> Path:
    root.mkdir()
    if own:
        (root / MACHINE_NAME).write_text(own)
    return root


@contextlib.contextmanager
def agent(root: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Hold node n1 in another process."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(root)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"held\n"
            yield process
        finally:
            process.kill()


def be_agent(root: Path) -> None:
    with only_agent(root / "nodes" / "n1", root):
        pass


def test_a_copy_of_the_directory_is_refused_on_the_same_machine(tmp_path: Path) -> None:
    first = machine(tmp_path / "first", f"of {tmp_path}")
    be_agent(first)
    copy = shutil.copytree(first, tmp_path / "copy")
    with agent(first):
        with pytest.raises(MachineCloned, match="copy is a copy"):
            be_agent(copy)
        with pytest.raises(MachineCloned):
            check_not_copied(copy)
        # The first itself is no copy, whoever asks; nor has it two agents.
        check_not_copied(first)
        with pytest.raises(AlreadyRunning):
            be_agent(first)
    # Its agent is dead: whoever has the directory now is the machine.
    check_not_copied(copy)
    be_agent(copy)


def test_other_machines_and_pools_of_one_machine_are_no_copies(tmp_path: Path) -> None:
    with agent(machine(tmp_path / "first", f"of {tmp_path}")):
        be_agent(machine(tmp_path / "second", f"other of {tmp_path}"))
    with agent(machine(tmp_path / "third", "")):
        be_agent(machine(tmp_path / "fourth", ""))


def test_an_agent_follows_one_that_was_killed(tmp_path: Path) -> None:
    root = machine(tmp_path / "first", f"of {tmp_path}")
    for _ in range(3):
        with agent(root) as process:
            process.kill()
            process.wait()
            be_agent(root)
