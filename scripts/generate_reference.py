"""Write docs/reference/{errors,settings,cli}.md from the objects that they describe.

`python -m scripts.generate_reference` (or `make docs`) writes them; `--check` changes nothing and fails when one is
out of date. tests/test_documented.py holds the committed pages against what this module says.
"""

from __future__ import annotations

import inspect
import re
import sys
import types
from collections.abc import Callable, Iterator
from enum import Enum
from pathlib import Path
from typing import Annotated, Literal, Protocol, Union, cast, get_args, get_origin

import typer
from pydantic_core import PydanticUndefined
from pydantic_settings import BaseSettings

REFERENCE = Path(__file__).resolve().parents[1] / "docs" / "reference"
NOTE = "<!-- Written by `make docs` from the code: change it there. -->"


def undocumented(what: str) -> ValueError:
    """Return the error for a thing that says nothing about itself."""
    return ValueError(f"{what} has no description: give it one, the reference is written from it")


def cell(text: str) -> str:
    """Make ``text`` fit a table cell: one line, no column breaks, plain code marks."""
    return " ".join(text.replace("``", "`").replace("|", "\\|").split())


def table(heads: list[str], rows: list[list[str]]) -> str:
    """Return a Markdown table."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


_ROOMS = ["tree", "asking", "pool", "serving", "faults"]


def _room(kind: type) -> str:
    package, _, room = kind.__module__.rpartition(".")
    if package != "corral.model.errors":
        raise ValueError(f"{kind.__qualname__} stands outside corral.model.errors")
    return room


def errors_page() -> str:
    """Describe every class of the error tree, in the order of the source."""
    from corral.model.errors import by_code

    kinds = sorted(by_code().values(), key=lambda kind: (_ROOMS.index(_room(kind)), inspect.getsourcelines(kind)[1]))
    rows = []
    for kind in kinds:
        if not kind.__doc__:
            raise undocumented(kind.__qualname__)
        rows.append([f"`{kind.code}`", kind.category.value, "yes" if kind.retryable else "no", cell(kind.__doc__)])
    return "\n".join(
        [
            "# Error codes",
            "",
            NOTE,
            "",
            "Every refusal carries one of these codes. A code never changes its meaning; *retryable* says whether the",
            "same call may succeed later. The category decides the exit code of the command and the HTTP status.",
            "",
            table(["code", "category", "retryable", "meaning"], rows),
        ]
    )


def type_name(kind: object) -> str:
    """Return how a person would write a type: `Path | None`, `one of a, b`, `list[str]`."""
    origin, args = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return type_name(args[0])
    if origin is Literal:
        return "one of " + ", ".join(str(arg) for arg in args)
    if origin in {Union, types.UnionType}:
        return " | ".join(type_name(arg) for arg in args)
    if origin is not None:
        return f"{type_name(origin)}[{', '.join('...' if arg is Ellipsis else type_name(arg) for arg in args)}]"
    if kind is type(None):
        return "None"
    if isinstance(kind, type) and issubclass(kind, Enum):
        return "one of " + ", ".join(str(member.value) for member in kind)
    return getattr(kind, "__name__", str(kind))


def setting_default(default: object, factory: object) -> str:
    """Return the default as text; what is worked out at run time is called so."""
    if factory is not None:
        return "worked out at start"
    if default is PydanticUndefined:
        return "required"
    if isinstance(default, Enum):
        default = default.value
    if default is None or default == "":
        return "none"
    return f"`{cell(str(default))}`"


def settings_rows(kind: type[BaseSettings]) -> list[list[str]]:
    """Return one row for each field: environment variable, name, type, default, description."""
    prefix = str(kind.model_config.get("env_prefix", ""))
    rows = []
    for name, field in kind.model_fields.items():
        if not field.description:
            raise undocumented(f"the setting {name}")
        alias = field.validation_alias
        variable = alias if isinstance(alias, str) else f"{prefix}{name}"
        default = setting_default(field.default, field.default_factory)
        described = cell(field.description)
        rows.append([f"`{variable.upper()}`", f"`{name}`", cell(type_name(field.annotation)), default, described])
    return rows


def settings_page() -> str:
    """Describe every field of corral.runtime.settings.Settings."""
    from corral.runtime.settings import Settings

    return "\n".join(
        [
            "# Settings",
            "",
            NOTE,
            "",
            cell((Settings.__doc__ or "").split("\n\n")[0]),
            "",
            table(["environment", "name", "type", "default", "meaning"], settings_rows(Settings)),
        ]
    )


class Parameter(Protocol):
    """What the page reads of an argument or option (typer brings click of its own in some versions)."""

    name: str | None
    opts: list[str]
    secondary_opts: list[str]
    param_type_name: str
    nargs: int
    required: bool
    default: object
    metavar: str | None


class Command(Protocol):
    """What the page reads of a command."""

    hidden: bool
    help: str | None
    params: list[Parameter]


def commands(command: Command, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Command]]:
    """Yield every visible command below ``command`` with its path, groups before their members."""
    yield path, command
    if hasattr(command, "list_commands"):
        context = typer.Context(command, info_name=path[-1])  # type: ignore[arg-type]
        for name in command.list_commands(context):
            member = command.get_command(context, name)  # type: ignore[attr-defined]
            if not member.hidden:
                yield from commands(member, (*path, name))


def plain(text: str) -> str:
    """Strip rich's markup and what follows the form feed with which a help text ends early."""
    return re.sub(r"\[/?[a-z ]+\]", "", text.split("\f", maxsplit=1)[0]).replace("``", "`").strip()


def paragraphs(text: str) -> str:
    """Join the lines of each paragraph of a help text, keeping those of a block marked with a backspace."""
    return "\n\n".join(
        "```\n" + block.removeprefix("\b\n") + "\n```" if block.startswith("\b\n") else " ".join(block.split())
        for block in inspect.cleandoc(text).split("\n\n")
    )


def placeholder(parameter: Parameter) -> str:
    """Return the word that stands for the value of a parameter: `JOB`, `[JOB]`, `JOB...`."""
    word = parameter.metavar or (parameter.name or "value").replace("_", "-").upper()
    if parameter.param_type_name == "option":
        return word
    if parameter.nargs == -1 and not word.endswith("..."):
        word += "..."
    return word if parameter.required or word.startswith("[") else f"[{word}]"


def shown_default(parameter: Parameter) -> str:
    """Return ` (default X)` where the default is a plain value that says something."""
    default = parameter.default
    if isinstance(default, Enum):
        default = default.value
    if isinstance(default, bool) or not isinstance(default, str | int | float) or default == "":
        return ""
    return f" (default `{default}`)"


def parameter_rows(command: Command, path: tuple[str, ...]) -> list[list[str]]:
    """Return one row for each visible argument and option of a command."""
    rows = []
    for parameter in command.params:
        if getattr(parameter, "hidden", False):
            continue
        described = getattr(parameter, "help", None)
        if not described:
            raise undocumented(f"{parameter.name} of `{' '.join(path)}`")
        if parameter.param_type_name == "option":
            spelled = ", ".join(f"`{spelling}`" for spelling in (*parameter.opts, *parameter.secondary_opts))
            if not getattr(parameter, "is_flag", False) and not getattr(parameter, "count", False):
                spelled += f" {placeholder(parameter)}"
        else:
            spelled = f"`{placeholder(parameter)}`"
        rows.append([cell(spelled), cell(plain(described) + shown_default(parameter))])
    return rows


def usage(command: Command, path: tuple[str, ...]) -> str:
    """Return the usage line of a command."""
    arguments = [p for p in command.params if p.param_type_name == "argument" and not getattr(p, "hidden", False)]
    options = ["[OPTIONS]"] if len(arguments) < len(command.params) else []
    members = ["COMMAND"] if hasattr(command, "list_commands") else []
    return " ".join([*path, *options, *map(placeholder, arguments), *members])


def command_section(command: Command, path: tuple[str, ...]) -> str:
    """Describe one command: help, usage, arguments and options."""
    described = plain(command.help or "")
    if not described:
        raise undocumented(f"the command `{' '.join(path)}`")
    parts = [f"## {' '.join(path)}", "", paragraphs(described), "", f"    {usage(command, path)}", ""]
    if rows := parameter_rows(command, path):
        parts.append(table(["argument or option", "meaning"], rows))
    return "\n".join(parts)


def cli_page() -> str:
    """Describe every command of corral.cli with its arguments and options."""
    from corral.cli import app

    root = cast("Command", typer.main.get_command(app))
    sections = [command_section(command, path) for path, command in commands(root, ("corral",))]
    return "\n".join(["# Command line", "", NOTE, "", *sections]).rstrip("\n") + "\n"


PAGES: dict[str, Callable[[], str]] = {"errors.md": errors_page, "settings.md": settings_page, "cli.md": cli_page}


def main(arguments: list[str]) -> int:
    """Write the pages, or with ``--check`` name those that are out of date; return the exit status."""
    stale = []
    for name, page in PAGES.items():
        path, text = REFERENCE / name, page()
        if path.exists() and path.read_text() == text:
            continue
        stale.append(name)
        if "--check" not in arguments:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    for name in stale:
        print(f"docs/reference/{name}: {'out of date, run make docs' if '--check' in arguments else 'written'}")
    return 1 if stale and "--check" in arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
