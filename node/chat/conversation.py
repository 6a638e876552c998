"""A conversation with one peer: what came, and what is known, in; records to be kept, out.

Sans-I/O, and without a say of its own: it changes only by `replay`, with records that are kept.
So it is the same after a crash, and what could not be kept has not happened.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from itertools import islice, takewhile

import msgspec

from millpond.node.chat.payloads import Text
from millpond.node.chat.records import VERSION, Kind, Record, State, is_news
from millpond.node.chat.reorder import Gap, OrderedMessage, ReorderBuffer

KNOWN_MAX = 100_000
"""So many messages of each side are told apart from what comes again, or hears of its fate."""
UNREAD_MAX = 10_000
"""So many messages are counted as unread, and so many wait for a receipt of each kind."""


class OwnMessage(msgspec.Struct):
    """A message of ours: record `sequence`."""

    uuid: str
    sequence: int
    state: State
    text: Text


class LatestMessage(msgspec.Struct, frozen=True):
    """The last message of a conversation."""

    kind: Kind
    text: str
    at: int


class PendingReceipts(msgspec.Struct, frozen=True):
    """A receipt that the peer has to get, for the messages below record `end`."""

    state: State
    uuids: list[str]
    end: int


class ReadPositions(msgspec.Struct, frozen=True):
    """Sequences: records below `read` were read; receipts were sent for those below the others."""

    read: int = 0
    delivered_told: int = 0
    read_told: int = 0


class Conversation:
    """`life_ms`: for so long a letter may be under way, and then some. Not `is_whole`: it had a
    beginning that is not replayed."""

    def __init__(
        self, life_ms: int, marks: ReadPositions | None = None, *, is_whole: bool = True
    ) -> None:
        marks = marks or ReadPositions()
        self.read = marks.read
        """Records below this sequence were read."""
        self.tail = 0
        """The sequence of the next record."""
        self.last: LatestMessage | None = None
        self.order = ReorderBuffer(is_whole=is_whole)
        self._life_ms = life_ms
        self._line = ""
        self._count = 0
        self._ours: OrderedDict[str, OwnMessage] = OrderedDict()
        self._waiting: OrderedDict[str, OwnMessage] = OrderedDict()
        self._known: OrderedDict[str, int] = OrderedDict()
        self._unread: OrderedDict[int, str] = OrderedDict()
        self._told = {State.DELIVERED: marks.delivered_told, State.READ: marks.read_told}
        self._owed: dict[State, OrderedDict[int, str]] = {
            State.DELIVERED: OrderedDict(),
            State.READ: OrderedDict(),
        }

    @property
    def unread(self) -> int:
        """How many messages of the peer were not read."""
        return len(self._unread)

    @property
    def waiting(self) -> Sequence[OwnMessage]:
        """Messages of ours that are not sealed yet, in order."""
        return list(self._waiting.values())

    def ours(self, uuid: str) -> OwnMessage | None:
        """A message of ours, if it is not too long ago."""
        return self._ours.get(uuid)

    def is_known(self, uuid: str) -> bool:
        """Did this message come before, and was it kept?"""
        return uuid in self._known

    def owed(self, count_max: int) -> PendingReceipts | None:
        """The next receipt to be sent, if one is owed, for at most so many messages."""
        for state, owed in self._owed.items():
            places = list(islice(owed, count_max))
            if places:
                return PendingReceipts(state, [owed[each] for each in places], places[-1] + 1)
        return None

    # What happens: each gives the records that have to be kept.

    def say(self, uuid: str, text: str, line: str, now_ms: int) -> Record:
        """We write something. `line` begins one if there is none yet."""
        return Record(
            v=VERSION,
            kind=Kind.OUT,
            at=now_ms,
            uuid=uuid,
            text=text,
            state=State.WAITING,
            n=self._count + 1,
            line=self._line or line,
        )

    def hear(self, uuid: str, text: Text, now: float) -> list[Record]:
        """A message came that is not known (`now` in seconds). Those to be shown now; it may be
        held instead, see `order`."""
        return [_shown(each, now) for each in self.order.take(uuid, text, now)]

    def wake(self, now: float) -> list[Record]:
        """Time has passed: what was held long enough is shown."""
        return [_shown(each, now) for each in self.order.wake(now)]

    def tell(self, fates: Sequence[tuple[str, State]], now_ms: int) -> list[Record]:
        """What became of messages of ours, as far as it is news."""
        return list(self._news(fates, now_ms))

    def _news(self, fates: Sequence[tuple[str, State]], now_ms: int) -> Iterator[Record]:
        told: dict[str, State] = {}
        for uuid, state in fates:
            ours = self._ours.get(uuid)
            if ours is not None and is_news(state, told.get(uuid, ours.state)):
                told[uuid] = state
        for uuid, state in told.items():
            yield Record(v=VERSION, kind=Kind.STATE, at=now_ms, uuid=uuid, state=state)

    @staticmethod
    def note(uuid: str, text: str, now_ms: int) -> Record:
        """A line for people, about the message of this uuid."""
        return Record(v=VERSION, kind=Kind.NOTE, at=now_ms, uuid=uuid, text=text)

    # What is kept.

    def replay(self, sequence: int, record: Record) -> None:
        """A record is kept, now or in an earlier life, in the order of sequences."""
        self.tail = sequence + 1
        match record.kind:
            case Kind.OUT:
                self._replay_out(sequence, record)
            case Kind.IN:
                self._replay_in(sequence, record)
            case Kind.STATE:
                self._replay_state(record)
            case Kind.NOTE:
                if record.uuid:
                    self._learn(record.uuid, record.at)

    def replay_read(self, read: int) -> None:
        """Records below `read` were read. Who has read a message has got it, too."""
        self.read = max(self.read, read)
        for sequence in list(takewhile(lambda each: each < self.read, self._unread)):
            self._owe(State.READ, sequence, self._unread.pop(sequence))
            self._owed[State.DELIVERED].pop(sequence, None)

    def replay_told(self, state: State, end: int) -> None:
        """The peer was sent receipts for all messages below record `end`."""
        self._told[state] = max(self._told[state], end)
        owed = self._owed[state]
        for sequence in list(takewhile(lambda each: each < end, owed)):
            del owed[sequence]

    def _owe(self, state: State, sequence: int, uuid: str) -> None:
        if sequence < self._told[state]:
            return
        owed = self._owed[state]
        owed[sequence] = uuid
        if len(owed) > UNREAD_MAX:
            owed.popitem(last=False)

    def _replay_out(self, sequence: int, record: Record) -> None:
        if record.line != self._line:
            self._line, self._count = record.line, 0
        self._count = max(self._count, record.n)
        text = Text(record.line, record.n, record.at, record.text)
        ours = OwnMessage(record.uuid, sequence, State.WAITING, text)
        self._ours[record.uuid] = self._waiting[record.uuid] = ours
        self.last = LatestMessage(Kind.OUT, record.text, record.at)
        while self._is_over(next(iter(self._ours.values())), record.at):
            self._ours.popitem(last=False)

    def _is_over(self, ours: OwnMessage, at: int) -> bool:
        if ours.uuid in self._waiting:  # what becomes of it has to be told yet
            return False
        return len(self._ours) > KNOWN_MAX or ours.text.at < at - self._life_ms

    def _replay_in(self, sequence: int, record: Record) -> None:
        self._learn(record.uuid, record.at)
        if record.line:
            self.order.recall(record.line, record.n)
        self.last = LatestMessage(Kind.IN, record.text, record.at)
        if sequence < self.read:
            self._owe(State.READ, sequence, record.uuid)
            return
        self._owe(State.DELIVERED, sequence, record.uuid)
        self._unread[sequence] = record.uuid
        if len(self._unread) > UNREAD_MAX:
            self._unread.popitem(last=False)

    def _replay_state(self, record: Record) -> None:
        ours = self._ours.get(record.uuid)
        if ours is not None and record.state is not None and is_news(record.state, ours.state):
            ours.state = record.state
            self._waiting.pop(record.uuid, None)

    def _learn(self, uuid: str, at: int) -> None:
        self._known[uuid] = at
        while len(self._known) > KNOWN_MAX or next(iter(self._known.values())) < at - self._life_ms:
            self._known.popitem(last=False)


def _shown(each: OrderedMessage | Gap, now: float) -> Record:
    now_ms = int(now * 1000)
    match each:
        case OrderedMessage(uuid=uuid, text=text, late=late):
            return Record(
                v=VERSION,
                kind=Kind.IN,
                at=now_ms,
                uuid=uuid,
                text=text.text,
                n=text.n,
                line=text.line,
                sent_at=text.at,
                late=late,
            )
        case Gap(line=line, first=first, last=last):
            count = last - first + 1
            what = "1 message" if count == 1 else f"{count} messages"
            return Record(
                v=VERSION,
                kind=Kind.NOTE,
                at=now_ms,
                text=f"{what} did not arrive",
                line=line,
                missing=(first, last),
            )
