"""The state of the conversation of a group: events in, records to be stored out.

Sans-I/O, like `chat.conversation`: the state changes only by `replay`, with records that are
stored. Messages of one author are shown in their order; one that comes early is stored as held.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from itertools import islice, takewhile

import msgspec

from millpond.node.chat.actions import Action, action_of, is_shown_alone
from millpond.node.chat.conversation import LatestMessage, PendingReceipts, ReadPositions
from millpond.node.chat.groups.membership import Verdict
from millpond.node.chat.groups.shared_files import SharedFiles
from millpond.node.chat.groups.signed import (
    SEEN_MAX,
    BadRecord,
    GroupMessage,
    SeenHead,
    message_hash,
    read_message,
)
from millpond.node.chat.payloads import Receipt, Text, UnknownPayload, decode_payload
from millpond.node.chat.pending_files import PendingFiles, file_name
from millpond.node.chat.records import VERSION, Kind, Record, State, is_newer
from millpond.node.chat.reorder import GAP_WAIT_S
from millpond.node.peers.file_format import with_clean_name
from millpond.node.peers.identity import peer_id, public_key_of

REMEMBERED_MAX = 100_000
"""The number of messages that are remembered, to recognize repetitions and to count receipts."""
UNREAD_MAX = 10_000
HELD_MAX = 256
"""The most messages that are held; beyond it the first ones are shown, or dropped."""
HELD_OF_AUTHOR_MAX = 48
UNKNOWN_WAIT_S = 86_400.0
"""The time for which a message waits for the record of the group that it was written after."""
AUTHORS_MAX = 1000
LINES_MAX = 4

Name = tuple[str, str]
"""The author of a message (empty: this node) and its uuid."""


class OwnGroupMessage(msgspec.Struct):
    """A message of this node: record `sequence`. `delivered` and `read`: the members that have said
    so. `count`: the members to whom it was sent."""

    uuid: str
    sequence: int
    state: State
    text: Text
    delivered: set[str]
    read: set[str]
    count: int = 0
    is_deleted: bool = False


class Outgoing(msgspec.Struct):
    """A message that is not sent to all members yet: `signed`, stored at `at` (ms). `targets`: the
    members to whom a message of another one is passed on; None: all. `done`: those that have it."""

    name: Name
    at: int
    signed: bytes
    targets: frozenset[bytes] | None
    done: set[str]


class Received(msgspec.Struct, frozen=True):
    """A message of another member, verified."""

    message: GroupMessage
    text: Text
    hash: bytes
    signed: bytes
    targets: tuple[bytes, ...] = ()

    @property
    def name(self) -> Name:
        """Its author and uuid."""
        return peer_id(self.message.by), self.message.uuid.hex()


class _Held(msgspec.Struct):
    received: Received
    at: int


class _Place(msgspec.Struct, frozen=True):
    """The place of a message among those of its author. `gap`: the numbers that are missing."""

    is_ready: bool
    is_late: bool = False
    gap: tuple[int, int] | None = None


JudgeCallback = Callable[[Received], Verdict]


class GroupConversation:
    """The state of the conversation of one group. `own`: the peer id of this node."""

    def __init__(
        self, own: str, life_ms: int, positions: ReadPositions, *, is_whole: bool = True
    ) -> None:
        self.read = positions.read
        self.tail = 0
        self.last: LatestMessage | None = None
        self.line, self.count = "", 0
        """The line of this node, and the number of its last message."""
        self.last_hash = b""
        self.files_out, self.files_in = PendingFiles(Kind.FILE_OUT), PendingFiles(Kind.FILE_IN)
        self.shared = SharedFiles()
        self._own_id = own
        self._is_whole = is_whole
        self._life_ms = life_ms
        self._own: OrderedDict[str, OwnGroupMessage] = OrderedDict()
        self._outgoing: OrderedDict[Name, Outgoing] = OrderedDict()
        self._seen: OrderedDict[Name, int] = OrderedDict()
        self._held: OrderedDict[Name, _Held] = OrderedDict()
        self._lines: OrderedDict[str, OrderedDict[str, int]] = OrderedDict()
        """By author and line, the next number; the current line is the last."""
        self._hashes: OrderedDict[tuple[str, str, int], bytes] = OrderedDict()
        self._latest: OrderedDict[str, SeenHead] = OrderedDict()
        self._warned: set[tuple[str, str, int]] = set()
        self._unread: OrderedDict[int, Name] = OrderedDict()
        self._receipts_sent = {
            State.DELIVERED: positions.delivered_sent,
            State.READ: positions.read_sent,
        }
        self._pending: dict[State, OrderedDict[int, Name]] = {
            State.DELIVERED: OrderedDict(),
            State.READ: OrderedDict(),
        }

    @property
    def unread(self) -> int:
        """The number of unread messages."""
        return len(self._unread)

    @property
    def outgoing(self) -> Sequence[Outgoing]:
        """The messages that are not sent to all members yet, in order."""
        return list(self._outgoing.values())

    @property
    def waiting(self) -> int:
        """The number of those of this node."""
        return sum(not author for author, _ in self._outgoing)

    @property
    def heads(self) -> tuple[SeenHead, ...]:
        """The last messages of other authors, the newest ones."""
        return tuple(list(self._latest.values())[-SEEN_MAX:])

    @property
    def has_held(self) -> bool:
        """True if messages are held."""
        return bool(self._held)

    @property
    def held_authors(self) -> Sequence[str]:
        """The authors of the held messages, one for each."""
        return [author for author, _ in self._held]

    def own_message(self, uuid: str) -> OwnGroupMessage | None:
        """A recent message of this node."""
        return self._own.get(uuid)

    def can_change(self, uuid: str, now_ms: int) -> bool:
        """True for a message of this node that can be edited or deleted: a recent one."""
        own = self._own.get(uuid)
        if own is None or own.is_deleted or not is_shown_alone(own.text):
            return False
        return own.text.at >= now_ms - self._life_ms

    def is_known(self, name: Name) -> bool:
        """True for a message that is stored, shown or held."""
        return name in self._seen or name in self._held

    def pending_receipts(
        self, count_max: int
    ) -> tuple[PendingReceipts, dict[str, list[str]]] | None:
        """The next receipts to be sent, and the uuids of the messages by their authors."""
        for state, pending in self._pending.items():
            places = list(islice(pending, count_max))
            if places:
                by_author: dict[str, list[str]] = {}
                for each in places:
                    author, uuid = pending[each]
                    by_author.setdefault(author, []).append(uuid)
                return PendingReceipts(state, [], places[-1] + 1), by_author
        return None

    # Events: each returns the records to be stored.

    def add_own(
        self,
        message: GroupMessage,
        text: Text,
        signed: bytes,
        now_ms: int,
        members: tuple[str, ...] = (),
    ) -> Record:
        """The record of a new message of this node. `members`: those to whom its file goes."""
        return Record(
            v=VERSION,
            kind=Kind.OUT,
            at=now_ms,
            uuid=message.uuid.hex(),
            text=text.text,
            state=State.WAITING,
            n=text.n,
            line=text.line,
            action=text.action,
            about=text.about,
            hash=message_hash(message).hex(),
            signed=signed,
            file=text.file,
            members=members,
        )

    def receive(self, received: Received, verdict: Verdict, now_ms: int) -> list[Record]:
        """The records of a message of another member: it is shown, or held; none if it is known, or
        refused."""
        if self.is_known(received.name) or verdict is Verdict.REFUSE:
            return []
        number = (received.name[0], received.text.line, received.text.n)
        if self._hashes.get(number) == received.hash:  # so old that its uuid is forgotten
            return []
        place = self._place(received)
        if verdict is Verdict.ACCEPT and place.is_ready:
            return self._shown(received, place, now_ms)
        author, uuid = received.name
        return [
            Record(
                v=VERSION,
                kind=Kind.HELD,
                at=now_ms,
                uuid=uuid,
                by=author,
                signed=received.signed,
                targets=b"".join(received.targets),
            )
        ]

    def release(self, judge: JudgeCallback, now_ms: int) -> list[Record]:
        """The records of one held message whose time has come. To be called until there is none."""
        for name, held in self._in_order():
            received, waited_s = held.received, (now_ms - held.at) / 1000
            is_full = self._is_full(name[0])
            verdict = judge(received)
            if verdict is Verdict.HOLD and waited_s < UNKNOWN_WAIT_S and not is_full:
                continue
            if verdict is not Verdict.ACCEPT:
                return [self._dropped(name, now_ms)]
            place = self._place(received)
            if place.is_ready or waited_s >= GAP_WAIT_S or is_full:
                return self._shown(received, place, now_ms)
        return []

    def _in_order(self) -> list[tuple[Name, _Held]]:
        return sorted(self._held.items(), key=lambda each: each[1].received.text.n)

    def _is_full(self, author: str) -> bool:
        count = sum(each == author for each, _ in self._held)
        return len(self._held) >= HELD_MAX or count >= HELD_OF_AUTHOR_MAX

    @staticmethod
    def _dropped(name: Name, now_ms: int) -> Record:
        text = "wrote a message that is not shown: it is of a state of the group unknown here"
        return Record(v=VERSION, kind=Kind.NOTE, at=now_ms, uuid=name[1], by=name[0], text=text)

    def _place(self, received: Received) -> _Place:
        text, author = received.text, peer_id(received.message.by)
        lines = self._lines.get(author)
        if not lines:
            return _Place(is_ready=True)
        if text.line not in lines:
            gap = (1, text.n - 1) if text.n > 1 else None
            return _Place(is_ready=gap is None, gap=gap)
        expected = lines[text.line]
        if text.line != next(reversed(lines)) or text.n < expected:
            return _Place(is_ready=True, is_late=True)
        gap = (expected, text.n - 1) if text.n > expected else None
        return _Place(is_ready=gap is None, gap=gap)

    def _shown(self, received: Received, place: _Place, now_ms: int) -> list[Record]:
        text, (author, uuid) = received.text, received.name
        records = list(self._warnings(received, now_ms))
        if place.gap is not None:
            first, last = place.gap
            count = last - first + 1
            counted = "1 message" if count == 1 else f"{count} messages"
            records.append(
                Record(
                    v=VERSION,
                    kind=Kind.NOTE,
                    at=now_ms,
                    text=f"{counted} did not arrive",
                    line=text.line,
                    missing=place.gap,
                    by=author,
                )
            )
        shown = Record(
            v=VERSION,
            kind=Kind.IN,
            at=now_ms,
            uuid=uuid,
            text=text.text,
            n=text.n,
            line=text.line,
            sent_at=text.at,
            late=place.is_late,
            action=text.action,
            about=text.about,
            by=author,
            hash=received.hash.hex(),
            signed=received.signed if received.targets else b"",
            targets=b"".join(received.targets),
            file=None if text.file is None else with_clean_name(text.file),
        )
        return [*records, shown]

    def _warnings(self, received: Received, now_ms: int) -> Iterator[Record]:
        """Notes about two messages of one author with the same number."""
        author, by = received.name[0], received.message.by
        line, n, previous = received.text.line, received.text.n, received.message.previous
        own = [SeenHead(by, line, n, received.hash)]
        if n > 1 and previous:  # the message before it, as other members have it
            own.append(SeenHead(by, line, n - 1, previous))
        for head in (*own, *received.message.seen):
            key = (peer_id(head.by), head.line, head.n)
            known = self._hashes.get(key)
            if known is None or known == head.hash or key in self._warned:
                continue
            if head in own:
                text = "WARNING: has written different messages with the same number"
            else:
                text = f"WARNING: has another message than this node by {key[0][:12]}"
            yield Record(
                v=VERSION,
                kind=Kind.NOTE,
                at=now_ms,
                text=text,
                line=head.line,
                n=head.n,
                by=author,
                about=peer_id(head.by),
            )

    def receipts(self, by: str, receipt: Receipt, now_ms: int) -> list[Record]:
        """The records of a receipt of a member, for messages of this node."""
        state, records = receipt.new_state, []
        for uuid in dict.fromkeys(receipt.of):
            own = self._own.get(uuid)
            if own is None or by in own.read or (state is State.DELIVERED and by in own.delivered):
                continue
            records.append(
                Record(v=VERSION, kind=Kind.STATE, at=now_ms, uuid=uuid, state=state, members=(by,))
            )
        return records

    def sent(self, outgoing: Outgoing, done: Sequence[str], now_ms: int) -> Record:
        """The record of a message that is sent to some more members, and not yet to all."""
        author, uuid = outgoing.name
        return Record(
            v=VERSION,
            kind=Kind.STATE,
            at=now_ms,
            uuid=uuid,
            by=author,
            state=State.WAITING,
            members=tuple(done),
        )

    def sent_to_all(self, outgoing: Outgoing, count: int, state: State, now_ms: int) -> Record:
        """The record of a message that is sent to all members, `count` in all, or given up."""
        author, uuid = outgoing.name
        return Record(
            v=VERSION, kind=Kind.STATE, at=now_ms, uuid=uuid, by=author, state=state, count=count
        )

    def state_records(self, changes: Sequence[tuple[str, State]], now_ms: int) -> list[Record]:
        """None: states of a group name members."""
        return []

    @staticmethod
    def note(uuid: str, text: str, by: str, now_ms: int) -> Record:
        """The record of a note about what a member has done."""
        return Record(v=VERSION, kind=Kind.NOTE, at=now_ms, uuid=uuid, text=text, by=by)

    # Stored records.

    def replay(self, sequence: int, record: Record) -> None:
        """Apply a stored record, now or at the start, in the order of sequences."""
        self.tail = sequence + 1
        name = (record.by, record.uuid)
        match record.kind:
            case Kind.OUT:
                self._replay_out(sequence, record)
            case Kind.IN:
                self._replay_in(sequence, record)
            case Kind.HELD:
                self._replay_held(name, record)
            case Kind.STATE:
                self._replay_state(name, record)
            case Kind.NOTE:
                self._replay_note(name, record)
            case Kind.FILE_OUT:
                self.files_out.change(record)
            case Kind.FILE_IN:
                self.files_in.change(record)
            case _:
                return

    def replay_read(self, read: int) -> None:
        """Mark records below `read` as read; a message that was read was also delivered."""
        self.read = max(self.read, read)
        for sequence in list(takewhile(lambda each: each < self.read, self._unread)):
            self._add_pending(State.READ, sequence, self._unread.pop(sequence))
            self._pending[State.DELIVERED].pop(sequence, None)

    def replay_receipt_sent(self, state: State, end: int) -> None:
        """Receipts were sent for all messages below record `end`."""
        self._receipts_sent[state] = max(self._receipts_sent[state], end)
        pending = self._pending[state]
        for sequence in list(takewhile(lambda each: each < end, pending)):
            del pending[sequence]

    def _add_pending(self, state: State, sequence: int, name: Name) -> None:
        if sequence < self._receipts_sent[state]:
            return
        pending = self._pending[state]
        pending[sequence] = name
        if len(pending) > UNREAD_MAX:
            pending.popitem(last=False)

    def _replay_out(self, sequence: int, record: Record) -> None:
        if record.line != self.line:
            self.line, self.count = record.line, 0
        self.count = max(self.count, record.n)
        self.last_hash = bytes.fromhex(record.hash)
        self._remember_hash(self._own_id, record)
        text = Text(record.line, record.n, record.at, record.text, record.action, record.about)
        self._replay_file(sequence, record, self.files_out)
        self._own[record.uuid] = OwnGroupMessage(
            record.uuid, sequence, State.WAITING, text, set(), set()
        )
        if len(self._own) > REMEMBERED_MAX:
            self._own.popitem(last=False)
        self._outgoing["", record.uuid] = Outgoing(
            ("", record.uuid), record.at, record.signed, None, set()
        )
        changed = self._own.get(record.about)
        if changed is not None and action_of(record) is Action.DELETE:
            changed.is_deleted = True
        self._update_last(record)

    def _replay_in(self, sequence: int, record: Record) -> None:
        name = (record.by, record.uuid)
        self._held.pop(name, None)
        if name in self._seen:  # it was stored twice: the first one counts
            return
        self._remember(name, record.at)
        self._replay_file(sequence, record, self.files_in)
        self._advance(record.by, record.line, record.n + 1)
        self._remember_hash(record.by, record)
        head = SeenHead(public_key_of(record.by), record.line, record.n, bytes.fromhex(record.hash))
        self._latest.pop(record.by, None)
        self._latest[record.by] = head
        while len(self._latest) > SEEN_MAX:
            self._latest.popitem(last=False)
        if record.targets:
            targets = frozenset(
                record.targets[at : at + 32] for at in range(0, len(record.targets), 32)
            )
            self._outgoing[name] = Outgoing(name, record.at, record.signed, targets, set())
        self._update_last(record)
        if not is_shown_alone(record):
            self._add_pending(State.DELIVERED, sequence, name)
            if action_of(record) is Action.DELETE:
                self._remove_unread((record.by, record.about))
            return
        if sequence < self.read:
            self._add_pending(State.READ, sequence, name)
            return
        self._add_pending(State.DELIVERED, sequence, name)
        self._unread[sequence] = name
        if len(self._unread) > UNREAD_MAX:
            self._unread.popitem(last=False)

    def _replay_file(self, sequence: int, record: Record, files: PendingFiles) -> None:
        """A message may bring a file, or delete one."""
        if action_of(record) is Action.DELETE:
            name = file_name(record.by, record.about)
            files.drop(name)
            self.shared.drop(name)
        elif record.file is not None and is_shown_alone(record):
            files.add(sequence, record)
            self.shared.add(record)

    def _replay_held(self, name: Name, record: Record) -> None:
        try:
            message = read_message(record.signed)
            text = decode_payload(message.body)
        except (BadRecord, UnknownPayload):
            return
        if isinstance(text, Text):
            targets = tuple(
                record.targets[at : at + 32] for at in range(0, len(record.targets), 32)
            )
            received = Received(message, text, message_hash(message), record.signed, targets)
            self._held[name] = _Held(received, record.at)

    def _replay_state(self, name: Name, record: Record) -> None:
        if record.state is None:
            return
        outgoing = self._outgoing.get(name)
        own = self._own.get(record.uuid) if not record.by else None
        if record.state is State.WAITING:
            if outgoing is not None:
                outgoing.done |= set(record.members)
            return
        if record.state in (State.KEPT, State.EXPIRED):
            self._outgoing.pop(name, None)
        if own is None:
            return
        if record.state is State.KEPT:
            own.count = record.count
        for member in record.members:
            own.delivered.add(member)
            if record.state is State.READ:
                own.read.add(member)
        if is_newer(record.state, own.state):
            own.state = record.state

    def _replay_note(self, name: Name, record: Record) -> None:
        self._held.pop(name, None)
        if record.uuid:
            self._remember(name, record.at)
        if record.missing is not None:
            self._advance(record.by, record.line, record.missing[1] + 1)
        elif record.n:
            self._warned.add((record.about, record.line, record.n))

    def _advance(self, author: str, line: str, expected: int) -> None:
        lines = self._lines.setdefault(author, OrderedDict())
        self._lines.move_to_end(author)
        lines[line] = max(expected, lines.get(line, 0))
        if len(lines) > LINES_MAX:
            lines.popitem(last=False)
        if len(self._lines) > AUTHORS_MAX:
            self._lines.popitem(last=False)

    def _remember(self, name: Name, at: int) -> None:
        self._seen[name] = at
        while (
            len(self._seen) > REMEMBERED_MAX or next(iter(self._seen.values())) < at - self._life_ms
        ):
            self._seen.popitem(last=False)

    def _remember_hash(self, author: str, record: Record) -> None:
        self._hashes.setdefault((author, record.line, record.n), bytes.fromhex(record.hash))
        if len(self._hashes) > REMEMBERED_MAX:
            self._hashes.popitem(last=False)

    def _remove_unread(self, name: Name) -> None:
        """A deleted message needs no reader."""
        for sequence in [each for each, unread in self._unread.items() if unread == name]:
            del self._unread[sequence]

    def _update_last(self, record: Record) -> None:
        last = self.last
        if is_shown_alone(record):
            self.last = LatestMessage(record.kind, record.text, record.at, record.uuid, record.by)
        elif last is not None and (last.kind, last.by, last.uuid) == (
            record.kind,
            record.by,
            record.about,
        ):
            text = {Action.DELETE: "", Action.EDIT: record.text}.get(
                action_of(record) or Action.REACT
            )
            if text is not None:
                self.last = LatestMessage(last.kind, text, last.at, last.uuid, last.by)
