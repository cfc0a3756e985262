"""Slurm over several machines that are made of namespaces: one slurmd on each, the controller on this one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from bench.hosts import Hosts
from bench.slurm import Ports
from bench.slurm_config import Endpoint


class HostedNodes:
    """A hosting (:class:`bench.slurm.Hosting`) with a host for each node. The hosts outlive it."""

    def __init__(self, hosts: Hosts) -> None:
        self._hosts = hosts
        self._names = list(hosts)
        self._ports = Ports(len(self._names))

    def __enter__(self) -> Self:
        self._ports.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._ports.__exit__()

    def controller(self) -> Endpoint:
        """Return where the controller listens."""
        here = self._ports.controller()
        return Endpoint(here.hostname, self._hosts.address, here.port)

    def node(self, index: int) -> Endpoint:
        """Return where the slurmd of a node listens."""
        host = self._hosts[self._names[index]]
        return Endpoint(host.name, host.address, self._ports.node(index).port)

    def command(self, index: int, argv: Sequence[str]) -> list[str]:
        """Return the command that runs ``argv`` in the place of a node."""
        return self._hosts[self._names[index]].command(argv)
