"""The tree of commands, loaded leaf by leaf: a command's module is imported when the command is named."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup

from corral.cli.failures import did_you_mean
from corral.cli.session import Session
from corral.model.errors import InvalidField, UsageError

POOL, JOBS, SERVICES, ADMIN = "Pool", "Jobs", "Services", "Administration"


class Leaf(NamedTuple):
    """Where a command lives: ``module`` of corral.cli.commands, the function or typer app in it, its help panel."""

    module: str
    attribute: str
    panel: str


LEAVES: dict[str, Leaf] = {
    "up": Leaf("pool", "up", POOL),
    "head": Leaf("join", "head", POOL),
    "join": Leaf("join", "join", POOL),
    "leave": Leaf("join", "leave", POOL),
    "down": Leaf("pool", "down", POOL),
    "status": Leaf("pool", "status", POOL),
    "doctor": Leaf("pool", "doctor", POOL),
    "run": Leaf("run", "run", JOBS),
    "submit": Leaf("submit", "submit", JOBS),
    "ps": Leaf("jobs", "ps", JOBS),
    "logs": Leaf("logs", "logs", JOBS),
    "fetch": Leaf("fetch", "fetch", JOBS),
    "cancel": Leaf("jobs", "cancel", JOBS),
    "why": Leaf("jobs", "why", JOBS),
    "plan": Leaf("plan", "plan", JOBS),
    "receipt": Leaf("jobs", "receipt", JOBS),
    "history": Leaf("jobs", "history", JOBS),
    "serve": Leaf("serve", "serve", SERVICES),
    "services": Leaf("services", "services", SERVICES),
    "scale": Leaf("services", "scale", SERVICES),
    "rollout": Leaf("services", "rollout", SERVICES),
    "drill": Leaf("drill", "drill", SERVICES),
    "nodes": Leaf("nodes", "nodes", ADMIN),
    "maintenance": Leaf("maintenance", "maintenance", ADMIN),
    "queue": Leaf("queue", "queue", ADMIN),
    "tenant": Leaf("tenant", "tenant", ADMIN),
    "token": Leaf("token", "token", ADMIN),
    "frontend": Leaf("frontend", "frontend", ADMIN),
    "state": Leaf("state", "state", ADMIN),
    "usage": Leaf("tenant", "usage", ADMIN),
    "sim": Leaf("sim", "sim", ADMIN),
}

FLAGS = {"flags": "corral.cli.flags", "service_flags": "corral.cli.service_flags"}
"""The arguments of a command that get many flags at once, and where those are."""

StateDir = Annotated[
    str | None,
    typer.Option("--state-dir", metavar="DIR", hidden=True, help="State directory of the pool.", show_default=False),
]
Debug = Annotated[bool, typer.Option("--debug", hidden=True, help="Show the traceback of an error.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]


def command(function: Callable[..., Any]) -> Callable[..., Any]:
    """Make a function with a ``session`` argument a command.

    The options that every command knows are added, hidden: they may stand before or after the name of the command.
    An argument ``ctx`` gets typer's context, an argument ``flags`` the flags that describe a job, as a mapping, an
    argument ``service_flags`` those that describe a service.
    """
    signature = inspect.signature(function, eval_str=True)
    special = {"session", "ctx", *FLAGS} & signature.parameters.keys()
    own = [parameter for name, parameter in signature.parameters.items() if name not in special]
    described = next((name for name in FLAGS if name in special), "")
    flags: Sequence[inspect.Parameter] = import_module(FLAGS[described]).PARAMETERS if described else ()

    @functools.wraps(function)
    def wrapper(ctx: typer.Context, state_dir: str | None, debug: bool, **values: Any) -> Any:
        given = {"session": adopt(ctx, state_dir, debug), "ctx": ctx}
        if flags:
            given[described] = {flag.name: values.pop(flag.name) for flag in flags}
        return function(**{name: given[name] for name in special}, **values)

    keyword = inspect.Parameter.KEYWORD_ONLY
    added = [
        inspect.Parameter("ctx", keyword, annotation=typer.Context),
        inspect.Parameter("state_dir", keyword, annotation=StateDir, default=None),
        inspect.Parameter("debug", keyword, annotation=Debug, default=False),
    ]
    parameters = [*(parameter.replace(kind=keyword) for parameter in own), *flags, *added]
    wrapper.__signature__ = signature.replace(parameters=parameters, return_annotation=Any)  # type: ignore[attr-defined]
    wrapper.__doc__ = paragraphs(function.__doc__ or "")
    wrapper.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return wrapper


def paragraphs(text: str) -> str:
    """Return a docstring with each paragraph on one line: the help wraps them itself."""
    return "\n\n".join(" ".join(part.split()) for part in inspect.cleandoc(text).split("\n\n"))


def settings(**given: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give a single command what typer's ``command`` takes: its class, its context settings."""

    def mark(function: Callable[..., Any]) -> Callable[..., Any]:
        function.typer_settings = given  # type: ignore[attr-defined]
        return function

    return mark


def adopt(ctx: typer.Context, state_dir: str | None, debug: bool) -> Session:
    """Return the session of this command line with what the options say."""
    session = ctx.find_object(Session) or Session()
    if state_dir is not None:
        if not state_dir:
            raise InvalidField(
                "--state-dir is empty", hint="name the state directory of a pool, or leave the option out"
            )
        session.chosen = Path(os.path.expanduser(state_dir))  # noqa: PTH111 -- pathlib raises for unknown users
    session.debug = session.debug or debug
    return session


class FreeCommand(TyperCommand):
    """A command that ends with a program and its arguments, which are nobody else's business.

    What follows ``--`` is put into ``ctx.meta[PROGRAM]`` and not looked at.
    """

    PROGRAM = "corral.program"

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Split at the first ``--`` before anything is parsed."""
        program: list[str] | None = None
        if "--" in args:
            cut = args.index("--")
            args, program = args[:cut], args[cut + 1 :]
        ctx.meta[self.PROGRAM] = program
        return super().parse_args(ctx, args)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Show the arguments as their metavar spells them."""
        arguments = [parameter.metavar for parameter in self.params if parameter.param_type_name == "argument"]
        return ["[OPTIONS]", *filter(None, arguments)]


class LazyGroup(TyperGroup):
    """A group that knows the names of its members and imports one when it is asked for."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names in the order of the help."""
        return [*LEAVES]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return the command of a name, or ``None``."""
        return load(cmd_name) if cmd_name in LEAVES else None

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command, or say which one was probably meant."""
        if args[0] not in LEAVES and not args[0].startswith("-"):
            hint = did_you_mean(args[0], LEAVES, "see corral --help")
            raise UsageError(f"no such command: {args[0]}", hint=hint)
        return super().resolve_command(ctx, args)


class StrictGroup(TyperGroup):
    """A group whose unknown members are answered with the nearest name."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command, or say which one was probably meant."""
        if args[0] not in self.commands and not args[0].startswith("-"):
            hint = did_you_mean(args[0], self.commands, f"see {ctx.command_path} --help")
            raise UsageError(f"no such command: {ctx.command_path} {args[0]}", hint=hint)
        return super().resolve_command(ctx, args)


@functools.cache
def load(name: str) -> Any:
    """Import the module of a command and return the command as typer runs it."""
    leaf = LEAVES[name]
    found = getattr(import_module(f"corral.cli.commands.{leaf.module}"), leaf.attribute)
    if isinstance(found, typer.Typer):
        made = typer.main.get_command(found)
    else:
        single = typer.Typer(add_completion=False, rich_markup_mode="rich")
        single.command(name, **getattr(found, "typer_settings", {}))(found)
        made = typer.main.get_command(single)
    made.name = name
    quicken(made)
    made.rich_help_panel = leaf.panel  # type: ignore[attr-defined]
    return made


def quicken(made: Any) -> None:
    """Let text and whole numbers pass without typer's own reading.

    Typer reads every value through pydantic since 0.29; loading that costs more than the rest of a submit. What is
    not plainly right still goes to typer, which then words the error.
    """
    for parameter in made.params:
        _quicken_parameter(parameter)
    help_option = made.get_help_option
    made.get_help_option = lambda ctx: _quicken_parameter(help_option(ctx))
    for member in getattr(made, "commands", {}).values():
        quicken(member)


def _quicken_parameter(parameter: Any) -> Any:
    if hasattr(parameter, "type_descriptor") and not isinstance(parameter.process_value, functools.partial):
        parameter.process_value = functools.partial(_processed, parameter, parameter.process_value)
    return parameter


def _processed(parameter: Any, slow: Callable[[Any, Any], Any], ctx: Any, value: Any) -> Any:
    plain, read = _plainly(parameter, value)
    if not plain:
        return slow(ctx, value)
    return read if parameter.callback is None else parameter.callback(ctx, parameter, read)


def _plainly(parameter: Any, value: Any) -> tuple[bool, Any]:
    """Return (whether a value is plainly right, what it is read as)."""
    kind = parameter.type_descriptor.annotation
    if value is None:
        return not parameter.required, None
    if (kind is str and isinstance(value, str)) or (kind is bool and isinstance(value, bool)):
        return True, value
    if kind == list[str] and isinstance(value, list | tuple) and value and all(isinstance(one, str) for one in value):
        return True, list(value)
    if kind is int and isinstance(value, int | str) and (number := _whole(value)) is not None:
        low, high = getattr(parameter, "min", None), getattr(parameter, "max", None)
        return (low is None or number >= low) and (high is None or number <= high), number
    return False, None


def _whole(value: int | str) -> int | None:
    if isinstance(value, int):
        return value
    digits = value.removeprefix("-")
    return int(value) if digits.isascii() and digits.isdecimal() and len(digits) < 19 else None
