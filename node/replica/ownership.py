"""The ownership of a replica: one process at a time ships to it.

A claim reads to the end of the journal and makes the next `owner/` object. The journal object that
follows keeps the earlier owner out: numbers are dense, and each is made once.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from millpond.node.replica.errors import BadReplica, NoObject, ObjectExists, OtherReplica
from millpond.node.replica.object_store import ObjectStore
from millpond.node.replica.objects import (
    FORMAT,
    FORMAT_VERSION,
    JOURNAL,
    OWNER,
    FormatObject,
    JournalHeader,
    Owner,
    decode_format,
    decode_journal_object,
    encode_json,
    journal_name,
    number_of,
    owner_name,
)

CLAIMS_MAX = 100


class Claimant(msgspec.Struct, frozen=True):
    """A process that claims: the id of the node in its replica, and an id of this run of it, 16
    random bytes each; `host` is for people, `url` the public address of its HTTP listener."""

    node: bytes
    run: bytes
    host: str = ""
    url: str = ""


class Claim(msgspec.Struct, frozen=True):
    """A claim: its epoch, the number of the next journal object, and the header of the last one
    (None: there is none)."""

    epoch: int
    number: int
    last: JournalHeader | None


def claim(
    objects: ObjectStore,
    claimant: Claimant,
    number: int,
    wall: float,
    check_new: Callable[[], None] = lambda: None,
) -> Claim:
    """Claim a replica, which is made if there is none and `check_new` raises no OtherReplica.
    Journal objects below `number` were there before. Raises OtherReplica, BadReplica,
    ObjectStoreAway, ObjectStoreRefuses."""
    found = FormatObject(FORMAT_VERSION, claimant.node, wall)
    try:
        found = decode_format(objects.get(FORMAT))
    except NoObject:
        check_new()
        try:
            objects.create(FORMAT, encode_json(found))
        except ObjectExists:
            found = decode_format(objects.get(FORMAT))
    if found.node != claimant.node:
        raise OtherReplica(
            "this prefix has the replica of another node: choose another one, or restore that "
            "replica into this data folder first"
        )
    last = last_header(objects, number)
    next_number = 0 if last is None else last.number + 1
    epoch = max((number_of(each.name) for each in objects.list(OWNER)), default=0)
    for _ in range(CLAIMS_MAX):
        epoch += 1
        owner = Owner(
            epoch,
            claimant.node,
            claimant.run,
            next_number,
            wall,
            claimant.host,
            claimant.url,
        )
        try:
            objects.create(owner_name(epoch), encode_json(owner))
        except ObjectExists:
            continue
        return Claim(epoch, next_number, last)
    raise BadReplica("other processes claim this replica all the time")


def last_header(objects: ObjectStore, number: int = 0) -> JournalHeader | None:
    """The header of the last journal object; None: there is none. `number` is a guess of the next
    number, which spares the list of all. Raises BadReplica."""
    names = objects.list(JOURNAL, journal_name(number - 2)) if number > 1 else []
    names = names or objects.list(JOURNAL)
    if not names:
        return None
    name = names[-1].name
    header, _ = decode_journal_object(objects.get(name), name)
    return header
