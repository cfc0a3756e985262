"""Planted bugs: patches of the source, each of which storms must find. ``python -m tests.sim.mutation [NAME...]``.

A patch begins with what the bug is, and may name the seed that found it (``Seed: 7``): that one comes first. It is
applied to a copy of the source by what it says, not by where: context and removed lines must stand there exactly once.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
PATCHES = Path(__file__).with_name("mutants")
SEEDS = 200
HUNT_S = 580.0


class Hunk(NamedTuple):
    """A run of lines of one file, as it is and as it is to be."""

    file: str
    before: str
    after: str


def hunks(patch: str) -> list[Hunk]:
    """Parse a unified diff."""
    found: list[Hunk] = []
    file = ""
    for line in patch.splitlines(keepends=True):
        if line.startswith("+++ "):
            file = line[4:].strip().removeprefix("b/")
        elif line.startswith("@@"):
            found.append(Hunk(file, "", ""))
        elif file and found and line[:1] in (" ", "-", "+"):
            known = found[-1]
            before = known.before + (line[1:] if line[0] != "+" else "")
            found[-1] = Hunk(file, before, known.after + (line[1:] if line[0] != "-" else ""))
    return found


def plant(patch: str, tree: Path) -> None:
    """Apply a patch to a copy of the source. Raises ``ValueError`` when the source is not what it was made for."""
    for hunk in hunks(patch):
        path = tree / hunk.file
        text = path.read_text()
        if text.count(hunk.before) != 1:
            raise ValueError(f"{hunk.file} has changed where the bug is planted: make the patch anew")
        path.write_text(text.replace(hunk.before, hunk.after))


class Hunt(NamedTuple):
    """How a bug was hunted: how many storms passed before the one that found it, which that was and what it said."""

    passed: int
    seed: int | None
    finding: str


def hunt(patch: Path, seeds: int = SEEDS, workers: int | None = None) -> Hunt:
    """Let storms pass over a copy of the source with the bug until one finds it."""
    with tempfile.TemporaryDirectory() as directory:
        tree = Path(directory)
        # With what is compiled already: all modules but one are the same.
        shutil.copytree(ROOT / "src", tree / "src")
        plant(patch.read_text(), tree)
        first = re.search(r"^Seed: (\d+)$", patch.read_text(), re.MULTILINE)
        order = f"{first[1]},0-{seeds - 1}" if first is not None else f"0-{seeds - 1}"
        command = [sys.executable, "-m", "corral.sim", "--seeds", order, "--fail-fast", "--quiet"]
        command += ["--workers", str(workers or os.cpu_count() or 1)]
        environment = {**os.environ, "PYTHONPATH": str(tree / "src")}
        with subprocess.Popen(
            command, cwd=tree, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as storms:
            try:
                said, wrong = storms.communicate(timeout=HUNT_S)
            finally:
                # Its workers end with it when it is asked to end, not when it is killed.
                storms.terminate()
    total = re.search(r"^(\d+) storms passed, (\d) failed", said, re.MULTILINE)
    if total is None:
        raise RuntimeError(f"the storms broke down: {said}{wrong}")
    found = re.search(r"^seed (\d+): (\w+Error: .*?)  \[", said, re.MULTILINE)
    return Hunt(int(total[1]), int(found[1]) if found else None, found[2] if found else "")


def main(names: list[str]) -> int:
    """Hunt all bugs, or those named; return 1 when one survives."""
    alive = 0
    for patch in sorted(PATCHES.glob("*.patch")):
        if not names or patch.stem in names:
            found = hunt(patch)
            alive += not found.finding
            sys.stdout.write(f"{patch.stem}: {found.finding or 'ALIVE'} (seed {found.seed}, after {found.passed})\n")
            sys.stdout.flush()
    return 1 if alive else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
