"""How many jobs per second a pool admits while many wait: real HTTP, journaled, eight client processes."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from bench.pool import Pool
from bench.progress import say
from corral.client import Client
from corral.client.fields import ask_of_keywords

CLIENTS = 8
BATCH = 500
BLOCKER = ("sleep", "3600")
NOOP = ("/bin/true",)
BEGIN_MAX_S = 60.0
"""Clients wait for each other so long at most: one that fails before must not hold up the others for ever."""


def measure_admissions(pending: int, submissions: int) -> dict[str, float]:
    """Return the admissions per second of ``submissions`` single submits while ``pending`` jobs wait.

    All devices are held by one job, so that nothing starts meanwhile. The clock runs from the first call of the first
    client to the last answer of the last one; an answer means that the job is in the journal, synced to disk. The CPU
    time of the daemon per admission says what one core could do where the clients do not share it.
    """
    with Pool() as pool:
        with pool.client() as client:
            client.submit(run=BLOCKER, gpus=8, num_nodes=4)
            waiting = ask_of_keywords({"run": list(NOOP), "gpus": 1})
            for first in range(0, pending, BATCH):
                client.submit_all([waiting] * min(BATCH, pending - first))
            say(f"{pending} jobs are pending")
        spawn = multiprocessing.get_context("spawn")
        each = submissions // CLIENTS
        with ProcessPoolExecutor(CLIENTS, mp_context=spawn) as workers, spawn.Manager() as manager:
            barrier = manager.Barrier(CLIENTS, timeout=BEGIN_MAX_S)
            before = daemon_cpu_s(pool.state_dir)
            work = [workers.submit(_submit, str(pool.state_dir), each, barrier) for _ in range(CLIENTS)]
            spans = [one.result() for one in work]
            cpu_ms = (daemon_cpu_s(pool.state_dir) - before) / (each * CLIENTS) * 1e3
        rate = per_second(spans, each)
        say(f"{each * CLIENTS} admissions by {CLIENTS} clients: {rate:.0f}/s, {cpu_ms:.2f} ms CPU of the daemon each")
    return {"admissions_per_s": round(rate, 1), "admission_cpu_ms": round(cpu_ms, 3)}


def daemon_cpu_s(state_dir: Path) -> float:
    """Return the CPU seconds of the daemon of a pool, 0 where the system has no ``/proc``."""
    words = ("corral.runtime.daemon", str(state_dir))
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_text()
            if all(word in command for word in words):
                fields = (process / "stat").read_text().rsplit(")", 1)[1].split()
                return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        except (OSError, UnicodeDecodeError):
            continue
    return 0.0


def per_second(spans: Sequence[tuple[float, float]], each: int) -> float:
    """Return the rate over the time from the first begin to the last end of clients that did ``each`` calls."""
    return each * len(spans) / (max(end for _, end in spans) - min(begin for begin, _ in spans))


def _submit(state_dir: str, count: int, barrier: object) -> tuple[float, float]:
    with Client(state_dir=state_dir) as client:
        client.submit(run=NOOP, gpus=1)
        barrier.wait()  # type: ignore[attr-defined]  # a proxy of multiprocessing
        begin = time.monotonic()
        for _ in range(count):
            client.submit(run=NOOP, gpus=1)
        return begin, time.monotonic()
