"""IP addresses: loopback, remote, and the network that limits count."""

from __future__ import annotations

import ipaddress
import socket
from functools import lru_cache

IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address

NETWORK_BITS = 64


@lru_cache(maxsize=4096)
def is_loopback(host: str) -> bool:
    """Is it reachable from this machine alone? A name other than `localhost` may be anything."""
    address = ip_of(host)
    return host == "localhost" if address is None else address.is_loopback


@lru_cache(maxsize=4096)
def is_remote(address: str) -> bool:
    """Did a connection come from another machine? The simulated network has names, not numbers.

    A connection without an address (it is reset already) counts as one.
    """
    found = ip_of(address)
    return not address if found is None else not found.is_loopback


@lru_cache(maxsize=4096)
def is_local(host: str) -> bool:
    """True for a host that means another machine to everybody: loopback, link-local, unspecified
    and multicast addresses, in every notation that resolvers take (`127.1`), and `localhost`."""
    name = host.removesuffix(".").lower()
    if name == "localhost" or name.endswith(".localhost"):
        return True
    found = ip_of(name) or _legacy_ip(name)
    return found is not None and (
        found.is_loopback or found.is_link_local or found.is_unspecified or found.is_multicast
    )


def is_own(address: str) -> bool:
    """True for a number of this machine itself: a socket can be bound to it."""
    found = ip_of(address)
    if found is None:
        return False
    family = socket.AF_INET if found.version == 4 else socket.AF_INET6
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((str(found), 0))
        except OSError:
            return False
    return True


def _legacy_ip(host: str) -> IpAddress | None:
    """An IPv4 address with fewer than four parts, or with hexadecimal or octal ones."""
    try:
        return ipaddress.IPv4Address(socket.inet_aton(host))
    except (OSError, UnicodeEncodeError):
        return None


@lru_cache(maxsize=4096)
def ip_of(host: str) -> IpAddress | None:
    """The number of a host, without the zone; an IPv4 address inside of IPv6 is an IPv4 address."""
    try:
        found = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return None
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return found if mapped is None else mapped


@lru_cache(maxsize=4096)
def network_of(host: str) -> str:
    """The address or network that limits count: an IPv4 address, or the /64 of an IPv6 address,
    since one host has all addresses of a /64."""
    found = ip_of(host)
    match found:
        case None:
            return host
        case ipaddress.IPv6Address():
            return str(ipaddress.ip_network((found, NETWORK_BITS), strict=False))
        case _:
            return str(found)
