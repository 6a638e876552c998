"""Files in groups: each member gets them, and nobody else (docs/guides/chat.md, Groups)."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import anyio
import anyio.abc
import pytest

from millpond.actors.errors import NotAllowed, NotFound
from millpond.node.chat.chunk_transfer import ANSWERED_WITHIN_S
from millpond.node.chat.records import Kind, Record, Transfer
from millpond.node.node import Node
from millpond.node.outbox.mailbox import KEYS_SUFFIX, mailbox_of
from millpond.node.outbox.messages import PeerOperation
from millpond.node.peers.file_format import CHUNK_BYTES
from tests.node.chat.chat_client import ask, say
from tests.node.chat.file_client import send_file
from tests.node.chat.groups.group_nodes import (
    accept,
    acquainted,
    change,
    create,
    eventually,
    records,
    texts,
    until_members,
    until_texts,
)
from tests.node.outbox.peer_nodes import PeerNode, until
from tests.ports import free_port

pytestmark = pytest.mark.anyio


async def whole_group(first: Node, *others: Node, names: tuple[str, ...]) -> str:
    group = await create(first, *names)
    for each in others:
        await accept(each, group)
    await until_members(1 + len(others), group, first, *others)
    return group


async def file_message(node: Node, group: str, number: int = -1) -> tuple[int, Record]:
    found = [each for each in enumerate(await records(node, group)) if each[1].file is not None]
    return found[number]


async def read(node: Node, group: str, number: int = -1) -> bytes:
    sequence, _ = await file_message(node, group, number)
    chunks: list[bytes] = []
    while True:
        body = {"peer": group, "sequence": sequence, "first": len(chunks), "count": 4}
        answer = await ask(node, PeerOperation.FILE_READ, **body)
        if not answer["chunks"]:
            return b"".join(chunks)
        chunks += answer["chunks"]


async def states(node: Node, group: str) -> list[tuple[Kind, Transfer, tuple[str, ...], str]]:
    return [
        (each.kind, each.transfer, each.members, each.text)
        for each in await records(node, group)
        if each.transfer is not None
    ]


async def until_state(
    node: Node, group: str, kind: Kind, transfer: Transfer, *members: str, count: int = 1
) -> str:
    """The reason in the record of a state; of some members, or of all."""
    found: list[str] = []

    async def is_there() -> bool:
        found[:] = [
            text
            for each, state, told, text in await states(node, group)
            if (each, state, told) == (kind, transfer, members)
        ]
        return len(found) >= count

    await eventually(is_there)
    return found[-1]


@pytest.mark.parametrize("size", [0, 9 * CHUNK_BYTES + 1])
async def test_each_member_gets_a_file_and_its_author_hears_who_has_it(
    tmp_path: Path, size: int
) -> None:
    alice, bob, carol = acquainted(tmp_path, "alice", "bob", "carol")
    data = os.urandom(size)
    async with alice.node() as a, bob.node() as b, carol.node() as c:
        group = await whole_group(a, b, c, names=("bob", "carol"))
        await send_file(b, "pond", data, "../fish.png")
        for node in (a, c):
            await until_state(node, group, Kind.FILE_IN, Transfer.RECEIVED)
            assert await read(node, group) == data
            _, record = await file_message(node, group)
            assert record.file is not None and record.file.name == "_fish.png"
        for member in (alice, carol):
            await until_state(b, group, Kind.FILE_OUT, Transfer.RECEIVED, member.identity.id)
        await until_state(b, group, Kind.FILE_OUT, Transfer.RECEIVED)
        assert await read(b, group) == data
        assert (await ask(b, PeerOperation.FILE_TRANSFERS, peer=group))["transfers"] == []


async def test_a_group_without_other_members_takes_no_file(tmp_path: Path) -> None:
    alice, _ = acquainted(tmp_path, "alice", "bob")
    async with alice.node() as a:
        group = await create(a, "bob")
        with pytest.raises(NotAllowed, match="nobody else"):
            await send_file(a, group, b"for whom?")
        assert not a.peer_services.files.store.files


async def test_a_file_reaches_members_that_are_no_contacts_through_the_one_between(
    tmp_path: Path,
) -> None:
    alice, bob, carol = acquainted(tmp_path, "alice", "bob", "carol", hub=True)
    data = os.urandom(5 * CHUNK_BYTES)
    async with alice.node() as a:
        async with bob.node() as b:
            async with carol.node() as c:
                group = await whole_group(a, b, c, names=("bob", "carol"))
            await send_file(b, group, data)
            await until_state(a, group, Kind.FILE_IN, Transfer.RECEIVED)
        # Its author is away by now.
        async with carol.node() as c:
            await until_state(c, group, Kind.FILE_IN, Transfer.RECEIVED)
            assert await read(c, group) == data
            async with bob.node() as b:
                who = carol.identity.id
                await until_state(b, group, Kind.FILE_OUT, Transfer.RECEIVED, who)
                await until_state(b, group, Kind.FILE_OUT, Transfer.RECEIVED)


async def test_a_member_between_that_cannot_be_dialled_brings_the_file(tmp_path: Path) -> None:
    alice, bob, carol = (PeerNode(tmp_path, name) for name in ("alice", "bob", "carol"))
    for other in (bob, carol):
        alice.knows(other)
        other.knows(alice, dials=other is bob)
        alice.learns_key_of(other)
        other.learns_key_of(alice)
    data = os.urandom(2 * CHUNK_BYTES)
    async with alice.node() as a, bob.node() as b, carol.node() as c:
        group = await whole_group(a, b, c, names=("bob", "carol"))
        await send_file(b, group, data)
        await until_state(c, group, Kind.FILE_IN, Transfer.RECEIVED)
        assert await read(c, group) == data


async def test_a_relay_keeps_a_file_for_a_member_that_is_away(tmp_path: Path) -> None:
    relay = PeerNode(tmp_path, "relay", relay=True)
    alice, bob = (PeerNode(tmp_path, name, via=("relay",)) for name in ("alice", "bob"))
    for me, other in ((alice, bob), (bob, alice)):
        me.knows(relay)
        me.knows(other, dials=False, relays=(relay.as_relay,))
        relay.knows(me, dials=False)
    data = b"a secret of the pond " * 20_000
    async with relay.node() as between:
        async with bob.node() as b:
            keys = mailbox_of(bob.public) + KEYS_SUFFIX
            await until(lambda: bool(between.outbox.context.local.count(keys)))
            async with alice.node() as a:
                group = await whole_group(a, b, names=("bob",))
        async with alice.node() as a:
            await send_file(a, group, data)
            await until(lambda: bool(between.peer_services.relayed_files.files))

            async def is_stored() -> bool:
                found = (await ask(a, PeerOperation.FILE_TRANSFERS, peer=group))["transfers"]
                return bool(found and found[0]["stored"])

            await eventually(is_stored)
        kept = [each for each in relay.folder.rglob("*") if each.is_file()]
        assert not any(b"secret of the pond" in each.read_bytes() for each in kept)
        async with bob.node() as b:
            await until_state(b, group, Kind.FILE_IN, Transfer.RECEIVED)
            assert await read(b, group) == data
            async with alice.node() as a:
                await until_state(a, group, Kind.FILE_OUT, Transfer.RECEIVED)


async def test_a_removed_member_gets_nothing_of_later_files(tmp_path: Path) -> None:
    alice, bob, carol = acquainted(tmp_path, "alice", "bob", "carol")
    async with alice.node() as a, bob.node() as b, carol.node() as c:
        group = await whole_group(a, b, c, names=("bob", "carol"))
        assert await change(a, group, "remove", "carol") is None
        await send_file(a, group, b"without carol")
        await until_state(b, group, Kind.FILE_IN, Transfer.RECEIVED)
        await until_state(a, group, Kind.FILE_OUT, Transfer.RECEIVED)
        _, record = await file_message(b, group)
        assert record.file is not None
        root = record.file.root_bytes
        for node in (a, b):  # even if she had its root
            operations = node.peer_services.chat.file_operations
            assert operations.sent_file(carol.public, root) is None
            assert operations.sent_file(alice.public if node is b else bob.public, root)
        assert not [each for each in await records(c, group) if each.file is not None]
        assert not c.peer_services.files.store.files
        with pytest.raises(NotAllowed):
            await send_file(c, group, b"from outside")


async def test_a_member_without_room_refuses_and_the_others_have_it(tmp_path: Path) -> None:
    alice, bob, carol = acquainted(tmp_path, "alice", "bob", "carol")
    async with (
        alice.node() as a,
        bob.node(chat_files_bytes_max=2**20) as b,
        carol.node() as c,
    ):
        group = await whole_group(a, b, c, names=("bob", "carol"))
        await send_file(a, group, os.urandom(2**20))
        who = bob.identity.id
        reason = await until_state(a, group, Kind.FILE_OUT, Transfer.REFUSED, who)
        assert "no room" in reason
        assert "no room" in await until_state(b, group, Kind.FILE_IN, Transfer.REFUSED)
        await until_state(c, group, Kind.FILE_IN, Transfer.RECEIVED)
        await until_state(a, group, Kind.FILE_OUT, Transfer.RECEIVED)
        with pytest.raises(NotFound):
            await read(b, group)


async def test_a_deleted_message_takes_its_file_with_it_at_all_members(tmp_path: Path) -> None:
    alice, bob = acquainted(tmp_path, "alice", "bob")
    uuid = os.urandom(16)
    async with alice.node() as a, bob.node() as b:
        group = await whole_group(a, b, names=("bob",))
        await send_file(a, group, b"oops", uuid=uuid)
        await until_state(b, group, Kind.FILE_IN, Transfer.RECEIVED)
        await until_state(a, group, Kind.FILE_OUT, Transfer.RECEIVED)
        await say(a, group, "", action="delete", about=uuid)
        for node in (a, b):
            await until(lambda node=node: not node.peer_services.files.store.files)
            with pytest.raises(NotFound):
                await read(node, group)


async def test_a_file_leaves_relays_when_its_message_is_deleted_or_all_have_it(
    tmp_path: Path,
) -> None:
    relay = PeerNode(tmp_path, "relay", relay=True)
    alice, bob = (PeerNode(tmp_path, name, via=("relay",)) for name in ("alice", "bob"))
    for me, other in ((alice, bob), (bob, alice)):
        me.knows(relay)
        me.knows(other, dials=False, relays=(relay.as_relay,))
        relay.knows(me, dials=False)
    async with relay.node() as between, alice.node() as a:
        keys = mailbox_of(bob.public) + KEYS_SUFFIX
        async with bob.node() as b:
            await until(lambda: bool(between.outbox.context.local.count(keys)))
            group = await whole_group(a, b, names=("bob",))
        kept = between.peer_services.relayed_files
        uuid = os.urandom(16)
        for each in (uuid, os.urandom(16)):
            await send_file(a, group, os.urandom(2 * CHUNK_BYTES), uuid=each)
        await until(lambda: len(kept.files) == 2)
        await say(a, group, "", action="delete", about=uuid)
        await until(lambda: len(kept.files) == 1)
        async with bob.node() as b:
            await until_state(b, group, Kind.FILE_IN, Transfer.RECEIVED)
            await until(lambda: not kept.files)


async def test_a_slow_member_holds_up_no_other_file(tmp_path: Path) -> None:
    """The line to Carol takes the beginning of a file, and then nothing more."""
    alice, bob, carol = (PeerNode(tmp_path, name) for name in ("alice", "bob", "carol"))
    port = free_port()
    for other in (bob, carol):
        alice.knows(other)
        other.knows(alice, dials=False)
        alice.learns_key_of(other)
        other.learns_key_of(alice)
    alice.changes(carol, addresses=(f"tcp://127.0.0.1:{port}",))
    is_slow = False
    is_stuck = anyio.Event()

    async def forward(source: anyio.abc.SocketStream, sink: anyio.abc.SocketStream) -> None:
        count = 0
        async for data in source:
            count += len(data)
            if is_slow and count > CHUNK_BYTES:
                is_stuck.set()
                await anyio.sleep_forever()
            with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
                await sink.send(data)

    async def pass_on(near: anyio.abc.SocketStream) -> None:
        host, _, far_port = carol.address.partition(":")
        with suppress(OSError):  # her node may be off
            async with near, await anyio.connect_tcp(host, int(far_port)) as far:
                async with anyio.create_task_group() as both:
                    both.start_soon(forward, near, far)
                    await forward(far, near)
                    both.cancel_scope.cancel()

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=port)
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, pass_on)
        async with alice.node() as a, bob.node() as b, carol.node() as c:
            group = await whole_group(a, b, c, names=("bob", "carol"))
            is_slow = True
            started = anyio.current_time()
            await send_file(a, group, os.urandom(4 * CHUNK_BYTES))
            await is_stuck.wait()
            await send_file(a, group, b"for all who can")
            await until_state(b, group, Kind.FILE_IN, Transfer.RECEIVED, count=2)
            assert anyio.current_time() - started < ANSWERED_WITHIN_S / 2
        tasks.cancel_scope.cancel()


async def test_two_members_may_choose_the_same_uuid(tmp_path: Path) -> None:
    alice, bob, carol = acquainted(tmp_path, "alice", "bob", "carol")
    uuid = os.urandom(16)
    async with alice.node() as a, bob.node() as b, carol.node() as c:
        group = await whole_group(a, b, c, names=("bob", "carol"))
        await send_file(a, group, b"of alice", uuid=uuid)
        await send_file(b, group, b"of bob", uuid=uuid)
        await until_state(c, group, Kind.FILE_IN, Transfer.RECEIVED, count=2)
        assert {await read(c, group, number) for number in (0, 1)} == {b"of alice", b"of bob"}


async def test_a_transfer_goes_on_after_a_restart_of_both(tmp_path: Path) -> None:
    alice, bob = acquainted(tmp_path, "alice", "bob")
    data = os.urandom(3 * CHUNK_BYTES)
    async with alice.node() as a:
        async with bob.node() as b:
            group = await whole_group(a, b, names=("bob",))
        await send_file(a, group, data)
        await say(a, group, "look")
    async with bob.node() as b:
        await anyio.sleep(0.1)
        assert await texts(b, group) == []
        async with alice.node() as a:
            await until_texts(b, group, ["file: a.bin (196.6 kB)", "look"])
            await until_state(b, group, Kind.FILE_IN, Transfer.RECEIVED)
            await until_state(a, group, Kind.FILE_OUT, Transfer.RECEIVED)
            assert await read(b, group) == data
