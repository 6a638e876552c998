"""Limits of docs/reference/limits.md that no listener sees: slices, chunks, and waiting acks."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import anyio
import pytest
import trio.testing

from millpond.actors.messages import Ack, Msg
from millpond.actors.store.changes import Change, Chunk, LogTrimmed, StoredMessage
from millpond.actors.store.memory import MemoryStore
from millpond.actors.store.queue_memtable import QueueMemtable
from millpond.actors.store.settings import StoreSettings
from millpond.actors.streams import messages as m
from millpond.node.cli.commands import import_
from millpond.node.cli.main import main
from millpond.node.client.connect import connect
from millpond.node.client.settings import SimulatedSettings
from millpond.sync import connect as connect_sync
from millpond.transports.p2p.packets import encode
from tests.actors.store.harness import NOW, Run, young_id
from tests.actors.streams.harness import StreamHarness
from tests.node.client.scripted_node import Peer
from tests.node.processes import environment, serving

KIB, MIB = 2**10, 2**20


# The store.


def _row(message_id: int, size: int) -> StoredMessage:
    return StoredMessage(message_id, message_id, 3600, NOW + 3600, bytes(size))


def _channels(run: Run, count: int, size: int, age_s: float = 60.0) -> None:
    """So many channels, each with a message of this size and age; all are to be compacted."""
    for number in range(count):
        name = b"channel-%04d" % number
        run.write(name, _row(young_id(age_s) + number, size))
    for entry in tuple(run.store._entries.values()):
        run.store._compactor.prefer(entry)


def _next_slice(run: Run) -> list[Any]:
    run.store._compactor.step()
    return list(run.store._compactor._slice or ())


def test_a_slice_of_a_compaction_has_64_channels_or_2_mib(tmp_path: Path) -> None:
    run = Run(tmp_path / "small", StoreSettings())
    _channels(run, 100, 10)
    assert len(_next_slice(run)) == 64
    run = Run(tmp_path / "large", StoreSettings())
    _channels(run, 10, MIB)
    assert len(_next_slice(run)) == 2, "the second one is above it"


@pytest.mark.parametrize(
    ("size", "age_s", "is_flushed"), [(60, 60.0, False), (70, 60.0, True), (70, 1.0, False)]
)
def test_a_channel_with_64_kib_of_settled_messages_is_flushed(
    tmp_path: Path, size: int, age_s: float, is_flushed: bool
) -> None:
    """Messages younger than 5 s may soon be gone: they are written to the journal again."""
    run = Run(tmp_path / "data", StoreSettings())
    _channels(run, 1, size * KIB, age_s)
    (entry,) = _next_slice(run)
    assert bool(entry.flushed) is is_flushed
    assert isinstance(entry.rewritten, QueueMemtable)
    assert (entry.rewritten.size > size * KIB) is not is_flushed


def test_a_quarter_of_a_segment_is_rewritten_and_the_rest_flushed(tmp_path: Path) -> None:
    settings = StoreSettings(segment_bytes=64 * KIB)
    run = Run(tmp_path / "data", settings)
    _channels(run, 10, 3 * KIB)
    entries = _next_slice(run)
    rewritten = [each for each in entries if not each.flushed]
    assert len(rewritten) == 5 and len(entries) == 10
    assert sum(each.rewritten.size for each in entries) <= settings.segment_bytes // 4


# Streams.


class RecordingStore(MemoryStore):
    """Keeps what is written, a list for each write."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[list[Change]] = []

    def write(self, name: bytes, changes: Sequence[Change]) -> None:
        self.writes.append([*changes])
        super().write(name, changes)

    def take(self, kind: type[Any]) -> list[Any]:
        found = [each for write in self.writes for each in write if isinstance(each, kind)]
        self.writes.clear()
        return found


def test_appends_share_a_chunk_of_1000_records_or_1_mib() -> None:
    streams = StreamHarness(store=(store := RecordingStore()))
    streams.create()
    store.take(Chunk)
    port = streams.port()
    streams.say(port, *[m.Append(number, [b"x"] * 100) for number in range(11)])
    assert [chunk.count for chunk in store.take(Chunk)] == [1000, 100]
    streams.say(port, *[m.Append(number, [bytes(400 * KIB)]) for number in range(11, 14)])
    assert [chunk.count for chunk in store.take(Chunk)] == [2, 1]


def test_a_slice_of_retention_has_1_mib() -> None:
    streams = StreamHarness(store=(store := RecordingStore()))
    streams.create(age_s=1000)
    for _ in range(40):
        streams.append(bytes(100_000))
    store.take(LogTrimmed)
    streams.advance(2000)
    points = [trimmed.point for trimmed in store.take(LogTrimmed)]
    slices = [after - before for before, after in zip([0, *points], points, strict=False)]
    assert sum(slices) == 40 and 10 <= max(slices) <= 11


# The client.


@pytest.mark.parametrize(
    "anyio_backend", [("trio", {"clock": trio.testing.MockClock(autojump_threshold=0)})]
)
async def test_65_536_acks_wait_for_a_connection() -> None:
    """The oldest is dropped; its message comes again."""
    peer = Peer()
    async with connect(
        "tcp://peer:7400", "chat/1", settings=SimulatedSettings(dialer=peer.dial, rng=Random(7))
    ) as channel:
        peer.line.say(encode(Msg(1, 1, b"x")))
        await channel.receive()
        peer.up = False
        peer.line.cut()
        await peer.until(lambda: not channel.connected)
        for number in range(1, 65_538):
            await channel.ack(number)
        peer.up = True
        await peer.until(lambda: channel.connected)
        with anyio.fail_after(100):
            acks = await peer.received(Ack, 65_536)
    assert (acks[0].id, acks[-1].id, len(acks)) == (2, 65_537, 65_536)


def test_an_import_into_a_full_node_ends_with_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    assert import_.RETRY_LIMIT_S == 30.0
    monkeypatch.setattr(import_, "RETRY_LIMIT_S", 0.2)
    fields = {"id": "1", "key": "9", "ttl": 3600, "attempts": 0, "data": "x"}
    fields |= {"channel": "full", "expires_at": time.time() + 3600}
    file = tmp_path / "kept.jsonl"
    file.write_text(json.dumps(fields) + "\n")
    with serving(env=environment(MILLPOND_CHANNEL_MESSAGES_MAX="2")) as node:
        url = node.urls["tcp"]
        with connect_sync(url, channel="full", role="producer") as channel:
            channel.put(b"1"), channel.put(b"2")
        assert main(["import", "full", str(file), "--connect", url]) != 0
    assert "full" in capfd.readouterr().err
