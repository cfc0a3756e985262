"""Starting the user's process (or the setup script): fork, a clean surrounding, exec."""
# ruff: noqa: PTH118 -- a shim is forked from a process that never loads pathlib

from __future__ import annotations

import errno
import os
import resource
import signal
from typing import NamedTuple

from corral.agent.shim import linux, record
from corral.agent.shim.signals import HANDLED
from corral.agent.shim.spec import TaskSpec
from corral.agent.shim.task_cgroup import TaskCgroup

# Linux refuses a single argument of 128 KiB (MAX_ARG_STRLEN); a script near that goes through a file.
_SCRIPT_ARGUMENT_BYTES_MAX = 100_000
_EXIT_NOT_FOUND = 127
_EXIT_NOT_EXECUTABLE = 126
_MESSAGE_BYTES_MAX = 4096


class Child(NamedTuple):
    """A process that was forked. ``exec_pipe`` ends when it has executed its program, or brings a :class:`Failure`."""

    pid: int
    exec_pipe: int


class Failure(NamedTuple):
    """Why a program could not be executed. ``exit_code`` is what a shell would say: 127 not found, 126 otherwise."""

    exit_code: int
    message: str


class Surrounding(NamedTuple):
    """What a child gets besides its arguments. ``keep``: a descriptor that stays open in it."""

    spec: TaskSpec
    task_dir: str
    output: int
    cgroup: TaskCgroup | None
    keep: int | None = None
    cwd: str | None = None


def shell_command(script: str, env: dict[str, str], file: str) -> list[str]:
    """Return the command that runs a script: ``bash -c``, or ``sh -c`` where the task's PATH has no bash.

    A script too long for an argument is written to ``file``.
    """
    shell = "bash" if _on_path("bash", env) else "sh"
    raw = os.fsencode(script)
    if len(raw) <= _SCRIPT_ARGUMENT_BYTES_MAX:
        return [shell, "-c", script]
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
    descriptor = os.open(file, flags, 0o644)
    try:
        while raw:
            raw = raw[os.write(descriptor, raw) :]
    finally:
        os.close(descriptor)
    return [shell, file]


def command(spec: TaskSpec, task_dir: str) -> list[str]:
    """Return the command of the task."""
    if spec.argv is not None:
        return list(spec.argv)
    return shell_command(spec.script or "", spec.env, f"{task_dir}/{record.SCRIPT}")


def _on_path(program: str, env: dict[str, str]) -> bool:
    return any(os.access(os.path.join(entry, program), os.X_OK) for entry in os.get_exec_path(env))


def start(arguments: list[str], surrounding: Surrounding) -> Child:
    """Fork a process that executes ``arguments``. Raises ``OSError`` when the machine has no room for a process."""
    receiver, sender = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    parent = os.getpid()
    # No handler of the shim may run in the child.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED)
    try:
        pid = os.fork()
    except OSError:
        os.close(receiver)
        os.close(sender)
        raise
    else:
        if pid == 0:
            _become(arguments, surrounding, parent, sender)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    os.close(sender)
    return Child(pid, receiver)


def _become(arguments: list[str], surrounding: Surrounding, parent: int, sender: int) -> None:
    """Become the program (in the child). Never returns."""
    failure = Failure(_EXIT_NOT_EXECUTABLE, "cannot execute")
    try:
        _prepare(surrounding, parent)
        spec = surrounding.spec._replace(cwd=surrounding.cwd or surrounding.spec.cwd)
        failure = _execute(arguments, spec, surrounding.task_dir)
    except OSError as error:
        failure = Failure(_EXIT_NOT_EXECUTABLE, f"cannot start: {error.strerror or error}")
    except ValueError as error:
        # What setrlimit(2) refuses.
        failure = Failure(_EXIT_NOT_EXECUTABLE, f"cannot start: {error}")
    finally:
        # Also for what nobody expects: a child must never go on as a second shim.
        os.write(sender, f"{failure.exit_code} {failure.message}".encode(errors="replace")[:_MESSAGE_BYTES_MAX])
        os._exit(failure.exit_code)


def _prepare(surrounding: Surrounding, parent: int) -> None:
    linux.die_with_parent()
    if os.getppid() != parent:
        os._exit(_EXIT_NOT_EXECUTABLE)
    os.setsid()
    if surrounding.cgroup is not None:
        surrounding.cgroup.enter()
    os.umask(surrounding.spec.umask)
    for number, soft, hard in surrounding.spec.rlimits:
        resource.setrlimit(number, (soft, hard))
    os.dup2(surrounding.output, 1)
    os.dup2(surrounding.output, 2)
    if surrounding.keep is not None:
        os.set_inheritable(surrounding.keep, True)
    # What came for this process while it was blocked takes effect when it is let through, not in the shim's handler.
    for number in HANDLED:
        signal.signal(number, signal.SIG_DFL)
    # Caught signals become default by exec; one that is ignored would stay ignored.
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _execute(arguments: list[str], spec: TaskSpec, task_dir: str) -> Failure:
    """Change the directory and execute; return why that failed."""
    program = arguments[0]
    try:
        os.chdir(spec.cwd)
    except OSError as error:
        if error.errno == errno.ENOENT:
            return Failure(_EXIT_NOT_EXECUTABLE, f"the working directory does not exist: {spec.cwd}")
        return Failure(_EXIT_NOT_EXECUTABLE, f"cannot enter the working directory {spec.cwd}: {error.strerror}")
    # Whatever the agent gave: by these two the processes of a task are found when its shim was killed.
    environment = {**spec.env, "CORRAL_TASK": spec.marker, "CORRAL_TASK_DIR": task_dir}
    try:
        os.execvpe(program, arguments, environment)  # noqa: S606 -- a program and its arguments, no shell
    except OSError as error:
        return _explain(program, error)


def _explain(program: str, error: OSError) -> Failure:
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        if "/" in program and os.access(program, os.F_OK):
            return Failure(_EXIT_NOT_FOUND, f"the interpreter that {program} names in its first line does not exist")
        return Failure(_EXIT_NOT_FOUND, f"command not found: {program}")
    if error.errno == errno.ENOEXEC:
        return Failure(_EXIT_NOT_EXECUTABLE, f"{program} is neither a program nor a script that begins with #!")
    if error.errno == errno.E2BIG:
        return Failure(_EXIT_NOT_EXECUTABLE, f"arguments and environment of {program} are too long for this system")
    return Failure(_EXIT_NOT_EXECUTABLE, f"cannot execute {program}: {error.strerror}")


def exec_result(child: Child) -> Failure | None:
    """Return why the child could not execute, ``None`` when it did. To be asked when ``exec_pipe`` is readable."""
    try:
        raw = os.read(child.exec_pipe, _MESSAGE_BYTES_MAX)
    except BlockingIOError:
        raw = b""
    if not raw:
        return None
    code, _, message = raw.decode(errors="replace").partition(" ")
    return Failure(int(code), message)
