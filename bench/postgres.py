"""A PostgreSQL server of its own for tests and measurements: started in a directory, stopped, killed, started again."""

from __future__ import annotations

import contextlib
import itertools
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

USER = "postgres"
READY_S = 120.0
"""After a crash a server first flushes every file that it has: a thousand for each database that tests have made."""


def binaries() -> Path | None:
    """Return the folder of the newest installed server (Debian's ``postgresql``), ``None`` when there is none."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"), key=lambda path: int(path.parts[-3]))
    if found:
        return found[-1].parent
    there = shutil.which("postgres")
    return Path(there).resolve().parent if there else None


def free_port() -> int:
    """Return a port of loopback that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Cluster:
    """One server on loopback. Started as root it runs as the user ``postgres``, for it refuses root."""

    def __init__(self, directory: Path, bin_: Path, *, host: str = "127.0.0.1", port: int | None = None) -> None:
        self._bin = bin_
        self._data = directory / "data"
        self._log = directory / "log"
        self._host = host
        self.port = port or free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self._names = itertools.count(1)
        self._demoted: dict[str, Any] = {}
        if os.geteuid() == 0:
            entry = pwd.getpwnam(USER)
            os.chown(directory, entry.pw_uid, entry.pw_gid)
            self._demoted = {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}
        self._run("initdb", "-D", str(self._data), "-A", "trust", "-U", USER, "-N", "--no-locale", "-E", "UTF8")
        settings = {
            "listen_addresses": f"'{host}'",
            "port": str(self.port),
            "unix_socket_directories": "''",
            "max_connections": "200",
            "shared_buffers": "'32MB'",
            "logging_collector": "off",
        }
        with (self._data / "postgresql.conf").open("a") as file:
            file.writelines(f"{name} = {value}\n" for name, value in settings.items())
        with (self._data / "pg_hba.conf").open("a") as file:
            file.write("host all all 0.0.0.0/0 trust\n")

    def _run(self, program: str, *arguments: str) -> None:
        done = subprocess.run(
            [self._bin / program, *arguments], capture_output=True, text=True, cwd="/", check=False, **self._demoted
        )
        if done.returncode:
            raise RuntimeError(f"{program} failed: {done.stdout}{done.stderr}")

    def start(self) -> None:
        """Start it and return when it answers."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [self._bin / "postgres", "-D", str(self._data)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                start_new_session=True,
                **self._demoted,
            )
        self.await_ready()

    def await_ready(self) -> None:
        """Return when it answers. Raises ``RuntimeError`` when it ends, or takes too long."""
        assert self._process is not None
        deadline = time.monotonic() + READY_S
        while subprocess.run(
            [self._bin / "pg_isready", "-q", "-h", self._host, "-p", str(self.port)], check=False
        ).returncode:
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the server did not start: {self._log.read_text(errors='replace')[-2000:]}")
            time.sleep(0.02)

    def stop(self, number: int = signal.SIGINT) -> None:
        """Stop it: at once but cleanly (SIGINT), or as a crash does (SIGQUIT)."""
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait(30.0)
            self._process = None

    @property
    def pid(self) -> int:
        """Return the pid of its first process."""
        assert self._process is not None
        return self._process.pid

    def url(self, database: str, port: int | None = None) -> str:
        """Return the URL of a database, through another port (a proxy's) when that is given."""
        return f"postgresql://{USER}@{self._host}:{port or self.port}/{database}"

    def database(self) -> str:
        """Make a new empty database and return its name."""
        name = f"corral_{next(self._names)}"
        self.query("postgres", f"CREATE DATABASE {name} TEMPLATE template0")
        return name

    def query(self, database: str, statement: str) -> list[tuple[Any, ...]]:
        """Run a statement in a database and return its rows."""
        import psycopg

        with psycopg.connect(self.url(database), autocommit=True) as connection:
            found = connection.execute(statement)
            return list(found.fetchall()) if found.description else []


@contextlib.contextmanager
def running() -> Iterator[Cluster]:
    """Give a running server in a temporary directory; it ends with the block. Needs ``binaries()``."""
    bin_ = binaries()
    if bin_ is None:
        raise RuntimeError("there is no PostgreSQL server: apt-get install postgresql")
    with tempfile.TemporaryDirectory(prefix="corral-pg-", ignore_cleanup_errors=True) as directory:
        Path(directory).chmod(0o711)
        cluster = Cluster(Path(directory), bin_)
        cluster.start()
        try:
            yield cluster
        finally:
            cluster.stop(signal.SIGQUIT)
