"""The paths below which HTTP's APIs answer, as segments."""

from __future__ import annotations

S2 = (
    (b"v1", b"basins"),
    (b"v1", b"streams"),
    (b"v1", b"access-tokens"),
    (b"v1", b"metrics"),
    (b"v1", b"locations"),
)
DURABLE = (b"v1", b"stream")
CONSOLE = b"millpond"
"""The first segment of the console, and of all APIs that are no protocol's."""
STATE = (b"millpond", b"state")
PAGE = (b"millpond", b"page")
"""The files of the page on which windows share a state."""
TRANSACTIONS = (b"millpond", b"v1", b"transactions")
TAILS = (b"millpond", b"v1", b"tails")
REPLICA_FILES = (b"millpond", b"v1", b"replica-files")
