"""Bodies of our own packets: msgpack maps with a shape each (docs/reference/wire-protocol.md)."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from millpond.actors.errors import Malformed

Shape = TypeVar("Shape")


def read_body(body: bytes, shape: type[Shape]) -> Shape:
    """A body as its shape has it. Raises Malformed."""
    try:
        return msgspec.msgpack.decode(body, type=shape)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as exc:
        # Text that is not UTF-8, and deep nesting, are no MsgspecErrors.
        raise Malformed(str(exc)) from exc
