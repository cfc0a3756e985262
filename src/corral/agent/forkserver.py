"""The fork server: makes task shims by forking itself, in milliseconds and at most once per task directory.

``python -m corral.agent.forkserver --socket PATH``, started beside the daemon. It loads the standard library only, and
little of it, has one thread and no descriptors but its own: what it forks starts from there. Shims outlive it.

Protocol: a stream socket, one JSON object per line and direction, answers in the order of the requests.

- ``{"op": "launch", "dir": "/.../tasks/12.0.0.3"}`` -> ``{"ok": true, "pid": 4711}``
- ``{"op": "ping"}`` -> ``{"ok": true, "pid": ..., "launched": ...}``
- ``{"op": "stop"}`` -> ``{"ok": true}``, then the server ends and its shims go on
- otherwise ``{"ok": false, "code": ..., "message": ...}`` with the codes ``bad-request``, ``bad-directory``,
  ``bad-spec``, ``already-forked``, ``fork-failed`` and ``io-error``

The file ``forked`` in a task directory appears before the fork, at once locked (flock(2)), and the shim holds the lock
as long as it lives. So whoever finds ``forked`` unlocked knows: there was a shim or the machine refused one, there is
none now, and there will never be another one here.
"""
# ruff: noqa: PTH100, PTH108, PTH110, PTH117, PTH120 -- what is loaded here is copied for every task: no pathlib

from __future__ import annotations

import errno
import fcntl
import gc
import json
import os
import selectors
import signal
import socket
import struct
import sys

from corral.agent import processes
from corral.agent.shim import main as shim
from corral.agent.shim import record
from corral.agent.shim.signals import HANDLED
from corral.agent.shim.spec import SOCKET_PATH_BYTES_MAX, SPEC_BYTES_MAX, SpecError, TaskSpec, parse

LINE_BYTES_MAX = 64 << 10
_ANSWERS_BYTES_MAX = 1 << 20
_DESCRIPTORS_MAX = 1 << 20
_BACKLOG = 128


class RequestError(Exception):
    """A request that is refused, with a stable code."""

    def __init__(self, code: str, message: str) -> None:
        self.code = code
        super().__init__(message)


class Connection:
    """One client: the bytes of a line that is not complete yet, and answers that it has not taken yet."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.received = bytearray()
        self.answers = bytearray()
        self.closing = False


class ForkServer:
    """Answers requests on a listening socket until it is told to stop."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ)
        self._boot_id = processes.boot_id()
        self._launched = 0
        self._stopping = False

    def serve(self) -> None:
        """Answer until told to stop, by a request or by SIGTERM."""
        woken, wake = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._selector.register(woken, selectors.EVENT_READ)
        signal.set_wakeup_fd(wake)
        signal.signal(signal.SIGTERM, self._on_sigterm)
        while not self._stopping:
            for key, events in self._selector.select():
                if isinstance(key.data, Connection):
                    self._attend(key.data, events)
                elif key.fileobj is self._listener:
                    self._accept()

    def _on_sigterm(self, _number: int, _frame: object) -> None:
        self._stopping = True

    def _accept(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except OSError:
            # The client has gone again, or descriptors are short: it is asked again when it still waits.
            return
        sock.setblocking(False)
        _pid, uid, _gid = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        if uid not in (0, os.geteuid()):
            sock.close()
            return
        self._selector.register(sock, selectors.EVENT_READ, Connection(sock))

    def _attend(self, connection: Connection, events: int) -> None:
        """Read requests and write answers; a client that breaks the rules or goes away loses its connection."""
        try:
            if events & selectors.EVENT_READ and not connection.closing:
                self._receive(connection)
            _send(connection)
        except OSError:
            connection.answers.clear()
            connection.closing = True
        if connection.closing and not connection.answers:
            self._selector.unregister(connection.sock)
            connection.sock.close()
            return
        wanted = selectors.EVENT_WRITE if connection.answers else 0
        reading = 0 if connection.closing else selectors.EVENT_READ
        if self._selector.get_key(connection.sock).events != wanted | reading:
            self._selector.modify(connection.sock, wanted | reading, connection)

    def _receive(self, connection: Connection) -> None:
        try:
            data = connection.sock.recv(LINE_BYTES_MAX)
        except BlockingIOError:
            return
        connection.received += data
        connection.closing = not data
        while (end := connection.received.find(b"\n")) >= 0:
            line = bytes(connection.received[:end])
            del connection.received[: end + 1]
            connection.answers += json.dumps(self._answer(line)).encode() + b"\n"
        if len(connection.received) > LINE_BYTES_MAX:
            refusal = {"ok": False, "code": "bad-request", "message": f"a line is longer than {LINE_BYTES_MAX} bytes"}
            connection.answers += json.dumps(refusal).encode() + b"\n"
            connection.closing = True
        if len(connection.answers) > _ANSWERS_BYTES_MAX:
            raise ConnectionAbortedError("the client does not take its answers")

    def _answer(self, line: bytes) -> dict[str, object]:
        try:
            return {"ok": True, **self._do(json.loads(line))}
        except RequestError as error:
            return {"ok": False, "code": error.code, "message": str(error)}
        except (ValueError, RecursionError) as error:
            return {"ok": False, "code": "bad-request", "message": f"a request must be one line of JSON: {error}"}

    def _do(self, request: object) -> dict[str, object]:
        if not isinstance(request, dict):
            raise RequestError("bad-request", "a request must be an object")
        operation = request.get("op")
        if operation == "launch":
            return {"pid": self._launch(request.get("dir"))}
        if operation == "ping":
            return {"pid": os.getpid(), "launched": self._launched}
        if operation == "stop":
            self._stopping = True
            return {}
        raise RequestError("bad-request", f"unknown op {operation!r:.100}")

    def _launch(self, path: object) -> int:
        """Fork the shim of a task directory and return its pid."""
        if not isinstance(path, str) or not os.path.isabs(path) or "\0" in path:
            raise RequestError("bad-directory", "dir must be an absolute path")
        try:
            directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise RequestError("bad-directory", f"{path}: {error.strerror}") from None
        lock = -1
        try:
            spec = _read_spec(directory)
            lock = _claim(directory)
            pid = self._fork(spec, path, directory, lock)
        except OSError as error:
            raise RequestError("io-error", f"{path}: {error.strerror}") from None
        finally:
            os.close(directory)
            if lock >= 0:
                os.close(lock)
        self._launched += 1
        return pid

    def _fork(self, spec: TaskSpec, path: str, directory: int, lock: int) -> int:
        # The shim unblocks them when it can handle them: a stop that comes at once is not lost.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED)
        try:
            pid = os.fork()
            if pid == 0:
                _be_shim(spec, path, directory, lock, self._boot_id)
        except OSError as error:
            # Nothing was forked, so the directory may be tried again.
            os.unlink(record.FORKED, dir_fd=directory)
            raise RequestError("fork-failed", f"the machine refuses a process: {error.strerror}") from None
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        return pid


def _send(connection: Connection) -> None:
    try:
        sent = connection.sock.send(connection.answers, socket.MSG_NOSIGNAL) if connection.answers else 0
    except BlockingIOError:
        return
    del connection.answers[:sent]


def _read_spec(directory: int) -> TaskSpec:
    try:
        file = os.open(record.SPEC, os.O_RDONLY | os.O_CLOEXEC, dir_fd=directory)
    except OSError as error:
        raise RequestError("bad-spec", f"{record.SPEC}: {error.strerror}") from None
    try:
        raw = bytearray()
        while len(raw) <= SPEC_BYTES_MAX and (piece := os.read(file, 1 << 16)):
            raw += piece
        return parse(bytes(raw))
    except SpecError as error:
        raise RequestError("bad-spec", str(error)) from None
    finally:
        os.close(file)


def _claim(directory: int) -> int:
    """Make the file ``forked``, locked from its first moment on; return it. Only one caller ever succeeds."""
    temporary = f".{record.FORKED}.{os.getpid()}"
    file = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644, dir_fd=directory)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.link(temporary, record.FORKED, src_dir_fd=directory, dst_dir_fd=directory)
    except FileExistsError:
        os.close(file)
        raise RequestError("already-forked", "this task directory has had its shim") from None
    except OSError:
        os.close(file)
        raise
    finally:
        os.unlink(temporary, dir_fd=directory)
    return file


def _be_shim(spec: TaskSpec, path: str, directory: int, lock: int, boot_id: str) -> None:
    """Be the shim (in the child). Never returns."""
    exit_code = 1
    try:
        signal.set_wakeup_fd(-1)
        low, high = sorted((directory, lock))
        os.closerange(3, low)
        os.closerange(low + 1, high)
        os.closerange(high + 1, _DESCRIPTORS_MAX)
        os.dup2(0, 2)
        shim.live(spec, path, directory, lock, boot_id)
        exit_code = 0
    finally:
        os._exit(exit_code)


def listen(path: str) -> socket.socket:
    """Return the listening socket at ``path``, for this user only. A stale one is replaced, a live one is not.

    Raises ``OSError``: EADDRINUSE when a server answers there.
    """
    if len(os.fsencode(path)) > SOCKET_PATH_BYTES_MAX:
        raise OSError(errno.ENAMETOOLONG, f"a socket path has at most {SOCKET_PATH_BYTES_MAX} bytes: {path}")
    # Two servers that start at once would both find a stale socket: the lock lets one of them look.
    guard = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(guard, fcntl.LOCK_EX)
        if _answers(path):
            raise OSError(errno.EADDRINUSE, f"a fork server answers at {path}")
        if os.path.exists(path):
            os.unlink(path)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        mask = os.umask(0o177)
        try:
            listener.bind(path)
        finally:
            os.umask(mask)
        listener.listen(_BACKLOG)
        listener.setblocking(False)
        return listener
    finally:
        os.close(guard)


def _answers(path: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as trial:
        try:
            trial.connect(path)
        except (FileNotFoundError, ConnectionRefusedError):
            return False
    return True


def _detach() -> None:
    """Leave everything behind that was inherited, so that shims inherit nothing: descriptors, session, signals."""
    os.closerange(3, _DESCRIPTORS_MAX)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    os.close(null)
    if os.getsid(0) != os.getpid() and os.getpgrp() != os.getpid():
        os.setsid()
    os.chdir("/")
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_DFL)
    # A log beyond a file size limit is an error of write(2); children are not waited for.
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _run(path: str) -> None:
    _detach()
    listener = listen(path)
    server = ForkServer(listener)
    # Nothing that exists now is ever garbage: the collector must not touch it, for what it touches is copied.
    gc.disable()
    gc.collect()
    gc.freeze()
    try:
        server.serve()
    finally:
        os.unlink(path)


def light_command(path: str) -> tuple[list[str], dict[str, str]]:
    """Return arguments and environment of a fork server at the absolute ``path`` without site-packages.

    What those load would be copied for every task.
    """
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    command = [sys.executable, "-S", "-P", "-m", "corral.agent.forkserver", "--socket", path]
    # Symbols that the loader binds at the start need not be bound again by every fork.
    return command, {"PYTHONPATH": root, "LD_BIND_NOW": "1"}


def main(arguments: list[str]) -> int:
    """Run the fork server; return the exit code: 0 told to stop, 1 the socket cannot be had, 2 wrong usage."""
    if len(arguments) != 2 or arguments[0] != "--socket":
        sys.stderr.write("usage: python -m corral.agent.forkserver --socket PATH\n")
        return 2
    if not sys.flags.no_site:
        command, environment = light_command(os.path.abspath(arguments[1]))
        os.execve(command[0], command, environment)  # noqa: S606 -- this program itself
    try:
        _run(arguments[1])
    except OSError as error:
        sys.stderr.write(f"corral fork server: {error.strerror or error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
