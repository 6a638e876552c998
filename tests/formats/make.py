"""Makes the golden data folder of this version: `python -m tests.formats.make FOLDER`.

A folder is made once, when a format gets its number, and stays as it is: later versions must read
it. Its content stands here, so that tests can compare.
"""

from __future__ import annotations

import shutil
import sqlite3
import sys
from contextlib import closing
from hashlib import sha256
from pathlib import Path

import msgspec

from millpond.actors.messages import Durability, Mode
from millpond.actors.store.catalog_copy import remove_copy
from millpond.actors.store.changes import (
    SENDER_SHIFT,
    AttemptsSet,
    Chunk,
    DeadlineSet,
    KeyExpired,
    LogDeleted,
    LogSnapshot,
    LogTrimmed,
    MessageRemoved,
    MetadataSet,
    ModeSet,
    Origin,
    PartitionKind,
    Position,
    Snapshot,
    StoredKey,
    StoredMessage,
)
from millpond.actors.store.filesystem import OsDisk
from millpond.actors.store.journal.change_codec import encode
from millpond.actors.store.journal.format import Rewrite, encode_record
from millpond.actors.store.journal.reader import read_journal
from millpond.actors.store.journal.writer import CommitGroup, Journal
from millpond.actors.store.message_attributes import DueAt, MessageAttributes, UniqueKey
from millpond.actors.store.partitions.catalog import CATALOG, Catalog
from millpond.actors.store.partitions.file_pool import FilePool
from millpond.actors.store.partitions.files import PartitionFiles
from millpond.actors.store.recovery import segments_known
from millpond.actors.store.repair.quarantine import Damage, write_report
from millpond.actors.store.settings import StoreSettings
from millpond.actors.store.subscribers import (
    Acked,
    AckedUpTo,
    Subscriber,
    SubscriberRemoved,
    SubscriberTable,
    SubscriberTouched,
)
from tests.actors.store.harness import NOW, Run, copied, young_id

SETTINGS = StoreSettings(
    segment_bytes=8192,
    journal_bytes_max=16384,
    rewrite_bytes_max=512,
    settle_s=1.0,
    stall_factor=100,
)
"""Partitions with more than 512 bytes in the journal go to files, the others are carried."""
ROOMY = StoreSettings(segment_bytes=8192, rewrite_bytes_max=10, waste_bytes_max=10, settle_s=1.0)
"""Settings with which records stay in the journal, but for those that waste space in a file."""
FACTS = {"instance": 613, "format": 1}
U32_MAX, U64_MAX = 2**32 - 1, 2**64 - 1
ANN, BOB, CAT = 1, 2, 4
OLD, YOUNG = young_id(60), young_id()


def row(message_id: int, key: int, data: bytes, origin: Origin | None = None) -> StoredMessage:
    return StoredMessage(message_id, key, 3600, NOW + 3600.5, data, 0, origin)


def left(row: StoredMessage) -> StoredKey:
    return StoredKey(row.id, row.ttl, row.until, sha256(row.data).digest())


def gone(row: StoredMessage) -> MessageRemoved:
    return MessageRemoved(row.id, row.key, left(row), len(row.data))


def chunk(first: int, count: int, data: bytes) -> Chunk:
    last = first + count - 1
    ids = Position(1000 + first, 0), Position(1000 + last, 7)
    return Chunk(first, count, 10 * first, 10 * last, *ids, data)


# chat/1: in its file and in the journal.
A1 = row(OLD, 1, b"settled")
A2 = row(OLD + 1, U64_MAX, b"a dead letter " * 50, Origin(OLD - 5, 3, "too often: \u00e9"))
A3 = row(OLD + 2, 3, b"acked in the file")
A4 = row(OLD + 3, 4, b"its key")
A5 = row(YOUNG, 5, b"young")
A6 = row(YOUNG + 1, 6, b"young and acked")
A7 = row(YOUNG + 2, 7, b"after the flush")
A8 = row(YOUNG + 3, 8, b"key forgotten, kept")
# chat/2: carried whole. chat/3: only a key is left.
B1 = row(OLD, 1, b"")
B2 = row(OLD + 1, 2, b"\x00\xff")
B3 = row(YOUNG, 3, b"dead", Origin(OLD - 6, 9, ""))
C1 = row(OLD, 9, b"gone")
# chat/6: a fanout with members, in its file and in the journal; from version 2 on.
F1 = row(OLD, 1, b"anonymous")
F2 = row(OLD + 1, ANN << SENDER_SHIFT | 1, b"of Ann, the same key")
F3 = row(YOUNG + 7, BOB << SENDER_SHIFT | U32_MAX, b"of Bob")
F4 = row(OLD + 2, ANN << SENDER_SHIFT | 2, b"acked by all")
F5 = row(YOUNG + 5, 9, b"so much that all goes to the file" * 80)
# chat/7: members in the journal alone.
G1 = row(YOUNG, 5, b"acked by Ann")
# chat/8: jobs, in its file and in the journal; from version 2 on. chat/9: in the journal alone.
H1 = row(OLD, 1, b"due, and one of its name" * 30)
H2 = row(OLD + 1, 2, b"hurried")
H3 = row(OLD + 2, 3, b"done")
H4 = row(YOUNG, 4, b"rests")
I1 = row(YOUNG, 1, b"put back", Origin(OLD - 7, 10, "timeout"))
# chat/10: deadlines that were corrected, of a message in its file and of one in the journal; from
# version 5 on.
J1 = row(OLD, 1, b"in the file" * 80)
J2 = row(YOUNG, 2, b"in the journal")
LATE_S = 86_400.0
# chat/5: said again after the disk failed.
D1 = row(YOUNG, 1, b"mended")

CHUNKS = [chunk(0, 5, b"x" * 700), chunk(5, 1, b"y" * 700), chunk(6, 4, b"z" * 100)]
WIDE = Chunk(
    0, 2, 2**63 - 1, U64_MAX, Position(2**63, 0), Position(U64_MAX, U64_MAX), b"all 64 bits"
)
NEW = chunk(0, 3, b"of the second incarnation")

QUEUES = {
    b"chat/1": Snapshot(
        [A1, A2, A5, A7, A8],
        {1: A1, U64_MAX: A2, 3: left(A3), 5: A5, 6: left(A6), 7: A7, 8: A8},
        {A2.id: 2, A5.id: 1},
        Mode.QUEUE,
    ),
    b"chat/2": Snapshot([B1, B2, B3], {1: B1, 2: B2, 3: B3}, {B2.id: 4}, Mode.FANOUT),
    b"chat/3": Snapshot([], {9: left(C1)}, {}, Mode.PAIR),
    b"chat/5": Snapshot([D1], {1: D1}, {}, Mode.PAIR),
}
LOGS = {
    b"log/1": (
        LogSnapshot(5, 10, Position(1009, 7), 90, {b"type": b"text/plain"}),
        CHUNKS[1:],
    ),
    b"log/2": (
        LogSnapshot(0, 2, Position(U64_MAX, U64_MAX), U64_MAX, {b"": b""}),
        [WIDE],
    ),
    b"log/3": (LogSnapshot(0, 3, Position(1002, 7), 20, {}), [NEW]),
}
MEMBERS = {
    b"chat/6": Snapshot(
        [F1, F2, F3],
        {1: F1, F2.key: F2, F3.key: F3, F4.key: left(F4)},
        {},
        Mode.FANOUT,
        SubscriberTable(
            {
                ANN: Subscriber(ANN, b"a" * 32, NOW + 7200.25),
                BOB: Subscriber(BOB, b"b" * 32, NOW + 86_400.5, OLD - 1),
            },
            {BOB: F1.id},
            {0: {F1.id, F3.id}, BOB: {F2.id}},
        ),
    ),
    b"chat/7": Snapshot(
        [G1],
        {5: G1},
        {},
        Mode.FANOUT,
        SubscriberTable({ANN: Subscriber(ANN, b"a" * 32, NOW + 9000, 0)}, {ANN: G1.id}),
    ),
}
TERMS = {
    b"chat/8": Snapshot(
        [H1, H2, H4],
        {1: H1, 2: H2, 3: left(H3), 4: H4},
        {H4.id: 1},
        Mode.QUEUE,
        None,
        MessageAttributes(
            {H1.id: NOW + 90.5, H4.id: NOW + 300.25}, {H1.id: b"alice", H2.id: b"\xff" * 64}
        ),
    ),
    b"chat/9": Snapshot(
        [I1], {1: I1}, {}, Mode.QUEUE, None, MessageAttributes({I1.id: NOW + 5.0}, {I1.id: b"bob"})
    ),
}
"""Queues that version 1 has nothing like; nor has it `MEMBERS`."""
CORRECTED = {b"chat/10": Snapshot([J1, J2], {1: J1, 2: J2}, {}, Mode.PAIR)}
"""A queue that versions before 5 have nothing like."""
DAMAGED = b"chat/damaged"
TORN = b"chat/torn"


def make(folder: Path) -> None:
    """A folder that had three runs: an orderly one, one that ended in a torn write, a last one."""
    run = Run(folder, SETTINGS, seed=1)
    run.store.save_facts(FACTS)
    first_run(run)
    run.close()
    run = Run(folder, ROOMY, seed=2)
    second_run(run)
    crashed = copied(folder, f"{folder.name} of a crash")
    run.close()
    shutil.rmtree(folder)
    crashed.rename(folder)
    tear(folder)
    write_report(folder / "damaged", OsDisk(), Damage("somewhere", "made for the tests", DAMAGED))
    run = Run(folder, ROOMY, Durability.OS, seed=3)
    third_run(run)
    run.close()
    mended(folder)
    for path in folder.rglob("*.sqlite3"):
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()


def first_run(run: Run) -> None:
    run.write(b"chat/1", ModeSet(Mode.QUEUE), A1)
    run.write(b"chat/1", A2, A3, A4, A5, A6)
    run.write(b"chat/1", AttemptsSet(A2.id, 2), gone(A6))
    run.write(b"chat/2", ModeSet(Mode.FANOUT), B1, B2, AttemptsSet(B2.id, 4))
    run.write(b"chat/3", ModeSet(Mode.PAIR), C1)
    run.write(b"chat/3", gone(C1))
    run.write(
        b"log/1", *CHUNKS[:2], MetadataSet(b"type", b"text/html"), MetadataSet(b"owner", b"nobody")
    )
    run.write(b"log/2", WIDE, MetadataSet(b"", b""))
    run.write(b"log/3", chunk(0, 9, b"of the first incarnation" * 30), MetadataSet(b"a", b"b"))
    run.write(b"chat/6", ModeSet(Mode.FANOUT), Subscriber(ANN, b"a" * 32, NOW + 3600), F1, F2, F4)
    run.write(b"chat/6", Subscriber(BOB, b"b" * 32, NOW + 86_400.5, OLD - 1), Acked(BOB, F2.id))
    run.write(b"chat/6", Subscriber(CAT, b"c" * 32, NOW + 60), Acked(0, F1.id), Acked(BOB, F4.id))
    run.write(b"chat/6", F5)
    run.write(
        b"chat/8", ModeSet(Mode.QUEUE), H1, DueAt(H1.id, NOW + 60.5), UniqueKey(H1.id, b"alice")
    )
    run.write(b"chat/8", H2, DueAt(H2.id, NOW + 70), UniqueKey(H2.id, b"\xff" * 64))
    run.write(b"chat/8", H3, DueAt(H3.id, NOW + 1), UniqueKey(H3.id, b"carol"))
    run.write(b"chat/10", ModeSet(Mode.PAIR), late(J1))
    run.flush(6)


def second_run(run: Run) -> None:
    run.write(b"chat/1", gone(A3))
    run.write(b"chat/1", gone(A4))
    run.write(b"chat/1", KeyExpired(A4.key))
    run.write(b"chat/1", AttemptsSet(A5.id, 1), A7, A8)
    run.write(b"chat/1", KeyExpired(A8.key, was_left=False))
    run.write(b"chat/2", B3)
    run.write(
        b"log/1",
        CHUNKS[2],
        LogTrimmed(5),
        MetadataSet(b"type", b"text/plain"),
        MetadataSet(b"owner", None),
    )
    run.write(b"log/3", LogDeleted(), NEW)
    run.write(b"chat/6", SubscriberTouched(ANN, NOW + 7200.25), SubscriberRemoved(CAT), gone(F4))
    run.write(
        b"chat/6",
        F3,
        Acked(0, F3.id),
        AckedUpTo(BOB, F1.id),
        MessageRemoved(F5.id, 9, None, len(F5.data)),
    )
    run.write(b"chat/7", ModeSet(Mode.FANOUT), Subscriber(ANN, b"a" * 32, NOW + 60), G1)
    run.write(b"chat/7", SubscriberTouched(ANN, NOW + 9000, 0), AckedUpTo(ANN, G1.id))
    run.write(b"chat/8", DueAt(H1.id, NOW + 90.5), DueAt(H2.id, 0.0), gone(H3), H4)
    run.write(b"chat/8", AttemptsSet(H4.id, 1), DueAt(H4.id, NOW + 300.25))
    run.write(b"chat/9", ModeSet(Mode.QUEUE), I1, DueAt(I1.id, NOW + 5.0), UniqueKey(I1.id, b"bob"))
    run.write(b"chat/10", DeadlineSet(J1.id, J1.expires_at))
    run.write(b"chat/10", late(J2), DeadlineSet(J2.id, J2.expires_at))
    run.write(TORN, row(YOUNG, 1, b"torn"))


def late(message: StoredMessage) -> StoredMessage:
    """As a clock that was ahead stored it."""
    return msgspec.structs.replace(message, expires_at=message.expires_at + LATE_S)


def third_run(run: Run) -> None:
    run.write(b"chat/4", ModeSet(Mode.PAIR), row(YOUNG + 9, 1, b"soon gone"))
    run.write(b"chat/4", MessageRemoved(YOUNG + 9, 1, None, 9))


def mended(folder: Path) -> None:
    """The disk failed while a file was written, and went on: what a fourth run said again then."""
    place, disk = folder / "journal", OsDisk()
    remove_copy(folder, disk)
    catalog = Catalog(folder / CATALOG, disk)
    pool = FilePool(folder / "partitions", disk)
    segments = PartitionFiles(folder, disk, pool, catalog, catalog.facts())
    tail = read_journal(place, disk, segments_known(catalog, catalog.partitions())).tail
    journal = Journal(
        place, disk, 4, tail, segments=segments, segment_bytes=8192, retry_s=1, now=lambda: 0.0
    )
    group = CommitGroup(0, tail.lsn + 1)
    group.needs_sync = True
    body = encode([ModeSet(Mode.PAIR), D1])
    record = encode_record(
        4, group.last_lsn, PartitionKind.QUEUE, b"chat/5", body, Rewrite.MENDED, tail.lsn
    )
    group.records.append(record)
    journal.commit([group])
    journal.close()
    segments.close()


def tear(folder: Path) -> None:
    """The power failed in the last write."""
    path = max((folder / "journal").glob("*.journal"))
    data = bytearray(path.read_bytes())
    at = data.rindex(TORN)
    data[at + len(TORN) :] = bytes(len(data) - at - len(TORN))
    path.write_bytes(data)


if __name__ == "__main__":
    make(Path(sys.argv[1]))
