"""Command records: records that have an effect on the stream once they are appended.

Such a record has one header, whose name is empty. The value `fence` makes its body the fencing
token (at most 36 bytes); `trim` removes the records below its body, a sequence of 8 bytes.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from millpond.actors.streams.messages import Headers
from millpond.actors.streams.read_scan import is_command

FENCE_BYTES_MAX = 36


class BadCommandRecord(Exception):
    """A command record that is not known or not well-formed."""


class SetFence(msgspec.Struct, frozen=True, gc=False):
    """Appends that name a fencing token have to name this one."""

    token: bytes


class TrimTo(msgspec.Struct, frozen=True, gc=False):
    """Records below `point` are removed, but at most those up to the command's own, at index
    `at`."""

    point: int
    at: int


CommandRecord = SetFence | TrimTo


def command_records_of(bodies: Sequence[bytes], headers: Sequence[Headers]) -> list[CommandRecord]:
    """The commands of an append, in its order. Raises BadCommandRecord."""
    orders: list[CommandRecord] = []
    for at, (body, pairs) in enumerate(zip(bodies, headers, strict=True)):
        if is_command(pairs):
            orders.append(_order(pairs[0][1], body, at))
        elif any(not name for name, _ in pairs):
            raise BadCommandRecord("a header without a name beside others")
    return orders


def _order(verb: bytes, body: bytes, at: int) -> CommandRecord:
    if verb == b"fence" and len(body) <= FENCE_BYTES_MAX:
        return SetFence(body)
    if verb == b"trim" and len(body) == 8:
        return TrimTo(int.from_bytes(body), at)
    raise BadCommandRecord(f"command {verb[:20]!r} with {len(body)} bytes")
