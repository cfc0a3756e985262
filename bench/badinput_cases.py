"""Bad job files, flags and API calls, each with the code that it must be answered with."""

from __future__ import annotations

import json
from typing import NamedTuple

MIB = 1024 * 1024
JSON = {"Content-Type": "application/json"}


class FileCase(NamedTuple):
    """A job file for ``corral submit``."""

    name: str
    data: bytes
    code: str


class FlagCase(NamedTuple):
    """A command line; ``@`` stands for a good job file."""

    name: str
    arguments: tuple[str, ...]
    code: str


class CallCase(NamedTuple):
    """A call of the API. ``token`` is the local admin's unless it is given (empty: none)."""

    name: str
    method: str
    path: str
    status: int
    code: str
    body: bytes | None = None
    headers: dict[str, str] = JSON
    token: str | None = None


def _bomb() -> bytes:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 9)]
    return "\n".join(lines).encode()


def _chain(name: str, after: str) -> str:
    return f"name: {name}\nrun: 'true'\nafter: {after}\n"


JOINING = json.dumps(
    {"node": "n1", "machine": "m", "versions": {"corral": "1", "python": "3.11", "ray": "2"}, "clock": 0.0}
).encode()
FILES = (
    FileCase("an empty file", b"", "MISSING_FIELD"),
    FileCase("binary garbage", bytes(range(256)) * 16, "JOB_FILE_UNREADABLE"),
    FileCase("bytes that are not UTF-8", b"run: 'true'\nname: \xff\xfe\n", "JOB_FILE_UNREADABLE"),
    FileCase("a file of 10 MB", b"run: 'true'\n# " + b"x" * (10 * MIB), "JOB_FILE_UNREADABLE"),
    FileCase("text that is not YAML", b"run: [true\nname: }\n", "JOB_FILE_UNREADABLE"),
    FileCase("a file that aliases blow up", _bomb(), "JOB_FILE_UNREADABLE"),
    FileCase("lists nested 10,000 deep", b"[" * 10_000, "JOB_FILE_UNREADABLE"),
    FileCase("a tag that would run code", b"run: !!python/object/apply:os.system ['true']\n", "INVALID_FIELD"),
    FileCase("a list instead of a job", b"- run: 'true'\n", "INVALID_FIELD"),
    FileCase("an unknown field", b"run: 'true'\nnum_node: 2\n", "UNKNOWN_FIELD"),
    FileCase("an unknown field of resources", b"run: 'true'\nresources: {accelerator: 1}\n", "UNKNOWN_FIELD"),
    FileCase("no command", b"name: a\n", "MISSING_FIELD"),
    FileCase("text for a number", b"run: 'true'\nnum_nodes: two\n", "INVALID_FIELD"),
    FileCase("a number for text", b"run: 'true'\nqueue: 7\n", "INVALID_FIELD"),
    FileCase("a list for a mapping", b"run: 'true'\nenvs: [A, B]\n", "INVALID_FIELD"),
    FileCase("a negative number of nodes", b"run: 'true'\nnum_nodes: -1\n", "INVALID_FIELD"),
    FileCase("negative devices", b"run: 'true'\nresources: {accelerators: -4}\n", "INVALID_FIELD"),
    FileCase("one and a half devices", b"run: 'true'\nresources: {accelerators: 1.5}\n", "INVALID_FIELD"),
    FileCase("a huge number", b"run: 'true'\nnum_nodes: 1" + b"0" * 400 + b"\n", "INVALID_FIELD"),
    FileCase("an infinite duration", b"run: 'true'\nmax_duration: .inf\n", "INVALID_FIELD"),
    FileCase("an ambiguous duration", b"run: 'true'\nmax_duration: 1:30\n", "INVALID_FIELD"),
    FileCase("memory in words", b"run: 'true'\nresources: {memory: plenty}\n", "INVALID_FIELD"),
    FileCase("an array of a billion", b"run: 'true'\narray: 0-999999999\n", "INVALID_FIELD"),
    FileCase("a sweep of 10^8 points", b"run: 'true'\nsweep:\n" + b"".join(
        b"  P%d: [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]\n" % i for i in range(8)
    ), "INVALID_FIELD"),
    FileCase("the same key twice", b"run: 'true'\nname: a\nname: b\n", "DUPLICATE_NAME"),
    FileCase("two jobs of one name", b"name: a\nrun: 'true'\n---\nname: a\nrun: 'true'\n", "DUPLICATE_NAME"),
    FileCase("a job after itself", _chain("a", "a").encode(), "DEPENDENCY_CYCLE"),
    FileCase("a circle of three", "---\n".join(map(_chain, "abc", "bca")).encode(), "DEPENDENCY_CYCLE"),
    FileCase("after a job that is not there", b"run: 'true'\nafter: nobody\n", "UNKNOWN_DEPENDENCY"),
    FileCase("a missing workdir", b"run: 'true'\nworkdir: ./no/such/place\n", "PATH_NOT_FOUND"),
    FileCase("a missing source of a mount", b"run: 'true'\nfile_mounts: {a: ./no-such-file}\n", "PATH_NOT_FOUND"),
    FileCase("a mount outside the task", b"run: 'true'\nfile_mounts: {../../etc/x: /etc/hosts}\n", "PATH_UNSAFE"),
    FileCase("an absolute mount", b"run: 'true'\nfile_mounts: {/etc/passwd: /etc/hostname}\n", "PATH_UNSAFE"),
    FileCase("a variable of corral's own", b"run: 'true'\nenvs: {CORRAL_JOB: '1'}\n", "INVALID_FIELD"),
    FileCase("more devices than a node has", b"run: 'true'\nresources: {accelerators: 64}\n", "UNSCHEDULABLE"),
    FileCase("too many nodes", b"run: 'true'\nnum_nodes: 99\nresources: {accelerators: 4}\n", "UNSCHEDULABLE"),
    FileCase("a device that nobody has", b"run: 'true'\nresources: {accelerators: B999:1}\n", "UNSCHEDULABLE"),
    FileCase("more than the quota", b"run: 'true'\ntenant: small\nresources: {accelerators: 2}\n", "QUOTA_EXCEEDED"),
    FileCase("sizes that count backwards", b"run: 'true'\nnum_gpus: 8-2\n", "INVALID_FIELD"),
    FileCase("sizes that are shares", b"run: 'true'\nnum_gpus: [0.5, 1]\n", "INVALID_FIELD"),
    FileCase("two things that vary", b"run: 'true'\nnum_gpus: 1-4\nnum_nodes: 1-2\n", "INVALID_FIELD"),
    FileCase("no work at all", b"run: 'true'\nwork: {total: -1}\n", "INVALID_FIELD"),
    FileCase("a proposer without a function", b"run: 'true'\nappmaster: mine\n", "INVALID_FIELD"),
    FileCase("an option that sbatch does not have", b"#!/bin/bash\n#SBATCH --nodez=2\ntrue\n", "UNKNOWN_FIELD"),
    FileCase("a time limit that is none", b"#!/bin/bash\n#SBATCH --time=soon\ntrue\n", "INVALID_FIELD"),
)  # fmt: skip

FLAGS = (
    FlagCase("an unknown flag", ("run", "--gpuz", "1", "--", "true"), "USAGE"),
    FlagCase("an unknown command", ("frobnicate",), "USAGE"),
    FlagCase("a flag without its value", ("run", "--gpus"), "USAGE"),
    FlagCase("no command to run", ("run", "--gpus", "1"), "MISSING_FIELD"),
    FlagCase("devices in words", ("run", "--gpus", "two", "--", "true"), "INVALID_FIELD"),
    FlagCase("negative devices", ("run", "--gpus", "-1", "--", "true"), "INVALID_FIELD"),
    FlagCase("no nodes", ("run", "--nodes", "0", "--", "true"), "INVALID_FIELD"),
    FlagCase("an array that counts backwards", ("run", "--array", "5-1", "--", "true"), "INVALID_FIELD"),
    FlagCase("a duration in words", ("run", "--max-duration", "soon", "--", "true"), "INVALID_FIELD"),
    FlagCase("a variable that is none", ("run", "--env", "1A=x", "--", "true"), "INVALID_FIELD"),
    FlagCase("a workdir that is not there", ("run", "--workdir", "/no/such/place", "--", "true"), "PATH_NOT_FOUND"),
    FlagCase("more devices than there are", ("run", "--gpus", "4096", "--", "true"), "UNSCHEDULABLE"),
    FlagCase("after a job that is not there", ("run", "--after", "nobody", "--", "true"), "UNKNOWN_DEPENDENCY"),
    FlagCase("one name for a bad priority", ("submit", "@", "--priority", "high"), "INVALID_FIELD"),
    FlagCase("a file that is not there", ("submit", "no-such-file.yaml"), "JOB_FILE_UNREADABLE"),
    FlagCase("a directory instead of a file", ("submit", "."), "JOB_FILE_UNREADABLE"),
    FlagCase("joining without a token", ("join", "10.0.0.1"), "MISSING_FIELD"),
    FlagCase("a token file that is not there", ("join", "10.0.0.1", "--token-file", "no-such-file"), "INVALID_FIELD"),
    FlagCase("a name for no node", ("head", "--no-node", "--name", "n1"), "USAGE"),
    FlagCase("a name that no node may have", ("head", "--host", "127.0.0.1", "--name", "a/b"), "INVALID_FIELD"),
    FlagCase("a password that all could read", ("head", "--store", "postgresql://a:b@c/d"), "INVALID_FIELD"),
    FlagCase("nothing to plan", ("plan",), "MISSING_FIELD"),
    FlagCase("a weight that is none", ("plan", "--weigh", "small=heavy"), "INVALID_FIELD"),
    FlagCase("nothing to simulate", ("sim",), "MISSING_FIELD"),
    FlagCase("a trace that is not there", ("sim", "run", "no-such.jsonl", "-c", "4xH100"), "TRACE_UNREADABLE"),
    FlagCase("a cluster that is none", ("sim", "run", "@", "-c", "0xH100"), "INVALID_FIELD"),
    FlagCase("a limit below one", ("ps", "--limit", "-3"), "USAGE"),
)


def _jobs(*jobs: object) -> bytes:
    return json.dumps({"jobs": jobs}).encode()


def _submit(name: str, status: int, code: str, body: bytes, headers: dict[str, str] = JSON) -> CallCase:
    return CallCase(name, "POST", "/v1/jobs", status, code, body, headers)


_PLAIN = {"Content-Type": "text/plain"}
_LONG_KEY = {**JSON, "Idempotency-Key": "k" * 999}
_HUGE = b'{"jobs": [{"run": "x", "num_nodes": 1' + b"0" * 400 + b"}]}"

CALLS = (
    CallCase("no token", "GET", "/v1/jobs", 401, "UNAUTHENTICATED", token=""),
    CallCase("a wrong token", "GET", "/v1/jobs", 401, "UNAUTHENTICATED", token="x" * 43),
    CallCase("a path that is not there", "GET", "/v1/job", 404, "NOT_FOUND"),
    CallCase("a way out of the path", "GET", "/v1/jobs/%2e%2e%2f%2e%2e%2fetc", 404, "NOT_FOUND"),
    CallCase("a job that is not there", "GET", "/v1/jobs/999999999", 404, "NOT_FOUND"),
    CallCase("a job by binary garbage", "GET", "/v1/jobs/%00%ff%0a", 404, "NOT_FOUND"),
    CallCase("a wrong method", "PATCH", "/v1/jobs", 405, "USAGE"),
    CallCase("joining without a clock", "POST", "/v1/join", 422, "MISSING_FIELD", b'{"node": "n1", "machine": "m"}'),
    CallCase("joining a pool of one machine", "POST", "/v1/join", 409, "CONFLICT", JOINING),
    CallCase("a node that leaves no pool", "POST", "/v1/nodes/n1/leave", 409, "CONFLICT"),
    _submit("half a JSON text", 400, "USAGE", b'{"jobs": ['),
    _submit("binary garbage", 400, "USAGE", bytes(range(256))),
    _submit("lists nested 100,000 deep", 400, "USAGE", b"[" * 100_000),
    _submit("not a number", 400, "USAGE", b'{"jobs": NaN}'),
    _submit("a body of 10 MB", 413, "USAGE", _jobs({"run": "x" * 10 * MIB})),
    _submit("a body that is not JSON by its header", 415, "USAGE", _jobs({"run": "true"}), _PLAIN),
    _submit("no jobs", 422, "INVALID_FIELD", _jobs()),
    _submit("a job that is a number", 422, "INVALID_FIELD", _jobs(5)),
    _submit("1,001 jobs", 422, "INVALID_FIELD", _jobs(*[{"run": "true"}] * 1_001)),
    _submit("an unknown field", 422, "UNKNOWN_FIELD", _jobs({"run": "true", "gpus": 1})),
    _submit("no command", 422, "MISSING_FIELD", _jobs({})),
    _submit("a key twice", 422, "DUPLICATE_NAME", b'{"jobs": [{"run": "true", "run": "false"}]}'),
    _submit("a NUL byte", 422, "INVALID_FIELD", _jobs({"run": "a\0b"})),
    _submit("half a character", 422, "INVALID_FIELD", b'{"jobs": [{"run": "\\ud800"}]}'),
    _submit("a script of a megabyte", 422, "INVALID_FIELD", _jobs({"run": "x" * MIB})),
    _submit("a number of 400 digits", 422, "INVALID_FIELD", _HUGE),
    _submit("a mount outside the task", 422, "PATH_UNSAFE", _jobs({"run": "x", "file_mounts": {"../a": "/etc/hosts"}})),
    _submit("a relative workdir", 422, "INVALID_FIELD", _jobs({"run": "x", "workdir": "here"})),
    _submit("a circle", 422, "DEPENDENCY_CYCLE", _jobs({"run": "x", "name": "a", "after": "a"})),
    _submit("more nodes than there are", 422, "UNSCHEDULABLE", _jobs({"run": "x", "num_nodes": 9_999})),
    _submit("more than the quota", 422, "QUOTA_EXCEEDED",
            _jobs({"run": "x", "tenant": "small", "resources": {"accelerators": 2}})),
    _submit("a tenant that is not there", 404, "NOT_FOUND", _jobs({"run": "x", "tenant": "nobody"})),
    _submit("a key that is too long", 422, "INVALID_FIELD", _jobs({"run": "x"}), _LONG_KEY),
    CallCase("a parameter that is not there", "GET", "/v1/jobs?limt=5", 422, "UNKNOWN_FIELD"),
    CallCase("a parameter that is no number", "GET", "/v1/jobs?limit=many", 422, "INVALID_FIELD"),
    CallCase("hours that are no numbers", "GET", "/v1/usage?since=nan&until=inf", 422, "INVALID_FIELD"),
    CallCase("an event that is none", "GET", "/v1/events", 422, "INVALID_FIELD", None, {"Last-Event-ID": "x"}),
    CallCase("a tenant without a name", "POST", "/v1/tenants", 422, "MISSING_FIELD", b"{}"),
    CallCase("a tenant of negative weight", "POST", "/v1/tenants", 422, "INVALID_FIELD", b'{"id": "x", "weight": -1}'),
    CallCase("a tenant that is there", "POST", "/v1/tenants", 422, "DUPLICATE_NAME", b'{"id": "small"}'),
    CallCase("a queue whose name is a number", "POST", "/v1/queues", 422, "INVALID_FIELD", b'{"name": "12"}'),
    CallCase("a role that is none", "POST", "/v1/tokens", 422, "INVALID_FIELD", b'{"tenant": "small", "role": "king"}'),
    CallCase("a node that is not there", "POST", "/v1/nodes/n99/cordon", 404, "NOT_FOUND", b"{}"),
    CallCase("a plan for a node that is not there", "POST", "/v1/plan", 404, "NOT_FOUND", b'{"drain": ["n99"]}'),
    CallCase("a plan of nothing", "POST", "/v1/plan", 400, "USAGE", b"{}"),
    CallCase("a ledger of no hours", "GET", "/v1/ledger?hours=0", 422, "INVALID_FIELD"),
)  # fmt: skip
