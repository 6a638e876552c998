"""URLs of nodes: tcp://H:P, tls://H:P, ws://H:P, wss://H:P; several are separated by commas.

A tls:// or wss:// URL may end with the pin of the key that the node's certificate has:
tls://H:P#key-sha256:HEX.
"""

from __future__ import annotations

from urllib.parse import urlsplit

import msgspec

from millpond.node.credentials import hide_credentials
from millpond.node.ip import is_loopback
from millpond.node.tls.pins import key_pin_of, parse_key_pin

PORTS = {"tcp": 7400, "tls": 7400, "ws": 7401, "wss": 7401}
SECURE = ("tls", "wss")
ADDRESSES_MAX = 16


class Address(msgspec.Struct, frozen=True):
    """The address of a node, and the transport to use there.

    `key_pin`: SHA-256 of the public key in the node's certificate, if the URL has it.
    """

    host: str
    port: int
    websocket: bool
    secure: bool
    key_pin: bytes | None = None

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_url(url: str) -> Address:
    """Read `scheme://host[:port][#pin]`; ValueError says what is wrong with anything else."""
    shown = hide_credentials(repr(url))
    try:
        parts = urlsplit(url)
    except ValueError:  # whose text may have a password
        text = "its host has characters that no host has, or a bracket alone"
        raise ValueError(f"{shown}: {text}") from None
    if "://" not in url:
        raise ValueError(f"{shown} has no scheme, as in tcp://127.0.0.1:7400")
    if parts.scheme not in PORTS:
        raise ValueError(f"{shown}: the scheme must be one of {', '.join(PORTS)}")
    if not parts.hostname:
        raise ValueError(f"{shown}: no host")
    if parts.username is not None or parts.query or parts.path not in ("", "/"):
        raise ValueError(f"{shown}: only scheme://host:port is allowed")
    secure = parts.scheme in SECURE
    if parts.fragment and not secure:
        raise ValueError(f"{shown}: a pin needs tls:// or wss://")
    try:
        parts.hostname.encode("idna")
    except UnicodeError as exc:
        raise ValueError(f"{shown}: not a host name: {exc}") from exc
    try:
        port = PORTS[parts.scheme] if parts.port is None else parts.port
    except ValueError:
        raise ValueError(f"{shown}: the port must be a number up to 65535") from None
    if port == 0:
        raise ValueError(f"{shown}: port 0 cannot be dialled")
    key_pin = parse_key_pin(parts.fragment) if parts.fragment else None
    return Address(parts.hostname, port, parts.scheme in ("ws", "wss"), secure, key_pin)


def parse_urls(urls: str) -> tuple[Address, ...]:
    """Read the addresses of one service, `URL[,URL...]`: a client uses the first that it reaches.

    Raises ValueError for what is no URL, for an address named twice, and above 16 of them.
    """
    addresses = tuple(parse_url(url.strip()) for url in urls.split(","))
    if len(set(addresses)) < len(addresses):
        raise ValueError(f"{hide_credentials(repr(urls))}: an address is named twice")
    if len(addresses) > ADDRESSES_MAX:
        shown = hide_credentials(repr(urls))
        raise ValueError(f"{shown}: there may be {ADDRESSES_MAX} addresses at most")
    return addresses


def pinned(url: str, key_hash: bytes | None) -> str:
    """The URL with the pin of a key, if it is one with TLS and has none. Raises ValueError."""
    address = parse_url(url)
    if key_hash is None or not address.secure or address.key_pin is not None:
        return url
    return f"{url.rstrip('/')}#{key_pin_of(key_hash)}"


def crosses_plainly(url: str) -> bool:
    """True for a URL that leads to another machine and does not say TLS. Raises ValueError."""
    return any(not (each.secure or is_loopback(each.host)) for each in parse_urls(url))
