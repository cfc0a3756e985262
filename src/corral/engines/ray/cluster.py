"""Ray as the bridge needs it: which machines there are, and a relay on each of them.

``Cluster`` and ``RelayHandle`` are what the bridge is written against; ``RayCluster`` is the real one. Calls of relays
go straight from this process to theirs and need no GCS; finding machines and making relays does.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import msgspec

from corral.engines.ray.pieces import LogTold, Piece
from corral.engines.ray.relay import Relay
from corral.model.errors import EngineFault

if TYPE_CHECKING:
    from ray.actor import ActorHandle

T = TypeVar("T")
NAMESPACE = "corral"
NODE_LABEL = "corral/node"
# Beyond what one take waits; who does not answer for so long is cut off.
CALL_S = 4.0
MAKE_S = 30.0
RelayFactory = Callable[[Callable[[], None]], Relay]
"""Makes the relay of the machine on which it is called; the argument is ``on_replaced``."""


class RelayLost(Exception):
    """A relay does not answer. ``dead`` when it never will."""

    def __init__(self, reason: str, *, dead: bool = False) -> None:
        super().__init__(reason)
        self.dead = dead


class Machine(msgspec.Struct, frozen=True):
    """A raylet that is alive: it has a new ``ray_id`` after each of its starts."""

    ray_id: str
    node: str


class RelayHandle(Protocol):
    """The methods of :class:`Relay`, from far away. All raise :class:`RelayLost`."""

    async def open(self, session: str, epoch: int) -> bool:
        """Begin a session."""

    async def give(self, session: str, pieces: list[Piece]) -> bool:
        """Pass pieces on to agents."""

    async def take(self, session: str, wait_s: float) -> list[Piece] | None:
        """Return pieces of agents."""

    async def read_log(self, node: str, task: str, offset: int, limit: int, wait_s: float) -> LogTold | None:
        """Return a piece of a log."""

    async def fence(self, node: str, machine: str, epoch: int) -> bool | None:
        """Kill everything of a node if it is this machine and has heard of no newer leader."""


class Cluster(Protocol):
    """The machines of the pool."""

    async def machines(self) -> list[Machine]:
        """Return the machines that have agents; waits for as long as the GCS is away."""

    async def relay(self, machine: Machine) -> RelayHandle:
        """Return the machine's relay, made where there is none. Raises :class:`RelayLost`."""


class RelayActor:
    """What runs in a worker of Ray: a relay, with asynchronous methods."""

    def __init__(self, make: RelayFactory) -> None:
        # The worker has nothing else to do: with its relay replaced it ends, and its agents connect to the other one.
        self._relay = make(lambda: os._exit(0))
        self._starting: asyncio.Task[None] | None = None

    async def open(self, session: str, epoch: int) -> bool:
        """See :meth:`Relay.open`."""
        if self._starting is None:
            self._starting = asyncio.ensure_future(self._relay.start())
        try:
            await self._starting
        except OSError:
            self._starting = None
            raise
        return self._relay.open(session, epoch)

    async def give(self, session: str, pieces: list[Piece]) -> bool:
        """See :meth:`Relay.give`."""
        return self._relay.give(session, pieces)

    async def take(self, session: str, wait_s: float) -> list[Piece] | None:
        """See :meth:`Relay.take`."""
        return await self._relay.take(session, wait_s)

    async def read_log(self, node: str, task: str, offset: int, limit: int, wait_s: float) -> LogTold | None:
        """See :meth:`Relay.read_log`."""
        return await self._relay.read_log(node, task, offset, limit, wait_s)

    async def fence(self, node: str, machine: str, epoch: int) -> bool | None:
        """See :meth:`Relay.fence`."""
        return await self._relay.fence(node, machine, epoch)


class RayCluster:
    """Implements :class:`Cluster`. The driver of this process belongs to it."""

    def __init__(self, gcs: str, address: str, temp_dir: Path, make_relay: RelayFactory) -> None:
        """Connect. Blocks, and raises ``EngineFault`` when Ray cannot be had.

        ``gcs`` is HOST:PORT; ``address`` and ``temp_dir`` tell this machine's raylet from others.
        """
        # Where AMD's library is missing its Python wheel breaks the import of Ray, which looks for devices.
        sys.modules.setdefault("amdsmi", None)  # type: ignore[arg-type] # None: the import raises ImportError
        import ray

        self._ray = ray
        self._make_relay = make_relay
        try:
            _check_token(gcs)
            ray.init(
                address=gcs,
                namespace=NAMESPACE,
                logging_level=logging.ERROR,
                log_to_driver=False,
                _node_ip_address=address,
                _temp_dir=str(temp_dir),
            )
        except Exception as error:  # noqa: BLE001 - Ray raises what it likes
            raise EngineFault(f"Ray at {gcs} cannot be used: {_line(error)}") from None

    async def machines(self) -> list[Machine]:
        """Return the machines with the label of a node."""
        return [
            Machine(found["NodeID"], found["Labels"][NODE_LABEL])
            for found in await in_daemon_thread(self._ray.nodes)
            if found["Alive"] and NODE_LABEL in found.get("Labels", {})
        ]

    async def relay(self, machine: Machine) -> RelayHandle:
        """Return the machine's relay: one per start of its raylet, of whoever's making."""
        try:
            return _RayRelay(await in_daemon_thread(lambda: self._actor(machine)))
        except Exception as error:  # noqa: BLE001 - Ray raises what it likes
            raise RelayLost(_line(error)) from None

    def _actor(self, machine: Machine) -> ActorHandle[RelayActor]:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        remote: Any = self._ray.remote(RelayActor)
        handle: ActorHandle[RelayActor] = remote.options(
            name=f"corral-node-{machine.node}-{machine.ray_id[:12]}",
            namespace=NAMESPACE,
            lifetime="detached",
            get_if_exists=True,
            num_cpus=0,
            max_restarts=0,
            max_concurrency=1000,
            scheduling_strategy=NodeAffinitySchedulingStrategy(machine.ray_id, soft=False),
        ).remote(self._make_relay)
        return handle


class _RayRelay:
    def __init__(self, actor: ActorHandle[RelayActor]) -> None:
        self._actor: Any = actor

    async def open(self, session: str, epoch: int) -> bool:
        return bool(await _answer(self._actor.open.remote(session, epoch), MAKE_S))

    async def give(self, session: str, pieces: list[Piece]) -> bool:
        return bool(await _answer(self._actor.give.remote(session, pieces), CALL_S))

    async def take(self, session: str, wait_s: float) -> list[Piece] | None:
        pieces: list[Piece] | None = await _answer(self._actor.take.remote(session, wait_s), wait_s + CALL_S)
        return pieces

    async def read_log(self, node: str, task: str, offset: int, limit: int, wait_s: float) -> LogTold | None:
        told: LogTold | None = await _answer(
            self._actor.read_log.remote(node, task, offset, limit, wait_s), wait_s + CALL_S
        )
        return told

    async def fence(self, node: str, machine: str, epoch: int) -> bool | None:
        proven: bool | None = await _answer(self._actor.fence.remote(node, machine, epoch), MAKE_S)
        return proven


def _check_token(gcs: str) -> None:
    """Raise what a GCS says that does not accept our token: ``ray.init`` would try again for ever."""
    try:
        from ray._raylet import GcsClient  # type: ignore[attr-defined] # compiled
    except ImportError:
        # It belongs to Ray's inside, and may go.
        return
    GcsClient(address=gcs)


async def _answer(ref: Any, timeout_s: float) -> Any:
    from ray.exceptions import ActorDiedError, RayError

    answer = asyncio.wrap_future(ref.future())
    # Not wait_for, which loses a cancellation that comes together with the answer (before Python 3.12).
    await asyncio.wait({answer}, timeout=timeout_s)
    if not answer.done():
        answer.cancel()
        raise RelayLost(f"no answer within {timeout_s:g} s")
    try:
        return answer.result()
    except ActorDiedError as error:
        raise RelayLost(_line(error), dead=True) from None
    except RayError as error:
        raise RelayLost(_line(error)) from None


def in_daemon_thread(call: Callable[[], T]) -> Coroutine[Any, Any, T]:
    """Make a call that may block for hours in a thread that does not keep the process from ending."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            answer = call()
        except BaseException as error:  # noqa: BLE001 - whoever waits gets it
            future.set_exception(error)
        else:
            future.set_result(answer)

    async def wait() -> T:
        threading.Thread(target=run, name="gcs", daemon=True).start()
        return await asyncio.shield(asyncio.wrap_future(future))

    return wait()


def _line(error: BaseException) -> str:
    """Return the first line of Ray's often long messages."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
