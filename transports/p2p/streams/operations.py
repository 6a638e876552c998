"""What can be asked of streams with packet 0x92, by number (docs/reference/wire-protocol.md,
"Streams")."""

from __future__ import annotations

from enum import IntEnum


class Operation(IntEnum):
    """What can be asked with packet 0x92."""

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
