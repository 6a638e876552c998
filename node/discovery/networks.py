"""Local networks: the private networks on which this node announces itself and looks for others.

Those of IPv6 are the unique local ones. Link-local addresses need a zone, which no contact card
has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network

import msgspec

from millpond.node.ip import IpAddress, ip_of

IpNetwork = IPv4Network | IPv6Network
PRIVATE = tuple(map(ip_network, ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7")))
NETWORKS_MAX = 8


class LocalNetwork(msgspec.Struct, frozen=True):
    """The number of an interface of this machine, and the network that it is in."""

    address: IpAddress
    prefix_bits: int

    @property
    def network(self) -> IpNetwork:
        return ip_network((self.address, self.prefix_bits), strict=False)


Interfaces = Callable[[], Sequence[LocalNetwork]]


def local_networks(
    host: str, chosen: Sequence[str], interfaces: Interfaces | None = None
) -> tuple[LocalNetwork, ...]:
    """The networks of a P2P listener at `host`: the private ones, or of `chosen` interfaces. A
    listener at `0.0.0.0` has those of IPv4, one at `::` those of IPv6."""
    listened = ip_of(host.strip("[]"))
    found = []
    for each in (interfaces or interface_networks)():
        if listened is not None:
            is_all = listened.is_unspecified and listened.version == each.address.version
            if not is_all and each.address != listened:
                continue
        if str(each.address) in chosen or (not chosen and is_private(each.address)):
            found.append(each)
    return tuple(sorted(set(found), key=_order)[:NETWORKS_MAX])


def _order(network: LocalNetwork) -> tuple[int, int]:
    return network.address.version, int(network.address)


def is_private(address: IpAddress) -> bool:
    """True for an address of a private network of others than this machine."""
    return any(address in each for each in PRIVATE)


def contains(networks: Iterable[LocalNetwork], text: str) -> bool:
    """True if an address of another node, as a number, is on one of the networks."""
    found = ip_of(text)
    return found is not None and any(found in each.network for each in networks)


def interface_networks() -> list[LocalNetwork]:
    """The networks of the interfaces of this machine."""
    import ifaddr  # only discovery and cards need it

    return [
        LocalNetwork(
            ip_address(ip.ip if isinstance(ip.ip, str) else ip.ip[0].partition("%")[0]),
            ip.network_prefix,
        )
        for adapter in ifaddr.get_adapters()
        for ip in adapter.ips
    ]
