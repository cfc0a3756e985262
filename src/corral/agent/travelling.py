"""The files of a task on a node whose disks others do not see: they come before it starts, and go back while it runs.

tasks/TASK/work        its working directory: a copy of its own
tasks/TASK/output      CORRAL_OUTPUT_DIR
tasks/TASK/luggage     what has to be known of it when it ends, also after a restart of the agent
jobs/JOB/checkpoint/GANG    CORRAL_CHECKPOINT_DIR, for all ranks of the gang on this node
jobs/JOB/checkpoint/.GANG   the tree that was given back or restored last
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import stat
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePosixPath

import msgspec

from corral.agent.config import AgentConfig
from corral.agent.depot import Depot, size_of
from corral.agent.shim.setup_result import UNTOUCHED_NS
from corral.agent.taskdir import WORK, replace_file
from corral.agent.workview import ViewFailed, build_view
from corral.model.files import JobFiles
from corral.model.messages import LaunchTask
from corral.wire.treefiles import lay, overlaid
from corral.wire.trees import Entry, Kind

LUGGAGE = "luggage"
OUTPUT = "output"
MOUNTS = "mounts"
SWEEP_EVERY_S = 60.0


class Luggage(msgspec.Struct, frozen=True):
    """What has to be known of a task's files at its end. Paths are absolute.

    ``checkpoint`` is ``None`` where it is not the pool's to keep; ``base`` is the key of the directory of its setup.
    """

    work: str | None = None
    output: str | None = None
    patterns: tuple[str, ...] = ()
    checkpoint: str | None = None
    base: str | None = None


class Packed(msgspec.Struct, frozen=True):
    """The working directory of a task, and where its setup runs and leaves its mark, if it has one."""

    cwd: str
    setup: dict[str, str] | None = None


class Travelling:
    """The files of one node's tasks. Every method blocks; threads may share it."""

    def __init__(self, config: AgentConfig, depot: Depot) -> None:
        self._config = config
        self._depot = depot
        self._restoring = threading.Lock()
        self._counting = threading.Lock()
        self._live: dict[str, Counter[int]] = {}
        self._swept_at = time.monotonic()

    def lay_out(self, command: LaunchTask, directory: str, wanted: Callable[[], bool] = lambda: True) -> Packed:
        """Make a task's working directory, its output and its checkpoint in the task's directory.

        Raises ``ViewFailed``, ``OSError``, the errors of fetching, and ``Unwanted`` once it is not ``wanted``.
        """
        with self._depot.serving(wanted):
            return self._lay_out(command, directory)

    def _lay_out(self, command: LaunchTask, directory: str) -> Packed:
        output = f"{directory}/{OUTPUT}"
        Path(output).mkdir()
        checkpoint = self._restore(command)
        if command.files is not None:
            cwd = f"{directory}/{WORK}"
            self._lay_work(command, command.files, Path(directory), fresh=False)
        else:
            cwd = self._in_place(command, directory, output)
        key, setup = self._setup(command, own=command.files is not None or cwd == output)
        luggage = Luggage(cwd, output, command.outputs, checkpoint, key)
        try:
            replace_file(f"{directory}/{LUGGAGE}", msgspec.json.encode(luggage))
        except OSError:
            if key is not None:
                self._depot.leave(key)
            raise
        self._count(luggage, directory, 1)
        return Packed(cwd, setup)

    def _count(self, luggage: Luggage, directory: str, tasks: int) -> None:
        """Count the tasks of each start that use a checkpoint directory."""
        path = luggage.checkpoint
        if path is None:
            return
        incarnation = int(directory.rpartition(".")[2])
        with self._counting:
            live = self._live.setdefault(path, Counter())
            live[incarnation] += tasks
            if live[incarnation] <= 0:
                del live[incarnation]
            if not live:
                del self._live[path]

    def _setup(self, command: LaunchTask, *, own: bool) -> tuple[str | None, dict[str, str] | None]:
        """Return the key of the directory in which the setup runs, and what the shim has to know.

        Where the working directory is not the task's own it runs there.
        """
        if command.setup is None:
            return None, None
        key = setup_key(command)
        if not own:
            return None, {"script": command.setup, "marker": str(self._config.node_dir / "setups" / key)}
        base = self._depot.base(key, lambda new: self._lay_base(command, new))
        return key, {"script": command.setup, "marker": str(base / "done"), "cwd": str(base / WORK)}

    def _lay_base(self, command: LaunchTask, directory: Path) -> None:
        if command.files is not None:
            self._lay_work(command, command.files, directory, fresh=True)
        else:
            (directory / WORK).mkdir()

    def _in_place(self, command: LaunchTask, directory: str, output: str) -> str:
        if command.file_mounts:
            workdir = None if command.workdir is None else Path(command.workdir)
            build_view(Path(directory) / WORK, workdir, command.file_mounts)
            return f"{directory}/{WORK}"
        return command.workdir if command.workdir is not None else output

    def _lay_work(self, command: LaunchTask, files: JobFiles, directory: Path, *, fresh: bool) -> None:
        """Make ``work`` in a directory: what came along, and the mounts that lie on this node anyway."""
        work = directory / WORK
        here = {target: source for target, source in command.file_mounts.items() if target not in files.targets}
        laid = work if files.workdir else directory / MOUNTS
        laid.mkdir()
        with self._depot.holding(files.tree) as tree:
            lay(tree.entries, str(laid), self._write_untouched if fresh else self._depot.write)
        if files.workdir:
            _link(work, here)
            return
        mounts = here | {target: str(laid / target) for target in files.targets}
        build_view(work, None if command.workdir is None else Path(command.workdir), mounts)

    def _write_untouched(self, entry: Entry, descriptor: int) -> None:
        self._depot.write(entry, descriptor)
        os.utime(descriptor, ns=(UNTOUCHED_NS, UNTOUCHED_NS))

    # ---- checkpoints -----------------------------------------------------------------------------------------------

    def _restore(self, command: LaunchTask) -> str | None:
        """Have the newest checkpoint in the gang's directory; return it, ``None`` when the user keeps it elsewhere.

        What this node has is as new as what came back last, or newer, when that came from here. The parts of several
        ranks are laid over one another: each has what it wrote, and what it began with.
        """
        if command.checkpoint is not None and command.checkpoint.path is not None:
            return None
        path = Path(self._config.job_dir(command.task.job), "checkpoint", str(command.task.gang))
        path.mkdir(parents=True, exist_ok=True)
        if not command.restore:
            return str(path)
        with self._restoring:
            # Where another rank of this very start is prepared it is done, and that one may write there by now.
            if command.incarnation not in self._live.get(str(path), ()):
                self._restore_in(path, command.restore)
        return str(path)

    def _restore_in(self, path: Path, names: Sequence[str]) -> None:
        current = last_returned(str(path))
        if current not in names:
            shutil.rmtree(path)
            path.mkdir()
        trees = [self._depot.tree(name) for name in names]
        lacking: dict[str, list[Entry]] = {name: [] for name in names}
        for tree, entry in overlaid(trees).values():
            if _lacks(path, entry):
                lacking[tree.name].append(entry)
        for name, entries in lacking.items():
            with self._depot.having(name, [digest.hex() for entry in entries for digest in entry.chunks]):
                # Each file appears whole: a restore that was broken off is gone on with.
                lay(entries, str(path), self._depot.write, replace=True)
        if current not in names:
            note_returned(str(path), names[0])

    # ---- the end ---------------------------------------------------------------------------------------------------

    def adopt(self, directory: str) -> None:
        """Count what a task of an earlier run of the agent uses."""
        luggage = read_luggage(directory)
        if luggage is None:
            return
        self._count(luggage, directory, 1)
        if luggage.base is not None:
            self._depot.enter(luggage.base)

    def leave(self, directory: str) -> None:
        """Count a task that has ended, or never began, as one that uses nothing any more."""
        luggage = read_luggage(directory)
        if luggage is None:
            return
        self._count(luggage, directory, -1)
        if luggage.base is not None:
            self._depot.leave(luggage.base)
        if time.monotonic() - self._swept_at > SWEEP_EVERY_S:
            self._swept_at = time.monotonic()
            self.sweep()

    def clear(self, directory: str) -> None:
        """Remove what an ended task does not need any more: its files went back, its log stays."""
        for name in (WORK, OUTPUT, MOUNTS):
            shutil.rmtree(f"{directory}/{name}", ignore_errors=True)

    def sweep(self) -> None:
        """Remove the checkpoints that were given back least recently until the others fit beside the depot.

        They are at the pool: a task that goes on here gets its own back. What was never given back stays.
        """
        jobs = Path(self._config.state_dir, "jobs")
        kept: list[tuple[float, int, Path]] = []
        for marker in jobs.glob("*/checkpoint/.[0-9]*"):
            path = marker.with_name(marker.name.removeprefix("."))
            with contextlib.suppress(FileNotFoundError):
                kept.append((marker.stat().st_mtime, size_of(path), path))
        total = sum(size for _, size, _ in kept)
        for _, size, path in sorted(kept):
            if total <= self._depot.bytes_max:
                return
            if str(path) not in self._live:
                path.with_name(f".{path.name}").unlink(missing_ok=True)
                shutil.rmtree(path, ignore_errors=True)
                total -= size


def _lacks(directory: Path, entry: Entry) -> bool:
    """Return whether an entry is not there, or is there as it was before."""
    try:
        status = os.lstat(os.fsencode(directory) + b"/" + entry.path)
    except (FileNotFoundError, NotADirectoryError):
        return True
    if Kind.DIRECTORY is entry.kind or stat.S_ISDIR(status.st_mode):
        return False
    return status.st_mtime_ns < entry.modified_ns


def setup_key(command: LaunchTask) -> str:
    """Name a setup by its content: the script, and all that lies where it runs."""
    files = command.files
    travelled = (files.tree, files.workdir, files.targets) if files is not None else None
    content = (command.setup, command.workdir if files is None or not files.workdir else None, travelled)
    here = sorted(pair for pair in command.file_mounts.items() if files is None or pair[0] not in files.targets)
    return hashlib.sha256(msgspec.json.encode((content, here))).hexdigest()


def read_luggage(directory: str) -> Luggage | None:
    """Return what is known of a task's files, ``None`` for one whose files do not travel."""
    try:
        return msgspec.json.decode(Path(directory, LUGGAGE).read_bytes(), type=Luggage)
    except (FileNotFoundError, msgspec.MsgspecError):
        return None


def last_returned(checkpoint: str) -> str:
    """Return the tree of a checkpoint directory that was given back or restored last, empty when none was."""
    head, _, gang = checkpoint.rpartition("/")
    try:
        return Path(head, f".{gang}").read_text()
    except FileNotFoundError:
        return ""


def note_returned(checkpoint: str, tree: str) -> None:
    """Remember which tree a checkpoint directory was last. Raises ``OSError``."""
    head, _, gang = checkpoint.rpartition("/")
    replace_file(f"{head}/.{gang}", tree.encode())


def _link(work: Path, mounts: Mapping[str, str]) -> None:
    """Put links to mounts into a working directory; what came along is never in their way."""
    for target, source in mounts.items():
        if not Path(source).exists():
            raise ViewFailed(f"file_mounts: the source {source!r} is no path of this node")
        place = work / target
        if any((work / above).is_symlink() for above in PurePosixPath(target).parents):
            raise ViewFailed(f"file_mounts: {target!r} lies behind a symbolic link of the working directory")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(source)
