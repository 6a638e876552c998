"""`peers.db`: durable when it says so, and empty of what was removed."""

from __future__ import annotations

import os
from pathlib import Path

import anyio
import pytest

from millpond.node.peers.peer_store import FILE_NAME, PeerStore, PeerStoreError

pytestmark = pytest.mark.anyio
PEER = b"p" * 32


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / FILE_NAME


def mode_of(path: Path) -> int:
    return path.stat().st_mode & 0o777


def all_bytes(folder: Path) -> bytes:
    return b"".join(each.read_bytes() for each in sorted(folder.iterdir()))


def remove(path: Path) -> None:
    path.unlink()


async def test_what_was_written_is_there_after_a_restart(path: Path) -> None:
    store = PeerStore(path)
    store.make_key(PEER, 1000, 9000, os.urandom)
    store.state(PEER).channels.append(b"notes")
    await store.write([store.stored(PEER)])
    again = PeerStore(path)  # as after a kill: nothing was closed
    assert again.state(PEER) == store.state(PEER)
    kid, (peer, private) = next(iter(store._contact_keys.items()))
    assert again.contact_key(kid) == (peer, private) == (PEER, private)
    again.close()
    store.close()
    assert mode_of(path) == 0o600


async def test_concurrent_changes_are_all_written(path: Path) -> None:
    store = PeerStore(path)
    text = "INSERT INTO seen_v1 VALUES (?, ?, 1, 1)"
    async with anyio.create_task_group() as tasks:
        for number in range(200):
            tasks.start_soon(store.write, [(text, (PEER, b"%d" % number))])
    assert store.query("SELECT COUNT(*) FROM seen_v1") == [(200,)]
    store.close()


async def test_what_one_pass_of_the_loop_writes_is_one_commit(path: Path) -> None:
    """Also the first of them waits for the others; a commit costs more than a pass."""
    store = PeerStore(path)
    statements: list[str] = []
    store._db.set_trace_callback(statements.append)
    async with anyio.create_task_group() as tasks:
        for number in range(3):
            text = "INSERT INTO seen_v1 VALUES (?, ?, 1, 1)"
            tasks.start_soon(store.write, [(text, (PEER, b"%d" % number))])
    assert statements.count("COMMIT") == 1
    store.close()


async def test_a_change_that_fails_is_said_to_fail_and_later_ones_do_not(path: Path) -> None:
    store = PeerStore(path)
    with pytest.raises(OSError):
        await store.write([("INSERT INTO nothing VALUES (1)", ())])
    await store.write([store.stored(PEER)])
    assert store.query("SELECT COUNT(*) FROM peers") == [(1,)]
    store.close()


async def test_a_cancelled_writer_keeps_nobody_waiting(path: Path) -> None:
    store = PeerStore(path)
    text = "INSERT INTO seen_v1 VALUES (?, ?, 1, 1)"
    async with anyio.create_task_group() as tasks:
        with anyio.CancelScope() as scope:
            scope.cancel()
            await store.write([(text, (PEER, b"first"))])
        tasks.start_soon(store.write, [(text, (PEER, b"second"))])
    assert (b"second",) in store.query("SELECT uuid FROM seen_v1")
    store.close()


async def test_a_destroyed_key_is_in_no_file(path: Path) -> None:
    """Neither in the file nor in its write-ahead log, as far as this program can tell."""
    store = PeerStore(path)
    for number in range(6):
        store.make_key(PEER, 1000 + number, 9000, os.urandom)
        await store.write([store.stored(PEER)])
        if not number:
            first = store.state(PEER).keys.keys[0].private
    kept = [each.private for each in store.state(PEER).keys.keys]
    assert first not in kept
    store.erase()
    found = all_bytes(path.parent)
    assert all(each in found for each in kept)
    assert first not in found
    store.close()


async def test_keys_are_swept_and_no_longer_found(path: Path) -> None:
    store = PeerStore(path)
    store.make_key(PEER, 1000, 9000, os.urandom)
    (kid,) = store._contact_keys
    assert store.sweep_keys(10_000) == []
    assert store.sweep_keys(10_001) == [PEER]
    assert store.contact_key(kid) is None
    store.close()


async def test_after_a_loss_lines_from_before_are_not_accepted(path: Path) -> None:
    """Their accepted messages are not known any more."""
    PeerStore(path, floor_ms=0).close()
    first = PeerStore(path, floor_ms=5000)
    assert first.state(PEER).lines.floor == 0
    first.close()
    remove(path)
    second = PeerStore(path, floor_ms=5000)
    assert second.state(PEER).lines.floor == 5000
    second.close()
    third = PeerStore(path, floor_ms=7000)
    assert third.state(PEER).lines.floor == 5000
    third.close()


def test_a_damaged_file_is_refused(path: Path) -> None:
    path.write_bytes(os.urandom(8192))
    with pytest.raises(PeerStoreError, match=FILE_NAME):
        PeerStore(path)
