"""The command `corral` itself: the options that stand before every command."""

from __future__ import annotations

from typing import Annotated

import typer

from corral.cli.session import STATE_DIR_VARIABLE
from corral.cli.tree import LazyGroup, adopt

EXIT_CODES = (
    "Exit codes: 0 ok, 1 job failed or fault, 2 wrong usage or input, 3 pool unavailable, 4 denied, 5 not found, "
    "6 conflict. run and submit --wait return the exit code of the job (128 + n when signal n ended it)."
)

app = typer.Typer(
    cls=LazyGroup,
    name="corral",
    invoke_without_command=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    epilog=EXIT_CODES,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def show_version(wanted: bool) -> None:
    """Print the version and leave."""
    if wanted:
        from corral import __version__

        print(f"corral {__version__}")
        raise typer.Exit


@app.callback()
def root(
    ctx: typer.Context,
    state_dir: Annotated[
        str | None,
        typer.Option(
            "--state-dir",
            metavar="DIR",
            show_default=False,
            help=f"State directory of the pool; ${STATE_DIR_VARIABLE} or ~/.corral when not given. "
            "May stand after the command, too.",
        ),
    ] = None,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the traceback of an error. May stand after the command, too.")
    ] = False,
    _version: Annotated[
        bool, typer.Option("--version", "-V", is_eager=True, callback=show_version, help="Print the version.")
    ] = False,
) -> None:
    """Join GPU servers into one pool that many users share fairly."""
    adopt(ctx, state_dir, debug)
    if ctx.invoked_subcommand is None:
        print(ctx.get_help())
