"""Options of a job that the node reads in its bytes: a priority, a limit key and a start deadline.

They are part of the message (docs/reference/wire-protocol.md, "The bytes of a job"), so they stay
with it on every way: through schedules, dead letters, exports and restarts. They stand between the
version and the payload; most jobs have none, which two bytes tell.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

PRIORITY_MAX = 9
PRIORITY = 4
"""The priority of a job that names none; higher ones go first."""
LIMIT_KEY_BYTES_MAX = 64

_VERSION = b"\xa1v\x01"
OPTION_MARKS = frozenset((b"\xa1r", b"\xa1l", b"\xa1s"))
"""The two bytes behind the version of a job that has options."""


class JobOptions(msgspec.Struct, frozen=True, gc=False):
    """The options of one job. `limit_key` empty: limits of keys do not apply. `start_by_ms`: it
    starts by then, in ms since 1970, or becomes a dead letter; 0: it has time."""

    priority: Annotated[int, msgspec.Meta(ge=0, le=PRIORITY_MAX)] = msgspec.field(
        default=PRIORITY, name="r"
    )
    limit_key: Annotated[bytes, msgspec.Meta(max_length=LIMIT_KEY_BYTES_MAX)] = msgspec.field(
        default=b"", name="l"
    )
    start_by_ms: Annotated[int, msgspec.Meta(ge=0, lt=2**53)] = msgspec.field(default=0, name="s")


NO_OPTIONS = JobOptions()
_decoder = msgspec.msgpack.Decoder(JobOptions)


def options_of(data: bytes) -> JobOptions | None:
    """The options of a job; None: it has none. Never raises: options that nobody can have are
    none."""
    if data[4:6] not in OPTION_MARKS or data[1:4] != _VERSION:
        return None
    try:
        found = _decoder.decode(data)
    except (msgspec.MsgspecError, RecursionError):
        return None
    return None if found == NO_OPTIONS else found
