"""The membership of a group: the same for all, whatever order its records come in."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millpond.node.chat.groups.membership import (
    GRACE_S,
    OTHERS_MAX,
    Added,
    Membership,
    MemberStatus,
    Verdict,
    new_group,
)
from millpond.node.chat.groups.signed import (
    MEMBERS_MAX,
    BadRecord,
    Change,
    GroupMessage,
    GroupRecord,
    read_record,
    record_hash,
    sign,
)
from millpond.node.peers.identity import Identity

PEOPLE = [Identity.from_seed(bytes([each]) * 32) for each in range(1, 7)]
ALICE, BOB, CAROL, DAVE, ERIN, MALLORY = PEOPLE
NOW_S, NOW_MS = 1000.0, 1_000_000


class Story:
    """A group as it goes, at the node of somebody who hears of everything at once."""

    def __init__(self) -> None:
        group, first = new_group(ALICE, "pond", NOW_MS, bytes(16))
        self.membership = Membership(group)
        self.signed: list[bytes] = []
        self.take(first)

    def take(self, signed: bytes) -> None:
        self.membership.add(signed, NOW_S)
        self.signed.append(signed)

    def does(
        self, who: Identity, change: Change, *about: Identity, text: str = "", other: bytes = b""
    ) -> bytes:
        members = [(each.public, "") for each in about]
        made = self.membership.make(
            who, change, NOW_MS + len(self.signed), members=members, text=text, other=other
        )
        self.take(made)
        return made

    def joins(self, *people: Identity) -> Story:
        self.does(ALICE, Change.ADD, *people)
        for each in people:
            self.does(each, Change.JOIN)
        return self


def in_order(group: bytes, signed: list[bytes]) -> Membership:
    found = Membership(group)
    for each in signed:
        found.add(each, NOW_S)
    return found


def seen_by_all(found: Membership) -> object:
    assert found.state is not None
    statuses = {key: found.status(key) for key in found.state.members}
    return found.state, statuses, {frozenset((each.kept, each.other)) for each in found.forks}


def competing(story: Story, who: Identity, change: Change, *about: Identity) -> bytes:
    """A record beside the newest one."""
    state = story.membership.state
    assert state is not None
    before = story.membership.record(state.head)
    record = GroupRecord(
        1,
        story.membership.group,
        before.epoch,
        before.previous,
        who.public,
        NOW_MS + 99,
        change,
        tuple((each.public, "") for each in about),
        "brook" if change is Change.RENAME else "",
    )
    return sign(record, who)


def long_story() -> Story:
    story = Story().joins(BOB, CAROL, DAVE)
    story.does(ALICE, Change.ADMIN, BOB)
    story.does(BOB, Change.RENAME, text="brook")
    story.does(DAVE, Change.LEAVE)
    story.does(BOB, Change.REMOVE, CAROL, DAVE)
    story.does(ALICE, Change.ADD, CAROL, ERIN)
    story.does(ERIN, Change.JOIN)
    story.does(ALICE, Change.REMOVE, ALICE)  # an admin who removes itself
    story.does(BOB, Change.ADMIN, ERIN)
    return story


@settings(max_examples=20, deadline=None)
@given(st.randoms(use_true_random=False))
def test_any_order_of_arrival_and_repetition_ends_in_the_same_state(rng: Random) -> None:
    story = long_story()
    signed = story.signed * 2
    rng.shuffle(signed)
    found = in_order(story.membership.group, signed)
    assert seen_by_all(found) == seen_by_all(story.membership)
    assert found.state is not None and found.state.name == "brook"
    assert found.active == [BOB.public, ERIN.public]
    assert found.status(CAROL.public) is MemberStatus.INVITED
    assert found.status(ALICE.public) is None
    assert not found.forks


@settings(max_examples=20, deadline=None)
@given(st.randoms(use_true_random=False))
def test_a_fork_is_seen_in_any_order_and_merged_in_none(rng: Random) -> None:
    story = Story().joins(BOB, CAROL)
    story.does(ALICE, Change.ADMIN, BOB)
    first = story.does(ALICE, Change.REMOVE, CAROL)
    second = competing(story, BOB, Change.RENAME)
    signed = [*story.signed, second]
    rng.shuffle(signed)
    found = in_order(story.membership.group, signed)
    (fork,) = found.forks
    pair = {record_hash(read_record(first)), record_hash(read_record(second))}
    assert {fork.kept, fork.other} == pair
    assert found.state is not None and found.state.head == fork.kept
    # A removal counts in either branch.
    assert CAROL.public not in found.active


def test_an_admin_settles_a_fork_and_all_follow_the_same_branch() -> None:
    story = Story().joins(BOB, CAROL)
    story.does(ALICE, Change.ADMIN, BOB)
    before = list(story.signed)
    story.does(ALICE, Change.REMOVE, CAROL)
    rename = competing(story, BOB, Change.RENAME)
    others = in_order(story.membership.group, [*before, rename, *story.signed])
    assert others.state is not None and others.state.name == "brook" and len(others.forks) == 1
    story.take(rename)
    settled = story.does(ALICE, Change.SETTLE, other=story.membership.forks[0].other)
    others.add(settled, NOW_S)
    assert seen_by_all(others) == seen_by_all(story.membership)
    assert not others.forks and others.state.name == "pond"


def test_a_removed_admin_undoes_nothing_by_an_old_record() -> None:
    story = Story().joins(BOB, CAROL)
    story.does(ALICE, Change.ADMIN, BOB)
    story.does(ALICE, Change.REMOVE, BOB)
    old = competing(story, BOB, Change.REMOVE, ALICE)
    ((_, outcome),) = story.membership.add(old, NOW_S)
    assert outcome is Added.FORKED
    assert story.membership.active == [ALICE.public, CAROL.public]
    settle = GroupRecord(
        1,
        story.membership.group,
        story.membership.state.epoch + 1 if story.membership.state else 0,
        record_hash(read_record(old)),
        BOB.public,
        NOW_MS,
        Change.SETTLE,
        other=story.membership.forks[0].kept,
    )
    story.membership.add(sign(settle, BOB), NOW_S)
    assert story.membership.active == [ALICE.public, CAROL.public]
    assert len(story.membership.forks) == 1


@pytest.mark.parametrize("who", [BOB, MALLORY])
@pytest.mark.parametrize("change", [Change.ADD, Change.REMOVE, Change.ADMIN, Change.RENAME])
def test_whoever_is_no_admin_changes_nothing(who: Identity, change: Change) -> None:
    story = Story().joins(BOB, CAROL)
    before = seen_by_all(story.membership)
    about = () if change is Change.RENAME else (ERIN,) if change is Change.ADD else (CAROL,)
    state = story.membership.state
    assert state is not None
    record = GroupRecord(
        1,
        story.membership.group,
        state.epoch + 1,
        state.head,
        who.public,
        NOW_MS,
        change,
        tuple((each.public, "") for each in about),
        "brook" if change is Change.RENAME else "",
    )
    with pytest.raises(BadRecord):
        story.membership.add(sign(record, who), NOW_S)
    assert seen_by_all(story.membership) == before


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_no_forged_byte_is_accepted(data: st.DataObject) -> None:
    story = Story().joins(BOB)
    found = Membership(story.membership.group)
    for number, each in enumerate(story.signed):
        at = data.draw(st.integers(0, len(each) - 1), label=str(number))
        forged = bytearray(each)
        forged[at] ^= 1 << data.draw(st.integers(0, 7))
        with pytest.raises(BadRecord):
            found.add(bytes(forged), NOW_S)
        found.add(each, NOW_S)
    assert seen_by_all(found) == seen_by_all(story.membership)


def test_a_statement_is_of_its_author_and_for_one_invitation() -> None:
    story = Story().joins(BOB)
    joined = story.signed[-1]
    story.does(BOB, Change.LEAVE)
    story.does(ALICE, Change.REMOVE, BOB)
    story.does(ALICE, Change.ADD, BOB)
    story.take(joined)  # a replay of the first one
    assert story.membership.status(BOB.public) is MemberStatus.INVITED
    story.does(BOB, Change.JOIN)
    assert story.membership.status(BOB.public) is MemberStatus.JOINED
    added = read_record(joined)
    other = GroupRecord(1, added.group, added.epoch, added.previous, CAROL.public, 0, Change.JOIN)
    with pytest.raises(BadRecord):
        story.membership.add(sign(other, CAROL), NOW_S)


def test_the_last_admin_may_go_and_then_nobody_changes_the_group() -> None:
    story = Story().joins(BOB)
    story.does(ALICE, Change.REMOVE, ALICE)
    assert story.membership.active == [BOB.public]
    with pytest.raises(BadRecord):
        story.does(ALICE, Change.ADD, ALICE)
    with pytest.raises(BadRecord):
        story.does(BOB, Change.RENAME, text="mine")
    story.does(BOB, Change.LEAVE)
    assert story.membership.active == []


def test_limits() -> None:
    story = Story()
    many = [Identity.from_seed(each.to_bytes(32, "big")) for each in range(MEMBERS_MAX + 1)]
    story.does(ALICE, Change.ADD, *many[: MEMBERS_MAX - 1])
    with pytest.raises(BadRecord, match="at most 200"):
        story.does(ALICE, Change.ADD, many[-1])
    for number in range(OTHERS_MAX + 1):
        record = GroupRecord(
            1,
            story.membership.group,
            1,
            story.membership.group,
            ALICE.public,
            number,
            Change.RENAME,
            text="fork",
        )
        if number < OTHERS_MAX:
            story.membership.add(sign(record, ALICE), NOW_S)
        else:
            with pytest.raises(BadRecord, match="too many"):
                story.membership.add(sign(record, ALICE), NOW_S)


def fills(story: Story, who: Identity) -> None:
    """An admin changes the group for as long as that is taken."""
    with pytest.raises(BadRecord, match="too many records"):
        while True:
            story.does(who, Change.RENAME, text=f"pond {len(story.signed)}")


def test_an_admin_that_fills_the_records_of_a_group_is_removed() -> None:
    story = Story().joins(BOB, MALLORY)
    story.does(ALICE, Change.ADMIN, MALLORY)
    fills(story, MALLORY)
    story.does(BOB, Change.LEAVE)
    story.does(ALICE, Change.REMOVE, MALLORY)
    found = in_order(story.membership.group, story.signed)
    assert found.active == story.membership.active == [ALICE.public]
    with pytest.raises(BadRecord, match="too many"):
        story.does(ALICE, Change.ADD, ERIN)


def test_the_room_for_removals_takes_nothing_else_and_is_enough_for_all_of_them() -> None:
    story = Story().joins(MALLORY)
    story.does(ALICE, Change.ADMIN, MALLORY)
    story.does(ALICE, Change.RENAME, text="lake")
    fork = competing(story, MALLORY, Change.RENAME)
    story.take(fork)
    many = [Identity.from_seed(each.to_bytes(32, "big")) for each in range(MEMBERS_MAX - 2)]
    story.does(MALLORY, Change.ADD, *many)
    fills(story, MALLORY)
    known = record_hash(read_record(fork))
    story.does(MALLORY, Change.SETTLE, other=known)
    for change, other in ((Change.SETTLE, known), (Change.SETTLE, bytes(32)), (Change.ADMIN, b"")):
        about = (ALICE,) if change is Change.ADMIN else ()
        with pytest.raises(BadRecord, match="too many"):
            story.does(MALLORY, change, *about, other=other)
    for each in many:
        story.does(MALLORY, Change.REMOVE, each)
    story.does(ALICE, Change.REMOVE, MALLORY)
    assert story.membership.active == [ALICE.public]


def test_a_node_that_knows_another_branch_takes_the_same_last_records() -> None:
    story = Story().joins(BOB)
    story.does(ALICE, Change.ADMIN, BOB)
    story.does(ALICE, Change.RENAME, text="lake")
    fork = competing(story, BOB, Change.RENAME)
    fills(story, ALICE)
    found = in_order(story.membership.group, [*story.signed[:5], fork, *story.signed[5:]])
    assert len(found.forks) == 1
    assert found.state == story.membership.state
    last = story.does(ALICE, Change.REMOVE, BOB)
    found.add(last, NOW_S)
    assert found.state == story.membership.state


def test_a_statement_brings_nothing_else() -> None:
    story = Story()
    story.does(ALICE, Change.ADD, BOB)
    state = story.membership.state
    assert state is not None
    long = GroupRecord(
        1, story.membership.group, 1, state.head, BOB.public, NOW_MS, Change.JOIN, text="x" * 64
    )
    with pytest.raises(BadRecord, match="no more than its change"):
        story.take(sign(long, BOB))


def test_a_member_that_has_left_is_told_from_one_that_was_removed() -> None:
    story = Story().joins(BOB, CAROL, DAVE)
    story.does(BOB, Change.LEAVE)
    story.does(ALICE, Change.REMOVE, BOB, CAROL)
    story.does(ALICE, Change.ADMIN, DAVE)
    story.does(DAVE, Change.REMOVE, DAVE)
    found = in_order(story.membership.group, story.signed)
    assert [found.has_left(each.public) for each in (ALICE, BOB, CAROL, DAVE, ERIN)] == [
        False,
        True,
        False,
        True,
        False,
    ]
    story.does(ALICE, Change.ADD, BOB)
    assert not story.membership.has_left(BOB.public)


def statement(story: Story, who: Identity, added: int, change: Change, at: int) -> bytes:
    """A statement for the addition by the record of an epoch."""
    found = (read_record(each) for each in story.signed)
    chain = {each.epoch: record_hash(each) for each in found if each.change < Change.JOIN}
    group = story.membership.group
    return sign(GroupRecord(1, group, added, chain[added], who.public, at, change), who)


def test_a_removed_member_writes_no_more_because_it_says_that_it_leaves() -> None:
    story = Story().joins(MALLORY)
    story.does(ALICE, Change.REMOVE, MALLORY)
    story.take(statement(story, MALLORY, 1, Change.LEAVE, NOW_MS + 10**9))
    for epoch in (1, 2):
        verdict = story.membership.verdict(message(story, MALLORY, epoch), NOW_MS + 60_000, NOW_S)
        assert verdict is Verdict.REFUSE
    assert story.membership.verdict(message(story, MALLORY, 1), NOW_MS, NOW_S) is Verdict.ACCEPT


def test_a_member_that_was_added_again_is_waited_for_when_its_leave_comes_late() -> None:
    story = Story().joins(BOB)
    late = statement(story, BOB, 1, Change.LEAVE, NOW_MS)
    story.does(ALICE, Change.ADD, BOB)
    story.take(late)
    assert not story.membership.has_left(BOB.public)
    assert story.membership.verdict(message(story, BOB), NOW_MS, NOW_S) is Verdict.HOLD
    story.does(BOB, Change.JOIN)
    assert story.membership.verdict(message(story, BOB), NOW_MS, NOW_S) is Verdict.ACCEPT


def message(story: Story, who: Identity, epoch: int | None = None) -> GroupMessage:
    state = story.membership.state
    assert state is not None
    epoch = state.epoch if epoch is None else epoch
    found = (read_record(each) for each in story.signed)
    chain = {each.epoch: record_hash(each) for each in found if each.change < Change.JOIN}
    group = story.membership.group
    return GroupMessage(1, group, epoch, chain[epoch], who.public, bytes(16), b"", (), b"{}")


def test_messages_of_members_alone_and_of_removed_ones_from_before() -> None:
    story = Story()
    story.does(ALICE, Change.ADD, BOB)
    verdict = story.membership.verdict
    assert verdict(message(story, BOB), NOW_MS, NOW_S) is Verdict.HOLD  # it has not joined yet
    story.does(BOB, Change.JOIN)
    assert verdict(message(story, BOB), NOW_MS, NOW_S) is Verdict.ACCEPT
    assert verdict(message(story, MALLORY), NOW_MS, NOW_S) is Verdict.REFUSE
    unknown = message(story, BOB)
    unknown = GroupMessage(1, unknown.group, 9, bytes(32), BOB.public, bytes(16), b"", (), b"")
    assert verdict(unknown, NOW_MS, NOW_S) is Verdict.HOLD
    before = message(story, BOB)
    story.does(ALICE, Change.REMOVE, BOB)
    assert verdict(before, NOW_MS, NOW_S + 1) is Verdict.ACCEPT  # on its way meanwhile
    assert verdict(before, NOW_MS + 60_000, NOW_S + 1) is Verdict.REFUSE  # written later
    assert verdict(before, NOW_MS, NOW_S + GRACE_S + 1) is Verdict.REFUSE
    assert verdict(message(story, BOB), NOW_MS, NOW_S + 1) is Verdict.REFUSE


def test_a_restart_gives_a_removed_member_no_more_time() -> None:
    story = Story()
    story.does(ALICE, Change.ADD, BOB)
    story.does(BOB, Change.JOIN)
    before = message(story, BOB)
    story.does(ALICE, Change.REMOVE, BOB)

    def read_again(now: float) -> Verdict:
        membership = Membership(story.membership.group)
        for each in story.signed:
            membership.add(each, now, is_stored=True)
        return membership.verdict(before, NOW_MS, now)

    assert read_again(NOW_S + GRACE_S / 2) is Verdict.ACCEPT
    assert read_again(NOW_S + GRACE_S + 60) is Verdict.REFUSE


def test_ways_to_members_that_are_no_contacts() -> None:
    story = Story().joins(BOB, CAROL)
    story.does(ALICE, Change.ADMIN, BOB)
    story.does(BOB, Change.ADD, DAVE)
    story.does(DAVE, Change.JOIN)
    ways = story.membership.next_hops
    everybody = [ALICE.public, BOB.public, DAVE.public]
    # Carol knows Alice alone, who knows Bob, who knows Dave.
    hops, lost = ways(CAROL.public, everybody, {ALICE.public})
    assert (hops, lost) == ({ALICE.public: [BOB.public, DAVE.public]}, [])
    hops, lost = ways(ALICE.public, [DAVE.public], {BOB.public, CAROL.public})
    assert (hops, lost) == ({BOB.public: [DAVE.public]}, [])
    hops, lost = ways(CAROL.public, everybody, set())
    assert (hops, lost) == ({}, everybody)
