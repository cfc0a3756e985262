"""Everything that a task needs on the disk before its shim is forked: directories, the working directory, the spec."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from corral.agent import replicadir
from corral.agent.affinity import CpuChooser
from corral.agent.cgroup import CgroupSupport
from corral.agent.config import AgentConfig
from corral.agent.depot import Unwanted
from corral.agent.environment import INHERITED, task_environment
from corral.agent.ports import holder, port_is_free
from corral.agent.shim import record
from corral.agent.shim.handle import write_lease
from corral.agent.taskdir import LEASE, WORK, marker, write_file
from corral.agent.travelling import Packed, Travelling, setup_key
from corral.agent.workview import ViewFailed, build_view
from corral.model.errors import CorralError, PortTaken
from corral.model.ids import DeviceId
from corral.model.messages import LaunchTask

# Architecture, decision 4: the checkpoint signal comes this long before the checkpoint's grace must begin.
LEASE_MARGIN_S = 10.0
FREEZE_MAX_S = 3600.0


class PreparationFailed(Exception):
    """The task cannot be launched; the text is for the user."""


class Prepared(msgspec.Struct, frozen=True):
    """A task directory that is ready to be forked, and the CPUs that the task was given, if any."""

    directory: str
    cpus: tuple[int, ...] | None


class Preparer:
    """Prepares tasks of one node.

    Attributes:
        vendors: The vendor of every device by uuid; set when the devices are known.
    """

    def __init__(
        self,
        config: AgentConfig,
        cgroups: CgroupSupport | None,
        cpus: CpuChooser | None,
        inherited: Mapping[str, str],
        travelling: Travelling | None = None,
    ) -> None:
        """``cgroups`` and ``cpus`` are ``None`` where the node's CPUs are pretended.

        ``travelling`` is ``None`` on a pool of one machine, where tasks run where the files are.
        """
        self.vendors: dict[DeviceId, str] = {}
        self._config = config
        self._cgroups = cgroups
        self._cpus = cpus
        self._inherited = {name: inherited[name] for name in INHERITED if name in inherited}
        self._tasks_dir = str(config.tasks_dir)
        self._travelling = travelling

    def directory(self, command: LaunchTask) -> str:
        """Return the directory of a task."""
        return f"{self._tasks_dir}/{marker(command.task, command.incarnation)}"

    def prepare(
        self, command: LaunchTask, deadline_boottime_s: float | None, wanted: Callable[[], bool] = lambda: True
    ) -> Prepared:
        """Make the task's directory with its ``spec.json``, as long as it is ``wanted``.

        Raises :class:`PreparationFailed`.
        """
        directory = self.directory(command)
        self._check_port(command)
        try:
            os.mkdir(directory)  # noqa: PTH102 - strings all along: this runs for every task
        except OSError as error:
            # What lies there is not this one's to clear.
            raise PreparationFailed(f"cannot prepare {directory}: {error.strerror}") from None
        try:
            return self._prepare(command, directory, deadline_boottime_s, wanted)
        except PreparationFailed:
            self._clear(directory)
            raise

    def discard(self, command: LaunchTask, prepared: Prepared) -> None:
        """Give back what a task has that is not to be started."""
        self.give_back(prepared.cpus, command.placement.cpus_milli)
        self._clear(prepared.directory)

    def _clear(self, directory: str) -> None:
        if self._travelling is not None:
            self._travelling.leave(directory)
            self._travelling.clear(directory)

    @staticmethod
    def _check_port(command: LaunchTask) -> None:
        """See that the port on which the task will listen is free."""
        try:
            port = replicadir.port_of(command)
        except replicadir.NotServable as error:
            raise PreparationFailed(str(error)) from None
        if port is not None:
            if not port_is_free(port):
                who = holder(port) or "another program"
                raise PreparationFailed(f"{PortTaken.code}: port {port} of the service is in use by {who}")
        elif command.task.rank == 0 and command.master_port and not port_is_free(command.master_port):
            raise PreparationFailed(f"the rendezvous port {command.master_port} is busy on this node")

    def _prepare(
        self, command: LaunchTask, directory: str, deadline_boottime_s: float | None, wanted: Callable[[], bool]
    ) -> Prepared:
        cpus: tuple[int, ...] | None = None
        try:
            if self._travelling is not None:
                packed = self._travelling.lay_out(command, directory, wanted)
            else:
                self._make_job_dirs(command)
                packed = Packed(self._working_directory(command, directory), self._setup(command))
            spec = self._spec(command, directory, packed)
            if deadline_boottime_s is not None:
                spec["lease"] = self._lease(command, directory, deadline_boottime_s)
            cpus = self._bound_cpus(command, spec)
            spec["cpus"] = cpus
            replicadir.lay(command, directory)
            # In place: nobody reads it before the fork server is asked. Its environment may hold secrets.
            write_file(f"{directory}/{record.SPEC}", msgspec.json.encode(spec), 0o600)
        except (ViewFailed, CorralError, Unwanted, replicadir.NotServable) as error:
            self.give_back(cpus, command.placement.cpus_milli)
            raise PreparationFailed(str(error)) from None
        except OSError as error:
            self.give_back(cpus, command.placement.cpus_milli)
            raise PreparationFailed(f"cannot prepare {error.filename or directory}: {error.strerror}") from None
        except ValueError as error:
            self.give_back(cpus, command.placement.cpus_milli)
            raise PreparationFailed(f"the task cannot be written down: {error}") from None
        return Prepared(directory, cpus)

    def give_back(self, cpus: tuple[int, ...] | None, cpus_milli: int) -> None:
        """Count the CPUs of an ended task as free."""
        if cpus is not None and self._cpus is not None:
            self._cpus.give_back(cpus, cpus_milli)

    def hold(self, cpus: tuple[int, ...] | None, cpus_milli: int) -> None:
        """Count the CPUs of a task that an earlier run of the agent started."""
        if cpus is not None and self._cpus is not None:
            self._cpus.hold(cpus, cpus_milli)

    # ---- parts of the specification --------------------------------------------------------------------------------

    def slow(self, command: LaunchTask) -> bool:
        """Return whether preparing a task takes so long that nobody may wait for it."""
        travels = self._travelling is not None and (command.files is not None or bool(command.restore))
        return travels or bool(command.file_mounts)

    def _spec(self, command: LaunchTask, directory: str, packed: Packed) -> dict[str, Any]:
        config = self._config
        env = task_environment(command, config, self.vendors, directory, self._inherited)
        return {
            "task": str(command.task),
            "incarnation": command.incarnation,
            "argv": command.argv if command.script is None else None,
            "script": command.script,
            "setup": packed.setup,
            "env": env,
            "cwd": packed.cwd,
            "log_max_bytes": config.log_max_bytes,
            "log_files": config.log_files,
            "max_duration_s": command.max_duration_s,
            "grace_s": command.grace_s,
            # The time of a replica before its SIGTERM is for the requests under way, not for a checkpoint.
            "checkpoint_signal": command.checkpoint.signal if command.checkpoint and not command.serving else None,
            "checkpoint_grace_s": command.checkpoint.grace_s if command.checkpoint is not None else 0.0,
            "cgroup": self._cgroup(command, directory),
            "memory_mib": command.placement.memory_mib or None,
            "notify": config.notify_socket,
        }

    def _setup(self, command: LaunchTask) -> dict[str, str] | None:
        if command.setup is None:
            return None
        return {"script": command.setup, "marker": str(self._config.node_dir / "setups" / setup_key(command))}

    def _cgroup(self, command: LaunchTask, directory: str) -> dict[str, Any] | None:
        if self._cgroups is None:
            return None
        placement = command.placement
        return self._cgroups.for_task(
            marker(command.task, command.incarnation),
            directory,
            memory=placement.memory_mib > 0,
            freezer=command.lease_s is not None,
            cpu_weight_milli=placement.cpus_milli or None,
            cpu_limit_milli=placement.cpus_milli or None,
        )

    def _bound_cpus(self, command: LaunchTask, spec: dict[str, Any]) -> tuple[int, ...] | None:
        """Bind a task to CPUs where no control group limits it."""
        if self._cpus is None or (spec["cgroup"] is not None and "cpu" in spec["cgroup"]):
            return None
        return self._cpus.take(command.placement.cpus_milli)

    @staticmethod
    def _lease(command: LaunchTask, directory: str, deadline_boottime_s: float) -> dict[str, Any]:
        path = f"{directory}/{LEASE}"
        write_lease(Path(path), deadline_boottime_s)
        grace_s = command.checkpoint.grace_s if command.checkpoint is not None else 0.0
        return {"path": path, "checkpoint_before_s": grace_s + LEASE_MARGIN_S, "freeze_max_s": FREEZE_MAX_S}

    # ---- directories -----------------------------------------------------------------------------------------------

    def _working_directory(self, command: LaunchTask, directory: str) -> str:
        workdir = command.workdir
        if workdir is not None and not os.path.isabs(workdir):  # noqa: PTH117 - strings all along
            raise PreparationFailed(f"the working directory {workdir!r} is not an absolute path")
        if command.file_mounts:
            build_view(Path(directory) / WORK, None if workdir is None else Path(workdir), command.file_mounts)
            return f"{directory}/{WORK}"
        return workdir if workdir is not None else f"{self._config.job_dir(command.task.job)}/output"

    def _make_job_dirs(self, command: LaunchTask) -> None:
        base = self._config.job_dir(command.task.job)
        make_dirs(base)
        own = command.checkpoint.path if command.checkpoint is not None else None
        if own is None:
            make_dirs(f"{base}/checkpoint/{command.task.gang}")
        elif os.path.isabs(own):  # noqa: PTH117 - strings all along
            make_dirs(own)
        make_dirs(f"{base}/output")


def make_dirs(path: str) -> None:
    """Make a directory and what is missing above it; most of the time it is there. Raises ``OSError``."""
    try:
        os.mkdir(path)  # noqa: PTH102 - strings all along: this runs for every task
    except FileExistsError:
        return
    except FileNotFoundError:
        make_dirs(path.rpartition("/")[0])
        make_dirs(path)
