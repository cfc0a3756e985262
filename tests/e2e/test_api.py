"""Clients that repeat themselves over a restart, or leave in the middle of a request."""

from __future__ import annotations

import json
import socket
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from corral.model.errors import IdempotencyMismatch
from corral.model.job import JobState
from tests.e2e.livepool import LivePool, kill
from tests.waiting import wait_until

LEAVERS = 40


def test_an_idempotency_key_holds_over_a_restart_of_the_daemon(pool: LivePool) -> None:
    pool.up()
    waits = pool.submit(["true"], num_nodes=2, gpus=2, idempotency_key="waits", max_duration="1m")
    ended = pool.submit(["echo", "once"], idempotency_key="ended")
    assert pool.result(ended).state is JobState.SUCCEEDED
    for how in ("killed", "stopped"):
        if how == "killed":
            kill(pool.daemon())
        else:
            pool.down(force=True)
            pool.up()
        assert pool.submit(["echo", "once"], idempotency_key="ended").id == ended.id
        again = pool.submit(["true"], num_nodes=2, gpus=2, idempotency_key="waits", max_duration="1m")
        assert again.id == waits.id
        with pytest.raises(IdempotencyMismatch):
            pool.submit(["echo", "twice"], idempotency_key="ended")
    assert pool.result(waits).state is JobState.SUCCEEDED
    assert len(pool.client.jobs(finished=True).jobs) == 2


def descriptors(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def test_clients_that_leave_in_the_middle_of_a_request_harm_nobody(shared: LivePool) -> None:
    daemon, url = shared.daemon(), urlsplit(shared.client.status().url)
    token = (shared.state_dir / "token").read_text().strip()
    job = shared.submit(["sleep", "600"])
    shared.started(job)
    before = descriptors(daemon)
    body = json.dumps({"jobs": [{"run": ["true"]}]})
    head = f"Host: x\r\nAuthorization: Bearer {token}\r\n"
    post = f"POST /v1/jobs HTTP/1.1\r\n{head}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    requests = [
        post,
        f"{post}\r\n{body[:10]}",
        f"{post}Idempotency-Key: left\r\n\r\n{body}",
        f"GET /v1/jobs/{job.id}/wait?timeout_s=600 HTTP/1.1\r\n{head}\r\n",
        f"GET /v1/jobs/{job.id}/log?follow=true HTTP/1.1\r\n{head}\r\n",
        f"GET /v1/events?after_seq=0 HTTP/1.1\r\n{head}\r\n",
        "GET / HTTP/1.1\r\nHost:",
        "\x16\x03\x01\x02\x00\x01\x00",
    ]
    with ExitStack() as open_links:
        for number in range(LEAVERS):
            link = open_links.enter_context(socket.create_connection((url.hostname, url.port)))
            link.sendall(requests[number % len(requests)].encode())
        assert shared.client.status().pid == daemon
        wait_until(lambda: descriptors(daemon) >= before + LEAVERS // 2, what="the daemon to see them")
    # Whoever sent a whole request may have left a job behind, but one at most: its key says so.
    wait_until(lambda: descriptors(daemon) <= before + 2, 20.0, what="the daemon to let them go")
    rows = shared.client.jobs(finished=True, limit=1_000).jobs
    assert len([row for row in rows if int(row.id) > int(job.id)]) <= 1
    assert shared.client.status().pid == daemon
    assert shared.output(["echo", "well"]) == "well\n"
    job.cancel()
