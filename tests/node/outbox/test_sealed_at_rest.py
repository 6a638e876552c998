"""The mail of others on the node that stores it: sealed bytes, on disk and in memory (3e, 3f)."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType, ModuleType

import pytest
from msgspec import Struct

from millpond.actors.store.durable import DurableStore
from millpond.node.node import Node
from millpond.node.outbox.mailbox import mailbox_of
from millpond.node.outbox.relayed_message import decode_relayed_message
from tests.node.outbox.peer_nodes import PeerNode, read, remaining, until
from tests.node.processes import serving

pytestmark = pytest.mark.anyio

CLEAR = b"the treasure is buried under the old oak "
CHUNK_BYTES = 2**20


def _trio(folder: Path) -> tuple[PeerNode, PeerNode, PeerNode]:
    alice, bob = PeerNode(folder, "alice"), PeerNode(folder, "bob", via=("rita",))
    rita = PeerNode(folder, "rita", relay=True)
    alice.knows(bob, dials=False, relays=(rita.as_relay,))
    bob.knows(alice, dials=False)
    for person in (alice, bob):
        person.knows(rita)
        rita.knows(person, dials=False)
    alice.learns_key_of(bob)
    return alice, bob, rita


def _files_with(folder: Path, needle: bytes) -> list[str]:
    return [
        str(path.relative_to(folder))
        for path in sorted(folder.rglob("*"))
        if path.is_file() and needle in path.read_bytes()
    ]


def _reachable_bytes(root: object) -> Iterator[bytes]:
    """All byte strings in the objects below one, but not what belongs to the program itself."""
    seen: set[int] = set()
    waiting = [root]
    while waiting:
        each = waiting.pop()
        if id(each) in seen or isinstance(each, ModuleType | type | FunctionType):
            continue
        seen.add(id(each))
        if isinstance(each, bytes | bytearray | memoryview):
            yield bytes(each)
        waiting += gc.get_referents(each)
        if isinstance(each, Struct):  # those without cycles tell the collector nothing
            waiting += [getattr(each, name) for name in each.__struct_fields__]


def _inside(node: Node) -> Iterator[bytes]:
    """The store and every channel of a node."""
    yield from _reachable_bytes(node._store)
    yield from _reachable_bytes(list(node.scheduler.cells.values()))


async def test_the_relay_has_nothing_but_sealed_bytes(tmp_path: Path) -> None:
    """P2P-31: in the files of its folder, in its store and in its channels."""
    alice, bob, rita = _trio(tmp_path)
    async with rita.node() as relay:
        assert isinstance(relay._store, DurableStore)
        async with alice.node() as here:
            sent = [
                await here.outbox.send(bob.public, b"notes", CLEAR + b"%d" % n) for n in range(5)
            ]
            await until(lambda: here.outbox.queued(bob.public) == 0)
        kept = await remaining(relay, mailbox_of(bob.public))
        messages = [decode_relayed_message(each) for each in kept]
        # It is there, and can be found by its ephemeral keys.
        keys = [each.envelope[10:42] for each in messages]
        assert len(set(keys)) == 5
        found = list(_inside(relay))
        assert all(any(key in each for each in found) for key in keys)
        # Nothing else of it can: neither its name nor its channel nor its sender.
        for secret in (*(each.uuid for each in sent), b"notes", alice.public):
            assert not any(secret in each.envelope for each in messages)
            assert not any(secret in each for each in kept)
        assert not any(CLEAR in each for each in found)
        assert all(_files_with(rita.folder, key) for key in keys)
        assert _files_with(rita.folder, CLEAR) == []
        async with bob.node() as there:
            assert len(await read(there, b"notes", 5)) == 5
            await until(lambda: relay.outbox.queued(bob.public) == 0)
    for folder in (alice.folder, bob.folder, rita.folder):
        assert _files_with(folder, CLEAR) == []


async def test_the_relay_s_whole_memory_has_nothing_but_sealed_bytes(tmp_path: Path) -> None:
    """P2P-31: every byte of the process that can be read, while the messages wait in it."""
    alice, bob, rita = _trio(tmp_path)
    words = ("--data", str(rita.folder), "--p2p", rita.address, "--ws", "off", "--relay")
    with serving(*words) as relay:
        async with alice.node() as here:
            await here.outbox.send(bob.public, b"notes", CLEAR * 4)
            await until(lambda: here.outbox.queued(bob.public) == 0)
        memory = _memory(relay.process.pid)
        if memory is None:
            pytest.skip("this system lets nobody read another process's memory")
        found = {CLEAR: 0, bob.identity.seed: 0, bob.public: 0}
        for region in memory:
            for needle in found:
                found[needle] += needle in region
    assert found[bob.public] > 0
    assert found[CLEAR] == found[bob.identity.seed] == 0


def _memory(pid: int) -> Iterator[bytes] | None:
    """The private memory of a process that this one started, region by region."""
    try:
        descriptor = os.open(f"/proc/{pid}/mem", os.O_RDONLY)
        maps = Path(f"/proc/{pid}/maps").read_text().splitlines()
    except OSError:
        return None
    return _regions(descriptor, maps)


def _regions(descriptor: int, maps: list[str]) -> Iterator[bytes]:
    try:
        for line in maps:
            span, rights = line.split()[:2]
            if rights.startswith("rw"):
                start, end = (int(each, 16) for each in span.split("-"))
                yield _region(descriptor, start, end)
    finally:
        os.close(descriptor)


def _region(descriptor: int, start: int, end: int) -> bytes:
    found = bytearray()
    for place in range(start, end, CHUNK_BYTES):
        try:
            found += os.pread(descriptor, min(CHUNK_BYTES, end - place), place)
        except OSError:
            return bytes(found)  # a part that nobody may read
    return bytes(found)
