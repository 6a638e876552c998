"""Operations about streams in packet 0x92, and the rights they take (see the wire protocol)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum
from itertools import islice
from typing import TypeVar

from millpond.actors.errors import NotAllowed
from millpond.actors.messages import Rights


class Operation(IntEnum):
    """Operations of packet 0x92, by number."""

    CREATE = 1
    APPEND = 2
    READ = 3
    DESCRIBE = 4
    TRIM = 5
    DELETE = 6
    CONFIGURE = 7
    COMMIT = 8
    COMMITTED = 9
    LIST = 10
    CREATE_TOPIC = 11
    DELETE_TOPIC = 12
    LIST_TOPICS = 13
    CANCEL = 14
    STATE = 15
    STATE_GET = 16
    STATE_SHOW = 17


OF_STATE = frozenset({Operation.STATE, Operation.STATE_GET, Operation.STATE_SHOW})
"""These are about the state that a stream's events make."""

REPEATABLE = frozenset(
    {
        Operation.READ,
        Operation.DESCRIBE,
        Operation.TRIM,
        Operation.COMMITTED,
        Operation.LIST,
        Operation.LIST_TOPICS,
        Operation.STATE,
        Operation.STATE_GET,
        Operation.STATE_SHOW,
    }
)
"""Asked twice, these do no more than once."""

RightsIn = Callable[[bytes], Rights | None]
"""The rights of the client in a stream or topic; None = none."""

LISTED_MAX = 10_000
"""For a client that may not see all names, so many are looked through at once."""

NEEDED = {
    Operation.CREATE: Rights.PUT,
    Operation.APPEND: Rights.PUT,
    Operation.READ: Rights.GET,
    Operation.DESCRIBE: Rights.GET | Rights.LIST,
    Operation.TRIM: Rights.ADMIN,
    Operation.DELETE: Rights.ADMIN,
    Operation.CONFIGURE: Rights.ADMIN,
    Operation.COMMIT: Rights.GET,
    Operation.COMMITTED: Rights.GET,
    Operation.CREATE_TOPIC: Rights.PUT,
    Operation.DELETE_TOPIC: Rights.ADMIN,
    Operation.LIST_TOPICS: Rights.GET | Rights.LIST,
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
    """A page of the rows whose names this client may see, and whether there are more.

    LISTED_MAX rows are looked at. Raises NotAllowed when there are more and none of these is for
    this client: a longer prefix is needed.
    """
    may = (
        row for row in rows[:LISTED_MAX] if Rights.LIST in (rights_in(name_of(row)) or Rights.NONE)
    )
    found = list(islice(may, limit + 1))
    is_cut = len(rows) > LISTED_MAX
    if is_cut and not found:
        raise NotAllowed
    return found[:limit], is_cut or len(found) > limit
