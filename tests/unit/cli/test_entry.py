"""The command as a process, without a pool: help, usage errors, one line for each error, exit codes, quick starts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from corral.cli.tree import LEAVES

GROUPS = {
    "maintenance": ("start", "status", "stop"),
    "nodes": ("cordon", "uncordon", "remove"),
    "queue": ("list", "add", "set", "remove"),
    "sim": ("run", "compare"),
    "tenant": ("list", "add", "set", "remove"),
    "token": ("list", "issue", "revoke"),
}
PATHS = [(), *((name,) for name in LEAVES), *((group, member) for group, all_ in GROUPS.items() for member in all_)]


def corral(
    *arguments: str | bytes, state_dir: Path, stdin: str = "", **environment: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "corral", *arguments],
        env={
            "PATH": os.environ["PATH"],
            "HOME": str(state_dir),
            "CORRAL_STATE_DIR": str(state_dir / "pool"),
            "COLUMNS": "80",
            **environment,
        },
        cwd=state_dir,
        input=stdin,
        capture_output=True,
        text=True,
        errors="backslashreplace",
        timeout=60,
        check=False,
    )


def refused(
    *arguments: str | bytes, state_dir: Path, code: str, exit_code: int, said: str = "", **environment: str
) -> str:
    """Assert that a command line is refused in exactly one line; return the line."""
    ended = corral(*arguments, state_dir=state_dir, **environment)
    lines = ended.stderr.splitlines()
    assert ended.returncode == exit_code, ended.stderr
    assert ended.stdout == ""
    assert len(lines) == 1, ended.stderr
    assert lines[0].startswith(f"error[{code}]: ")
    assert said in lines[0]
    return lines[0]


@pytest.mark.parametrize("path", PATHS, ids=" ".join)
def test_every_command_has_a_help_of_at_most_80_columns(path: tuple[str, ...], tmp_path: Path) -> None:
    ended = corral(*path, "--help", state_dir=tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr == ""
    assert "Usage: corral" in ended.stdout
    assert max(map(len, ended.stdout.splitlines())) <= 80


def test_without_arguments_the_help_is_shown(tmp_path: Path) -> None:
    ended = corral(state_dir=tmp_path)
    assert ended.returncode == 0
    assert all(f" {name} " in ended.stdout for name in LEAVES)
    assert "Exit codes: 0 ok, 1 job failed" in ended.stdout


def test_the_version(tmp_path: Path) -> None:
    from corral import __version__

    ended = corral("--version", state_dir=tmp_path)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, f"corral {__version__}\n", "")


@pytest.mark.parametrize(
    "arguments,said",
    [
        (["stauts"], "no such command: stauts (did you mean status?)"),
        (["xyzzy"], "no such command: xyzzy (see corral --help)"),
        (["a\nb\x1b[2J"], "no such command: a b\\x1b[2J"),
        (["nodes", "cordn"], "no such command: corral nodes cordn (did you mean cordon?)"),
        (["ps", "--al"], "no such option: --al (did you mean --all?)"),
        (["--debgu"], "no such option: --debgu (did you mean --debug?)"),
        (["run", "--gpu", "2", "--", "x"], "no such option: --gpu (did you mean --gpus?)"),
        (["ps", "--limit"], "--limit"),
        (["ps", "--limit", "many"], "'--limit' / '-n': must be a whole number (see corral ps --help)"),
        (["ps", "--limit", "0"], "--limit"),
        (["ps", "--limit", "9" * 40], "--limit"),
        (["ps", "surplus"], "surplus"),
        (["ps", "--state", "runing"], "--state: there is no state runing (did you mean running?)"),
        (["why"], "JOB"),
        (["cancel"], "JOB"),
        (["up", "--port", "70000"], "--port"),
        (["up", "--nodes", "none"], "--nodes"),
        (["down", "--force", "--leave-tasks"], "contradict each other"),
        (["run", "--json", "--", "x"], "--json prints the submitted job and so needs --detach"),
        (["run", "--env", "UNSET", "--", "x"], "--env: UNSET is not set in this shell"),
        (["submit", "job.yaml", "--", "x"], "job.yaml stands before --"),
        (["logs", "-f", "--json", "1"], "--json prints one object and so cannot follow"),
        (["logs", "--rank", "1", "1.0.0"], "names a rank already"),
        (["usage", "--by", "dya"], "--by: cannot sum up by dya (did you mean day?)"),
        (["usage", "--since", "now"], "--since must be before --until"),
        (["token", "issue", "red", "--role", "root"], "--role: there is no role root"),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, list) else "",
)
def test_wrong_usage_is_one_line_and_code_2(arguments: list[str], said: str, tmp_path: Path) -> None:
    refused(*arguments, state_dir=tmp_path, code="USAGE", exit_code=2, said=said)


@pytest.mark.parametrize(
    "arguments,code,said",
    [
        (["run"], "MISSING_FIELD", "there is no command to run"),
        (["submit"], "MISSING_FIELD", "there is nothing to submit"),
        (["submit", "nowhere.yaml"], "JOB_FILE_UNREADABLE", "nowhere.yaml"),
        (["submit", "."], "JOB_FILE_UNREADABLE", " directory"),
        (["submit", "x" * 300], "JOB_FILE_UNREADABLE", "there is no such file"),
        (["run", "--gpus", "two", "--", "x"], "INVALID_FIELD", '--gpus: "two" is not a number of devices'),
        (["run", "--nodes", "-1", "--", "x"], "INVALID_FIELD", "--nodes: "),
        (["run", "--workdir", "nowhere", "--", "x"], "PATH_NOT_FOUND", "--workdir: "),
        (["submit", "--array", "5-1", "--", "x"], "INVALID_FIELD", "--array: "),
        (["run", "--", b"\xff\xfe"], "INVALID_FIELD", "is not valid Unicode"),
        (["usage", "--since", "soon"], "INVALID_FIELD", "--since: 'soon' is no time"),
        (["tenant", "add", "red", "--limit-gpus", "many"], "INVALID_FIELD", "--limit-gpus: 'many' is not an amount"),
        (["tenant", "add", "red", "--weight", "-1"], "INVALID_FIELD", "--weight: "),
        (["up", "--nodes", "4"], "INVALID_FIELD", "--nodes: "),
        (["up", "--gpus-per-node", "4"], "INVALID_FIELD", "--gpus-per-node: "),
    ],
    ids=lambda value: " ".join(map(str, value))[:40] if isinstance(value, list) else "",
)
def test_wrong_input_is_one_line_and_code_2(arguments: list[str | bytes], code: str, said: str, tmp_path: Path) -> None:
    refused(*arguments, state_dir=tmp_path, code=code, exit_code=2, said=said)


@pytest.mark.parametrize(
    "arguments",
    [
        ["status"],
        ["ps"],
        ["ps", "--json"],
        ["why", "1"],
        ["logs", "1"],
        ["cancel", "1"],
        ["receipt", "1"],
        ["history", "1"],
        ["nodes"],
        ["queue"],
        ["queue", "list"],
        ["tenant"],
        ["token"],
        ["usage"],
        ["run", "--", "true"],
        ["submit", "--", "true"],
        ["down"],
    ],
    ids=" ".join,
)
def test_without_a_pool_every_command_says_so(arguments: list[str], tmp_path: Path) -> None:
    said = refused(*arguments, state_dir=tmp_path, code="DAEMON_NOT_RUNNING", exit_code=3)
    assert str(tmp_path / "pool") in said


def test_the_state_directory_may_be_named_before_and_after_the_command(tmp_path: Path) -> None:
    for arguments in (["--state-dir", "there", "ps"], ["ps", "--state-dir", "there"], ["ps", "--state-dir=there"]):
        said = refused(*arguments, state_dir=tmp_path, code="DAEMON_NOT_RUNNING", exit_code=3)
        assert "no pool runs on there" in said


def test_options_of_the_program_are_not_options_of_corral(tmp_path: Path) -> None:
    for arguments in (["run", "prog", "--frob", "-x"], ["run", "--", "prog", "--state-dir", "x", "--help"]):
        refused(*arguments, state_dir=tmp_path, code="DAEMON_NOT_RUNNING", exit_code=3)


def test_every_mistake_of_a_job_file_is_a_line_in_the_order_of_the_text(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("gpus: 1\nrun: x\nnum_nodes: 0\nname: a b\n")
    ended = corral("submit", "job.yaml", state_dir=tmp_path)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert [line.partition(" (")[0] for line in ended.stderr.splitlines()] == [
        "error[UNKNOWN_FIELD]: job.yaml:1:1: gpus: unknown field",
        "error[INVALID_FIELD]: job.yaml:3:12: num_nodes: must be between 1 and 100,000, not 0",
        'error[INVALID_FIELD]: job.yaml:4:7: name: "a b" is not a name',
    ]


def test_every_wrong_flag_is_a_line(tmp_path: Path) -> None:
    ended = corral("submit", "--nodes", "0", "--env", "CORRAL_A=1", "--env", "B-C=1", "--", "x", state_dir=tmp_path)
    assert ended.returncode == 2
    assert [line.split(": ")[:2] for line in ended.stderr.splitlines()] == [
        ["error[INVALID_FIELD]", "--nodes"],
        ["error[INVALID_FIELD]", "--env CORRAL_A"],
        ["error[INVALID_FIELD]", "--env B-C"],
    ]


def test_a_fault_is_one_line_with_a_traceback_in_the_log_or_on_demand(tmp_path: Path) -> None:
    # A state directory that is a file in a place where corral looks for a directory is no usage error.
    (tmp_path / "pool" / "logs").mkdir(parents=True)
    (tmp_path / "pool" / "daemon.json").mkdir()
    ended = corral("ps", state_dir=tmp_path)
    assert ended.returncode == 1
    assert len(ended.stderr.splitlines()) == 1
    assert "Traceback" not in ended.stderr
    shown = corral("--debug", "ps", state_dir=tmp_path)
    assert shown.returncode == 1
    assert "Traceback" in shown.stderr


def test_a_reader_that_leaves_is_no_error(tmp_path: Path) -> None:
    ended = subprocess.run(
        ["bash", "-c", 'set -o pipefail; "$0" -m corral --help | head -n 1; echo "${PIPESTATUS[0]}"', sys.executable],
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), "COLUMNS": "80"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.stderr == ""
    assert ended.stdout.splitlines()[-1] in {"0", "141"}


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shell_completion_can_be_shown(shell: str, tmp_path: Path) -> None:
    ended = corral("--show-completion", shell, state_dir=tmp_path, _TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION="1")
    assert ended.returncode == 0, ended.stderr
    assert "_CORRAL_COMPLETE" in ended.stdout


@pytest.mark.parametrize(
    "line,word,expected",
    [
        ("corral ", "", {"up", "why", "nodes"}),
        ("corral no", "no", {"nodes"}),
        ("corral nodes c", "c", {"cordon"}),
        ("corral ps --st", "--st", {"--state"}),
        ("corral why ", "", set()),
    ],
)
def test_a_shell_is_told_how_a_word_may_go_on(line: str, word: str, expected: set[str], tmp_path: Path) -> None:
    del word
    ended = corral(
        state_dir=tmp_path, _CORRAL_COMPLETE="complete_bash", COMP_WORDS=line, COMP_CWORD=str(len(line.split(" ")) - 1)
    )
    assert ended.returncode == 0
    assert ended.stderr == ""
    found = set(ended.stdout.split())
    assert expected <= found
    assert expected or not found


HEAVY = ("pydantic", "fastapi", "sqlalchemy", "httpx", "rich", "yaml", "numpy", "uvicorn", "asyncio")


@pytest.mark.parametrize("arguments", [["submit", "--gpus", "1", "--name", "x", "--", "true"], ["ps", "--json"]])
def test_a_command_loads_no_more_than_it_needs(arguments: list[str], tmp_path: Path) -> None:
    watch = (
        "import json, sys; from corral.cli.entry import run; "
        "run(json.loads(sys.argv[1])); print(json.dumps(sorted(sys.modules)))"
    )
    ended = subprocess.run(
        [sys.executable, "-c", watch, json.dumps(arguments)],
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), "CORRAL_STATE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    loaded = set(json.loads(ended.stdout.splitlines()[-1]))
    assert loaded & set(HEAVY) == set()


def test_the_entry_point_loads_nothing_before_it_is_called(tmp_path: Path) -> None:
    watch = "import sys; before = set(sys.modules); import corral.cli; print(sorted(set(sys.modules) - before))"
    ended = subprocess.run([sys.executable, "-c", watch], capture_output=True, text=True, timeout=60, check=True)
    loaded = {name for name in ended.stdout.strip("[]\n").replace("'", "").split(", ") if name}
    assert {name.partition(".")[0] for name in loaded} - set(sys.stdlib_module_names) == {"corral"}
    assert {name for name in loaded if name.startswith("corral")} == {"corral", "corral.cli"}


INTERRUPTING = """
import signal, sys

class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == MODULE:
            signal.raise_signal(signal.SIGINT)

MODULE, sys.argv = sys.argv[1], ["corral", "status"]
sys.meta_path.insert(0, Interrupting())
from corral.cli import main
main()
"""


@pytest.mark.parametrize("module", ["corral.cli.entry", "typer", "corral.cli.session", "corral.client"])
def test_ctrl_c_while_modules_are_loaded_is_silent(tmp_path: Path, module: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", INTERRUPTING, module],
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "")


@pytest.mark.parametrize("before", [True, False])
def test_an_empty_state_directory_is_no_directory(tmp_path: Path, before: bool) -> None:
    arguments = ("--state-dir", "", "status") if before else ("status", "--state-dir", "")
    refused(*arguments, state_dir=tmp_path, code="INVALID_FIELD", exit_code=2, said="--state-dir is empty")


def test_an_empty_variable_counts_as_not_set(tmp_path: Path) -> None:
    said = f"no pool runs on {tmp_path / '.corral'}"
    refused("status", state_dir=tmp_path, code="DAEMON_NOT_RUNNING", exit_code=3, said=said, CORRAL_STATE_DIR="")
    made = corral("up", "--state-dir", "", state_dir=tmp_path)
    assert (made.returncode, sorted(tmp_path.iterdir())) == (2, [])


@pytest.mark.parametrize("arguments", [("--attempt", "1", "--previous"), ("-f", "--attempt", "1"), ("-f", "-p")])
def test_an_attempt_is_named_once_and_not_followed(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    refused("logs", *arguments, "1", state_dir=tmp_path, code="USAGE", exit_code=2)
