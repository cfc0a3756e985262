"""Whether this node can take tasks: what they and their shims write down needs room on its disk.

What is free is looked at every beat. That does not show a quota, or a disk that became read-only or fails: after a
launch that failed something is written, and until that succeeds the node is unfit.
"""

from __future__ import annotations

import os
from pathlib import Path

from msgspec.structs import replace

from corral.model.job import Cause, TaskExit

FREE_MIN_BYTES = 16 << 20
"""With less the node takes no new tasks; with twice as much it does again."""

TRIAL_BYTES = 64 << 10
TRIAL_NAME = ".trial"
TRIAL_EVERY = 5
"""Of so many looks at a disk that refused to be written one tries it again."""


class Fitness:
    """Looks at the disk under a node's directory.

    Attributes:
        unfit: Why the node can take no tasks, empty when it can.
    """

    def __init__(self, directory: Path) -> None:
        self.unfit = ""
        self._directory = directory
        self._refused = ""
        self._looks = 0

    def look(self) -> str:
        """Look again, and return what is wrong."""
        self._looks += 1
        if self._refused and self._looks % TRIAL_EVERY == 0:
            self._try()
        self.unfit = self._refused or self._shortage()
        return self.unfit

    def judge(self, cause: Cause, message: str) -> tuple[Cause, str]:
        """Return why a task ended. A launch that failed is not the job's fault where nothing can be written."""
        if cause is not Cause.LAUNCH_FAILED:
            return cause, message
        self._try()
        self.unfit = self._refused or self._shortage()
        return (Cause.NODE_UNFIT, self.unfit) if self.unfit else (cause, message)

    def judge_end(self, exit_: TaskExit) -> TaskExit:
        """Return an end that a shim told, with the true cause in the same way."""
        cause, message = self.judge(exit_.cause, exit_.message)
        return exit_ if cause is exit_.cause else replace(exit_, cause=cause, message=message)

    def _shortage(self) -> str:
        try:
            disk = os.statvfs(self._directory)
        except OSError as error:
            return f"its disk cannot be read: {error.strerror}"
        free = disk.f_frsize * (disk.f_bavail if os.geteuid() else disk.f_bfree)
        if free < (2 * FREE_MIN_BYTES if self.unfit else FREE_MIN_BYTES):
            return f"its disk is full: {free >> 20} MiB are free for {self._directory}"
        if disk.f_files and not disk.f_favail:
            return f"its disk is full: no inode is free for {self._directory}"
        return ""

    def _try(self) -> None:
        path = self._directory / TRIAL_NAME
        try:
            path.write_bytes(bytes(TRIAL_BYTES))
        except OSError as error:
            self._refused = f"its disk cannot be written: {error.strerror} ({self._directory})"
        else:
            self._refused = ""
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            self._refused = self._refused or f"its disk cannot be written: {error.strerror} ({self._directory})"
