"""Which right each operation of packet 0x92 takes in the stream or topic that it is about."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from typing import TypeVar

from millpond.actors.errors import NotAllowed
from millpond.actors.messages import Rights
from millpond.transports.p2p.streams.operations import Operation

RightsIn = Callable[[bytes], Rights | None]
"""The rights of the client in a stream or topic; None = none."""

LISTED_MAX = 10_000
"""Whoever may not see all names has so many looked through at once."""

TOLD = Rights.GET | Rights.LIST
NEEDED = {
    Operation.CREATE: Rights.PUT,
    Operation.APPEND: Rights.PUT,
    Operation.READ: Rights.GET,
    Operation.DESCRIBE: TOLD,
    Operation.TRIM: Rights.ADMIN,
    Operation.DELETE: Rights.ADMIN,
    Operation.CONFIGURE: Rights.ADMIN,
    Operation.COMMIT: Rights.GET,
    Operation.COMMITTED: Rights.GET,
    Operation.CREATE_TOPIC: Rights.PUT,
    Operation.DELETE_TOPIC: Rights.ADMIN,
    Operation.LIST_TOPICS: TOLD,
    Operation.STATE: Rights.GET,
    Operation.STATE_GET: Rights.GET,
    Operation.STATE_SHOW: Rights.GET,
}
"""One of these is enough. Lists of everything show what the client has `list` in."""

Row = TypeVar("Row")


def check(operation: Operation, name: bytes, rights_in: RightsIn) -> None:
    """Raises NotAllowed, whether or not there is such a stream."""
    if not (rights_in(name) or Rights.NONE) & NEEDED[operation]:
        raise NotAllowed


def listed(
    rows: Sequence[Row], name_of: Callable[[Row], bytes], limit: int, rights_in: RightsIn
) -> tuple[list[Row], bool]:
    """A page of those rows that this client may be told of, and whether to go on behind it.

    LISTED_MAX rows are looked at. Raises NotAllowed when there are more and none of these is for
    this client: a narrower question will do.
    """
    may = (
        row for row in rows[:LISTED_MAX] if Rights.LIST in (rights_in(name_of(row)) or Rights.NONE)
    )
    found = list(islice(may, limit + 1))
    is_cut = len(rows) > LISTED_MAX
    if is_cut and not found:
        raise NotAllowed
    return found[:limit], is_cut or len(found) > limit
