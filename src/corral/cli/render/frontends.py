"""Front ends as a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.text import Text

from corral.cli.render.layout import Column, table
from corral.cli.render.units import NOTHING, duration

if TYPE_CHECKING:
    from rich.console import RenderableType

    from corral.model.service_report import FrontEndStatus


def front_ends(found: Sequence[FrontEndStatus]) -> RenderableType:
    """Return the front ends: where each serves, what it holds, and what is wrong."""
    if not found:
        return Text("no front end reports: a pool makes its head one with its first service")
    heads = (
        Column("NAME", least=6),
        Column("ADDRESS"),
        Column("HEARD"),
        Column("ROUTES"),
        Column("HOLDS"),
        Column("PROBLEM", wide=True),
    )
    rows = [
        (
            one.name,
            one.address,
            f"{duration(one.heard_s)} ago",
            "current" if one.current else Text("older", style="yellow"),
            ", ".join(one.holds) or NOTHING,
            Text(one.problem, style="red"),
        )
        for one in found
    ]
    return table(heads, rows)
