"""Groups between nodes (docs/guides/chat.md, Groups)."""

from __future__ import annotations

import os
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

from millpond.actors.errors import DataTooLarge, NotAllowed
from millpond.node.chat.groups import group_task, groups, membership
from millpond.node.chat.groups.group_task import (
    HELD_OF_STRANGERS_MAX,
    RECORDS_AT_ONCE,
    TEXT_BYTES_MAX,
    Announcement,
)
from millpond.node.chat.groups.groups import GROUPS_MAX, INVITATIONS_OF_CONTACT_MAX, LEFT_MAX
from millpond.node.chat.groups.membership import Membership
from millpond.node.chat.groups.signed import Change, GroupMessage, sign
from millpond.node.chat.payloads import GroupPayload, Text, Typing, encode_payload
from millpond.node.chat.records import Kind, State, conversation_stream
from millpond.node.node import Node
from millpond.node.outbox.messages import PeerOperation
from millpond.node.peers.identity import Identity, public_key_of
from tests.node.chat.chat_client import ask, say
from tests.node.chat.groups.group_nodes import (
    accept,
    acquainted,
    change,
    create,
    eventually,
    notes,
    records,
    summary,
    texts,
    until_members,
    until_texts,
)

pytestmark = pytest.mark.anyio


async def members_with(node: Node, group: str, state: State) -> set[str]:
    """The members that have said that our messages are in this state."""
    told = [each for each in await records(node, group) if each.kind is Kind.STATE]
    return {member for each in told if each.state is state for member in each.members}


async def test_three_talk_and_the_author_hears_who_has_it_and_who_has_read_it(
    tmp_path: Path,
) -> None:
    alice, bob, carol = acquainted(tmp_path, "alice", "bob", "carol")
    async with alice.node() as a, bob.node() as b, carol.node() as c:
        group = await create(a, "bob", "carol")
        await accept(b, group)
        await accept(c, group)
        await until_members(3, group, a, b, c)
        await say(a, group, "hello all")
        await until_texts(b, group, ["hello all"])
        await until_texts(c, group, ["hello all"])
        await say(b, "pond", "hello alice and carol")
        await until_texts(a, group, ["hello alice and carol"])
        await until_texts(c, group, ["hello all", "hello alice and carol"])

        async def all_have_it() -> bool:
            return len(await members_with(a, group, State.DELIVERED)) == 2

        await eventually(all_have_it)
        (chat,) = (await ask(b, PeerOperation.CHATS, peer=group))["chats"]
        assert (chat["name"], chat["trust"], chat["unread"]) == ("pond", "group", 1)
        assert chat["group"]["names"][alice.identity.id] == "alice"
        await ask(b, PeerOperation.CHAT_READ, peer=group, sequence=chat["tail"] - 1)

        async def one_has_read_it() -> bool:
            return await members_with(a, group, State.READ) == {bob.identity.id}

        await eventually(one_has_read_it)


async def test_members_see_who_writes_until_the_message_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_task, "TYPING_S", 600.0)
    alice, bob, carol = acquainted(tmp_path, "alice", "bob", "carol")
    async with alice.node() as a, bob.node() as b, carol.node() as c:
        group = await create(a, "bob", "carol")
        await accept(b, group)
        await accept(c, group)
        await until_members(3, group, a, b, c)
        before = await records(b, group)

        async def show(*names: str) -> None:
            async def are_shown() -> bool:
                (chat,) = (await ask(b, PeerOperation.CHATS, peer=group))["chats"]
                return (chat["typing"], chat["group"]["typing"]) == (bool(names), list(names))

            await eventually(are_shown)

        await ask(a, PeerOperation.CHAT_TYPING, peer=group)
        await show("alice")
        await ask(c, PeerOperation.CHAT_TYPING, peer="pond")
        await show("alice", "carol")
        assert await records(b, group) == before
        await say(a, group, "written")
        await show("carol")
        # A notice that another member brings may be an old one.
        (task,) = b.peer_services.chat._groups
        old = GroupMessage(
            1,
            task.group,
            0,
            task.group,
            alice.public,
            os.urandom(16),
            b"",
            (),
            encode_payload(Typing()),
        )
        payload = GroupPayload(group=task.group, messages=(sign(old, alice.identity),))
        await task.receive(carol.public, payload)
        await show("carol")
        await task.receive(alice.public, payload)
        await show("carol", "alice")


async def test_members_that_are_no_contacts_hear_each_other_through_one_between(
    tmp_path: Path,
) -> None:
    alice, bob, carol = acquainted(tmp_path, "alice", "bob", "carol", hub=True)
    async with bob.node() as b:
        async with alice.node() as a, carol.node() as c:
            group = await create(a, "bob", "carol")
            await accept(b, group)
            await accept(c, group)
            await until_members(3, group, a, b, c)
        async with alice.node() as a:
            await say(b, group, "to all")
            await until_texts(a, group, ["to all"])
        # Alice has it from now on; that she is killed or stops here loses nothing.
        async with alice.node() as a, carol.node() as c:
            await until_texts(c, group, ["to all"])
            await say(c, group, "back")
            await until_texts(b, group, ["back"])

            async def both_have_it() -> bool:
                wanted = {alice.identity.id, carol.identity.id}
                return await members_with(b, group, State.DELIVERED) == wanted

            await eventually(both_have_it)


async def test_a_removed_member_gets_nothing_more_and_is_heard_no_more(tmp_path: Path) -> None:
    alice, bob, carol = acquainted(tmp_path, "alice", "bob", "carol")
    async with alice.node() as a, bob.node() as b, carol.node() as c:
        group = await create(a, "bob", "carol")
        await accept(b, group)
        await accept(c, group)
        await until_members(3, group, a, b, c)
        assert await change(b, group, "remove", "carol") == "only admins may do this"
        assert await change(a, group, "remove", "carol") is None
        await say(a, group, "without carol")
        await until_texts(b, group, ["without carol"])

        async def carol_knows() -> bool:
            found = await summary(c, group)
            return found is not None and found["status"] == "removed"

        await eventually(carol_knows)
        with pytest.raises(NotAllowed):
            await say(c, group, "still here?")
        assert await texts(c, group) == []
        assert (await notes(c, group))[-1] == "removed you"
        # The last admin does not leave others without one.
        assert "last admin" in str(await change(a, group, "leave"))
        assert await change(a, group, "admin", "bob") is None
        assert await change(a, group, "leave") is None
        await until_members(1, group, b)
        assert await change(b, group, "rename", text="brook") is None
        assert (await ask(b, PeerOperation.CHATS, peer="brook"))["chats"][0]["id"] == group


async def test_messages_of_groups_are_found_with_their_authors(tmp_path: Path) -> None:
    alice, bob = acquainted(tmp_path, "alice", "bob")

    async def find(node: Node, query: str, peer: str | None = None) -> list[tuple[str, str, str]]:
        answer = await ask(node, PeerOperation.CHAT_SEARCH, query=query, peer=peer)
        return [(each["peer"], each["by"], each["text"]) for each in answer["found"]]

    async with alice.node() as a, bob.node() as b:
        group = await create(a, "bob")
        await accept(b, group)
        await until_members(2, group, a, b)
        said = await say(a, group, "a mill at the water")
        await until_texts(b, group, ["a mill at the water"])
        await say(b, "alice", "water for two")
        assert await find(b, "water") == [
            ("alice", "", "water for two"),
            ("pond", "alice", "a mill at the water"),
        ]
        assert await find(b, "water", "pond") == [("pond", "alice", "a mill at the water")]
        assert await find(a, "water", group) == [("pond", "", "a mill at the water")]
        await say(a, group, "a mill at the brook", action="edit", about=said["uuid"])
        await say(b, group, "my own", action="reply", about=said["uuid"])
        await until_texts(a, group, ["my own"])
        first = ["a mill at the water", "a mill at the brook"]
        await until_texts(b, group, first)
        assert await find(b, "water", "pond") == []
        assert await find(b, "brook") == [("pond", "alice", "a mill at the brook")]
        await say(a, group, "", action="delete", about=said["uuid"])
        await say(a, group, "gone", action="reply", about=said["uuid"])
        await until_texts(b, group, [*first, "deleted a message", "gone"])
        assert await find(b, "brook") == []


async def test_an_invitation_can_be_refused_and_made_again(tmp_path: Path) -> None:
    alice, bob = acquainted(tmp_path, "alice", "bob")
    async with alice.node() as a, bob.node() as b:
        group = await create(a, "bob")
        await say(a, group, "before anybody is here")
        await accept(b, group, accepts=False)

        async def is_told() -> bool:
            info = await ask(a, PeerOperation.GROUP_INFO, group=group)
            return [each["status"] for each in info["members"]] == ["joined", "left"]

        await eventually(is_told)
        assert await summary(b, group) is None
        assert await change(a, group, "add", "bob") is None
        await accept(b, group)
        await until_members(2, group, a, b)
        await say(a, group, "welcome")
        await until_texts(b, group, ["welcome"])


@pytest.mark.parametrize("is_left", (False, True), ids=("declined", "left"))
async def test_an_invitation_into_a_full_group_can_be_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_left: bool
) -> None:
    alice, bob = acquainted(tmp_path, "alice", "bob")
    async with alice.node() as a, bob.node() as b:
        group = await create(a, "bob")
        await eventually(lambda: is_listed(b, group))
        monkeypatch.setattr(membership, "STATEMENTS_MAX", membership.LEAVES_MAX)
        if is_left:
            assert await change(b, group, "leave") is None
        else:
            await accept(b, group, accepts=False)
        assert not list(b.peer_services.chat._groups)


async def test_the_group_that_was_left_last_is_kept_and_its_members_hear_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(groups, "LEFT_MAX", 1)
    alice, bob = acquainted(tmp_path, "alice", "bob")
    async with alice.node() as a, bob.node() as b:
        first, second = [await create(a, "bob", name=name) for name in ("pond", "brook")]
        for group in (first, second):
            await accept(b, group)
            await until_members(2, group, a, b)
        for group in (second, first):
            assert await change(b, group, "leave") is None
        assert [each.id for each in b.peer_services.chat._groups] == [first]
        await until_members(1, first, a)
        await until_members(1, second, a)


async def test_messages_of_a_blocked_member_are_hidden(tmp_path: Path) -> None:
    alice, bob, carol = acquainted(tmp_path, "alice", "bob", "carol")
    async with alice.node() as a, bob.node() as b, carol.node() as c:
        group = await create(a, "bob", "carol")
        await accept(b, group)
        await accept(c, group)
        await until_members(3, group, a, b, c)
        await ask(c, PeerOperation.PEER_BLOCK, peer="bob")
        await say(b, group, "hidden from carol")
        await until_texts(a, group, ["hidden from carol"])
        await say(a, group, "for all")
        await until_texts(c, group, ["for all"])


async def test_everything_is_there_after_a_restart(tmp_path: Path) -> None:
    alice, bob = acquainted(tmp_path, "alice", "bob")
    async with alice.node() as a:
        async with bob.node() as b:
            group = await create(a, "bob")
            await accept(b, group)
            await until_members(2, group, a, b)
        await say(a, group, "one")
        await say(a, group, "two")
    async with alice.node() as a, bob.node() as b:
        await until_members(2, group, a, b)
        await until_texts(b, group, ["one", "two"])
        await say(b, group, "three")
        await until_texts(a, group, ["three"])
        await anyio.sleep(0.1)
        assert await texts(b, group) == ["one", "two"]


async def test_only_a_member_that_is_a_contact_invites(tmp_path: Path) -> None:
    alice, bob, mallory = acquainted(tmp_path, "alice", "bob", "mallory")
    async with alice.node() as a, bob.node() as b, mallory.node() as m:
        # Mallory passes on what it knows of a group in which it is not.
        group = await create(a, "mallory")
        await accept(m, group)
        assert await change(a, group, "remove", "mallory") is None

        async def is_removed() -> bool:
            found = await summary(m, group)
            return found is not None and found["status"] == "removed"

        await eventually(is_removed)
        (task,) = m.peer_services.chat._groups
        records = tuple(task.membership.signed_since(0))
        payload = GroupPayload(group=public_key_of(group), records=records)
        channel = conversation_stream(mallory.public)
        await m.outbox.send(bob.public, channel, encode_payload(payload))
        dropped = b.outbox.context.dropped

        async def are_dropped(count: int) -> bool:
            return dropped.get("unknown_group") == count

        await eventually(lambda: are_dropped(1))
        # Nor does it bring the invitation of a member.
        behind = Membership(task.group)
        for signed in records:
            behind.add(signed, 0.0)
        invitation = behind.make(alice.identity, Change.ADD, 1, members=[(bob.public, "")])
        payload = GroupPayload(group=task.group, records=(*records, invitation))
        await m.outbox.send(bob.public, channel, encode_payload(payload))
        await eventually(lambda: are_dropped(2))
        assert await summary(b, group) is None


async def test_invitations_of_one_contact_keep_those_of_others_not_away(tmp_path: Path) -> None:
    alice, bob, carol = acquainted(tmp_path, "alice", "bob", "carol")
    async with alice.node() as a, carol.node() as c:
        async with bob.node() as b:
            for number in range(INVITATIONS_OF_CONTACT_MAX + 1):
                await create(a, "bob", name=f"pond {number}")
            dropped = b.outbox.context.dropped

            async def is_full() -> bool:
                return dropped.get("group_limit") == 1

            await eventually(is_full)
        async with bob.node() as b:  # it knows after a restart as well
            dropped = b.outbox.context.dropped
            await create(a, "bob", name="one more")
            await eventually(is_full)
            await accept(b, await create(c, "bob"))
            groups = list(b.peer_services.chat._groups)
            assert len(groups) == INVITATIONS_OF_CONTACT_MAX + 1
            declined = next(each for each in groups if not each.is_joined)
            await accept(b, declined.id, accepts=False)
            await accept(b, await create(a, "bob", name="in its place"))


async def test_an_invitation_that_is_withdrawn_leaves_nothing(tmp_path: Path) -> None:
    alice, bob = acquainted(tmp_path, "alice", "bob")
    async with alice.node() as a, bob.node() as b:
        group = await create(a, "bob")
        (task,) = a.peer_services.chat._groups
        await eventually(lambda: is_listed(b, group))
        assert await change(a, group, "remove", "bob") is None

        async def is_gone() -> bool:
            return not list(b.peer_services.chat._groups)

        await eventually(is_gone)
        assert task.is_joined


async def is_listed(node: Node, group: str) -> bool:
    return await summary(node, group) is not None


async def test_a_group_that_was_left_is_off_the_list_and_the_others_hear_of_it(
    tmp_path: Path,
) -> None:
    alice, bob, carol = acquainted(tmp_path, "alice", "bob", "carol")
    async with alice.node() as a, bob.node() as b:
        async with carol.node() as c:
            group = await create(a, "bob", "carol")
            await accept(b, group)
            await accept(c, group)
            await until_members(3, group, a, b, c)
            await say(a, group, "before")
            await until_texts(b, group, ["before"])
        assert await change(b, group, "leave") is None
        assert not await is_listed(b, group)
        await until_members(2, group, a)
        found = await ask(b, PeerOperation.CHAT_SEARCH, query="before")
        assert [each["text"] for each in found["found"]] == ["before"]
        async with carol.node() as c:  # she was away
            await until_members(2, group, c)
        # Removed, he sees it until he leaves it.
        assert await change(a, group, "add", "bob") is None
        await accept(b, group)
        await until_members(3, group, b)
        assert await change(a, group, "remove", "bob") is None

        async def is_removed() -> bool:
            found = await summary(b, group)
            return found is not None and found["status"] == "removed"

        await eventually(is_removed)
        assert await change(b, group, "leave") is None
        assert not list(b.peer_services.chat._groups)


@pytest.mark.full
async def test_so_many_groups_and_no_longer_texts(tmp_path: Path) -> None:
    (alice,) = acquainted(tmp_path, "alice")
    async with alice.node() as a:
        for number in range(GROUPS_MAX):
            group = await create(a, name=f"pond {number}")
        with pytest.raises(DataTooLarge):
            await say(a, group, "x" * (TEXT_BYTES_MAX + 1))
        assert (await say(a, group, "x" * TEXT_BYTES_MAX))["sequence"] > 0
        answer = await ask(a, PeerOperation.GROUP_CREATE, name="one more", members=())
        assert answer["id"] is None and "at most 256 groups" in answer["error"]
        groups = list(a.peer_services.chat._groups)
        for each in groups[: LEFT_MAX + 1]:
            assert await change(a, each.id, "leave") is None
        for number in range(LEFT_MAX + 1):
            await create(a, name=f"brook {number}")
        kept = list(a.peer_services.chat._groups)
        assert (len(kept), groups[0] in kept) == (GROUPS_MAX + LEFT_MAX, False)
        answer = await ask(a, PeerOperation.GROUP_CREATE, name="one more", members=())
        assert answer["id"] is None


async def test_records_are_verified_in_slices_and_hold_all_at_once(
    tmp_path: Path,
) -> None:
    alice, bob = acquainted(tmp_path, "alice", "bob")
    async with alice.node() as a, bob.node() as b:
        group = await create(a, "bob")
        await accept(b, group)
        await until_members(2, group, a, b)
        (task,) = b.peer_services.chat._groups
        behind = Membership(task.group)
        for signed in task.membership.signed_since(0):
            behind.add(signed, 0.0)
        records = []
        for number in range(10 * RECORDS_AT_ONCE):
            records.append(
                behind.make(alice.identity, Change.RENAME, number, text=f"pond {number}")
            )
            behind.add(records[-1], 0.0)
        epochs = []

        async def watch() -> None:
            while True:
                state = task.membership.state
                assert state is not None
                epochs.append(state.epoch)
                await anyio.lowlevel.checkpoint()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(watch)
            payload = GroupPayload(group=task.group, records=tuple(records))
            await task.receive(alice.public, payload)
            tasks.cancel_scope.cancel()
        assert len(epochs) > len(records) // RECORDS_AT_ONCE
        assert set(epochs) <= {1, 1 + len(records)}  # nothing is sent in a state between
        assert await summary(b, group) is not None
        assert task.membership.state == behind.state


async def test_what_is_announced_is_sent_once_whoever_asks_for_it(tmp_path: Path) -> None:
    alice, bob = acquainted(tmp_path, "alice", "bob")
    async with alice.node() as a, bob.node() as b:
        group = await create(a, "bob")
        await accept(b, group)
        await until_members(2, group, a, b)
        (task,) = a.peer_services.chat._groups
        await task.flush()
        now = a.outbox.context.now()
        known = tuple(task.membership.signed_since(0))[:1]
        unknown = Identity.from_seed(bytes(32)).public
        for until in (now + 600, now + 601, now + 602):
            task._announcements.append(Announcement({bob.public}, until, known))
        async with anyio.create_task_group() as tasks:
            for _ in range(4):
                tasks.start_soon(task.flush)
        assert not task._announcements
        # One that is interrupted is not lost.
        task._announcements.append(Announcement({bob.public, unknown}, now + 600, known))
        with anyio.CancelScope() as scope:
            scope.cancel()
            await task.flush()
        assert len(task._announcements) == 1


async def test_a_member_that_was_not_heard_of_is_asked_who_it_is(tmp_path: Path) -> None:
    """Bob has joined while Carol was away, and Alice, who would tell her, is away now."""
    alice, bob, carol = acquainted(tmp_path, "alice", "bob", "carol")
    async with bob.node() as b:
        async with alice.node() as a:
            async with carol.node() as c:
                group = await create(a, "bob", "carol")
                await accept(c, group)
                await until_members(2, group, a, c)
            await accept(b, group)
            await until_members(3, group, a, b)
        async with carol.node() as c:
            await say(b, group, "hello carol")
            await until_texts(c, group, ["hello carol"])


async def test_one_who_is_no_member_is_passed_on_to_nobody_and_fills_no_history(
    tmp_path: Path,
) -> None:
    alice, bob, carol, mallory = acquainted(tmp_path, "alice", "bob", "carol", "mallory")
    async with alice.node() as a, bob.node() as b, carol.node() as c:
        group = await create(a, "bob", "carol")
        await accept(b, group)
        await accept(c, group)
        await until_members(3, group, a, b, c)
        (task,) = b.peer_services.chat._groups
        stranger = Identity.from_seed(bytes(32))

        def said(who: Identity, number: int) -> bytes:
            body = encode_payload(Text("00000001", number, 1, "spam"))
            message = GroupMessage(
                1, task.group, 99, bytes(32), who.public, os.urandom(16), b"", (), body
            )
            return sign(message, who)

        known, garbage = next(iter(task.membership.signed_since(0))), b"no record"
        payload = GroupPayload(group=task.group, records=(known, garbage), targets=(carol.public,))
        before = len(await records(b, group))
        await task.receive(mallory.public, payload)
        assert not task._announcements
        await task.receive(alice.public, payload)
        (passed,) = task._announcements
        assert passed.records == (known,)
        for start in range(1, 161, 16):
            spam = tuple(said(mallory.identity, number) for number in range(start, start + 15))
            spam += (said(stranger, start),)
            payload = GroupPayload(group=task.group, messages=spam)
            await task.receive(mallory.public, payload)
        new = (await records(b, group))[before:]
        assert {each.kind for each in new} == {Kind.HELD}
        assert {each.by for each in new} == {mallory.identity.id}
        assert len(new) == HELD_OF_STRANGERS_MAX


async def test_a_member_that_asks_on_and_on_is_answered_now_and_then(tmp_path: Path) -> None:
    alice, bob = acquainted(tmp_path, "alice", "bob")
    async with alice.node() as a, bob.node() as b:
        group = await create(a, "bob")
        await accept(b, group)
        await until_members(2, group, a, b)
        (task,) = a.peer_services.chat._groups
        await task.flush()
        task._announcements.clear()
        task._answered_at.clear()
        payload = GroupPayload(group=task.group, ask=0)
        for _ in range(20):
            task._compare(bob.public, payload)
        assert len(task._announcements) == 1
