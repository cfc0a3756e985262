"""The way in and out of every command: arguments in, an exit code out, errors as one line."""

from __future__ import annotations

import io
import os
import re
import sys
from typing import TYPE_CHECKING, Any

from corral.cli.failures import SIGNAL_BASE, ExitCode, did_you_mean, error_line, exit_code, record_fault

if TYPE_CHECKING:
    from collections.abc import Sequence

    from corral.model.errors import Refusal

SIGINT, SIGPIPE = 2, 13
_INTEGER = re.compile(r"Input should be a valid integer\b.*")
"""How pydantic, by which typer reads numbers, words it."""


def run(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code. Never raises, but for what ends a process from outside."""
    import typer

    from corral.cli.root import app
    from corral.cli.session import Session
    from corral.cli.tree import quicken
    from corral.model.errors import CorralError

    for stream in (sys.stdout, sys.stderr):
        # A name that the locale cannot spell is shown as an escape; it never ends a command.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    session = Session()
    wrong_usage: type[Exception] = typer.BadParameter.__mro__[2]  # what typer raises for any wrong command line
    try:
        root = typer.main.get_command(app)
        quicken(root)
        code = _invoke(root, list(arguments), session)
        sys.stdout.flush()
    except wrong_usage as error:
        return _refuse(_usage(error), ExitCode.USAGE)
    except typer.Abort:
        return SIGNAL_BASE + SIGINT
    except KeyboardInterrupt:
        return SIGNAL_BASE + SIGINT
    except BrokenPipeError:
        _forget_stdout()
        return SIGNAL_BASE + SIGPIPE
    except CorralError as error:
        if session.debug:
            raise
        return _refuse(error.refusal, exit_code(error), error.also)
    except Exception as error:
        if session.debug:
            raise
        return _fault(error, session)
    finally:
        session.close()
    return code


def _invoke(command: Any, arguments: list[str], session: Any) -> int:
    """Let typer run the command; its functions return ``None`` or an exit code."""
    try:
        code = command.main(args=arguments, prog_name="corral", standalone_mode=False, obj=session)
    except SystemExit as leaving:
        # Typer leaves with 1 when nobody reads its output, and has put wrappers in place of the streams.
        if isinstance(leaving.__context__, BrokenPipeError):
            sys.stdout, sys.stderr = sys.__stdout__ or sys.stdout, sys.__stderr__ or sys.stderr
            raise leaving.__context__ from None
        raise
    return code if isinstance(code, int) else ExitCode.OK


def _refuse(refusal: Refusal, code: int, also: Sequence[Refusal] = ()) -> int:
    """Print a refusal, and what else is wrong with the same request, one line each; return ``code``."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        _forget_stdout()
    for one in (refusal, *also):
        print(error_line(one), file=sys.stderr)
    return code


def _fault(error: Exception, session: Any) -> int:
    """Print the one line of a bug or of a broken machine; the traceback goes to the log."""
    import traceback

    from corral.model.errors import CorralError, Refusal

    log = record_fault(traceback.format_exc(), session.state_dir)
    hint = f"the traceback is in {log}" if log else "run it again with --debug before the command to see the traceback"
    what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return _refuse(Refusal(CorralError.code, what, hint=hint), ExitCode.FAILED)


def _forget_stdout() -> None:
    """Point standard output at nothing, so that the interpreter's last flush has no reader to miss."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _usage(error: Any) -> Refusal:
    """Return typer's complaint about a command line as a refusal with the nearest right name or the way to the help."""
    from corral.model.errors import Refusal, UsageError

    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "corral"
    hint: str | None = f"see {path} --help"
    option = getattr(error, "option_name", None)
    if option is not None and hasattr(error, "possibilities"):
        message = f"no such option: {option}"
        hint = did_you_mean(option, _option_names(context), hint)
    else:
        message = str(error.format_message()).replace("\n", " ").strip().rstrip(".")
        message = _INTEGER.sub("must be a whole number", message[:1].lower() + message[1:])
    return Refusal(UsageError.code, message, hint=hint)


def _option_names(context: Any) -> list[str]:
    """Return every visible spelling of the options of the command that was being parsed."""
    if context is None:
        return []
    return [
        spelling
        for parameter in context.command.get_params(context)
        if parameter.param_type_name == "option" and not getattr(parameter, "hidden", False)
        for spelling in (*parameter.opts, *parameter.secondary_opts)
    ]
