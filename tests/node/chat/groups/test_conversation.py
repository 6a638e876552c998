"""The conversation of a group: order, gaps, repetitions, and authors who are not honest."""

from __future__ import annotations

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from millpond.node.chat.conversation import ReadPositions
from millpond.node.chat.groups.conversation import (
    HELD_OF_AUTHOR_MAX,
    UNKNOWN_WAIT_S,
    GroupConversation,
    Received,
)
from millpond.node.chat.groups.membership import Verdict
from millpond.node.chat.groups.shared_files import SHARED_MAX, SharedFiles
from millpond.node.chat.groups.signed import GroupMessage, SeenHead, message_hash, sign
from millpond.node.chat.payloads import Receipt, Text, encode_payload
from millpond.node.chat.records import Kind, Record, State
from millpond.node.chat.reorder import GAP_WAIT_S
from millpond.node.peers.file_format import File
from millpond.node.peers.identity import Identity, peer_id

ALICE, BOB, CAROL = (Identity.from_seed(bytes([each]) * 32) for each in (1, 2, 3))
LINE = "aaaaaaaa"
NOW_MS = 1_763_683_200_000
LIFE_MS = 8 * 86_400_000


class Reader:
    """A reader with a history, which a restart reads again."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.now_ms = NOW_MS
        self.verdict = Verdict.ACCEPT
        self.conversation = self.empty()

    @staticmethod
    def empty() -> GroupConversation:
        return GroupConversation(peer_id(ALICE.public), LIFE_MS, ReadPositions())

    def restart(self) -> None:
        self.conversation = self.empty()
        for sequence, each in enumerate(self.records):
            self.conversation.replay(sequence, each)

    def store(self, records: list[Record]) -> None:
        for each in records:
            self.conversation.replay(len(self.records), each)
            self.records.append(each)

    def hear(self, received: Received) -> None:
        self.store(self.conversation.receive(received, self.verdict, self.now_ms))
        self.release()

    def release(self) -> None:
        while records := self.conversation.release(lambda _: self.verdict, self.now_ms):
            self.store(records)

    def wait(self, seconds: float) -> None:
        self.now_ms += int(seconds * 1000)
        self.release()

    @property
    def texts(self) -> list[str]:
        return [each.text for each in self.records if each.kind is Kind.IN]

    @property
    def notes(self) -> list[str]:
        return [each.text for each in self.records if each.kind is Kind.NOTE]


def said(
    number: int,
    text: str = "",
    who: Identity = BOB,
    seen: tuple[SeenHead, ...] = (),
    previous: bytes = b"",
) -> Received:
    body = Text(LINE, number, NOW_MS, text or f"text {number}")
    uuid = number.to_bytes(8, "big") + who.public[:4] + text.encode()[:4].ljust(4, b"\0")
    message = GroupMessage(
        1, bytes(32), 0, bytes(32), who.public, uuid, previous, seen, encode_payload(body)
    )
    return Received(message, body, message_hash(message), sign(message, who))


@settings(max_examples=12, deadline=None)
@given(st.randoms(use_true_random=False), st.integers(0, 30))
def test_each_author_in_order_whatever_comes_when_twice_or_around_a_restart(
    rng: Random, restart_at: int
) -> None:
    reader = Reader()
    reader.hear(said(1))
    reader.hear(said(1, who=CAROL))
    messages = [said(number, who=who) for number in range(2, 9) for who in (BOB, CAROL)] * 2
    rng.shuffle(messages)
    for place, each in enumerate(messages):
        if place == restart_at:
            reader.restart()
        reader.hear(each)
    for who in (BOB, CAROL):
        by = [each for each in reader.records if each.by == peer_id(who.public)]
        numbers = [each.n for each in by if each.kind is Kind.IN]
        assert numbers == list(range(1, 9))
    assert not reader.notes and not reader.conversation.has_held


def test_a_gap_is_told_and_what_fills_it_is_late() -> None:
    reader = Reader()
    reader.hear(said(1))
    reader.hear(said(4))
    assert reader.texts == ["text 1"]
    reader.restart()
    reader.wait(GAP_WAIT_S)
    assert reader.notes == ["2 messages did not arrive"]
    assert reader.texts == ["text 1", "text 4"]
    reader.hear(said(2))
    assert reader.texts[-1] == "text 2" and reader.records[-1].late


def test_so_many_are_held_and_no_more() -> None:
    reader = Reader()
    reader.hear(said(1))
    for number in range(3, 3 + HELD_OF_AUTHOR_MAX):
        assert reader.texts == ["text 1"]
        reader.hear(said(number))
    assert len(reader.texts) == 1 + HELD_OF_AUTHOR_MAX
    assert reader.notes == ["1 message did not arrive"]


def test_a_message_of_an_unknown_state_waits_and_is_then_told_of() -> None:
    reader = Reader()
    reader.verdict = Verdict.HOLD
    reader.hear(said(1))
    reader.hear(said(1))
    assert reader.texts == [] and len(reader.records) == 1
    reader.wait(UNKNOWN_WAIT_S / 2)
    assert reader.notes == []
    reader.wait(UNKNOWN_WAIT_S)
    assert "not shown" in reader.notes[0]
    reader.verdict = Verdict.ACCEPT
    reader.hear(said(2))
    assert reader.texts == ["text 2"]


def test_an_author_that_tells_members_different_things_is_seen() -> None:
    reader = Reader()
    reader.hear(said(1, "yes"))
    reader.hear(said(1, "no"))
    assert reader.notes == ["WARNING: has written different messages with the same number"]
    # Carol has heard something else of Bob.
    reader.hear(said(2))
    other = SeenHead(BOB.public, LINE, 2, said(2, "other").hash)
    same = SeenHead(BOB.public, LINE, 2, said(2).hash)
    reader.hear(said(1, who=CAROL, seen=(same,)))
    assert len(reader.notes) == 1
    reader.hear(said(2, who=CAROL, seen=(other,)))
    assert reader.notes[1].startswith("WARNING: has another message than this node")
    reader.restart()
    reader.hear(said(3, who=CAROL, seen=(other,)))
    assert len(reader.notes) == 2


def test_an_author_is_found_out_by_its_own_next_message() -> None:
    reader = Reader()
    yes, no = said(1, "yes"), said(1, "no")
    reader.hear(yes)
    reader.hear(said(2, previous=yes.hash))
    assert not reader.notes
    other = Reader()
    other.hear(no)
    other.hear(said(2, previous=yes.hash))
    assert other.notes == ["WARNING: has written different messages with the same number"]
    assert other.texts == ["no", "text 2"]
    other.restart()
    other.hear(said(3, previous=said(2, previous=yes.hash).hash))
    assert len(other.notes) == 1


def test_a_member_that_repeats_an_old_message_of_another_one_shows_nothing_twice() -> None:
    reader = Reader()
    old = said(1, "I agree")
    reader.hear(old)
    reader.wait(LIFE_MS / 1000 + 60)
    reader.hear(said(2))  # the uuid of the first is forgotten now
    reader.hear(old)
    reader.restart()
    reader.hear(old)
    assert reader.texts == ["I agree", "text 2"] and not reader.notes


def test_a_message_that_is_stored_twice_counts_once() -> None:
    reader = Reader()
    reader.hear(said(1))
    reader.hear(said(2))
    reader.records[1:1] = reader.records[:1]
    reader.restart()
    assert (reader.conversation.unread, reader.conversation.tail) == (2, 3)
    reader.conversation.replay_read(1)
    assert reader.conversation.unread == 1
    pending = reader.conversation.pending_receipts(10)
    assert pending is not None and len(pending[1][peer_id(BOB.public)]) == 1


def test_receipts_count_members_once_and_only_for_own_messages() -> None:
    reader = Reader()
    body = Text(LINE, 1, NOW_MS, "hi")
    message = GroupMessage(
        1, bytes(32), 0, bytes(32), ALICE.public, bytes(16), b"", (), encode_payload(body)
    )
    conversation = reader.conversation
    reader.store([conversation.add_own(message, body, sign(message, ALICE), NOW_MS)])
    (outgoing,) = conversation.outgoing
    reader.store([conversation.sent(outgoing, ["bob"], NOW_MS)])
    reader.restart()
    (outgoing,) = reader.conversation.outgoing
    assert outgoing.done == {"bob"}
    reader.store([reader.conversation.sent_to_all(outgoing, 2, State.KEPT, NOW_MS)])
    assert not reader.conversation.outgoing
    uuids = [bytes(16).hex(), "ff" * 16]
    for state in (State.DELIVERED, State.DELIVERED, State.READ, State.DELIVERED):
        reader.store(reader.conversation.receipts("bob", Receipt.of_state(state, uuids), NOW_MS))
    reader.restart()
    own = reader.conversation.own_message(bytes(16).hex())
    assert own is not None and (own.count, own.delivered, own.read) == (2, {"bob"}, {"bob"})
    assert [each.state for each in reader.records if each.members == ("bob",)] == [
        State.WAITING,
        State.DELIVERED,
        State.READ,
    ]


def test_so_many_files_are_given_to_members() -> None:
    shared = SharedFiles()
    for n in range(SHARED_MAX + 2):
        file = File(root=f"{n:064x}", size=1, key=f"{n:064x}", name="a")
        shared.add(Record(1, Kind.IN, n, f"{n:032x}", "file", by="b", file=file, targets=b"k" * 64))
    assert len(shared.passed_on) == SHARED_MAX
    assert not shared.by_root(f"{1:064x}")
    (found,) = shared.by_root(f"{2:064x}")
    assert (found.name, found.targets) == (f"b!{2:032x}", frozenset({b"k" * 32}))
    shared.drop(found.name)
    assert not shared.by_root(f"{2:064x}")
