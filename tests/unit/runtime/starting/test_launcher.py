"""Options, directories and stale files before anything is started."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Any

import pytest

from corral.control.access import digest_of
from corral.model.errors import CorralError, InsecureBinding, InvalidField, PortTaken, StateUnusable
from corral.runtime.leading.serving import bind
from corral.runtime.machines.tokens import local_token
from corral.runtime.options import PoolOptions
from corral.runtime.paths import SOCKET_PATH_BYTES_MAX, StatePaths
from corral.runtime.settings import load_settings
from corral.runtime.starting.launcher import check_options, prepare, running_supervisor
from corral.runtime.supervisor import lock_pid_file

BAD_OPTIONS: list[tuple[dict[str, Any], str]] = [
    ({"nodes": 0}, "--nodes"),
    ({"nodes": 10**9, "simulated": "h100"}, "--nodes"),
    ({"nodes": 4}, "--nodes"),
    ({"gpus_per_node": 8}, "--gpus-per-node"),
    ({"gpus_per_node": -1, "simulated": "h100"}, "--gpus-per-node"),
    ({"port": 70_000}, "--port"),
    ({"tls_cert": Path("c.pem")}, "--tls-cert"),
]


@pytest.mark.parametrize("changes, field", BAD_OPTIONS)
def test_numbers_that_make_no_pool_are_named(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidField) as caught:
        check_options(PoolOptions(state_dir=Path("/nowhere"), **changes))
    assert caught.value.refusal.field == field


def test_the_state_directory_is_private_and_long_paths_get_short_sockets(state_dir: Path) -> None:
    deep = StatePaths(state_dir / ("x" * 90))
    prepare(deep)
    assert deep.root.stat().st_mode & 0o777 == 0o700
    assert len(os.fsencode(deep.notify_socket("node-999999"))) <= SOCKET_PATH_BYTES_MAX
    assert deep.run.stat().st_mode & 0o777 == 0o700
    deep.run.rmdir()


def test_a_folder_of_sockets_that_somebody_else_laid_out_is_refused(state_dir: Path) -> None:
    deep = StatePaths(state_dir / ("y" * 90))
    (state_dir / "elsewhere").mkdir()
    deep.run.symlink_to(state_dir / "elsewhere")
    try:
        with pytest.raises(StateUnusable, match="another user"):
            prepare(deep)
    finally:
        deep.run.unlink()
    deep.run.mkdir(mode=0o755)
    try:
        prepare(deep)
        assert deep.run.stat().st_mode & 0o777 == 0o700
    finally:
        deep.run.rmdir()


def test_a_file_where_the_directory_should_be_is_named(state_dir: Path) -> None:
    (state_dir / "file").write_text("x")
    with pytest.raises(StateUnusable, match="--state-dir"):
        prepare(StatePaths(state_dir / "file"))


def test_only_a_held_lock_counts_as_a_running_supervisor(state_dir: Path) -> None:
    paths = StatePaths(state_dir)
    assert running_supervisor(paths) is None
    paths.supervisor_pid.write_text("1\n")
    assert running_supervisor(paths) is None
    paths.supervisor_pid.write_text("garbage")
    assert running_supervisor(paths) is None
    with lock_pid_file(paths.supervisor_pid):
        assert running_supervisor(paths) == os.getpid()
        with paths.supervisor_pid.open() as second, pytest.raises(BlockingIOError):
            fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert running_supervisor(paths) is None


def test_a_taken_port_is_an_error_when_asked_for_and_evaded_when_not() -> None:
    first = bind("127.0.0.1", 0, tls=False, insecure=False)
    port = first.getsockname()[1]
    try:
        with pytest.raises(PortTaken, match=str(port)):
            bind("127.0.0.1", port, tls=False, insecure=False)
        other = bind("127.0.0.1", None, tls=False, insecure=False)
        other.close()
    finally:
        first.close()


def test_beyond_loopback_needs_tls_or_a_word() -> None:
    with pytest.raises(InsecureBinding):
        bind("0.0.0.0", 0, tls=False, insecure=False)
    bind("0.0.0.0", 0, tls=False, insecure=True).close()
    bind("0.0.0.0", 0, tls=True, insecure=False).close()


def test_the_token_is_made_once_and_kept_private(state_dir: Path) -> None:
    paths = StatePaths(state_dir)
    secret = local_token(paths, ())
    assert paths.token.stat().st_mode & 0o777 == 0o600
    paths.token.chmod(0o644)
    assert local_token(paths, {digest_of(secret)}) == secret
    assert paths.token.stat().st_mode & 0o777 == 0o600
    paths.token.write_text("")
    assert local_token(paths, {digest_of(secret)}) not in ("", secret)


BAD_SETTINGS: list[tuple[str, str]] = [
    ("node_lost_s = -1\n", "node_lost_s"),
    ('jobs_max = "many"\n', "jobs_max"),
    ("node_lost_s = [\n", "TOML"),
    ("port_first = 30000\nport_last = 29000\n", "port_last (29000) is below port_first (30000)"),
    ("job_max = 5\n", "did you mean jobs_max?"),
    ("colour = 5\n", "known: cache_max_mib, fairness, fence_command, fence_timeout_s"),
]


@pytest.mark.parametrize("text, words", BAD_SETTINGS)
def test_bad_settings_name_the_setting_or_the_file(state_dir: Path, text: str, words: str) -> None:
    (state_dir / "config.toml").write_text(text)
    with pytest.raises(CorralError) as caught:
        load_settings(state_dir)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_environment_wins_over_the_file(state_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (state_dir / "config.toml").write_text("log_files = 7\njobs_max = 9\n")
    monkeypatch.setenv("CORRAL_JOBS_MAX", "11")
    settings = load_settings(state_dir)
    assert (settings.log_files, settings.jobs_max) == (7, 11)
