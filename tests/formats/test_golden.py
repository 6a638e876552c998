"""Data folders of every version are read by this one, and by whoever has
docs/reference/on-disk-format.md."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path
from zlib import crc32

import pytest

from millpond.actors.messages import Mode
from millpond.actors.positions import SeekBy
from millpond.actors.store.changes import PartitionKind, Snapshot, StoredMessage
from millpond.actors.store.filesystem import OsDisk
from millpond.actors.store.interface import Fault, Seek
from millpond.actors.store.journal.change_codec import decode, encode
from millpond.actors.store.journal.format import (
    Cut,
    Header,
    Rewrite,
    UnknownVersion,
    encode_group,
    encode_header,
    encode_record,
)
from millpond.actors.store.journal.reader import read_journal
from millpond.actors.store.journal.segments import SegmentEnd
from millpond.actors.store.message_attributes import MessageAttributes
from millpond.actors.store.partitions.sqlite import UnknownFormat
from millpond.actors.store.subscribers import Acked, Subscriber, SubscriberTable
from tests.actors.store.harness import Run, run
from tests.formats import make, reader

HERE = Path(__file__).parent
FOLDERS = sorted(each for each in HERE.iterdir() if each.name.startswith("v"))
NOW = HERE / "v6"
"""Of the version that is written now."""


def queues_of(folder: Path) -> dict[bytes, Snapshot]:
    """The content of a folder of its version: the first knew neither members nor terms."""
    queues = make.QUEUES if folder.name == "v1" else make.QUEUES | make.MEMBERS | make.TERMS
    return queues if folder.name < "v5" else queues | make.CORRECTED


@pytest.fixture(params=FOLDERS, ids=lambda folder: folder.name)
def golden(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return Path(shutil.copytree(request.param, tmp_path / request.param.name))


def check(opened: Run, queues: dict[bytes, Snapshot]) -> None:
    assert [damage.name for damage in opened.found.damages] == [make.DAMAGED]
    assert opened.store.facts == make.FACTS
    assert opened.store.last_id >= make.YOUNG + 9
    for name, snapshot in queues.items():
        assert opened.load(name) == snapshot
    for name, (outline, chunks) in make.LOGS.items():
        found = opened.log_snapshot(name)
        assert (found.bytes, outline.bytes) == (sum(len(each.data) for each in chunks), 0)
        found.bytes = 0
        assert found == outline
        assert opened.read(name, Seek(SeekBy.SEQUENCE, bytes_max=2**40)) == chunks
    assert opened.load(make.TORN) == Snapshot()
    assert {kept.name for kept in opened.store.stored_queues()} >= set(queues)


def test_everything_in_it_is_what_was_written(golden: Path) -> None:
    with run(golden) as opened:
        check(opened, queues_of(golden))
        assert opened.finish(opened.store.load(make.DAMAGED)) is Fault.DAMAGED


def test_it_can_be_written_on(golden: Path) -> None:
    row = StoredMessage(make.YOUNG + 2**30, 1, 60, 2e9, b"new")
    for settings in (make.ROOMY, make.SETTINGS):
        with run(golden, settings) as opened:
            check(opened, queues_of(golden))
            opened.write(b"chat/new", row)
            opened.flush()
            check_new(opened, row, queues_of(golden))
            opened.write(b"chat/new", make.gone(row))


def check_new(opened: Run, row: StoredMessage, queues: dict[bytes, Snapshot]) -> None:
    assert opened.load(b"chat/new").rows == [row]
    for name, snapshot in queues.items():
        assert opened.load(name) == snapshot


def test_its_channels_may_know_members_from_now_on(golden: Path) -> None:
    """In the file of a queue that was made by the first version, and had no place for them."""
    ann = Subscriber(9, b"x" * 32, make.NOW + 60, 5)
    with run(golden, make.SETTINGS) as opened:
        opened.write(b"chat/1", ann, Acked(9, make.A1.id), make.row(2**62, 1, bytes(2000)))
        opened.flush()
    for settings in (make.SETTINGS, make.ROOMY):
        with run(golden, settings) as opened:
            roster = opened.load(b"chat/1").subscribers
            assert roster == SubscriberTable({9: ann}, {}, {9: {make.A1.id}})
    found = reader.read_folder(golden)[b"chat/1"]
    assert isinstance(found, reader.Queue) and found.acks == {(9, make.A1.id)}


def test_whoever_has_the_description_can_read_it(golden: Path) -> None:
    """Nothing of Millpond is imported by that reader."""
    found = reader.read_folder(golden)
    for name, snapshot in queues_of(golden).items():
        queue = found[name]
        assert isinstance(queue, reader.Queue)
        assert queue.rows == {row.id: plain(row) for row in snapshot.rows}
        left = {
            key: row for key, row in snapshot.keys.items() if not isinstance(row, StoredMessage)
        }
        assert queue.keys == {
            key: (row.id, row.ttl, row.until, row.digest) for key, row in left.items()
        }
        assert queue.attempts == snapshot.attempts
        assert queue.mode == snapshot.mode
        check_members(queue, snapshot.subscribers or SubscriberTable())
        terms = snapshot.attributes or MessageAttributes()
        assert (queue.due, queue.names) == (terms.due, terms.names)
    for name, (outline, chunks) in make.LOGS.items():
        log = found[name]
        assert isinstance(log, reader.Log)
        assert [(each[0], each[1], each[6]) for each in log.chunks] == [
            (each.first, each.count, each.data) for each in chunks
        ]
        assert (log.trim_point, log.tail, log.metadata) == (
            outline.trim_point, outline.tail, outline.metadata,
        )  # fmt: skip
        assert log.last_id == (outline.last_id.ms, outline.last_id.seq)
        assert log.last_timestamp == outline.last_timestamp
    others = set(found) - set(queues_of(golden)) - set(make.LOGS)
    assert all(not found[name].rows for name in others), "what is gone is gone"
    assert reader.read_catalog(golden)[2] == make.FACTS


def check_members(queue: reader.Queue, roster: SubscriberTable) -> None:
    assert queue.members == {
        number: (each.identity, each.until, each.since) for number, each in roster.by_number.items()
    }
    assert queue.floors == roster.floors
    assert queue.acks == {(number, each) for number, ids in roster.acked.items() for each in ids}


def plain(row: StoredMessage) -> tuple[object, ...]:
    origin = row.origin
    dead = None if origin is None else (origin.id, origin.attempts, origin.reason)
    return row.key, row.ttl, row.expires_at, row.data, dead


def test_the_catalog_says_what_the_files_say(golden: Path) -> None:
    outlines, dirty, _ = reader.read_catalog(golden)
    assert dirty == set()
    assert outlines
    for name, outline in outlines.items():
        meta, _ = reader.read_partition(reader.partition_path(golden, name))
        assert meta[: len(outline)] == outline


@pytest.mark.parametrize("folder", [NOW])
def test_the_list_of_segments_is_what_there_is(folder: Path, tmp_path: Path) -> None:
    """As the description has it, by the reader that knows nothing else."""
    copy = Path(shutil.copytree(folder, tmp_path / "copy"))
    segments, marks = reader.read_list(copy)
    assert len(segments) == len(list((copy / "journal").glob("*.journal"))) > 1
    assert marks.pop("segments") == len(segments)
    assert marks.keys() == {"generation", "id_mark", "last_id", "last_lsn"}
    for number, row in segments.items():
        data = (copy / "journal" / f"{number:020}.journal").read_bytes()
        segment = reader.read_segment(data)
        assert crc32(data[: row["end"]]) == row["checksum"]
        assert (segment.salt, segment.first_lsn) == (row["salt"], row["first_lsn"])
        earlier, end, crc = segment.previous
        if earlier in segments:
            assert (end, crc) == (segments[earlier]["end"], segments[earlier]["checksum"])
        assert marks["generation"] > segment.generation


class TestLaterVersions:
    """An older node that goes on with a newer folder would harm it."""

    def refused(self, folder: Path, error: type[Exception]) -> None:
        files = [path for path in folder.rglob("*") if path.is_file()]
        before = {path: path.read_bytes() for path in files}
        with pytest.raises(error, match=r"format [56]"):
            Run(folder)
        assert {path: path.read_bytes() for path in files} == before

    def test_a_journal_is_refused(self, golden: Path) -> None:
        path = min((golden / "journal").iterdir())
        data = bytearray(path.read_bytes())
        data[16] = 5
        data[1584:1588] = crc32(data[:1584]).to_bytes(4, "little")
        path.write_bytes(data)
        self.refused(golden, UnknownVersion)

    def test_a_catalog_is_refused_and_not_made_anew(self, golden: Path) -> None:
        set_version(golden / "catalogue.sqlite3")
        self.refused(golden, UnknownFormat)

    def test_partitions_are_refused_though_the_catalog_is_lost(self, golden: Path) -> None:
        for path in (golden / "partitions").rglob("*.sqlite3"):
            set_version(path)
        (golden / "catalogue.sqlite3").unlink()
        self.refused(golden, UnknownFormat)


def version_of(path: Path) -> int:
    connection = sqlite3.connect(f"{path.as_uri()}?immutable=1", uri=True)
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    connection.close()
    return int(version)


def set_version(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 6")
    connection.close()


class TestThisVersion:
    def segments(self) -> list[tuple[bytes, reader.Segment]]:
        paths = sorted((NOW / "journal").glob("*.journal"))
        return [(data, reader.read_segment(data)) for data in map(Path.read_bytes, paths)]

    def test_the_same_is_written_in_the_same_bytes(self) -> None:
        """Else this is another version, and has a number of its own."""
        for data, segment in self.segments():
            cuts = {number: Cut(*cut) for number, cut in segment.cuts.items()}
            header = Header(
                segment.number,
                segment.first_lsn,
                segment.salt,
                segment.last_id,
                cuts,
                SegmentEnd(*segment.previous),
                segment.generation,
                segment.id_mark,
            )
            written = encode_header(header)
            for group in segment.groups:
                records = [
                    encode_record(
                        segment.salt,
                        each.lsn,
                        PartitionKind(each.kind),
                        each.name,
                        encode(decode(each.body)),
                        Rewrite(each.rewrite),
                        each.as_of,
                    )
                    for each in group.records
                ]
                first, synced = group.first_lsn, group.synced_lsn
                written += encode_group(segment.salt, records, first, synced)
            assert written == data[: segment.size]

    def test_both_readers_find_the_same_records(self) -> None:
        found = read_journal(NOW / "journal", OsDisk())
        assert [
            (each.lsn, each.kind, each.name, each.rewrite, each.as_of, each.body)
            for _, each in found.records
        ] == [
            (each.lsn, each.kind, each.name, each.rewrite, each.as_of, each.body)
            for each in reader.read_journal(NOW / "journal")
        ]

    def test_its_journal_has_everything_that_there_is(self) -> None:
        records = reader.read_journal(NOW / "journal")
        shown = {op for record in records for op, _ in reader.changes_of(record.body)}
        assert shown == set(reader.CHANGES)
        assert {record.rewrite for record in records} == set(Rewrite)
        assert any(segment.cuts for _, segment in self.segments())
        files = list((NOW / "partitions").rglob("*.sqlite3"))
        assert len(files) >= 3 and {version_of(each) for each in files} == {4}
        assert {snapshot.mode for snapshot in make.QUEUES.values()} == set(Mode)

    def test_it_is_made_as_it_was(self, tmp_path: Path) -> None:
        make.make(tmp_path)
        with run(tmp_path) as opened:
            check(opened, queues_of(NOW))
        assert reader.read_folder(tmp_path).keys() >= queues_of(NOW).keys() | make.LOGS.keys()
