"""`corral join`: a machine becomes a node of a pool, or is one again."""

from __future__ import annotations

import subprocess
import time
import warnings
from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from corral.agent.claim import check_not_copied
from corral.agent.machine import incarnation
from corral.devices.cpu import node_facts
from corral.model.errors import (
    AlreadyRunning,
    Conflict,
    CorralError,
    DaemonStartFailed,
    HeadUnreachable,
    MissingField,
    NotLeader,
    Unavailable,
)
from corral.model.ids import NodeId
from corral.ports.membership import JoinAsk, Joined
from corral.runtime.machines.cluster import Head, load_cluster
from corral.runtime.machines.heads import head_of, join_at
from corral.runtime.machines.jointoken import JoinToken, parse_join_token
from corral.runtime.machines.machine import (
    address_towards,
    check_own_address,
    check_seen_from,
    machine_id,
    own_versions,
)
from corral.runtime.machines.rejoining import REFUSALS, note_heads, rejoin
from corral.runtime.options import JoinOptions, NodeInfo
from corral.runtime.paths import StatePaths
from corral.runtime.poolfile import load_pool
from corral.runtime.settings import load_settings
from corral.runtime.starting.configuring import move_node, renew_agents, write_node
from corral.runtime.starting.launcher import (
    end_supervisor,
    only_start,
    prepare,
    running_supervisor,
    spawn_supervisor,
    usable,
)
from corral.runtime.starting.leaving import drop_secrets
from corral.runtime.starting.remembering import node_address, node_as_last
from corral.runtime.starting.topology import is_node
from corral.runtime.wholefile import write_whole

READY_S = 90.0
STOP_S = 30.0
TOLD_S = 15.0
LEFT_S = 3.0
POLL_S = 0.1


def start_node(options: JoinOptions) -> NodeInfo:
    """Join a pool and return when its head hears this machine's agent.

    Everything that speaks against it is found before anything is started. Raises ``HeadUnreachable``,
    ``CertificateMismatch``, ``Unauthenticated``, ``VersionMismatch``, ``ClockSkew``, ``NodeNameTaken``,
    ``AlreadyRunning``, ``Conflict`` and everything that stops a start.
    """
    paths = StatePaths(options.state_dir.absolute())
    token = parse_join_token(options.token, insecure=options.insecure)
    if paths.node_token.exists() and is_node(paths.root):
        options = node_as_last(options, load_pool(paths.pool))
    if options.address is not None:
        check_own_address(options.address)
    versions = own_versions()
    node = NodeId(options.node or node_facts().hostname)
    prepare(paths)
    with only_start(paths):
        _check_free(paths)
        with usable(paths):
            machine = machine_id(paths)
        ask = JoinAsk(
            node=node,
            machine=machine,
            versions=versions,
            clock=time.time(),
            incarnation=incarnation(),
            address=options.address or "",
        )
        head, joined = _first_that_answers(options.heads, token, ask)
        address = options.address or address_towards(head.url)
        try:
            with usable(paths):
                write_whole(paths.node_token, f"{joined.node_token}\n".encode(), mode=0o600)
                note_heads(paths, joined, head, node)
                write_node(paths, options, load_settings(paths.root), node, address)
            process = spawn_supervisor(paths)
            try:
                _wait_connected(paths, node, process)
            except BaseException:
                end_supervisor(process)
                raise
        except BaseException:
            drop_secrets(paths)
            raise
        pid = process.pid
    with warnings.catch_warnings():
        # It goes on without this process: that is what it was started for.
        warnings.simplefilter("ignore", ResourceWarning)
        del process
    return NodeInfo(node=node, url=head.url, address=address, state_dir=str(paths.root), supervisor_pid=pid)


def start_node_again(state_dir: Path, address: str | None = None) -> NodeInfo:
    """Start the node that this machine is by what it was given when it joined, after a reboot for example.

    It is where it was, if that is an address of this machine still, unless another ``address`` is given.

    Raises ``MissingField`` where it has not joined or has left, ``InvalidField`` where it has no such address,
    ``AlreadyRunning``, ``HeadUnreachable``, what refuses this node (``REFUSALS``) and everything that stops a start. A
    node that does not start stays one.
    """
    paths = StatePaths(state_dir.absolute())
    if not is_node(paths.root) or not paths.node_token.exists():
        raise MissingField(
            "this machine is no node of a pool: name its heads",
            field="HEAD",
            hint="`corral token join` on a head prints the whole command",
        )
    own_versions()
    pool = load_pool(paths.pool)
    place, given = node_address(address, pool, load_cluster(paths.cluster).heads[0].url)
    prepare(paths)
    with only_start(paths):
        _check_free(paths)
        if (place, given) != (pool.address, pool.address_given):
            with usable(paths):
                pool = move_node(paths, pool, place, given=given)
        rejoin(paths)
        cluster = load_cluster(paths.cluster)
        with usable(paths):
            renew_agents(pool)
        process = spawn_supervisor(paths)
        try:
            _wait_connected(paths, NodeId(cluster.node), process)
        except BaseException:
            end_supervisor(process)
            raise
        pid = process.pid
    with warnings.catch_warnings():
        # As above.
        warnings.simplefilter("ignore", ResourceWarning)
        del process
    return NodeInfo(
        node=cluster.node,
        url=cluster.heads[0].url,
        address=pool.address,
        state_dir=str(paths.root),
        supervisor_pid=pid,
    )


def _check_free(paths: StatePaths) -> None:
    """Raise where this state directory belongs to a node that runs, or to a pool."""
    pid = running_supervisor(paths)
    if pid is not None:
        if is_node(paths.root):
            cluster = load_cluster(paths.cluster)
            raise AlreadyRunning(
                f"this machine is node {cluster.node} of the pool at {cluster.heads[0].url} already",
                hint="`corral leave` takes it out",
            )
        raise AlreadyRunning(f"a pool runs already on {paths.root} (pid {pid})", hint="stop it with `corral down`")
    if paths.store.exists():
        raise Conflict(
            f"{paths.root} holds the journal of a pool of its own", hint="choose another directory with --state-dir"
        )
    check_not_copied(paths.root)


def _first_that_answers(places: Sequence[str], token: JoinToken, ask: JoinAsk) -> tuple[Head, Joined]:
    """Return the first head that lets this machine in, and what it says. Raises the last refusal.

    Whom a head that stands by names as the leader is asked last, if the join token knows its certificate.
    """
    refused: CorralError = HeadUnreachable("no head was named")
    asked = list(places)
    for place in asked:
        try:
            head = head_of(place, token.fingerprints)
            if ask.address:
                check_seen_from(head.url, ask.address)
            return head, join_at(head, token.secret, replace(ask, address=ask.address or address_towards(head.url)))
        except NotLeader as error:
            refused = error
            if error.leader and error.leader not in asked:
                asked.append(error.leader)
        except Unavailable as error:
            refused = error
    raise refused


def _wait_connected(paths: StatePaths, node: NodeId, process: subprocess.Popen[bytes]) -> None:
    """Return once the heads hear this machine's agent. Raises ``DaemonStartFailed``, and what refuses the node."""
    deadline = time.monotonic() + READY_S
    while not _connected(paths):
        if process.poll() is not None or time.monotonic() > deadline:
            raise DaemonStartFailed(
                f"node {node} did not get a connection to the pool",
                hint=f"see {paths.logs}; are the head's ports open for this machine, and this one's for the head?",
            )
        time.sleep(POLL_S)


def _connected(paths: StatePaths) -> bool:
    try:
        return rejoin(paths).connected
    except REFUSALS:
        # Another machine was let in under this name.
        raise
    except CorralError:
        return False
