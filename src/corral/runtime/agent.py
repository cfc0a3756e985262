"""The agent's entry point: wires device probes and the AppMaster into the agent shell.

``python -m corral.runtime.agent --config nodes/NODE/node.json``
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from corral.agent.config import AgentConfig, load
from corral.agent.main import run_agent
from corral.appmaster.core import AppMasterCore
from corral.devices.allotted import AllottedProbe
from corral.devices.amd import AmdProbe
from corral.devices.nvidia import NvidiaProbe
from corral.devices.simulated import SimulatedProbe
from corral.model.errors import CorralError
from corral.ports.probe import DeviceProbe


def probes(config: AgentConfig) -> Sequence[DeviceProbe]:
    """Return the probes of a node: the simulated one if it was asked for, else one per vendor.

    None is asked anything here: drivers may hang or refuse, and the agent bears that in a thread of its own.
    """
    if config.simulated:
        pretended = config.simulated_devices
        if not pretended:
            return ()
        return (SimulatedProbe(config.devices_state_path, pretended[0].model, len(pretended), config.node),)
    found: tuple[DeviceProbe, ...] = (NvidiaProbe(), AmdProbe())
    if config.allotted_devices is None:
        return found
    return tuple(AllottedProbe(probe, config.allotted_devices) for probe in found)


def main(arguments: list[str] | None = None) -> int:
    """Run the agent until SIGTERM."""
    parser = argparse.ArgumentParser(prog="corral-agent")
    parser.add_argument("--config", type=Path, required=True)
    path = parser.parse_args(arguments).config
    try:
        config = load(path)
    except CorralError as error:
        parser.exit(78, f"{error.code}: {error}\n")
    return run_agent(config, probes, AppMasterCore)


if __name__ == "__main__":
    raise SystemExit(main())
