"""Batch scripts with ``#SBATCH`` lines, unchanged: the usual options become a job, the others are told as ignored.

Options and their meaning are those of sbatch(1) of Slurm 24.05.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

import msgspec

from corral.model.ask import JobAsk
from corral.model.errors import CorralError, InvalidField, JobFileUnreadable, MissingField, UnknownField
from corral.model.resources import MILLI
from corral.policy.config import BIDS_MAX
from corral.wire import sizes, slurm_shell, units
from corral.wire.document import Checked, Node, Problems, node_of, shown
from corral.wire.request import asks_of_nodes
from corral.wire.slurm_options import FLAGS, IGNORED, OPTIONAL, SHORT, VALUED
from corral.wire.slurm_values import read_after, read_devices, read_gres, read_memory_mib, read_signal, read_time_s
from corral.wire.textfile import decoded

COUNT_MAX = 1_000_000
_SHELLS = frozenset({"bash", "sh", "dash", "ash"})
_WITH_TEXT = {"python": "-c", "zsh": "-c", "ksh": "-c", "perl": "-e", "ruby": "-e", "Rscript": "-e"}


Queues = Callable[[], Collection[str]]


class SbatchScript(msgspec.Struct, frozen=True):
    """A job from a batch script, and one line for each option that has no effect here."""

    ask: JobAsk
    ignored: tuple[str, ...]


class Option(msgspec.Struct, frozen=True):
    """One option as written: its long name, its value and its line (from 1)."""

    name: str
    value: str
    line: int


def is_batch_script(data: bytes) -> bool:
    """Return whether a job file is a script and not YAML."""
    return data.startswith(b"#!")


def parse_sbatch(
    data: bytes,
    *,
    source: str,
    name: str,
    here: str,
    environment: Mapping[str, str] | None = None,
    queues: Queues | None = None,
    check_paths: bool = True,
) -> SbatchScript:
    """Return the job of a batch script's text. ``name`` is the job's unless the script gives it one.

    ``environment`` is what the job inherits, as Slurm's ``--export=ALL`` does (``None``: nothing). ``here`` is where
    the script runs and relative paths stand. ``queues`` is asked for the names of the queues when the script names a
    partition: one that is no queue here has no effect (``None``: it is kept). Raises ``JobFileUnreadable``,
    ``UnknownField``, ``InvalidField`` and ``MissingField`` with file and line.
    """
    text = decoded(data, source)
    if not text.startswith("#!"):
        raise JobFileUnreadable("a batch script must begin with #!", where=f"{source}:1", hint="#!/bin/bash is usual")
    problems = Problems(Checked(source, here, check_paths, _NAMES))
    options = read_options(text, problems)
    problems.raise_first()
    reading = _Reading(options, problems, queues)
    document = reading.document(name, here)
    document["envs"] = reading.environment(environment)
    document["run"] = reading.run(text, here)
    ask = asks_of_nodes([_root(document, options)], problems)[0]
    return SbatchScript(ask, tuple(reading.ignored))


def read_options(text: str, problems: Problems) -> list[Option]:
    """Return the options of the ``#SBATCH`` lines before the first command, in order; note what is none."""
    found: list[Option] = []
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if stripped and not stripped.startswith("#"):
            break
        if not re.match(r"#SBATCH(\s|$)", line):
            continue
        try:
            words = shlex.split(line[len("#SBATCH") :], comments=True)
        except ValueError as error:
            _note(problems, InvalidField, number, "#SBATCH", f"cannot be read: {error}".lower())
            continue
        while words:
            option = _take(words, number, problems)
            if option is not None:
                found.append(option)
    return found


def _take(words: list[str], number: int, problems: Problems) -> Option | None:
    """Take one option and its value from the front of ``words``."""
    word = words.pop(0)
    name, value = word, None
    if word.startswith("--"):
        name, equals, given = word[2:].partition("=")
        value = given if equals else None
    elif len(word) >= 2 and word[0] == "-":
        name = SHORT.get(word[1], word)
        value = word[2:].removeprefix("=") or None
    if name in FLAGS or name in OPTIONAL:
        return Option(name, value or "", number)
    if name not in VALUED:
        near = problems.nearest(name.lstrip("-"), (*VALUED, *FLAGS, *OPTIONAL))
        hint = f"did you mean --{near}?" if near else None
        written = shown(word.partition("=")[0])[1:-1]
        _note(problems, UnknownField, number, written, "is not an option of sbatch", hint)
        while words and not words[0].startswith("-"):
            words.pop(0)
        return None
    if value is None:
        if not words:
            _note(problems, MissingField, number, f"--{name}", "has no value")
            return None
        value = words.pop(0)
    return Option(name, value, number)


def _note(
    problems: Problems, kind: type[CorralError], line: int, path: str, message: str, hint: str | None = None
) -> None:
    problems.add(kind, Node("text", line=line, column=1), path, message, hint)


class _Reading:
    """Turns options into the fields of a job. The last of equal options counts, as in Slurm."""

    def __init__(self, options: list[Option], problems: Problems, queues: Queues | None) -> None:
        self.by_name = {option.name: option for option in options}
        self.problems = problems
        self.ignored = [
            f"line {option.line}: --{option.name} has no effect: {IGNORED[option.name]}"
            for option in options
            if option.name in IGNORED
        ]
        self.sizes = self.node_sizes()
        self.nodes = self.sizes[-1] if self.sizes else 0
        tasks, self.tasks_per_node = self.count("ntasks"), self.count("ntasks-per-node") or 0
        if not self.nodes:
            self.nodes = math.ceil(tasks / self.tasks_per_node) if tasks and self.tasks_per_node else 1
        self.tasks_per_node = self.tasks_per_node or math.ceil((tasks or 1) / self.nodes)
        self.cpus_per_task = self.count("cpus-per-task") or 0
        self.devices = self.accelerators()
        self.memory_asked = self.memory(self.devices[1] // MILLI if self.devices else 0)
        self.queue = self.partition(queues)
        self.indices = self.array()

    def wrong(self, name: str, message: str, hint: str | None = None) -> None:
        """Note an option with an impossible value."""
        _note(self.problems, InvalidField, self.by_name[name].line, f"--{name}", message, hint)

    def ignore(self, name: str, why: str) -> None:
        """Tell that a part of an option has no effect."""
        self.ignored.append(f"line {self.by_name[name].line}: --{name}={self.by_name[name].value}: {why}")

    def count(self, name: str) -> int | None:
        """Return a count from 1."""
        if name not in self.by_name:
            return None
        return self.number(name, self.by_name[name].value)

    def number(self, name: str, text: str) -> int | None:
        """Return a number from 1 that is, or is a part of, an option's value."""
        if not text.isascii() or not text.isdigit() or not 1 <= int(text[:12]) <= COUNT_MAX:
            self.wrong(name, f"{shown(self.by_name[name].value)} is not a number from 1 to {COUNT_MAX:,}")
            return None
        return int(text)

    def node_sizes(self) -> tuple[int, ...]:
        """Return the numbers of nodes that ``--nodes`` allows; empty when it is not given.

        A range is an elastic job. Where the script counts tasks or devices of the whole job, these would change with
        the nodes: then it gets the least, as Slurm promises.
        """
        if "nodes" not in self.by_name:
            return ()
        first, dash, last = self.by_name["nodes"].value.partition("-")
        least = self.number("nodes", first)
        most = self.number("nodes", last) if dash and least is not None else least
        if least is None or most is None:
            return ()
        if most < least:
            self.wrong("nodes", f"{shown(self.by_name['nodes'].value)} counts backwards")
            return ()
        totals = {"gpus"} if "ntasks-per-node" in self.by_name else {"gpus", "ntasks"}
        whole = min(totals & self.by_name.keys(), default=None)
        if most > least and whole is not None:
            self.ignore("nodes", f"the job gets exactly {least}: --{whole} counts for all nodes together")
            return (least,)
        step = math.ceil((most - least) / (BIDS_MAX - 1)) or 1
        sizes = sorted({least, *range(most, least, -step)})
        if step > 1:
            self.ignore("nodes", f"only {len(sizes)} of these numbers of nodes are tried, in steps of {step}")
        return tuple(sizes)

    def read(self, name: str, reader: Callable[[str], object]) -> object:
        """Return the value of an option through ``reader``, or ``None``."""
        if name not in self.by_name:
            return None
        try:
            return reader(self.by_name[name].value)
        except units.Unreadable as error:
            self.wrong(name, f"{shown(self.by_name[name].value)} {error.message}", error.hint)
            return None

    def document(self, name: str, here: str) -> dict[str, object]:
        """Return the fields of the job but ``run`` and ``envs``."""
        accelerators = self.devices
        signal = self.read("signal", read_signal)
        restarts = 0 if "no-requeue" in self.by_name else None
        return {
            "name": _job_name(str(self.read("job-name", str) or name)),
            "queue": self.queue,
            "num_nodes": list(self.sizes) if len(self.sizes) > 1 else self.nodes,
            "resources": {
                "accelerators": sizes.written_accelerators(*accelerators) if accelerators else None,
                "cpus": self.cpus_per_task * self.tasks_per_node
                or (self.tasks_per_node if self.tasks_per_node > 1 else None),
                "memory": self.memory_asked,
            },
            "array": self.indices,
            "max_duration": self.read("time", read_time_s),
            "after": self.read("dependency", read_after),
            "checkpoint": signal,
            "max_restarts": restarts,
            "workdir": self.read("chdir", str) or here,
        }

    def partition(self, queues: Queues | None) -> str | None:
        """Return the queue of the first partition that is one."""
        if "partition" not in self.by_name:
            return None
        names = self.by_name["partition"].value.split(",")
        known = None if queues is None else queues()
        found = next((name for name in names if known is None or name in known), None)
        if found is None:
            self.ignore("partition", "there is no such queue here; the default one is taken")
        elif len(names) > 1:
            self.ignore("partition", f"{found} is taken")
        return found

    def array(self) -> list[int] | None:
        """Return the indices of an array; a limit of how many run at once has no effect."""
        if "array" not in self.by_name:
            return None
        text, percent, most = self.by_name["array"].value.partition("%")
        if percent:
            self.ignore("array", f"the limit %{most} has no effect: shares and quotas decide how many run at once")
        indices = self.read_text("array", text, units.read_indices)
        return list(indices) if isinstance(indices, tuple) else None

    def read_text(self, name: str, text: str, reader: Callable[[str], object]) -> object:
        """Return a part of an option's value through ``reader``, or ``None``."""
        try:
            return reader(text)
        except units.Unreadable as error:
            self.wrong(name, f"{shown(text)} {error.message}", error.hint)
            return None

    def accelerators(self) -> tuple[str | None, int] | None:
        """Return (model, milli-GPUs) of one node from whichever option names them."""
        ways: dict[str, Callable[[int], int | None]] = {
            "gres": lambda count: count,
            "gpus-per-node": lambda count: count,
            "gpus-per-task": lambda count: count * self.tasks_per_node,
            "gpus": lambda count: count // self.nodes if count % self.nodes == 0 else None,
        }
        for name, per_node in ways.items():
            found = self.read(name, read_gres if name == "gres" else read_devices)
            if not isinstance(found, tuple):
                continue
            count = per_node(found[1])
            if count is None:
                self.wrong(name, f"{found[1]} devices cannot be shared evenly by {self.nodes} nodes")
                continue
            return found[0], count * MILLI
        return None

    def memory(self, gpus: int) -> str | None:
        """Return the memory of one node."""
        cpus = max(1, self.cpus_per_task) * self.tasks_per_node
        for name, times in (("mem", 1), ("mem-per-cpu", cpus), ("mem-per-gpu", gpus)):
            mib = self.read(name, read_memory_mib)
            if isinstance(mib, int) and mib * times:
                return f"{mib * times}MiB"
            if mib == 0:
                self.ignore(name, "all memory of a node cannot be asked for; the pool's default applies")
        return None

    def environment(self, inherited: Mapping[str, str] | None) -> dict[str, str]:
        """Return the environment that ``--export`` says (default ``ALL``: what the submitting shell has)."""
        given = dict(inherited or {})
        words = str(self.read("export", str) or "ALL").split(",")
        everything = words[0].upper() in {"ALL", "NIL"}
        envs = {name: value for name, value in given.items() if everything and _may_pass(name, value)}
        for word in words:
            name, equals, value = word.partition("=")
            if equals:
                envs[name] = value
            elif name.upper() not in {"ALL", "NONE", "NIL"} and name in given:
                envs[name] = given[name]
        return envs

    def run(self, text: str, here: str) -> str | list[str]:
        """Return what runs: the script with Slurm's variables and commands in place of its first line."""
        first, _, rest = text.partition("\n")
        words = first[2:].split()
        if words[:1] and Path(words[0]).name == "env":
            words = [word for word in words[1:] if word != "-S"]
        lines = slurm_shell.surrounding(
            tasks=self.tasks_per_node,
            cpus=self.cpus_per_task or 1,
            gpus=units.written_gpus(self.devices[1]) if self.devices else "0",
            memory_mib=self.memory_asked.removesuffix("MiB") if self.memory_asked else None,
            queue=self.queue or "default",
            here=here,
            indices=tuple(self.indices) if self.indices else None,
        )
        program = Path(words[0]).name if words else ""
        if program in _SHELLS:
            script = f"{slurm_shell.on_first_line(lines)}\n{rest}"
            # What stands on the first line is bash's, which also reads what sh reads.
            return script if len(words) == 1 else ["bash", *words[1:], "-c", script]
        plain = re.sub(r"[0-9.]+$", "", program)
        if plain not in _WITH_TEXT:
            known = ", ".join(sorted(_SHELLS | set(_WITH_TEXT)))
            message = f"{shown(first)} is not an interpreter that corral can give a script to"
            _note(self.problems, InvalidField, 1, "#!", message, f"one of {known}, or a job file")
            return "false"
        return ["bash", "-c", f'{lines}exec "$0" "$@"', *words, _WITH_TEXT[plain], f"\n{rest}"]


def _job_name(text: str) -> str:
    name = re.sub(r"[^\w.@+=:-]+", "-", text).lstrip("-._@+=:")[:128]
    return f"job-{name}" if not name or re.fullmatch(r"[0-9.]+", name) else name


def _may_pass(name: str, value: str) -> bool:
    ours = name.upper().startswith(("CORRAL_", "SLURM_", "SBATCH_", "BASH_FUNC_"))
    return not ours and re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) is not None and "\0" not in value


_NAMES = {
    "name": "--job-name",
    "queue": "--partition",
    "num_nodes": "--nodes",
    "resources.cpus": "--cpus-per-task",
    "resources.memory": "--mem",
    "resources.accelerators": "--gres",
    "array": "--array",
    "max_duration": "--time",
    "after": "--dependency",
    "checkpoint.signal": "--signal",
    "checkpoint.grace": "--signal",
    "workdir": "--chdir",
}
_FIELDS = {option.removeprefix("--"): field.partition(".")[0] for field, option in _NAMES.items()}


def _root(document: Mapping[str, object], options: list[Option]) -> Node:
    """Return the document as a node whose fields stand on the lines of their options."""
    root = node_of({name: value for name, value in document.items() if value is not None})
    root.line = root.column = 1
    lines = {_FIELDS[option.name]: option.line for option in options if option.name in _FIELDS}
    for key, value in root.pairs:
        _place(key, lines.get(key.text, 1))
        _place(value, lines.get(key.text, 1))
    return root


def _place(node: Node, line: int) -> None:
    node.line, node.column = line, 1
    for child in (*node.items, *(part for pair in node.pairs for part in pair)):
        _place(child, line)
