"""What is no call of the API, who may call, and what the API says of itself."""

from __future__ import annotations

import json
import os
import re
import socket
from pathlib import Path
from typing import Any

import pytest

from corral.api.app import create_app
from tests.unit.api.conftest import Users, problem
from tests.unit.api.memory_pool import ADMIN, ALICE, MemoryPool
from tests.unit.api.serving import Served

SNAPSHOT = Path(__file__).with_name("openapi.json")
JSON = {"Content-Type": "application/json"}


@pytest.mark.parametrize("header", [None, "", "Bearer", "Basic YTpi", f"Token {ADMIN}", "Bearer wrong"])
def test_without_a_known_token_nobody_is_let_in(http: Users, header: str | None) -> None:
    headers = {"Authorization": header} if header is not None else {}
    for method, path in (("GET", "/v1/jobs"), ("POST", "/v1/jobs"), ("GET", "/v1/events"), ("POST", "/v1/stop")):
        response = http(None)(method, path, headers=headers)
        problem(response, 401, "UNAUTHENTICATED")
        assert response.headers["www-authenticate"] == "Bearer"


OPERATIONS = [
    (method.upper(), path)
    for path, operations in json.loads(SNAPSHOT.read_text())["paths"].items()
    for method in operations
    if path != "/v1/health"
]


@pytest.mark.parametrize("method,path", OPERATIONS, ids=" ".join)
def test_no_operation_is_there_for_nobody(http: Users, method: str, path: str) -> None:
    """Nor does it tell by another answer what is there, or whether the rest of the request is right."""
    plain = re.sub(r"\{\w+\}", "1", path)
    http(ALICE).submit({"run": "x"})
    for body in ({}, {"content": b"{}", "headers": JSON}, {"content": b"nonsense"}):
        problem(http(None)(method, plain, **body), 401, "UNAUTHENTICATED")


def test_health_needs_no_token(http: Users) -> None:
    assert http(None)("GET", "/v1/health").json() == {
        "version": "1.2.3",
        "pid": os.getpid(),
        "ok": True,
        "leads": True,
    }


def test_the_scheme_of_the_token_is_read_in_any_case(http: Users) -> None:
    assert http(None)("GET", "/v1/status", headers={"Authorization": f"bearer  {ALICE}"}).status_code == 200


@pytest.mark.parametrize(
    "path,hint",
    [("/v1/job", "/v1/jobs?"), ("/v1/nope/nope", None), ("/", None), ("/v2/jobs", "/v1/jobs?"), ("/v1/jobs/", None)],
)
def test_an_unknown_path_names_the_nearest(http: Users, path: str, hint: str | None) -> None:
    found = problem(http()("GET", path), 404, "NOT_FOUND")
    assert hint is None or hint in found["hint"]


def test_a_wrong_method_names_the_right_ones(http: Users) -> None:
    response = http()("PATCH", "/v1/jobs")
    assert problem(response, 405, "USAGE")["hint"] == "possible: GET, POST"
    assert response.headers["allow"] == "GET, POST"
    assert http()("PUT", "/v1/jobs/12").headers["allow"] == "DELETE, GET"


@pytest.mark.parametrize(
    "content,status,message",
    [
        (b"{", 400, "line 1, column 2"),
        (b'{"jobs": [', 400, "not JSON"),
        (b"\xff\xfe", 400, "UTF-8"),
        (b"NaN", 400, "NaN"),
        (b"[" * 50_000, 400, "nested"),
    ],
)
def test_what_is_not_json_is_refused(http: Users, content: bytes, status: int, message: str) -> None:
    assert message in problem(http()("POST", "/v1/jobs", content=content, headers=JSON), status, "USAGE")["message"]


@pytest.mark.parametrize("path", ["/v1/tenants", "/v1/tokens", "/v1/queues", "/v1/nodes/n0/cordon"])
@pytest.mark.parametrize("content", [b"{", b"[" * 50_000, b"\xff\xfe", b"1" * 5_000])
def test_what_is_not_json_is_refused_everywhere(http: Users, path: str, content: bytes) -> None:
    response = http()("POST", path, content=content, headers=JSON)
    assert 400 <= response.status_code < 500
    problem(response, response.status_code, response.json()["code"])


@pytest.mark.parametrize(
    "kind", [None, "text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "json"]
)
def test_a_body_that_is_not_declared_as_json_is_refused(http: Users, kind: str | None) -> None:
    headers = {"Content-Type": kind} if kind else {}
    found = problem(http()("POST", "/v1/jobs", content=b'{"jobs": [{"run": "x"}]}', headers=headers), 415, "USAGE")
    assert found["hint"] == "send Content-Type: application/json"


def test_json_may_name_its_charset(http: Users) -> None:
    headers = {"Content-Type": "Application/JSON; charset=utf-8"}
    assert http()("POST", "/v1/jobs", content=b'{"jobs": [{"run": "x"}]}', headers=headers).status_code == 201


def test_a_body_of_more_than_4_mib_is_refused_before_it_is_read(http: Users) -> None:
    body = b'{"jobs": [{"run": "' + b"x" * (10 * 1024 * 1024) + b'"}]}'
    problem(http()("POST", "/v1/jobs", content=body, headers=JSON), 413, "USAGE")


def test_a_body_of_unknown_length_is_read_up_to_4_mib(http: Users) -> None:
    def pieces(count: int) -> Any:
        yield b'{"jobs": [{"run": "true", "setup": "'
        for _ in range(count):
            yield b" " * 60_000
        yield b'"}]}'

    assert http()("POST", "/v1/jobs", content=pieces(1), headers=JSON).status_code == 201
    problem(http()("POST", "/v1/jobs", content=pieces(100), headers=JSON), 413, "USAGE")


def test_a_body_of_exactly_4_mib_is_read(http: Users) -> None:
    body = b'{"jobs": [{"run": "x"}]}'.ljust(4 * 1024 * 1024)
    assert http()("POST", "/v1/jobs", content=body, headers=JSON).status_code == 201


def test_what_is_not_http_harms_nobody(server: Served, http: Users) -> None:
    host, port = server.url.removeprefix("http://").split(":")
    for junk in (
        b"\x00\xff" * 100 + b"\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"POST /v1/jobs HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
    ):
        with socket.create_connection((host, int(port)), timeout=10) as raw:
            raw.sendall(junk)
            raw.shutdown(socket.SHUT_WR)
            while raw.recv(65536):
                pass
    assert http()("GET", "/v1/status").status_code == 200


def test_a_path_with_odd_characters_is_looked_up_and_not_there(http: Users) -> None:
    for ref in ("%00", "%2e%2e", "a%0ab", "%F0%9F%90%84", "x" * 3000, "-1", "1.2.3.4"):
        problem(http()("GET", f"/v1/jobs/{ref}"), 404, "NOT_FOUND")


# ---- the description -----------------------------------------------------------------------------------------------


def description() -> dict[str, Any]:
    return create_app(MemoryPool(), version="0").openapi()


def test_the_description_is_the_committed_one() -> None:
    """After a wanted change: `python -m tests.unit.api.test_boundary` writes it anew."""
    assert description() == json.loads(SNAPSHOT.read_text())


def test_the_description_is_served_without_a_token(http: Users) -> None:
    assert http(None)("GET", "/v1/openapi.json").json()["info"]["version"] == "1.2.3"


def test_every_operation_says_what_it_does_who_may_and_how_it_fails() -> None:
    for path, operations in description()["paths"].items():
        for method, operation in operations.items():
            where = f"{method} {path}"
            assert operation["description"], where
            assert all(response["description"] for response in operation["responses"].values()), where
            if path == "/v1/health":
                continue
            assert operation["security"] == [{"token": []}], where
            assert {"401", "500", "503"} <= set(operation["responses"]), where
            for status, response in operation["responses"].items():
                assert int(status) < 400 or "application/problem+json" in response["content"], f"{where} {status}"


def test_every_name_in_the_description_is_defined() -> None:
    text = json.dumps(description())
    defined = set(description()["components"]["schemas"])
    for reference in text.split('"$ref": "')[1:]:
        assert reference.partition('"')[0].removeprefix("#/components/schemas/") in defined


if __name__ == "__main__":
    SNAPSHOT.write_text(json.dumps(description(), indent=1, sort_keys=True) + "\n")
