"""The head cache: heads that come again and again, byte for byte, are parsed once.

A client that appends sends the same head before each body; to parse, check and route it again was a
quarter of the cost of a small request. A head is cached when a connection sends it for the second
time in a row. All connections of a listener share the cache.
"""

from __future__ import annotations

from typing import Any

import msgspec

from millpond.transports.http.asgi import EXTENSION, Headers, Scope, ServerExtension

HEAD_BYTES_MAX = 2**12
HEADS_MAX = 512
"""The one that was kept first makes room."""
PARTS_MAX = 64
"""Lines, segments and pairs, about: each takes far more memory than its bytes. With that all heads
and what is found out from them are some 8 MiB at most."""
END = b"\r\n\r\n"
_MARKS = (b"\n", b"/", b"&")
SECRETS = (b"\ns2-encryption-key:",)
"""A head with one of these headers is not cached: the node keeps no key (docs/reference/s2.md)."""


class CachedHead(msgspec.Struct, frozen=True):
    """A parsed head; `length` bytes of body follow it. `cache` is that of its scope."""

    head: bytes
    length: int
    scope: dict[str, Any]
    cache: dict[str, Any]

    def scope_for(self, client: tuple[str, int], certificate: bytes | None) -> Scope:
        """The scope of a request with this head, on another connection."""
        extension = ServerExtension(certificate, self.cache)
        return {**self.scope, "client": client, "extensions": {EXTENSION: extension}}


class HeadCache:
    """The cached heads of one listener."""

    __slots__ = ("_by_head",)

    def __init__(self) -> None:
        self._by_head: dict[bytes, CachedHead] = {}

    def find(self, data: bytes) -> CachedHead | None:
        """The head that these bytes begin with, if all of its body is there and nothing else."""
        end = data.find(END, 0, HEAD_BYTES_MAX) + len(END)
        if end < len(END):
            return None
        found = self._by_head.get(data[:end])
        return found if found is not None and len(data) == end + found.length else None

    def keep(self, head: bytes, length: int, scope: Scope) -> None:
        """This head may come again."""
        if sum([head.count(each) for each in _MARKS]) > PARTS_MAX:
            return
        lower = head.lower()
        if any(each in lower for each in SECRETS):
            return
        if len(self._by_head) >= HEADS_MAX:
            del self._by_head[next(iter(self._by_head))]
        extension: ServerExtension = scope["extensions"][EXTENSION]
        self._by_head[head] = CachedHead(head, length, dict(scope), extension.cache)


def length_of(headers: Headers) -> int | None:
    """The length of the body, by its head; None: it has another framing."""
    lengths = []
    for name, value in headers:
        if name == b"content-length":
            lengths.append(value)
        elif name in (b"transfer-encoding", b"expect", b"upgrade"):
            return None
    if not lengths:
        return 0
    return int(lengths[0]) if len(lengths) == 1 and lengths[0].isdigit() else None
