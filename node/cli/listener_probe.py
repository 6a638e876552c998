"""The listener at an address, told by its answer to a request of HTTP.

Each listener of a node answers it in its own protocol. It is asked after a connection has failed,
to say what was dialled. Nothing secret is sent, and no certificate is verified.
"""

from __future__ import annotations

import socket
import ssl
from typing import NamedTuple

from millpond.node.client.url import Address

PROBE_S = 1.0
REQUEST = b"GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
NAMES = {"p2p": "P2P", "ws": "WebSocket", "s3p": "S3P", "rustlog": "RustLog", "http": "HTTP"}
SCHEMES = {("p2p", False): "tcp", ("p2p", True): "tls", ("ws", False): "ws", ("ws", True): "wss"}
ALERT = b"\x15\x03"
"""The beginning of a TLS alert."""


class Found(NamedTuple):
    """The protocol that answers at an address. `listener` is "" where TLS keeps it hidden."""

    listener: str
    has_tls: bool


def probe(address: Address) -> Found | None:
    """The listener at an address; None: nothing answers, or what answers is none of a node's."""
    answer = _ask(address, has_tls=False)
    if (listener := _listener(answer)) is not None:
        return Found(listener, has_tls=False)
    if answer and not answer.startswith(ALERT):
        return None
    behind = _ask(address, has_tls=True)
    if behind is None and not answer:
        return None
    return Found(_listener(behind) or "", has_tls=True)


def advice(address: Address) -> tuple[str, str] | None:
    """The protocol found at an address that could not be used, and the hint; None: nothing is
    known, or it is the protocol that the address names."""
    found = probe(address)
    if found is None:
        return None
    wanted = ("ws" if address.websocket else "p2p", address.secure)
    if found == wanted:
        return None
    if address.secure and not found.has_tls and _ask(address, has_tls=True) is not None:
        return None  # a listener that takes both
    if not found.listener:
        hint = "use wss://" if address.websocket else "use tls://"
        return None if address.secure else ("this port speaks TLS", f"{hint} with this port")
    name = NAMES[found.listener]
    tls = "TLS" if found.has_tls else "no TLS"
    scheme = SCHEMES.get((found.listener, found.has_tls))
    if scheme is not None:
        return f"this is the {name} port, with {tls}", f"use {scheme}://{address}"
    usual = "WebSocket listens on 7401" if address.websocket else "P2P listens on 7400"
    return f"this is the {name} port", f"{usual} unless a node is told otherwise"


def _ask(address: Address, *, has_tls: bool) -> bytes | None:
    """The beginning of the answer; None: no connection, or no TLS there."""
    try:
        with socket.create_connection((address.host, address.port), PROBE_S) as plain:
            plain.settimeout(PROBE_S)
            if not has_tls:
                return _exchange(plain)
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
            with context.wrap_socket(plain, server_hostname=address.host) as secure:
                return _exchange(secure)
    except OSError:
        return None


def _exchange(connection: socket.socket) -> bytes:
    connection.sendall(REQUEST)
    answer = b""
    try:
        while len(answer) < 512 and (more := connection.recv(512)):
            answer += more
            if answer.startswith((b"\0", b"-", ALERT)) and len(answer) > 6:
                break
    except OSError:
        pass  # what came before tells enough
    return answer


def _listener(answer: bytes | None) -> str | None:
    """The listener that gives such an answer."""
    if not answer:
        return None
    if answer.startswith(b"HTTP/1."):
        head = answer.partition(b"\r\n\r\n")[0].lower()
        return "http" if b"server: millpond" in head else "ws"
    if answer.startswith(b"-ERR"):
        return "s3p"
    if answer[4:].startswith(b'{"type":"Error"'):
        return "rustlog"
    return "p2p" if answer.startswith(b"\0\0\0\3\xff") else None
