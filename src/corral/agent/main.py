"""Running one agent as a process of its own."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import resource
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from corral.agent import processes, pulse, taskdir
from corral.agent.claim import only_agent
from corral.agent.config import AgentConfig
from corral.agent.shell import Shell
from corral.model.errors import AlreadyRunning, CorralError
from corral.ports.master import AppMasterFactory
from corral.ports.probe import DeviceProbe

_log = logging.getLogger(__name__)

PID_NAME = "agent.pid"
EXIT_FAULT = 1
EXIT_RUNNING = 3

ProbeFactory = Callable[[AgentConfig], Sequence[DeviceProbe]]


def run_agent(config: AgentConfig, probe_factory: ProbeFactory, master_factory: AppMasterFactory) -> int:
    """Be the agent of a node until SIGTERM or SIGINT; its tasks go on. Logs to standard error.

    Returns the exit code: 0 told to stop, 1 the node's directory or sockets cannot be used, 3 the node has an agent.
    """
    # One pidfd per task.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    try:
        with _alone(config):
            asyncio.run(_main(config, probe_factory(config), master_factory))
    except AlreadyRunning as error:
        _log.error("%s", error)
        return EXIT_RUNNING
    except (CorralError, OSError) as error:
        _log.error("the agent of node %s ends: %s", config.node, error)
        return EXIT_FAULT
    return 0


async def _main(config: AgentConfig, probes: Sequence[DeviceProbe], factory: AppMasterFactory) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await Shell(config, probes, factory, os.environ).run(stop)


@contextlib.contextmanager
def _alone(config: AgentConfig) -> Iterator[None]:
    """Hold the node's lock and leave ``agent.pid`` for those who have to find or fence this process."""
    with only_agent(config.node_dir, Path(config.state_dir)):
        pid = os.getpid()
        identity = {"pid": pid, "start_ticks": processes.start_ticks(pid), "boot_id": processes.boot_id()}
        # An agent that ends while the disk is full has to come back: its tasks run.
        taskdir.renew_file(f"{config.node_dir}/{PID_NAME}", json.dumps(identity).encode() + b"\n")
        pulse.beat(config.node_dir)
        yield
