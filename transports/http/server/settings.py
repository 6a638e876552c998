"""Limits of HTTP connections; docs/reference/limits.md."""

from __future__ import annotations

import msgspec


class ServerSettings(msgspec.Struct, frozen=True):
    """Seconds and bytes. `head_s`: from a head's first byte to its last, and for the first byte of
    a connection; `idle_s`: without a request, or without the other end taking anything of what
    waits for it. HTTP/2 is pinged every `ping_s`, and has `ping_wait_s` to answer."""

    connections_max: int = 10_000
    streams_max: int = 200
    url_bytes_max: int = 16 * 2**10
    header_bytes_max: int = 32 * 2**10
    headers_max: int = 256
    head_s: float = 30.0
    idle_s: float = 120.0
    ping_s: float = 30.0
    ping_wait_s: float = 20.0
    window_bytes: int = 2**20
    connection_window_bytes: int = 2**22
    unread_bytes_max: int = 2**18
