"""Destinations of webhooks: the URLs and addresses that requests of the node may go to (DSS-29).

A URL comes from a client, and the node is inside of a network that the client is perhaps outside
of. So a webhook goes to public addresses by TLS. A node that only its own machine reaches also
calls this machine without TLS. Hosts that the configuration names are called whatever they are.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Collection
from enum import Enum, auto
from typing import assert_never
from urllib.parse import urlsplit

import msgspec

URL_BYTES_MAX = 2048
_PORTS = {"http": 80, "https": 443}
_URL = re.compile(r"[!-~]+")
_HOST = re.compile(r"[a-z0-9_]([a-z0-9_.-]*[a-z0-9_])?")
_LOOPBACK = ipaddress.ip_network("127.0.0.0/8")
_BLOCKED = tuple(
    ipaddress.ip_network(each)
    for each in (
        *("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16"),
        *("172.16.0.0/12", "192.0.0.0/24", "192.168.0.0/16", "198.18.0.0/15"),
        *("224.0.0.0/4", "240.0.0.0/4"),
    )
)
_NAT64 = ipaddress.ip_network("64:ff9b::/96")
_UNICAST = ipaddress.ip_network("2000::/3")
"""All public addresses of IPv6. Others hold addresses of IPv4 (`::10.0.0.1`), or are local."""
_NOT_PUBLIC = tuple(
    ipaddress.ip_network(each) for each in ("2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20")
)
"""Tunnels, which hold addresses of IPv4 as well, and addresses of protocols and documents."""


class UrlRejected(ValueError):
    """A webhook may not go to this URL; the text says why."""


class Network(Enum):
    """The addresses that a host may have: public ones, those of this machine, or any."""

    PUBLIC = auto()
    LOOPBACK = auto()
    ANY = auto()


class WebhookPolicy(msgspec.Struct, frozen=True):
    """The rules of a node. `hosts` may be called whatever they are; `is_local`: the node is reached
    by this machine alone, as far as it knows, so it may call this machine without TLS."""

    is_enabled: bool = True
    is_local: bool = False
    hosts: frozenset[str] = frozenset()


class Destination(msgspec.Struct, frozen=True):
    """A URL that may be called. `target` is the path with the query."""

    is_secure: bool
    host: str
    port: int
    target: str
    network: Network

    @property
    def authority(self) -> str:
        """The header `Host`."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"

    @property
    def scheme(self) -> str:
        return "https" if self.is_secure else "http"


def destination_of(url: str, policy: WebhookPolicy) -> Destination:
    """The destination of a URL. Raises UrlRejected."""
    if not policy.is_enabled:
        raise UrlRejected("webhooks are switched off")
    if len(url) > URL_BYTES_MAX or _URL.fullmatch(url) is None or "\\" in url:
        raise UrlRejected(f"a URL has at most {URL_BYTES_MAX} visible characters of ASCII")
    try:
        parts = urlsplit(url)
        host, port = (parts.hostname or "").removesuffix("."), parts.port
    except ValueError:
        raise UrlRejected("this is no URL") from None
    if parts.scheme not in _PORTS or "@" in parts.netloc:
        raise UrlRejected("a URL begins with https:// or http://, and has no user")
    address = _literal(host)
    if address is None and _HOST.fullmatch(host) is None:
        raise UrlRejected("the host is no name and no address")
    path = parts.path or "/"
    target = f"{path}?{parts.query}" if parts.query else path
    network = _network_of(parts.scheme, host, address, policy)
    return Destination(parts.scheme == "https", host, port or _PORTS[parts.scheme], target, network)


def receiver_of(url: str) -> str:
    """The host and port of a URL, in one form for all its notations; the URL where it has none."""
    try:
        parts = urlsplit(url)
        host = (parts.hostname or "").removesuffix(".")
        address, port = _literal(host), parts.port or _PORTS[parts.scheme]
    except (KeyError, ValueError):
        return url
    return f"{host if address is None else address} {port}"


def hosts_of(names: Collection[str]) -> frozenset[str]:
    """Hosts of the configuration, in the form that they are compared in."""
    return frozenset(each.lower().removesuffix(".").strip("[]") for each in names)


def is_this_machine(authority: bytes) -> bool:
    """True for a header `Host` that names this machine: `localhost`, 127.x.y.z or `[::1]`."""
    host = authority.decode("latin-1").lower()
    name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def may_connect(address: str, network: Network) -> bool:
    """True: a host that may have such addresses may have this one."""
    found = _unmapped(ipaddress.ip_address(address.partition("%")[0]))
    match network:
        case Network.ANY:
            return True
        case Network.LOOPBACK:
            return found.is_loopback
        case Network.PUBLIC:
            return is_public(found)
        case _:
            assert_never(network)


def is_public(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    """True for an address that means the same host to everybody."""
    if isinstance(address, ipaddress.IPv4Address):
        return not any(address in each for each in _BLOCKED)
    if address in _NAT64:
        return is_public(ipaddress.IPv4Address(address.packed[-4:]))
    return address in _UNICAST and not any(address in each for each in _NOT_PUBLIC)


def _network_of(
    scheme: str,
    host: str,
    address: ipaddress.IPv4Address | ipaddress.IPv6Address | None,
    policy: WebhookPolicy,
) -> Network:
    if host in policy.hosts:
        return Network.ANY
    is_here = host == "localhost" if address is None else address in _LOOPBACK
    if scheme == "http":
        if is_here and policy.is_local:
            return Network.LOOPBACK
        raise UrlRejected(
            "without TLS only this machine is called, by a node without access rules and without "
            "a proxy, or a host of the setting webhook_hosts"
        )
    if host == "localhost" or host.endswith(".localhost"):
        raise UrlRejected("the host is this machine")
    if isinstance(address, ipaddress.IPv6Address):
        raise UrlRejected("the host is an IPv6 address")
    if address is not None and not is_public(address):
        raise UrlRejected("the address is not public")
    return Network.PUBLIC


def _literal(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """The address that a host is, in every notation that resolvers take: `127.1`, `0x7f.1`."""
    if ":" in host:
        try:
            return _unmapped(ipaddress.ip_address(host.partition("%")[0]))
        except ValueError:
            raise UrlRejected("the host is no address") from None
    try:
        return ipaddress.IPv4Address(socket.inet_aton(host))
    except OSError:
        return None


def _unmapped(
    address: ipaddress.IPv4Address | ipaddress.IPv6Address,
) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """An IPv4 address inside of IPv6 as what it is."""
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return address if mapped is None else mapped
