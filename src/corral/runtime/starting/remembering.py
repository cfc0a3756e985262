"""What a head or a node is started with: what it is asked for, else what its last start was, else what is found."""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace

from corral.devices.cpu import node_facts
from corral.model.errors import InvalidField
from corral.runtime.machines.machine import (
    address_towards,
    addresses,
    check_own_address,
    check_seen_from,
    is_loopback,
    is_own_address,
    own_address,
)
from corral.runtime.options import OWN_STORE, HeadAsked, HeadOptions, JoinOptions, PoolOptions
from corral.runtime.paths import StatePaths
from corral.runtime.poolfile import PoolFile

LOOPBACK = "127.0.0.1"
ANY_HOST = ("0.0.0.0", "::")  # noqa: S104 - compared


def as_last(asked: HeadAsked, last: PoolFile | None) -> tuple[PoolOptions, tuple[str, ...]]:
    """Return the options of a head, and what to tell about them. Nodes know where it was, so it stays there.

    Raises ``InvalidField`` where an address is none of this machine.
    """
    host, address, notes = _place(asked, last)
    cert, key, insecure = asked.tls_cert, asked.tls_key, bool(asked.insecure)
    if last is not None and cert is None and key is None and asked.insecure is None:
        insecure = last.insecure
        made = StatePaths(asked.state_dir.absolute()).tls
        if last.tls_cert and last.tls_key and Path(last.tls_cert).parent != made:
            cert, key = Path(last.tls_cert), Path(last.tls_key)
    options = PoolOptions(
        state_dir=asked.state_dir,
        host=host,
        port=asked.port or (last.bound_port if last else None) or asked.port,
        nodes=None if asked.simulated is None else 1,
        gpus_per_node=asked.gpus_per_node,
        simulated=asked.simulated,
        tls_cert=cert,
        tls_key=key,
        insecure=insecure,
        head=HeadOptions(
            address=address,
            node=_node(asked, last),
            gcs_port=asked.gcs_port,
            ray_port_first=asked.ray_port_first
            if asked.ray_port_first is not None or last is None
            else last.ray_port_first,
            store=_store(asked, last),
        ),
    )
    return options, notes


def _node(asked: HeadAsked, last: PoolFile | None) -> str | None:
    if asked.no_node:
        return None
    if asked.node is not None or last is None:
        return asked.node or node_facts().hostname
    if not last.agents and (asked.no_node is False or asked.simulated is not None):
        return node_facts().hostname
    return next(iter(last.agents), None)


def _store(asked: HeadAsked, last: PoolFile | None) -> str | None:
    if asked.store == OWN_STORE:
        return None
    return asked.store or (last.store if last else None)


def _place(asked: HeadAsked, last: PoolFile | None) -> tuple[str, str, tuple[str, ...]]:
    """Return where to listen, where others reach this machine, and what to tell about it."""
    if asked.address is not None:
        check_own_address(asked.address)
        return asked.host or asked.address, asked.address, ()
    if asked.host is not None and asked.host not in ANY_HOST:
        return asked.host, asked.host, ()
    if last is not None:
        if not is_own_address(last.address):
            raise InvalidField(
                f"the last start was at {last.address}, which is no address of this machine now",
                field="--address",
                hint="is the network up? A new address: `corral head --address ADDRESS`; then nodes join again",
            )
        address, host = last.address, asked.host or last.host
    else:
        address = own_address()
        host = asked.host or address
    return host, address, (alone_note(),) if address == LOOPBACK else ()


def node_as_last(options: JoinOptions, last: PoolFile) -> JoinOptions:
    """Return the options of a node that has not left and joins anew: what is not given is as it was."""
    if options.devices is None and options.simulated is None and options.gpus_per_node is None:
        options = replace(options, simulated=last.simulated, gpus_per_node=last.gpus_per_node)
    kept = last.address if last.address_given and is_own_address(last.address) else None
    return replace(
        options,
        node=options.node or next(iter(last.agents), None),
        address=options.address or kept,
        ray_port_first=last.ray_port_first if options.ray_port_first is None else options.ray_port_first,
    )


def node_address(asked: str | None, last: PoolFile, head: str) -> tuple[str, bool]:
    """Return where others reach a node that starts again, and whether somebody named that address.

    One that was found and has changed is found anew, as the one from which ``head`` (a URL) is reached. Raises
    ``InvalidField`` where there is none.
    """
    if asked is not None:
        check_own_address(asked)
        check_seen_from(head, asked)
        return asked, True
    if is_own_address(last.address):
        return last.address, last.address_given
    found = address_towards(head)
    if last.address_given or is_loopback(found):
        raise InvalidField(
            f"the last start was at {last.address}, which is no address of this machine now",
            field="--address",
            hint="is the network up? A new address: `corral join --address ADDRESS`",
        )
    return found, False


def alone_note() -> str:
    """Return what to know of a head that only its own machine reaches."""
    found = addresses()
    several = f" ({', '.join(found)})" if found else ""
    return f"only this machine can join, at {LOOPBACK}; for others name an address of it{several}: --address ADDRESS"
