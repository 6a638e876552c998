"""docs/reference/on-disk-format.md says what the code does: layouts, changes, tables, and a segment
in full."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import pytest

from millpond.actors.messages import Mode
from millpond.actors.store.changes import (
    MessageRemoved,
    ModeSet,
    PartitionKind,
    StoredKey,
    StoredMessage,
)
from millpond.actors.store.journal import change_codec as codec
from millpond.actors.store.journal import format as frames
from millpond.actors.store.partitions import attribute_tables as terms
from millpond.actors.store.partitions import catalog, partition
from millpond.actors.store.partitions import sqlite as sqlite_file
from millpond.actors.store.partitions import subscriber_tables as members
from millpond.actors.store.partitions.partition import empty_file
from tests.formats import reader

PAGE = (
    Path(__file__).resolve().parents[2] / "docs" / "reference" / "on-disk-format.md"
).read_text()
LINE = re.compile(r"^    ([0-9a-f]{4})  ((?:[0-9a-f]{2} ?)+|00 x \d+)(?:   .*)?$", re.MULTILINE)
TYPES = {
    "u8": 1,
    "u16": 2,
    "u32": 4,
    "u64": 8,
    "4 bytes": 4,
    "16 bytes": 16,
    "62 x 24 bytes": 1488,
}

SALT = 0x01020304
ROW = StoredMessage(7, 8, 60, 1763683260.0, b"hello")
LEFT = StoredKey(7, 60, 1763683800.0, sha256(b"hello").digest())


def section(title: str) -> str:
    return PAGE.split(f"# {title}\n")[1].split("\n#")[0]


def segment() -> bytes:
    """The one that is shown in full."""
    records = [
        frames.encode_record(
            SALT, 1, PartitionKind.QUEUE, b"chat", codec.encode([ModeSet(Mode.PAIR), ROW])
        ),
        frames.encode_record(
            SALT, 2, PartitionKind.QUEUE, b"chat", codec.encode([MessageRemoved(7, 8, LEFT, 5)])
        ),
    ]
    header = frames.encode_header(frames.Header(1, 1, SALT))
    return header + frames.encode_group(SALT, records, 1, 0)


def shown() -> bytes:
    """The lines of the last section, in order."""
    data = b""
    for offset, text in LINE.findall(section("A segment in full")):
        assert int(offset, 16) == len(data)
        zeros = re.fullmatch(r"00 x (\d+)", text)
        data += bytes(int(zeros[1])) if zeros else bytes.fromhex(text)
    return data


def test_the_segment_in_full_is_what_is_written() -> None:
    assert shown() == segment()


def test_the_segment_in_full_is_what_is_read() -> None:
    (group,) = reader.read_segment(shown()).groups
    assert [record.lsn for record in group.records] == [1, 2]
    changes = [change for record in group.records for change in codec.decode(record.body)]
    assert changes == [ModeSet(Mode.PAIR), ROW, MessageRemoved(7, 8, LEFT, 5)]


@pytest.mark.parametrize(
    ("title", "size"),
    [
        ("Segment", frames.HEADER_SIZE),
        ("Group", frames.GROUP_SIZE),
        ("Record", frames.RECORD_SIZE),
    ],
)
def test_layouts_have_their_offsets(title: str, size: int) -> None:
    rows = re.findall(r"^\| (\d+) \| ([^|]+?) \|", section(title), re.MULTILINE)
    at = 0
    for offset, kind in rows:
        assert int(offset) == at
        at += TYPES[kind]
    assert at == size


def test_every_change_is_in_the_table() -> None:
    rows = re.findall(r"^\| ([0-9a-f]{2}) \|", section("Changes"), re.MULTILINE)
    ops = {*range(codec.ROW, codec.UNIQUE + 1), *range(codec.CHUNK, codec.DEADLINE + 1)}
    assert [int(each, 16) for each in rows] == sorted(ops) == sorted(reader.CHANGES)


def statements(sql: str) -> set[str]:
    found = re.findall(r"CREATE [^;]+", sql)
    return {re.sub(r"\s+", " ", each).replace("( ", "(").replace(" )", ")") for each in found}


def tables(data: bytes) -> Iterator[str]:
    connection = sqlite3.connect(":memory:")
    connection.deserialize(data[:18] + b"\x01\x01" + data[20:])  # in memory there is no WAL
    query = "SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL"
    yield from (sql + ";" for (sql,) in connection.execute(query))
    connection.close()


@pytest.mark.parametrize("kind", list(PartitionKind))
def test_the_tables_of_partitions_are_those_shown(kind: PartitionKind) -> None:
    found = statements("".join(tables(empty_file(kind))))
    assert found <= statements(section("Partition"))


def test_nothing_is_shown_that_partitions_do_not_have() -> None:
    found = "".join(sql for kind in PartitionKind for sql in tables(empty_file(kind)))
    found += members.SCHEMA + terms.SCHEMA
    assert statements(section("Partition")) == statements(found)


def test_the_tables_of_the_catalog_are_those_shown() -> None:
    assert statements(section("Catalog")) == statements(catalog.SCHEMA + catalog.SEGMENTS_SCHEMA)


def test_versions_and_application_ids_are_those_shown() -> None:
    assert "This is version 7 of the formats" in PAGE
    assert (frames.FORMAT_VERSION, sqlite_file.FORMAT, catalog.FORMAT) == (4, 4, 3)
    assert sqlite_file.COLD_FORMAT == 5
    assert f"{partition.APPLICATION:x}" in section("Partition")
    assert f"{catalog.APPLICATION:x}" in section("Catalog")
    assert f"at most {frames.CUTS_MAX}" in section("Segment")
    assert f"at most {frames.NAME_BYTES_MAX}" in PAGE
