"""Local networks: the private IPv4 networks on which this node announces itself and looks for
others."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from ipaddress import IPv4Address, IPv4Network

import msgspec

from millpond.node.ip import ip_of

PRIVATE = tuple(map(IPv4Network, ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16")))
NETWORKS_MAX = 8


class LocalNetwork(msgspec.Struct, frozen=True):
    """The number of an interface of this machine, and the network that it is in."""

    address: IPv4Address
    prefix_bits: int

    @property
    def network(self) -> IPv4Network:
        return IPv4Network((self.address, self.prefix_bits), strict=False)


Interfaces = Callable[[], Sequence[LocalNetwork]]


def local_networks(
    host: str, chosen: Sequence[str], interfaces: Interfaces | None = None
) -> tuple[LocalNetwork, ...]:
    """The networks of a P2P listener at `host`: the private ones, or of `chosen` interfaces."""
    listened = ip_of(host.strip("[]"))
    found = []
    for each in (interfaces or interface_networks)():
        is_listened = not host or listened is None or listened.is_unspecified
        if not is_listened and each.address != listened:
            continue
        if str(each.address) in chosen or (not chosen and is_private(each.address)):
            found.append(each)
    return tuple(sorted(set(found), key=lambda each: each.address)[:NETWORKS_MAX])


def is_private(address: IPv4Address) -> bool:
    """True for an address of a private network of others than this machine."""
    return any(address in each for each in PRIVATE)


def contains(networks: Iterable[LocalNetwork], text: str) -> bool:
    """True if an address of another node, as a number, is on one of the networks."""
    found = ip_of(text)
    return isinstance(found, IPv4Address) and any(found in each.network for each in networks)


def interface_networks() -> list[LocalNetwork]:
    """The IPv4 networks of the interfaces of this machine."""
    import ifaddr  # only discovery and cards need it

    return [
        LocalNetwork(IPv4Address(ip.ip), ip.network_prefix)
        for adapter in ifaddr.get_adapters()
        for ip in adapter.ips
        if isinstance(ip.ip, str)
    ]
