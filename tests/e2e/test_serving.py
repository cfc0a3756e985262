"""Services on a real pool: the examples behind a real front end, killed where callers must not notice."""

from __future__ import annotations

import http.client
import json
import os
import signal
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from corral.client.client import Client
from corral.model.service_report import ReplicaReport, ServiceReport
from tests.e2e.conftest import live_pool
from tests.e2e.livepool import LivePool
from tests.unit.serving.haproxy.world import free_port
from tests.waiting import wait_until

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "service"
READY_S = 90.0
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


class Caller:
    """Calls services of a pool with a key."""

    def __init__(self, pool: LivePool, port: int) -> None:
        self.pool = pool
        self.port = port
        _, self.key = pool.client.issue_token("default", "caller", "test")

    def __call__(
        self, path: str, body: dict[str, object] | None = None, *, key: str | None = None
    ) -> tuple[int, dict[str, str], bytes]:
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)) as connection:
            headers = {"Authorization": f"Bearer {self.key if key is None else key}"}
            if body is not None:
                headers["Content-Type"] = "application/json"
            connection.request("POST" if body is not None else "GET", path, json.dumps(body) if body else None, headers)
            answer = connection.getresponse()
            return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()

    def text(self, prompt: str, **more: Any) -> dict[str, Any]:
        status, _, said = self("/v1/completions", {"model": "tiny-words", "prompt": prompt, "max_tokens": 4, **more})
        assert status == 200, said
        found: dict[str, Any] = json.loads(said)
        return found


@pytest.fixture(scope="module")
def caller() -> Iterator[Caller]:
    with live_pool() as pool:
        port = free_port()
        pool.state_dir.mkdir(parents=True, mode=0o700)
        (pool.state_dir / "config.toml").write_text(f"serve_port = {port}\nserve_metrics_port = 0\n")
        pool.up(nodes=2, gpus=4)
        yield Caller(pool, port)


def serve(client: Client, name: str, program: str, **fields: Any) -> None:
    """Bring an example out."""
    run = [sys.executable, str(EXAMPLES / program)]
    client.serve(name=name, run=run, workdir=None, startup="/health", readiness="/health", **fields)


def ready(client: Client, name: str, count: int, *, without: str = "") -> ServiceReport:
    """Wait until so many replicas are ready, none of them this job, and the front end has them."""

    def look() -> ServiceReport | None:
        report = client.service(name)
        up = sum(one.up for one in report.load.backends) if report.load is not None else 0
        gone = without not in {str(one.job) for one in report.replicas}
        return report if gone and report.ready == up == count and report.rollout is None else None

    found = wait_until(look, READY_S, 0.1, what=f"{count} replicas of {name}")
    assert found is not None
    return found


def kill(pool: LivePool, replica: ReplicaReport) -> str:
    (file,) = pool.state_dir.glob(f"nodes/*/tasks/{replica.job}.0.0.*/shim.json")
    os.kill(int(json.loads(file.read_text())["child_pid"]), signal.SIGKILL)
    return str(replica.job)


@pytest.fixture(scope="module")
def words(caller: Caller) -> Caller:
    traffic = {"balance": "prefix-affinity", "stream": True, "retry": "before_first_token"}
    envs = {"WORD_PAUSE_S": "0.2"}
    serve(caller.pool.client, "words", "text_server.py", model="tiny-words", replicas=2, traffic=traffic, envs=envs)
    ready(caller.pool.client, "words", 2)
    return caller


def test_a_model_is_found_by_its_name_and_only_with_a_key(words: Caller) -> None:
    status, _, said = words("/v1/models")
    assert (status, [one["id"] for one in json.loads(said)["data"]]) == (200, ["tiny-words"])
    assert words("/v1/completions", {"model": "tiny-words", "prompt": "x"}, key="no")[0] == 401
    assert words("/v1/completions", {"model": "huge", "prompt": "x"})[0] == 404
    assert words.text("once upon a time") == words.text("once upon a time") | {
        "id": words.text("once upon a time")["id"]
    }


def test_a_prompt_goes_to_who_has_read_its_beginning(words: Caller) -> None:
    system = "You answer in few words. " * 40
    words.text(system + "What is a corral?")
    details = [words.text(f"{system}Question {n}")["usage"]["prompt_tokens_details"] for n in range(4)]
    # 1,000 characters: three whole blocks of 256.
    assert [one["cached_tokens"] for one in details] == [768] * 4


def test_a_replica_that_dies_in_a_stream_is_told_by_an_event(words: Caller) -> None:
    with closing(http.client.HTTPConnection("127.0.0.1", words.port, timeout=120)) as connection:
        body = {"model": "tiny-words", "prompt": "tell me more", "max_tokens": 1_000, "stream": True}
        headers = {"Authorization": f"Bearer {words.key}", "Content-Type": "application/json"}
        connection.request("POST", "/v1/completions", json.dumps(body), headers)
        answer = connection.getresponse()
        assert answer.readline().startswith(b"data: {")
        busy = wait_until(
            lambda: [one for one in words.pool.client.service("words").replicas if one.load and one.load.outstanding],
            what="the replica that streams",
        )
        killed = kill(words.pool, busy[0])
        rest = answer.read()
    last = rest.rstrip().rpartition(b"\n\n")[2]
    assert last.startswith(b"event: error\ndata: ")
    assert json.loads(last.partition(b"data: ")[2])["error"]["code"] == "REPLICA_LOST"
    ready(words.pool.client, "words", 2, without=killed)


def test_a_death_before_the_first_token_costs_nobody_anything(words: Caller) -> None:
    prompts = [f"{number} " * 60_000 for number in range(8)]
    wanted = [words.text(prompt)["choices"] for prompt in prompts]
    with ThreadPoolExecutor(8) as threads:
        answers = [threads.submit(words.text, prompt) for prompt in prompts]
        killed = kill(words.pool, words.pool.client.service("words").replicas[0])
        assert [answer.result()["choices"] for answer in answers] == wanted
    ready(words.pool.client, "words", 2, without=killed)


def test_a_service_that_nobody_calls_is_not_there_and_comes_when_called(caller: Caller) -> None:
    client = caller.pool.client
    serve(client, "digits", "digits_server.py", replicas="0-1", scaling={"idle": "2s", "cold_start": "90s"})
    wait_until(lambda: client.service("digits").load, READY_S, 0.1, what="the front end to know of it")
    status, _, said = caller("/digits/predict", {"pixels": [0.0] * 64})
    assert status == 200, said
    assert set(json.loads(said)) == {"digit", "probability"}
    wait_until(lambda: not client.service("digits").replicas, READY_S, 0.1, what="nobody to serve digits")
    client.remove_service("digits")
