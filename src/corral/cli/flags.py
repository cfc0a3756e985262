"""The flags that describe a job, shared by `run` and `submit`, and how they become what a job file would say.

Values stay text here: the rules of the job file read them, so that both refuse the same things in the same words.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from corral.model.ask import JobAsk
from corral.model.errors import CorralError, InvalidField, MissingField, Refusal, UsageError

Values = Mapping[str, Any]


def option(spelling: str, metavar: str, text: str, *more: str) -> Any:
    """Return an option of the command line."""
    return typer.Option(spelling, *more, metavar=metavar, help=text, show_default=False)


TEXT: dict[str, Any] = {
    "name": option("--name", "NAME", "Name of the job; made from the command when not given.", "-n"),
    "gpus": option("--gpus", "N", "GPUs per node: 2, a share such as 0.5, or elastic 2-8.", "-g"),
    "gpu_model": option("--gpu-model", "MODEL", "Model of the GPUs, for example H100."),
    "accelerators": option("--accelerators", "MODEL:N", "Model and number of GPUs per node in one, as in job files."),
    "cpus": option("--cpus", "N", "CPUs per node, for example 4, 0.5 or 500m."),
    "memory": option("--memory", "SIZE", "Memory per node, for example 32GiB."),
    "nodes": option("--nodes", "N", "Nodes that start together or not at all; 1-4 is elastic.", "-N"),
    "array": option("--array", "RANGE", "Indices of an array job: 0-23, 0-23:2 or 1,3,5."),
    "tenant": option("--tenant", "TENANT", "Tenant whose share is used; that of your token when not given.", "-t"),
    "queue": option("--queue", "QUEUE", "Queue in which the job waits.", "-q"),
    "priority": option("--priority", "N", "Larger goes first within the tenant.", "-p"),
    "max_duration": option("--max-duration", "TIME", "End it after this time, for example 2h30m."),
    "max_restarts": option("--max-restarts", "N", "How often a failed task is started again."),
    "workdir": option("--workdir", "DIR", "Working directory of the job; the current one when not given.", "-w"),
    "setup": option("--setup", "SCRIPT", "Shell script that runs before the command on each node."),
}
LISTS: dict[str, Any] = {
    "sweep": option("--sweep", "NAME=A,B,C", "Parameter of an array job as environment variable; again for more."),
    "after": option("--after", "[KIND:]JOB", "Start after a job: succeeded (default), ended:JOB or failed:JOB."),
    "env": option("--env", "NAME[=VALUE]", "Environment variable; without a value that of this shell.", "-e"),
}

PARAMETERS: tuple[inspect.Parameter, ...] = (
    *(
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=Annotated[str | None, option], default=None)
        for name, option in TEXT.items()
    ),
    *(
        inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, annotation=Annotated[list[str] | None, option], default=None
        )
        for name, option in LISTS.items()
    ),
)
"""The flags as parameters of a command."""

_FIELDS = {
    "name": "name",
    "cpus": "resources.cpus",
    "memory": "resources.memory",
    "nodes": "num_nodes",
    "array": "array",
    "tenant": "tenant",
    "queue": "queue",
    "priority": "priority",
    "max_duration": "max_duration",
    "max_restarts": "max_restarts",
    "workdir": "workdir",
    "setup": "setup",
    "sweep": "sweep",
    "after": "after",
    "env": "envs",
}
# What of a job each flag says; a flag beside a job file replaces just that.
_SAYS = {
    "resources.accelerators": ("gpu_milli", "gpu_model", "gpu_counts"),
    "resources.cpus": ("cpus_milli",),
    "resources.memory": ("memory_mib",),
    "num_nodes": ("num_nodes", "node_counts"),
    "array": ("indices",),
    "sweep": ("points", "indices"),
    "max_duration": ("max_duration_s",),
}


def spelling(flag: str) -> str:
    """Return how a flag is written."""
    return f"--{flag.replace('_', '-')}"


def ask_of_flags(values: Values, program: Sequence[str], environment: Mapping[str, str], here: str) -> JobAsk:
    """Return the job that flags and a program describe; relative paths stand on the directory ``here``.

    One argument with a blank in it that names no file is a line for the shell. Raises the errors of a job file, which
    call the fields by their flags.
    """
    if not program:
        raise MissingField("there is no command to run", hint="put it last: corral run --gpus 1 -- python train.py")
    shell = len(program) == 1 and any(c.isspace() for c in program[0]) and not names_file(program[0])
    return _read(values, program[0] if shell else list(program), environment, here)


def names_file(text: str) -> bool:
    """Return whether a word of the command line names a file or directory."""
    return os.path.exists(text)  # noqa: PTH110 -- pathlib raises for what is too long to be a name


def with_flags(asks: Sequence[JobAsk], values: Values, environment: Mapping[str, str], here: str) -> list[JobAsk]:
    """Return jobs of a file with what the flags say in place of what the file says; ``--env`` adds to its ``envs``."""
    import msgspec

    given = {flag: value for flag, value in values.items() if value not in (None, [])}
    if not given:
        return list(asks)
    if "name" in given and len(asks) > 1:
        raise UsageError(f"--name names one job, but the file holds {len(asks)}", hint="leave --name out")
    told = _read(given, ["true"], environment, here)
    said = [field for path in _paths(given) for field in _SAYS.get(path, (path,))]
    changes = {field: getattr(told, field) for field in said if field != "envs"}
    return [
        msgspec.structs.replace(ask, **changes, envs={**ask.envs, **told.envs} if "envs" in said else ask.envs)
        for ask in asks
    ]


def _read(values: Values, run: str | list[str], environment: Mapping[str, str], here: str) -> JobAsk:
    from corral.wire.document import Checked
    from corral.wire.request import ask_of_fields

    given = {flag: value for flag, value in values.items() if value not in (None, [])}
    names = {path: spelling(flag) for flag, path in _FIELDS.items()} | {"run": "the command"}
    names["resources.accelerators"] = "--accelerators" if "accelerators" in given else "--gpus"
    try:
        return ask_of_fields(_document(given, run, environment, here), Checked(base=here, on_disk=True, names=names))
    except CorralError as error:
        raise by_flag(error, names) from None


def by_flag(error: CorralError, names: Mapping[str, str]) -> CorralError:
    """Return an error about parts of fields (``envs.A``, ``run[1]``) with the fields called by their flags."""
    import msgspec

    def told(refusal: Refusal) -> Refusal:
        field = refusal.field or ""
        heads = [name for name in names if field.startswith((f"{name}.", f"{name}["))]
        if not heads:
            return refusal
        head = max(heads, key=len)
        rest = field.removeprefix(head).removeprefix(".")
        return msgspec.structs.replace(refusal, field=f"{names[head]} {rest}".strip())

    named = CorralError.of(told(error.refusal))
    named.also = tuple(map(told, error.also))
    return named


def _paths(given: Values) -> list[str]:
    paths = [path for flag, path in _FIELDS.items() if flag in given]
    if given.keys() & {"gpus", "gpu_model", "accelerators"}:
        paths.append("resources.accelerators")
    return paths


def _document(given: Values, run: str | list[str], environment: Mapping[str, str], here: str) -> dict[str, object]:
    fields: dict[str, object] = {path: given[flag] for flag, path in _FIELDS.items() if flag in given}
    resources = {path.partition(".")[2]: fields.pop(path) for path in list(fields) if path.startswith("resources.")}
    accelerators = accelerators_of(given)
    if accelerators is not None:
        resources["accelerators"] = accelerators
    if resources:
        fields["resources"] = resources
    if "sweep" in given:
        fields["sweep"] = _sweep(given["sweep"])
    if "env" in given:
        fields["envs"] = environment_of(given["env"], environment)
    if "after" in given:
        fields["after"] = [_dependency(text) for text in given["after"]]
    fields.setdefault("workdir", here)
    fields["run"] = run
    return fields


def accelerators_of(given: Values) -> str | None:
    """Return what flags say of devices, as in a job file. Raises ``UsageError`` where they say it twice."""
    gpus, model, both = given.get("gpus"), given.get("gpu_model"), given.get("accelerators")
    if both is not None and (gpus is not None or model is not None):
        other = "--gpus" if gpus is not None else "--gpu-model"
        raise UsageError(f"--accelerators and {other} say the same thing twice", hint="leave one out")
    if gpus is not None:
        _check_count(gpus)
    if both is not None or model is None:
        return both if both is not None else gpus
    return f"{model}:{gpus if gpus is not None else 1}"


def _check_count(gpus: str) -> None:
    """Refuse what is no number, which `--accelerators` would take for a model."""
    from corral.wire.document import shown
    from corral.wire.sizes import are_sizes, read_gpus
    from corral.wire.units import Unreadable

    try:
        read_gpus(gpus)
    except Unreadable as error:
        hint = error.hint if are_sizes(gpus) else "write it like 2 or 0.5; --gpu-model names the model"
        raise InvalidField(f"{shown(gpus)} {error.message}", field="--gpus", hint=hint) from None


def _sweep(texts: Sequence[str]) -> dict[str, object]:
    axes: dict[str, object] = {}
    for text in texts:
        name, equals, values = text.partition("=")
        if not equals or not name:
            raise UsageError(f"--sweep: {text} is not of the form NAME=A,B,C", hint="write it like --sweep LR=0.1,0.01")
        if name in axes:
            raise UsageError(f"--sweep: {name} is given twice", hint="give all its values in one, separated by commas")
        axes[name] = values.split(",")
    return axes


def environment_of(texts: Sequence[str], environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of ``--env``; one without a value has that of the shell."""
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals and name not in environment:
            raise UsageError(f"--env: {name} is not set in this shell", hint=f"write --env {name}=VALUE")
        found[name] = value if equals else environment[name]
    return found


def _dependency(text: str) -> object:
    kind, colon, ref = text.partition(":")
    return {ref: kind} if colon and kind in {"succeeded", "ended", "failed"} else text
