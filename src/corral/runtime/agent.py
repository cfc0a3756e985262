"""The agent's entry point: wires device probes and the AppMaster into the agent shell.

``python -m corral.runtime.agent --config nodes/NODE/node.json``
"""

from __future__ import annotations

import argparse
from pathlib import Path

from corral.agent.config import load
from corral.agent.main import run_agent
from corral.appmaster.core import AppMasterCore
from corral.model.errors import CorralError


def main(arguments: list[str] | None = None) -> int:
    """Run the agent until SIGTERM."""
    parser = argparse.ArgumentParser(prog="corral-agent")
    parser.add_argument("--config", type=Path, required=True)
    path = parser.parse_args(arguments).config
    try:
        config = load(path)
    except CorralError as error:
        parser.exit(78, f"{error.code}: {error}\n")
    return run_agent(config, _probe, AppMasterCore)


if __name__ == "__main__":
    raise SystemExit(main())
