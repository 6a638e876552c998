"""Addresses as people write them: `host:port`, an IPv6 address in brackets."""

from __future__ import annotations


def parse_address(text: str) -> tuple[str, int]:
    """Split `host:port`. Raises ValueError."""
    host, _, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError(f"{text!r}: put an IPv6 address in brackets, as in [::1]:7400")
    if not (host and port.isascii() and port.isdigit()):
        raise ValueError(f"{text!r} is not HOST:PORT, as in 127.0.0.1:7400")
    if len(port) > 5 or int(port) >= 2**16:
        raise ValueError(f"{text!r}: a port is at most 65535")
    return host, int(port)


def port_of(peer: str) -> int:
    """The port of the other end of a wire; 0 where it has none."""
    _, _, port = peer.rpartition(":")
    return int(port) if port.isascii() and port.isdigit() else 0


def format_address(host: str, port: int) -> str:
    """Join the two again."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
