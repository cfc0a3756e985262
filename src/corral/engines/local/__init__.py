"""The embedded engine: one agent process per node of this machine, reached over a unix socket."""

from __future__ import annotations

from corral.engines.local.engine import LocalEngine as LocalEngine

__all__ = ["LocalEngine"]
