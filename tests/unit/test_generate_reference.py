"""The reference is written from objects: a small command line, a small class of settings, and the error tree."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal

import pytest
import typer
from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from scripts import generate_reference as reference
from scripts.lock_constraints import constraints


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


class Settings(BaseSettings):
    """Settings of a toy."""

    model_config = SettingsConfigDict(env_prefix="TOY_")
    port: int = Field(default=80, description="The port | the door.")
    home: Path | None = Field(default=None, description="Where it lives.")
    colour: Colour = Field(default=Colour.RED, description="Its colour.")
    mode: Literal["a", "b"] = Field(default_factory=lambda: "a", description="How.")


class Silent(BaseSettings):
    port: int = 80


def toy() -> typer.Typer:
    app = typer.Typer(help="A pool.\n\nTwo lines\nof text.", add_completion=False)
    queue = typer.Typer(help="Queues.")
    app.add_typer(queue, name="queue")

    @app.command()
    def up(
        jobs: Annotated[list[str] | None, typer.Argument(help="The jobs.")] = None,
        nodes: Annotated[int, typer.Option("--nodes", "-n", help="How [bold]many[/bold] nodes.")] = 1,
        loud: Annotated[bool, typer.Option("--loud/--quiet", help="Noise.")] = False,
        secret: Annotated[bool, typer.Option("--secret", hidden=True)] = False,
    ) -> None:
        """Start it.

        \b
        corral up
        corral up -n 4
        """

    @queue.command("list")
    def list_them(queue: Annotated[str, typer.Argument(help="Which.")]) -> None:
        """List them."""

    return app


def test_the_command_line_is_described_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("corral.cli.app", toy(), raising=False)
    body = reference.cli_page().split(reference.NOTE)[1]
    assert body == (
        "\n\n## corral\n\nA pool.\n\nTwo lines of text.\n\n    corral COMMAND\n"
        "\n## corral up\n\nStart it.\n\n```\ncorral up\ncorral up -n 4\n```\n\n    corral up [OPTIONS] [JOBS...]\n\n"
        "| argument or option | meaning |\n| --- | --- |\n"
        "| `[JOBS...]` | The jobs. |\n"
        "| `--nodes`, `-n` NODES | How many nodes. (default `1`) |\n"
        "| `--loud`, `--quiet` | Noise. |\n"
        "\n## corral queue\n\nQueues.\n\n    corral queue COMMAND\n"
        "\n## corral queue list\n\nList them.\n\n    corral queue list QUEUE\n\n"
        "| argument or option | meaning |\n| --- | --- |\n| `QUEUE` | Which. |\n"
    )


def test_an_option_that_says_nothing_stops_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    app = typer.Typer(add_completion=False)

    @app.command()
    def up(nodes: int = 1) -> None:
        """Start it."""

    monkeypatch.setattr("corral.cli.app", app, raising=False)
    with pytest.raises(ValueError, match="nodes of `corral` has no description"):
        reference.cli_page()


def test_settings_are_described_with_variable_type_and_default() -> None:
    assert reference.settings_rows(Settings) == [
        ["`TOY_PORT`", "`port`", "int", "`80`", "The port \\| the door."],
        ["`TOY_HOME`", "`home`", "Path \\| None", "none", "Where it lives."],
        ["`TOY_COLOUR`", "`colour`", "one of red, blue", "`red`", "Its colour."],
        ["`TOY_MODE`", "`mode`", "one of a, b", "worked out at start", "How."],
    ]
    with pytest.raises(ValueError, match="the setting port has no description"):
        reference.settings_rows(Silent)


def test_pip_gets_the_versions_of_the_lock() -> None:
    lock = """
        [[package]]
        name = "corral"
        version = "0.1.0"
        source = { editable = "." }
        [[package]]
        name = "rich"
        version = "14.0"
        source = { registry = "https://pypi.org/simple" }
        [[package]]
        name = "numpy"
        version = "2.4"
        source = { registry = "https://pypi.org/simple" }
        resolution-markers = ["python_full_version >= '3.15'", "python_full_version < '3.12'"]
    """
    assert constraints(lock) == [
        "rich==14.0",
        "numpy==2.4 ; python_full_version >= '3.15' or python_full_version < '3.12'",
    ]
