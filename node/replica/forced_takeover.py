"""The takeover that an operator forces, where the owner began a new history and is lost before the
first snapshot of it.

The journal of such a history restores nothing, so a standby waits for the snapshot. An operator who
knows that none will come allows a standby to go on from the end of the history before.
"""

from __future__ import annotations

from contextlib import suppress

import msgspec

from millpond.node.replica.errors import BadReplica, NoObject, ObjectExists
from millpond.node.replica.object_store import ObjectStore
from millpond.node.replica.objects import (
    OWNER,
    decode_journal_object,
    decode_owner,
    journal_name,
    records_of,
    takeover_name,
)
from millpond.node.replica.restoration import JournalCursor, read_format
from millpond.node.replica.snapshots import manifests


class UnfinishedHistory(msgspec.Struct, frozen=True):
    """The last history of a replica, without a snapshot: `objects` journal objects up to `number`,
    with `records` records, made from `began_at` to `ended_at` (seconds since 1970). A takeover goes
    on from `kept_at` and `kept_lsn`. `host` is that of the owner."""

    number: int
    objects: int
    records: int
    began_at: float
    ended_at: float
    kept_at: float
    kept_lsn: int
    host: str


def unfinished_history(objects: ObjectStore) -> UnfinishedHistory | None:
    """None: the last history has a snapshot, so a standby needs no leave. Raises BadReplica."""
    read_format(objects)
    found = manifests(objects)
    if not found:
        raise BadReplica("the replica has no snapshot at all: nobody can go on from it")
    cursor = JournalCursor(objects, found[-1])
    for _ in cursor.objects():
        pass
    if not cursor.is_cut:
        return None
    first = number = cursor.number
    records, moments = 0, []
    while True:
        name = journal_name(number)
        try:
            header, body = decode_journal_object(objects.get(name), name)
        except NoObject:
            break
        records += sum(1 for _ in records_of(header, body))
        moments.append(header.made_at)
        number += 1
    kept = cursor.last
    return UnfinishedHistory(
        number=number - 1,
        objects=number - first,
        records=records,
        began_at=moments[0],
        ended_at=moments[-1],
        kept_at=found[-1].made_at if kept is None else kept.made_at,
        kept_lsn=cursor.reached,
        host=_host(objects),
    )


def _host(objects: ObjectStore) -> str:
    owners = objects.list(OWNER)
    with suppress(NoObject):  # removed meanwhile
        if owners:
            return decode_owner(objects.get(owners[-1].name), owners[-1].name).host
    return ""


def allow_takeover(objects: ObjectStore, history: UnfinishedHistory) -> None:
    """Let a standby go on without this history, unless its owner ships more of it."""
    with suppress(ObjectExists):
        objects.create(takeover_name(history.number), b"")
