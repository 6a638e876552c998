"""A conversation, from what is kept alone: the same after any crash (docs/guides/chat.md)."""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from millpond.node.chat.conversation import SEEN_MAX, Conversation, ReadPositions
from millpond.node.chat.payloads import Text
from millpond.node.chat.records import Kind, Record, State, decode_record, encode_record

LIFE_MS = 1_000_000_000
LINE, THEIR_LINE = "aaaaaaaa", "bbbbbbbb"


def uuid_of(number: int) -> str:
    return f"{number:032x}"


class Kept:
    """A history as the stream keeps it, and the conversation that goes on from it."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.marks = ReadPositions()
        self.conversation = Conversation(LIFE_MS)

    def keep(self, records: Iterable[Record]) -> list[Record]:
        new = list(records)
        for record in new:
            self.conversation.replay(len(self.bodies), record)
            self.bodies.append(encode_record(record))
        return new

    def crash(self) -> None:
        self.conversation = Conversation(LIFE_MS, self.marks)
        for sequence, body in enumerate(self.bodies):
            self.conversation.replay(sequence, decode_record(body))

    def say(self, number: int, text: str, now_ms: int = 0) -> Record:
        (record,) = self.keep([self.conversation.add_own(uuid_of(number), text, LINE, now_ms)])
        return record

    def hear(self, n: int, now: float = 0.0) -> list[Record]:
        uuid = uuid_of(1000 + n)
        if self.conversation.is_seen(uuid) or uuid in self.conversation.reorder_buffer.held:
            return []
        return self.keep(self.conversation.receive(uuid, Text(THEIR_LINE, n, 7, f"text {n}"), now))

    def tell(self, *fates: tuple[int, State]) -> list[Record]:
        told = [(uuid_of(number), state) for number, state in fates]
        return self.keep(self.conversation.state_records(told, 0))

    def read(self, end: int) -> None:
        self.conversation.replay_read(end)
        self.marks = ReadPositions(end, self.marks.delivered_sent, self.marks.read_sent)


def test_what_we_say_waits_in_order_until_it_is_sealed_and_over_a_crash() -> None:
    kept = Kept()
    assert [kept.say(number, f"text {number}").n for number in (1, 2, 3)] == [1, 2, 3]
    kept.tell((1, State.KEPT))
    kept.crash()
    assert [ours.uuid for ours in kept.conversation.waiting] == [uuid_of(2), uuid_of(3)]
    assert [ours.text.text for ours in kept.conversation.waiting] == ["text 2", "text 3"]
    assert kept.say(4, "more").n == 4
    assert kept.conversation.waiting[-1].text.line == LINE


def test_a_message_named_again_is_the_same_one() -> None:
    kept = Kept()
    kept.say(1, "hi")
    kept.crash()
    ours = kept.conversation.own_message(uuid_of(1))
    assert ours is not None and ours.sequence == 0


def test_each_fate_is_kept_once_and_only_if_it_is_news() -> None:
    kept = Kept()
    kept.say(1, "hi")
    told = kept.tell((1, State.SENT), (1, State.KEPT), (2, State.SENT), (1, State.DELIVERED))
    assert [(each.uuid, each.state) for each in told] == [(uuid_of(1), State.DELIVERED)]
    assert kept.tell((1, State.SENT), (1, State.DELIVERED)) == []
    assert kept.conversation.waiting == []


def test_a_message_that_comes_again_is_known_after_a_crash_too() -> None:
    kept = Kept()
    assert [each.kind for each in kept.hear(1)] == [Kind.IN]
    kept.crash()
    assert kept.hear(1) == []
    assert [each.text for each in kept.hear(2)] == ["text 2"]


def test_a_gap_is_told_as_a_note() -> None:
    kept = Kept()
    kept.hear(1)
    assert kept.hear(4) == []
    note, shown = kept.keep(kept.conversation.release(100.0))
    assert (note.kind, note.text, note.missing) == (Kind.NOTE, "2 messages did not arrive", (2, 3))
    assert (shown.text, shown.at, shown.sent_at) == ("text 4", 100_000, 7)
    (late,) = kept.hear(3)
    assert late.late


def test_receipts_are_owed_until_they_were_sent() -> None:
    kept = Kept()
    for n in (1, 2, 3):
        kept.hear(n)
    pending_receipts = kept.conversation.pending_receipts(2)
    assert pending_receipts is not None
    assert (pending_receipts.state, pending_receipts.uuids, pending_receipts.end) == (
        State.DELIVERED,
        [uuid_of(1001), uuid_of(1002)],
        2,
    )
    kept.conversation.replay_receipt_sent(State.DELIVERED, pending_receipts.end)
    kept.marks = ReadPositions(0, pending_receipts.end, 0)
    kept.crash()
    pending_receipts = kept.conversation.pending_receipts(64)
    assert pending_receipts is not None and pending_receipts.uuids == [uuid_of(1003)]


def test_who_has_read_a_message_has_got_it() -> None:
    kept = Kept()
    kept.hear(1)
    kept.hear(2)
    assert kept.conversation.unread == 2
    kept.read(1)
    kept.crash()
    assert kept.conversation.unread == 1
    first = kept.conversation.pending_receipts(64)
    assert first is not None
    assert (first.state, first.uuids) == (State.DELIVERED, [uuid_of(1002)])
    kept.conversation.replay_receipt_sent(State.DELIVERED, first.end)
    second = kept.conversation.pending_receipts(64)
    assert second is not None
    assert (second.state, second.uuids) == (State.READ, [uuid_of(1001)])
    kept.conversation.replay_receipt_sent(State.READ, second.end)
    assert kept.conversation.pending_receipts(64) is None


def test_a_message_that_is_stored_twice_counts_once() -> None:
    kept = Kept()
    kept.hear(1)
    kept.bodies.append(kept.bodies[0])
    kept.crash()
    kept.hear(2)
    assert (kept.conversation.unread, kept.conversation.tail) == (2, 3)
    kept.read(1)
    assert kept.conversation.unread == 1
    kept.crash()
    assert kept.conversation.unread == 1


def test_our_own_messages_and_notes_are_never_unread() -> None:
    kept = Kept()
    kept.say(1, "hi")
    kept.keep([kept.conversation.note(uuid_of(9), "not understood", 0)])
    assert kept.conversation.unread == 0 and kept.conversation.pending_receipts(64) is None
    assert kept.conversation.is_seen(uuid_of(9))


def test_what_is_too_old_to_come_again_is_forgotten() -> None:
    kept = Kept()
    kept.say(1, "old")
    kept.tell((1, State.SENT))
    kept.hear(1)
    kept.say(2, "new", LIFE_MS + 1)
    kept.hear(2, (LIFE_MS + 1) / 1000)
    assert kept.conversation.own_message(uuid_of(1)) is None
    assert not kept.conversation.is_seen(uuid_of(1001))
    assert kept.conversation.is_seen(uuid_of(1002))
    assert SEEN_MAX >= 100_000


def test_what_waits_is_not_forgotten_before_its_fate_is_told() -> None:
    kept = Kept()
    kept.say(1, "said before the lid was closed")
    kept.say(2, "said a month later", LIFE_MS + 1)
    assert [ours.uuid for ours in kept.conversation.waiting] == [uuid_of(1), uuid_of(2)]
    assert len(kept.tell((1, State.EXPIRED))) == 1


class TwoLives(RuleBasedStateMachine):
    """A conversation that never crashed and one that did at any moment show the same."""

    def __init__(self) -> None:
        super().__init__()
        self.kept = Kept()
        self.now = 0.0
        self.said = 0
        self.sent: list[int] = []

    @rule(text=st.text(min_size=1, max_size=5))
    def say(self, text: str) -> None:
        self.said += 1
        self.kept.say(self.said, text)

    @precondition(lambda self: self.said)
    @rule(data=st.data(), state=st.sampled_from(State))
    def tell(self, data: st.DataObject, state: State) -> None:
        self.kept.tell((data.draw(st.integers(1, self.said)), state))

    @rule(n=st.integers(1, 30), pause_s=st.floats(0, 40))
    def hear(self, n: int, pause_s: float) -> None:
        self.now += pause_s
        self.kept.keep(self.kept.conversation.release(self.now))
        self.kept.hear(n, self.now)
        self.sent.append(n)

    @rule(end=st.integers(0, 40))
    def read(self, end: int) -> None:
        self.kept.read(max(self.kept.conversation.read, min(end, len(self.kept.bodies))))

    @rule()
    def crash(self) -> None:
        before = self.kept.conversation
        self.kept.crash()
        after = self.kept.conversation
        assert after.waiting == before.waiting
        assert (after.tail, after.read, after.unread) == (before.tail, before.read, before.unread)
        assert after.pending_receipts(64) == before.pending_receipts(64)
        assert after.last == before.last
        held = before.reorder_buffer.held
        for n in [n for n in set(self.sent) if uuid_of(1000 + n) in held]:
            self.kept.hear(n, self.now)  # it was not acknowledged, so it comes again

    @invariant()
    def everything_is_shown_at_most_once_and_in_order(self) -> None:
        records = [decode_record(body) for body in self.kept.bodies]
        uuids = [each.uuid for each in records if each.kind in (Kind.IN, Kind.OUT)]
        assert len(set(uuids)) == len(uuids)
        on_time = [each.n for each in records if each.kind is Kind.IN and not each.late]
        assert on_time == sorted(on_time)


TestTwoLives = TwoLives.TestCase
TestTwoLives.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
