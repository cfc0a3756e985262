"""keepalived's configuration. Pure. Words: keepalived.conf(5) of 2.2."""

from __future__ import annotations

import ipaddress

import msgspec

from corral.model.errors import InvalidField

ADVERT_S = 0.1
FAULT = -254
"""A tracked file with this value puts the instance into the fault state: the address goes at once."""

NETLINK_BYTES = 1 << 20


class Vip(msgspec.Struct, frozen=True, kw_only=True):
    """A virtual address as one front end has it.

    ``address`` is it with its prefix length (``10.0.0.100/24``), ``interface`` where it goes, ``own`` this machine's
    address there and ``peers`` those of the other front ends. ``router`` 1..255 is the same for all of them and for
    nobody else in the network; of those that are well the one with the highest ``priority`` 1..254 has the address.
    """

    address: str
    interface: str
    own: str
    peers: tuple[str, ...]
    router: int = 74
    priority: int = 100

    @property
    def bare(self) -> str:
        """Return the address without its prefix length."""
        return self.address.partition("/")[0]


def checked(vip: Vip) -> Vip:
    """Return it, or raise ``InvalidField``."""
    try:
        interface = ipaddress.ip_interface(vip.address)
    except ValueError:
        raise InvalidField(
            f"{vip.address!r} is no address", field="--vip", hint="write it like 10.0.0.100/24"
        ) from None
    if "/" not in vip.address:
        raise InvalidField(f"{vip.address!r} has no prefix length", field="--vip", hint="write it like 10.0.0.100/24")
    for field, text in (("--own", vip.own), *(("--peer", peer) for peer in vip.peers)):
        try:
            other = ipaddress.ip_address(text)
        except ValueError:
            raise InvalidField(f"{text!r} is no address", field=field) from None
        if other.version != interface.version:
            raise InvalidField(f"{text} and {vip.address} are of different families", field=field)
        if other == interface.ip:
            raise InvalidField(f"{text} is the virtual address itself", field=field)
    if not vip.peers:
        raise InvalidField("is missing: with whom is the address shared?", field="--peer")
    if vip.own in vip.peers:
        raise InvalidField(f"{vip.own} is this machine itself", field="--peer")
    for field, number, most in (("--router", vip.router, 255), ("--priority", vip.priority, 254)):
        if not 1 <= number <= most:
            raise InvalidField(f"must be between 1 and {most}, not {number}", field=field)
    if not vip.interface or any(sign in vip.interface for sign in ' "\n/'):
        raise InvalidField(f"{vip.interface!r} is no network interface", field="--interface")
    return vip


def render(vip: Vip, track: str) -> str:
    """Return the configuration; ``track`` is the file through which the front end says that it is well (0) or not."""
    peers = "\n".join(f"        {peer}" for peer in vip.peers)
    return f"""\
# Written by corral for its front end; changes here are overwritten.
global_defs {{
    router_id corral
    vrrp_version 3
    vrrp_garp_master_delay 1
    vrrp_garp_master_refresh 5
    vrrp_netlink_cmd_rcv_bufs {NETLINK_BYTES}
    vrrp_netlink_monitor_rcv_bufs {NETLINK_BYTES}
}}

track_file corral {{
    file "{track}"
    weight 1
}}

vrrp_instance corral {{
    version 3
    state BACKUP
    interface {vip.interface}
    virtual_router_id {vip.router}
    priority {vip.priority}
    advert_int {ADVERT_S:g}
    unicast_src_ip {vip.own}
    unicast_peer {{
{peers}
    }}
    track_file {{
        corral weight 1
    }}
    virtual_ipaddress {{
        {vip.address} dev {vip.interface}
    }}
}}
"""
