"""The addresses at which others reach this node, for its contact cards and invites.

Those of the configuration; without any, those that the P2P listener really has: of each network
interface if it listens on all, with the pin of the node's own certificate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum

from millpond.node.client.url import parse_url, pinned
from millpond.node.ip import ip_of, is_local, is_loopback
from millpond.transports.io.tcp import parse_address

FOUND_MAX = 4
"""The most numbers of interfaces in a card: each makes it longer, and its QR code denser."""


class Reach(Enum):
    """The furthest that a contact card leads to its node from.

    NOWHERE: the card has no address and no relay. MACHINE: from the node's own machine. NETWORK:
    from its private network. ANYWHERE: it has a relay, a public number or a name.
    """

    NOWHERE = "nowhere"
    MACHINE = "machine"
    NETWORK = "network"
    ANYWHERE = "anywhere"


def reach_of(addresses: Iterable[str], relays: Iterable[str]) -> Reach:
    """The reach of a card with these addresses and relays."""
    urls = (*addresses, *(each.rpartition("@")[2] for each in relays))
    found = {_reach(parse_url(each).host) for each in urls}
    return max(found, key=list(Reach).index, default=Reach.NOWHERE)


def _reach(host: str) -> Reach:
    if is_local(host):
        return Reach.MACHINE
    number = ip_of(host)
    is_private = number is not None and not number.is_global
    return Reach.NETWORK if is_private else Reach.ANYWHERE


class OwnAddresses:
    """The addresses of one node. `listener` gives that of its P2P listener, None without one;
    `interfaces` the numbers of the machine's network interfaces."""

    def __init__(
        self,
        configured: Sequence[str],
        key_hash: bytes | None,
        listener: Callable[[], str | None],
        interfaces: Callable[[], Sequence[str]] | None = None,
    ) -> None:
        self._configured = tuple(pinned(url, key_hash) for url in configured)
        self._key_hash = key_hash
        self._listener = listener
        self._interfaces = interfaces or interface_numbers

    def __call__(self) -> tuple[str, ...]:
        """The addresses as URLs, the ones that reach furthest first."""
        if self._configured:
            return self._configured
        address = self._listener()
        if address is None:
            return ()
        host, port = parse_address(address)
        found = list(dict.fromkeys(self._numbers(host.strip("[]"))))
        found.sort(key=lambda each: -list(Reach).index(_reach(each)))
        return tuple(self._url(each, port) for each in found[:FOUND_MAX])

    def _numbers(self, host: str) -> Iterator[str]:
        number = ip_of(host)
        if host and (number is None or not number.is_unspecified):
            yield host
            return
        # A listener of IPv6 takes no connections of IPv4.
        families = (4, 6) if number is None else (number.version,)
        for each in self._interfaces():
            found = ip_of(each)
            if found is not None and found.version in families and not is_local(each):
                yield str(found)

    def _url(self, host: str, port: int) -> str:
        shown = f"[{host}]" if ":" in host else host
        if is_loopback(host):
            return f"tcp://{shown}:{port}"
        return pinned(f"tls://{shown}:{port}", self._key_hash)


def interface_numbers() -> list[str]:
    """The numbers of the network interfaces of this machine."""
    import ifaddr  # only cards need it

    return [
        ip.ip if isinstance(ip.ip, str) else ip.ip[0]
        for adapter in ifaddr.get_adapters()
        for ip in adapter.ips
    ]
