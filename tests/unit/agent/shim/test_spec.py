from __future__ import annotations

import json
import resource
import signal
from typing import Any

import pytest

from corral.agent.shim.spec import LeaseSpec, SetupSpec, SpecError, parse

PLAIN: dict[str, Any] = {"task": "12.0.0", "incarnation": 3, "argv": ["true"], "env": {}, "cwd": "/"}


def test_a_plain_spec_gets_defaults() -> None:
    spec = parse(json.dumps(PLAIN).encode())
    assert (spec.task, spec.incarnation, spec.marker) == ("12.0.0", 3, "12.0.0.3")
    assert (spec.argv, spec.script, spec.setup, spec.lease, spec.cgroup) == (("true",), None, None, None, None)
    assert (spec.log_max_bytes, spec.log_files) == (64 << 20, 4)
    assert (spec.grace_s, spec.orphan_grace_s, spec.max_duration_s) == (10.0, 2.0, None)
    assert (spec.umask, spec.oom_score_adj, spec.notify, spec.memory_mib, spec.cpus) == (0o022, 0, None, None, None)


def test_every_field_is_read() -> None:
    full = {
        **PLAIN,
        "argv": None,
        "script": "echo",
        "setup": {"script": "pip", "marker": "/m"},
        "env": {"A": "b=c", "E": ""},
        "log_max_bytes": 5,
        "log_files": 2,
        "max_duration_s": 1.5,
        "grace_s": 0.5,
        "checkpoint_signal": "USR2",
        "lease": {"path": "/l", "checkpoint_before_s": 10, "freeze_max_s": 3600},
        "cpus": [0, 3],
        "cgroup": {"name": "n", "memory": [2, "/g"], "cpu_weight_milli": 1500, "cpu_limit_milli": None},
        "memory_mib": 512,
        "notify": "/n",
        "oom_score_adj": -5,
        "umask": 0o077,
        "rlimits": {"NOFILE": [64, -1]},
    }
    spec = parse(json.dumps(full).encode())
    assert spec.setup == SetupSpec("pip", "/m")
    assert spec.lease == LeaseSpec("/l", 10.0, 3600.0)
    assert spec.env == {"A": "b=c", "E": ""}
    assert (spec.orphan_grace_s, spec.checkpoint_signal, spec.cpus) == (0.5, signal.SIGUSR2, (0, 3))
    assert spec.cgroup == {
        "name": "n", "memory": [2, "/g"], "cpu_weight_milli": 1500, "cpu_limit_milli": None
    }  # fmt: skip
    assert (spec.memory_mib, spec.notify, spec.oom_score_adj, spec.umask) == (512, "/n", -5, 0o077)
    assert spec.rlimits == ((resource.RLIMIT_NOFILE, 64, resource.RLIM_INFINITY),)


def test_names_that_are_no_unicode_survive() -> None:
    spec = parse(json.dumps({**PLAIN, "cwd": "/\udcff", "argv": ["\udcfe"]}).encode())
    assert (spec.cwd, spec.argv) == ("/\udcff", ("\udcfe",))


@pytest.mark.parametrize(
    "change, message",
    [
        ({"task": None}, "task must be a string without NUL"),
        ({"incarnation": -1}, "incarnation must be an integer from 0"),
        ({"incarnation": True}, "incarnation must be an integer from 0"),
        ({"incarnation": 1.5}, "incarnation must be an integer from 0"),
        ({"argv": None}, "exactly one of argv and script must be given"),
        ({"script": "x"}, "exactly one of argv and script must be given"),
        ({"argv": []}, "argv must begin with the name of a program"),
        ({"argv": [""]}, "argv must begin with the name of a program"),
        ({"argv": ["a", 5]}, "argv must be a list of strings without NUL"),
        ({"argv": "true"}, "argv must be a list of strings without NUL"),
        ({"argv": ["a\0b"]}, "argv must be a list of strings without NUL"),
        ({"env": None}, "env must be an object"),
        ({"env": {"A": 1}}, "env: 'A' is not a variable that a process can have"),
        ({"env": {"": "x"}}, "env: '' is not a variable"),
        ({"env": {"A=B": "x"}}, "env: 'A=B' is not a variable"),
        ({"env": {"A": "\0"}}, "env: 'A' is not a variable"),
        ({"cwd": "relative"}, "cwd must be an absolute path"),
        ({"cwd": 5}, "cwd must be a string"),
        ({"setup": []}, "setup must be an object"),
        ({"setup": {"script": "x", "marker": "m"}}, "setup.marker must be an absolute path"),
        ({"setup": {"script": "x", "marker": "/m", "more": 1}}, "unknown field setup.more"),
        ({"log_max_bytes": 0}, "log_max_bytes must be an integer from 1"),
        ({"log_files": 0}, "log_files must be an integer from 1"),
        ({"max_duration_s": -1}, "max_duration_s must be a number that is not negative"),
        ({"grace_s": "5"}, "grace_s must be a number"),
        ({"grace_s": float("nan")}, "grace_s must be a number"),
        ({"grace_s": float("inf")}, "grace_s must be a number"),
        ({"checkpoint_signal": "NOPE"}, "checkpoint_signal: 'NOPE' is no signal of this system"),
        ({"checkpoint_signal": 10}, "checkpoint_signal: 10 is no signal"),
        ({"lease": {"path": "/l"}}, "lease.checkpoint_before_s must be a number"),
        ({"cpus": []}, "cpus must be a list of CPU numbers"),
        ({"cpus": [True]}, "cpus must be a list of CPU numbers"),
        ({"cpus": [-1]}, "cpus must be a list of CPU numbers"),
        ({"cgroup": {"memory": [2, "/g"]}}, "cgroup.name must be a string"),
        ({"cgroup": {"name": "x", "memory": [3, "/g"]}}, "cgroup.memory must be a version"),
        ({"cgroup": {"name": "x", "memory": "/g"}}, "cgroup.memory must be a version"),
        ({"memory_mib": 0}, "memory_mib must be an integer from 1"),
        ({"notify": "/" + "x" * 107}, "notify must be a socket path of at most 107 bytes"),
        ({"notify": ""}, "notify must be a socket path"),
        ({"oom_score_adj": 1001}, "oom_score_adj must be an integer from -1000 to 1000"),
        ({"umask": 0o1000}, "umask must be an integer from 0 to 511"),
        ({"rlimits": []}, "rlimits must be an object"),
        ({"rlimits": {"NOPE": [1, 1]}}, "rlimits: 'NOPE' is no limit of this system"),
        ({"rlimits": {"NOFILE": [1]}}, "rlimits.NOFILE must be two integers"),
        ({"rlimits": {"NOFILE": [-2, 5]}}, "rlimits.NOFILE must be two integers"),
        ({"surprise": 1}, "unknown field surprise"),
    ],
)
def test_a_wrong_field_is_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse(json.dumps({**PLAIN, **change}).encode())
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b"null", b"\xff\xfe", b"[" * 100_000, b"{" + b" " * (5 << 20)])
def test_what_is_no_object_is_refused(raw: bytes) -> None:
    with pytest.raises(SpecError):
        parse(raw)
