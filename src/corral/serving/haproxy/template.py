"""How values get into the text of a configuration: quoted, so that none of them can mean more than itself.

Quoting: HAProxy 2.8 configuration manual, 2.2. Log formats: the same, 8.2.6.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING

from corral.model.errors import DependencyMissing, InvalidField

if TYPE_CHECKING:
    from jinja2 import Template

FIRST_PRINTABLE, DELETE = 0x20, 0x7F


def quoted(value: object) -> str:
    """Return a value as one word that stands for itself. Raises ``InvalidField`` for what no line can hold."""
    text = str(value)
    if any(ord(letter) < FIRST_PRINTABLE or ord(letter) == DELETE for letter in text):
        raise InvalidField(f"{text!r} holds a control character, which the proxy does not take")
    return "'" + text.replace("'", "'\\''") + "'"


def literal(value: object) -> str:
    """Return a value as one word that stands for itself where a log format is read."""
    return quoted(str(value).replace("%", "%%"))


def milliseconds(seconds: float) -> str:
    """Return a time as HAProxy reads it, at least one millisecond."""
    return f"{max(1, round(seconds * 1000))}ms"


@cache
def template(name: str) -> Template:
    """Return a template of a configuration. Raises ``DependencyMissing``."""
    try:
        from jinja2 import Environment, StrictUndefined
    except ImportError:
        raise DependencyMissing(
            "jinja2 is not installed, so no proxy can be configured", hint="pip install 'corral[serve]'"
        ) from None
    environment = Environment(  # noqa: S701 - no HTML; what is written is quoted by the filters
        undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )
    environment.filters.update(q=quoted, lf=literal, ms=milliseconds)
    return environment.from_string(files(__package__).joinpath(name).read_text())
