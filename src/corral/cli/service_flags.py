"""The flags that describe a service, and how they become what a service file would say."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from corral.cli.flags import LISTS, TEXT, Values, accelerators_of, by_flag, environment_of, names_file, option, spelling
from corral.model.errors import CorralError, InvalidField
from corral.model.service import ServiceSpec

_OF_JOBS = ("gpus", "gpu_model", "accelerators", "cpus", "memory", "tenant", "queue", "priority", "workdir", "setup")
_OWN: dict[str, Any] = {
    "replicas": option("--replicas", "N", "How many replicas: 3, or 2-8 where load decides.", "-r"),
    "port": option("--port", "PORT", "Port that the program always uses, when it does not take the one in PORT."),
    "model": option("--model", "NAME", "Name by which the OpenAI API calls it."),
    "ready": option(
        "--ready", "PATH", "HTTP path that answers 200 when a replica is ready; a connection if not given."
    ),
    "startup": option("--startup", "PATH", "HTTP path that answers 200 once a replica has started up."),
    "startup_within": option("--startup-within", "TIME", "How long that may take, for example 30m."),
    "alive": option("--alive", "PATH", "HTTP path; a replica that does not answer 200 is started anew."),
    "target_outstanding": option("--target-outstanding", "N", "Requests at a time for each replica; load decides."),
    "target_requests": option("--target-requests", "N", "Requests a second for each replica; load decides."),
    "balance": option("--balance", "POLICY", "How requests are spread: least-outstanding, power-of-two ..."),
    "retry": option("--retry", "RULE", "What is tried again: idempotent, never or before_first_token."),
    "guard": option("--guard", "WAY", "How replicas know front ends: token, mtls or none."),
    "listen": option("--listen", "PORT", "Port of its own on every front end."),
    "drain": option("--drain", "TIME", "How long requests under way may take when a replica ends."),
}
_SWITCHES: dict[str, Any] = {
    "stream": option("--stream/--no-stream", "", "Answers come piece by piece."),
    "keys": option("--keys/--no-keys", "", "Callers show an API key (default), or anybody may call."),
}
_HOST = option("--host", "NAME", "Host name by which it is called, too; again for more.")


def _parameter(name: str, kind: Any, told: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=Annotated[kind, told], default=None)


PARAMETERS: tuple[inspect.Parameter, ...] = (
    *(_parameter(name, str | None, told) for name, told in _OWN.items()),
    *(_parameter(name, bool | None, told) for name, told in _SWITCHES.items()),
    _parameter("host", list[str] | None, _HOST),
    *(_parameter(name, str | None, TEXT[name]) for name in _OF_JOBS),
    _parameter("env", list[str] | None, LISTS["env"]),
)
"""The flags as parameters of a command."""

_FIELDS = {
    "replicas": "replicas",
    "port": "port",
    "model": "model",
    "ready": "readiness",
    "startup": "startup",
    "startup_within": "startup_within",
    "alive": "liveness",
    "target_outstanding": "scaling.target_outstanding",
    "target_requests": "scaling.target_requests_s",
    "balance": "traffic.balance",
    "retry": "traffic.retry",
    "guard": "traffic.guard",
    "listen": "traffic.listen",
    "drain": "traffic.drain",
    "stream": "traffic.stream",
    "keys": "traffic.keys",
    "host": "traffic.hosts",
    "cpus": "resources.cpus",
    "memory": "resources.memory",
    "tenant": "tenant",
    "queue": "queue",
    "priority": "priority",
    "workdir": "workdir",
    "setup": "setup",
}


def spec_of_flags(
    name: str, values: Values, program: Sequence[str], environment: Mapping[str, str], here: str
) -> ServiceSpec:
    """Return the service that a name, flags and a program describe; relative paths stand on the directory ``here``.

    One argument with a blank in it that names no file is a line for the shell. Raises the errors of a service file,
    which call the fields by their flags.
    """
    shell = len(program) == 1 and any(c.isspace() for c in program[0]) and not names_file(program[0])
    run = program[0] if shell else list(program)
    document = {"name": name, "run": run, "workdir": here} | _document(values, environment)
    return _read(document, values, here)


def with_flags(spec: ServiceSpec, values: Values, environment: Mapping[str, str], here: str) -> ServiceSpec:
    """Return a service of a file with what the flags say in place of what the file says; ``--env`` adds."""
    from corral.wire.service import document_of_service

    said = _document(values, environment)
    return _read(_laid_over(document_of_service(spec), said), values, here) if said else spec


def _document(values: Values, environment: Mapping[str, str]) -> dict[str, Any]:
    given = {flag: value for flag, value in values.items() if value not in (None, [])}
    document: dict[str, Any] = {}
    for flag, path in _FIELDS.items():
        if flag in given:
            head, _, rest = path.partition(".")
            if rest:
                document.setdefault(head, {})[rest] = given[flag]
            else:
                document[head] = given[flag]
    accelerators = accelerators_of(given)
    if accelerators is not None:
        document.setdefault("resources", {})["accelerators"] = accelerators
    if "env" in given:
        document["envs"] = environment_of(given["env"], environment)
    return document


def _laid_over(document: Mapping[str, Any], said: Mapping[str, Any]) -> dict[str, Any]:
    laid = dict(document)
    for name, value in said.items():
        known = laid.get(name)
        laid[name] = {**known, **value} if isinstance(known, dict) and isinstance(value, dict) else value
    return laid


def _read(document: Mapping[str, Any], values: Values, here: str) -> ServiceSpec:
    from corral.wire.document import Checked
    from corral.wire.service import spec_of_fields

    names = {path: spelling(flag) for flag, path in _FIELDS.items()} | {"run": "the command", "name": "NAME"}
    names["resources.accelerators"] = "--accelerators" if values.get("accelerators") else "--gpus"
    names["envs"] = "--env"
    try:
        return spec_of_fields(document, Checked(base=here, on_disk=True, names=names))
    except CorralError as error:
        raise by_flag(error, names) from None


def percent_of(text: str, flag: str) -> int:
    """Return a part of the replicas: ``10%`` or ``10``."""
    digits = text.strip().removesuffix("%").strip()
    if not digits.isdecimal() or not 1 <= int(digits[:4]) <= 99:
        raise InvalidField(f"{text!r} is no part of a whole", field=flag, hint="write it like 10%, from 1% to 99%")
    return int(digits)
