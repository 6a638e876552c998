"""The state of a conversation with one peer: events in, records to be stored out.

Sans-I/O. The state changes only by `replay`, with records that are stored: it is the same after a
crash, and an event that could not be stored has not happened.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from itertools import islice, takewhile

import msgspec

from millpond.node.chat.actions import Action, ChangeOrder, action_of, is_shown_alone
from millpond.node.chat.messages import PREVIEW_CHARS
from millpond.node.chat.payloads import Text
from millpond.node.chat.pending_files import PendingFiles
from millpond.node.chat.records import VERSION, Kind, Record, State, is_newer
from millpond.node.chat.reorder import Gap, OrderedMessage, ReorderBuffer
from millpond.node.peers.file_format import File, with_clean_name

SEEN_MAX = 100_000
"""The number of messages of each side that are remembered: to recognize repetitions and to change
their state."""
UNREAD_MAX = 10_000
"""The most messages that count as unread, or that wait for a receipt of one kind."""
EARLY_MAX = 256
"""The most messages of a peer that were changed before they came, and are remembered."""


class OwnMessage(msgspec.Struct):
    """A message of this node: record `sequence`. `secret`: it takes up an invite of the peer.
    `is_deleted`: a later one has deleted it."""

    uuid: str
    sequence: int
    state: State
    text: Text
    secret: str = ""
    is_deleted: bool = False


class LatestMessage(msgspec.Struct, frozen=True):
    """The last message of a conversation, as it was edited; a deleted one has no text. In a
    group `by` is the peer id of its author, if that is another one."""

    kind: Kind
    text: str
    at: int
    uuid: str = ""
    by: str = ""


class EarlyChanges(msgspec.Struct):
    """The changes of a message of the peer that has not come yet."""

    is_deleted: bool = False
    text: str = ""
    edit: ChangeOrder | None = None


class PendingReceipts(msgspec.Struct, frozen=True):
    """A receipt to be sent, for the messages before record `end`."""

    state: State
    uuids: list[str]
    end: int


class ReadPositions(msgspec.Struct, frozen=True):
    """Sequences up to which records were read, and receipts of each kind were sent."""

    read: int = 0
    delivered_sent: int = 0
    read_sent: int = 0


class Conversation:
    """The state of a conversation.

    `life_ms` is longer than a message may be on its way. `is_whole` is False if the first records
    are not replayed.
    """

    def __init__(
        self, life_ms: int, positions: ReadPositions | None = None, *, is_whole: bool = True
    ) -> None:
        positions = positions or ReadPositions()
        self.read = positions.read
        """Records before this sequence are read."""
        self.tail = 0
        """The sequence of the next record."""
        self.last: LatestMessage | None = None
        self.is_answered = False
        """True if the peer has written, or has received something."""
        self.reorder_buffer = ReorderBuffer(is_whole=is_whole)
        self.outgoing = PendingFiles(Kind.FILE_OUT)
        self.incoming = PendingFiles(Kind.FILE_IN)
        self._life_ms = life_ms
        self._line = ""
        self._count = 0
        self._own: OrderedDict[str, OwnMessage] = OrderedDict()
        self._waiting: OrderedDict[str, OwnMessage] = OrderedDict()
        self._seen: OrderedDict[str, int] = OrderedDict()
        self._unread: OrderedDict[int, str] = OrderedDict()
        self._last_edit: ChangeOrder | None = None
        self._early: OrderedDict[str, EarlyChanges] = OrderedDict()
        self._receipts_sent = {
            State.DELIVERED: positions.delivered_sent,
            State.READ: positions.read_sent,
        }
        self._pending: dict[State, OrderedDict[int, str]] = {
            State.DELIVERED: OrderedDict(),
            State.READ: OrderedDict(),
        }

    @property
    def unread(self) -> int:
        """The number of unread messages of the peer."""
        return len(self._unread)

    @property
    def waiting(self) -> Sequence[OwnMessage]:
        """The messages of this node that are not sealed yet, in order."""
        return list(self._waiting.values())

    def own_message(self, uuid: str) -> OwnMessage | None:
        """A recent message of this node."""
        return self._own.get(uuid)

    def can_change(self, uuid: str, now_ms: int) -> bool:
        """True for a message of this node that can be edited or deleted: a recent one."""
        own = self._own.get(uuid)
        if own is None or own.secret or own.is_deleted or not is_shown_alone(own.text):
            return False
        return own.text.at >= now_ms - self._life_ms

    def is_seen(self, uuid: str) -> bool:
        """True if this message of the peer is stored already."""
        return uuid in self._seen

    def pending_receipts(self, count_max: int) -> PendingReceipts | None:
        """The next receipt to be sent, for at most so many messages."""
        for state, pending in self._pending.items():
            places = list(islice(pending, count_max))
            if places:
                return PendingReceipts(state, [pending[each] for each in places], places[-1] + 1)
        return None

    # Events: each returns the records to be stored.

    def add_own(
        self,
        uuid: str,
        text: str,
        line: str,
        now_ms: int,
        action: Action | None = None,
        about: str = "",
        file: File | None = None,
    ) -> Record:
        """The record of a new message of this node. `line` starts a line if there is none. An
        `action` is `about` another message. `file`: it brings this one."""
        return Record(
            v=VERSION,
            kind=Kind.OUT,
            at=now_ms,
            uuid=uuid,
            text=text,
            state=State.WAITING,
            n=self._count + 1,
            line=self._line or line,
            action="" if action is None else action.value,
            about=about,
            file=file,
        )

    def add_invite(self, uuid: str, secret: str, now_ms: int) -> Record:
        """The record of an invite of the peer that is accepted here."""
        return Record(
            v=VERSION,
            kind=Kind.INVITE,
            at=now_ms,
            uuid=uuid,
            state=State.WAITING,
            secret=secret,
        )

    def receive(self, uuid: str, text: Text, now: float) -> list[Record]:
        """The records of a new message of the peer (`now` in seconds).

        These are the messages to be shown now; the new one may be held back in `reorder_buffer`.
        """
        return [_record_of(each, now) for each in self.reorder_buffer.add(uuid, text, now)]

    def release(self, now: float) -> list[Record]:
        """The records of messages that were held back long enough."""
        return [_record_of(each, now) for each in self.reorder_buffer.release(now)]

    def state_records(self, changes: Sequence[tuple[str, State]], now_ms: int) -> list[Record]:
        """The records of new states of messages of this node."""
        return list(self._changes(changes, now_ms))

    def _changes(self, changes: Sequence[tuple[str, State]], now_ms: int) -> Iterator[Record]:
        latest: dict[str, State] = {}
        for uuid, state in changes:
            own = self._own.get(uuid)
            if own is not None and is_newer(state, latest.get(uuid, own.state)):
                latest[uuid] = state
        for uuid, state in latest.items():
            yield Record(v=VERSION, kind=Kind.STATE, at=now_ms, uuid=uuid, state=state)

    @staticmethod
    def note(uuid: str, text: str, now_ms: int, payload: str = "") -> Record:
        """The record of a note about the message of this uuid, with its `payload` if that is not
        understood."""
        return Record(v=VERSION, kind=Kind.NOTE, at=now_ms, uuid=uuid, text=text, payload=payload)

    # Stored records.

    def replay(self, sequence: int, record: Record) -> None:
        """Apply a stored record, now or at the start, in the order of sequences."""
        self.tail = sequence + 1
        match record.kind:
            case Kind.OUT:
                self._replay_out(sequence, record)
            case Kind.INVITE:
                self._add_own(sequence, record)
            case Kind.IN:
                self._replay_in(sequence, record)
            case Kind.STATE:
                self._replay_state(record)
            case Kind.FILE_OUT:
                self.outgoing.change(record)
            case Kind.FILE_IN:
                self.incoming.change(record)
            case Kind.NOTE:
                if record.uuid:
                    self._remember(record.uuid, record.at)

    def replay_read(self, read: int) -> None:
        """Mark records below `read` as read; a message that was read was also delivered."""
        self.read = max(self.read, read)
        for sequence in list(takewhile(lambda each: each < self.read, self._unread)):
            self._add_pending(State.READ, sequence, self._unread.pop(sequence))
            self._pending[State.DELIVERED].pop(sequence, None)

    def replay_receipt_sent(self, state: State, end: int) -> None:
        """The peer was sent receipts for all messages below record `end`."""
        self._receipts_sent[state] = max(self._receipts_sent[state], end)
        pending = self._pending[state]
        for sequence in list(takewhile(lambda each: each < end, pending)):
            del pending[sequence]

    def _add_pending(self, state: State, sequence: int, uuid: str) -> None:
        if sequence < self._receipts_sent[state]:
            return
        pending = self._pending[state]
        pending[sequence] = uuid
        if len(pending) > UNREAD_MAX:
            pending.popitem(last=False)

    def _replay_out(self, sequence: int, record: Record) -> None:
        if record.line != self._line:
            self._line, self._count = record.line, 0
        self._count = max(self._count, record.n)
        self._add_own(sequence, record)
        changed = self._own.get(record.about)
        if changed is not None and action_of(record) is Action.DELETE:
            changed.is_deleted = True
            self.outgoing.drop(record.about)
        self.outgoing.add(sequence, record)
        self._update_last(sequence, record)

    def _add_own(self, sequence: int, record: Record) -> None:
        text = Text(
            record.line,
            record.n,
            record.at,
            record.text,
            record.action,
            record.about,
            record.file,
        )
        own = OwnMessage(record.uuid, sequence, State.WAITING, text, record.secret)
        self._own[record.uuid] = self._waiting[record.uuid] = own
        while self._is_closed(next(iter(self._own.values())), record.at):
            self._own.popitem(last=False)

    def _is_closed(self, own: OwnMessage, at: int) -> bool:
        if own.uuid in self._waiting:  # its state will still change
            return False
        return len(self._own) > SEEN_MAX or own.text.at < at - self._life_ms

    def _replay_in(self, sequence: int, record: Record) -> None:
        if self.is_seen(record.uuid):  # it was stored twice: the first one counts
            return
        is_early = bool(record.about) and record.about not in self._seen
        self._remember(record.uuid, record.at)
        self.is_answered = True
        if record.line:
            self.reorder_buffer.resume(record.line, record.n)
        early = self._early.pop(record.uuid, None)
        self._update_last(sequence, record, early)
        self.incoming.add(sequence, record)
        if early is not None and early.is_deleted:
            self.incoming.drop(record.uuid)
        if not is_shown_alone(record):
            self._add_pending(State.DELIVERED, sequence, record.uuid)
            if is_early:
                self._add_early(sequence, record)
            if action_of(record) is Action.DELETE:
                self._remove_unread(record.about)
                self.incoming.drop(record.about)
            return
        if sequence < self.read:
            self._add_pending(State.READ, sequence, record.uuid)
            return
        self._add_pending(State.DELIVERED, sequence, record.uuid)
        if early is not None and early.is_deleted:
            return
        self._unread[sequence] = record.uuid
        if len(self._unread) > UNREAD_MAX:
            self._unread.popitem(last=False)

    def _add_early(self, sequence: int, record: Record) -> None:
        """Remember a change of a message that comes late."""
        action = action_of(record)
        if action not in (Action.EDIT, Action.DELETE):
            return
        early = self._early.setdefault(record.about, EarlyChanges())
        if action is Action.DELETE:
            early.is_deleted = True
        elif (order := ChangeOrder.of(record, sequence)).is_later(early.edit):
            early.text, early.edit = record.text[:PREVIEW_CHARS], order
        if len(self._early) > EARLY_MAX:
            self._early.popitem(last=False)

    def _remove_unread(self, uuid: str) -> None:
        """A deleted message needs no reader."""
        for sequence in [each for each, unread in self._unread.items() if unread == uuid]:
            del self._unread[sequence]

    def _update_last(
        self, sequence: int, record: Record, early: EarlyChanges | None = None
    ) -> None:
        last = self.last
        if is_shown_alone(record):
            text, self._last_edit = record.text, None
            if early is not None and early.edit is not None:
                text, self._last_edit = early.text, early.edit
            if early is not None and early.is_deleted:
                text = ""
            self.last = LatestMessage(record.kind, text, record.at, record.uuid)
        elif last is not None and last.kind is record.kind and last.uuid == record.about:
            order = ChangeOrder.of(record, sequence)
            match action_of(record):
                case Action.DELETE:
                    self.last = LatestMessage(last.kind, "", last.at, last.uuid)
                case Action.EDIT if last.text and order.is_later(self._last_edit):
                    self.last = LatestMessage(last.kind, record.text, last.at, last.uuid)
                    self._last_edit = order

    def _replay_state(self, record: Record) -> None:
        own = self._own.get(record.uuid)
        self.is_answered |= record.state in (State.DELIVERED, State.READ)
        if own is not None and record.state is not None and is_newer(record.state, own.state):
            own.state = record.state
            self._waiting.pop(record.uuid, None)

    def _remember(self, uuid: str, at: int) -> None:
        self._seen[uuid] = at
        while len(self._seen) > SEEN_MAX or next(iter(self._seen.values())) < at - self._life_ms:
            self._seen.popitem(last=False)


def _record_of(each: OrderedMessage | Gap, now: float) -> Record:
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
                action=text.action,
                about=text.about,
                file=None if text.file is None else with_clean_name(text.file),
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
