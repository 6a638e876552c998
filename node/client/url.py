"""URLs of nodes: tcp://H:P, tls://H:P, ws://H:P, wss://H:P."""

from __future__ import annotations

from urllib.parse import urlsplit

import msgspec

PORTS = {"tcp": 7400, "tls": 7400, "ws": 7401, "wss": 7401}


class Address(msgspec.Struct, frozen=True):
    """The address of a node, and the transport to use there."""

    host: str
    port: int
    websocket: bool
    secure: bool

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_url(url: str) -> Address:
    """Read `scheme://host[:port]`; ValueError says what is wrong with anything else."""
    parts = urlsplit(url)
    if parts.scheme not in PORTS:
        raise ValueError(f"{url!r}: the scheme must be one of {', '.join(PORTS)}")
    if not parts.hostname:
        raise ValueError(f"{url!r}: no host")
    if parts.username is not None or parts.query or parts.fragment or parts.path not in ("", "/"):
        raise ValueError(f"{url!r}: only scheme://host:port is allowed")
    try:
        parts.hostname.encode("idna")
    except UnicodeError as exc:
        raise ValueError(f"{url!r}: not a host name: {exc}") from exc
    port = PORTS[parts.scheme] if parts.port is None else parts.port
    if port == 0:
        raise ValueError(f"{url!r}: port 0 cannot be dialled")
    return Address(
        parts.hostname, port, parts.scheme in ("ws", "wss"), parts.scheme in ("tls", "wss")
    )
