"""Mutants of the classes of faults that were found: a mistake, and the test that catches it."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class Fault(Enum):
    """A class of faults. The value is what a user saw."""

    AGE = "age counts from a client's stamp"
    TAIL = "readers at the tail miss what an append brings"
    OFFSETS = "offsets inside of a record or beyond the tail pass records over"
    TRIMS = "a removal of everything without a word"
    JOBS = "jobs vanish when they expire"
    RAW = "get and recv change bytes"
    RULES = "rules match the node's own cells"
    BROWSERS = "pages of other sites use the node"
    MEMORY = "connections take memory without a limit"
    ABSENCE = "what is missing is empty or shorter"
    SALVAGE = "a repair drops what is good"
    SNAPSHOTS = "a backup is of several moments"
    MISPLACED = "writes that are lost or went elsewhere stay unseen"
    PEERS = "messages of other nodes are read twice, believed, or let in where they may not"
    WAKES = "workers are not woken, cursors move for strangers, webhooks go where they may not"
    SEALED = "encrypted records open elsewhere, are not whole, or stand there in clear"
    QUEUES = "limits, pauses and schedules of queues do not hold, or hold jobs for ever"
    TAKEOVERS = "a takeover loses what was acknowledged"
    GROUPS = "groups show texts twice or of those who may not write, or keep removed ones"
    CLOCK = "a wrong clock stops PUT, expires or repeats ids"


class Mutant(NamedTuple):
    """`text` is once in `file`, and `instead` is the mistake; `test` fails with it: a function of
    a test file, or one of its cases."""

    name: str
    fault: Fault
    file: str
    text: str
    instead: str
    test: str
