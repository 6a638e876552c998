"""The task of a group: it stores and sends messages and records, and receives those of others.

A message goes to each member in a sealed message of its own, with the same signature for all.
Members that are no contacts of each other get it through members between them.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from hashlib import sha256
from math import inf

import anyio
import anyio.lowlevel
import msgspec

from millpond.actors.errors import (
    BufferFull,
    DataTooLarge,
    EmptyData,
    NotAllowed,
    NotFound,
    OutcomeUnknown,
    RequestError,
    UnknownStream,
)
from millpond.node.chat.actions import REACTION_BYTES_MAX, Action, said_text
from millpond.node.chat.conversation import ReadPositions
from millpond.node.chat.conversation_log import ConversationLog
from millpond.node.chat.file_messages import FileTransfer
from millpond.node.chat.files import ChatFiles
from millpond.node.chat.groups.conversation import GroupConversation, Outgoing, Received
from millpond.node.chat.groups.file_transfers import GroupFileTransfers
from millpond.node.chat.groups.membership import (
    BYTES_MAX,
    Added,
    Membership,
    MemberStatus,
    Verdict,
)
from millpond.node.chat.groups.signed import (
    STATEMENTS,
    VERSION,
    BadRecord,
    Change,
    GroupMessage,
    GroupRecord,
    message_hash,
    read_message,
    read_record,
    record_hash,
    sign,
)
from millpond.node.chat.local_stream import LocalStream
from millpond.node.chat.payloads import (
    GROUP_RECORDS_MAX,
    HOPS_MAX,
    LINE_DIGITS,
    RECEIPTS_MAX,
    FileStatus,
    GroupPayload,
    Receipt,
    Text,
    Typing,
    UnknownPayload,
    decode_payload,
    encode_payload,
)
from millpond.node.chat.receiver import TYPING_S
from millpond.node.chat.records import PREFIX, Record, State, conversation_stream
from millpond.node.chat.sender import TYPING_EVERY_S, TYPING_TTL_S
from millpond.node.outbox.context import Wakeup
from millpond.node.outbox.outbox import Outbox
from millpond.node.peers.envelope import UUID_BYTES
from millpond.node.peers.file_format import File
from millpond.node.peers.identity import peer_id, public_key_of
from millpond.node.peers.peer import Trust

log = logging.getLogger(__name__)

TEXT_BYTES_MAX = 16 * 1024
"""The largest text of a group in bytes of UTF-8."""
WAITING_MAX = 1000
"""The most own messages that wait to be sent to all members."""
CHECK_S = 60.0
RELEASE_S = 5.0
ASK_S = 5.0
"""The least time between two questions to one member, and between two answers."""
ASKED_MAX = 5
"""The most questions to a member for one message of it."""
HELD_OF_STRANGERS_MAX = 32
"""The most messages that are held of authors who are no members as far as is known."""
ANNOUNCED_MAX = 1000
ANNOUNCED_S = 86_400.0
"""Own records of so many seconds are sent again at the start."""
ANNOUNCED_AGAIN_MAX = 8
DAY_S = 86_400.0
PAYLOAD_BYTES_MAX = BYTES_MAX
"""The most bytes of records in one sealed message: those of a whole group fit, as an invitation has
to."""
TYPING_MEMBERS_MAX = 32
"""In larger groups nobody is told that somebody writes."""
RECORDS_AT_ONCE = 32
"""The most records that are verified in one turn of the event loop: some 5 ms."""
HOPS_UNKNOWN = 8
"""The hops of a message that is passed on after a restart."""


class Announcement(msgspec.Struct):
    """Records, or a receipt, for some members: kept in memory until it is sent to them."""

    targets: set[bytes]
    until: float
    records: tuple[bytes, ...] = ()
    messages: tuple[bytes, ...] = ()
    hops: int = 0
    text: str = ""


class GroupTask:
    """The group with the id `group`.

    `run` is its task, started again after errors. The other methods are called meanwhile, and wait
    until the history is read. `stream` opens the local stream of a name.
    """

    def __init__(
        self,
        group: bytes,
        outbox: Outbox,
        stream: Callable[[bytes], LocalStream],
        files: ChatFiles,
    ) -> None:
        self.group = group
        self.membership = Membership(group)
        self.lost: list[bytes] = []
        """The members to whom no way was known when something was sent last."""
        self._outbox = outbox
        self._own = outbox.context.identity.public
        self._channel = conversation_stream(self._own)
        self._ttl_s = float(outbox.context.settings.ttl_s)
        self._members_stream = stream(members_stream(group))
        self._history = ConversationLog(
            stream(group_stream(group)),
            self._ttl_s + DAY_S,
            outbox.context.now,
            partial(_make_conversation, peer_id(self._own)),
        )
        self.files = GroupFileTransfers(
            group, outbox, self._history, files, lambda: self.membership, self._tell
        )
        self._announcements: deque[Announcement] = deque(maxlen=ANNOUNCED_MAX)
        self._flush_lock = anyio.Lock()
        self._message_added = Wakeup()
        self._receipt_due = Wakeup()
        self._announced = Wakeup()
        self._has_held = Wakeup()
        self._told_of_files: list[tuple[bytes, FileStatus]] = []
        self._typing_at: dict[bytes, float] = {}
        self._typing_sent_at = -inf
        self._asked_at: dict[bytes, float] = {}
        self._answered_at: dict[bytes, float] = {}
        self._told_at: dict[bytes, float] = {}
        self._lacking: dict[bytes, int] = {}
        """Members that know a record or statement that is not known here, and how often each was
        asked for it."""

    @property
    def conversation(self) -> GroupConversation | None:
        """The conversation; None while the history is read."""
        return self._history.conversation

    @property
    def status(self) -> MemberStatus | None:
        """The status of this node; None if it is no member."""
        return self.membership.status(self._own)

    @property
    def is_joined(self) -> bool:
        """True if this node takes part."""
        return self.status is MemberStatus.JOINED

    @property
    def has_left(self) -> bool:
        """True if this node has left, or has declined an invitation."""
        return self.membership.has_left(self._own)

    @property
    def left_at(self) -> float:
        """The time at which it has left, or has declined."""
        return self.membership.left_at(self._own)

    async def run(self) -> None:
        """Read the history, then send and receive. Raises RequestErrors of the streams."""
        try:
            self.membership = await self._load_members()
            await self._history.open()
            self._announce_again()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._send_messages)
                tasks.start_soon(self._send_receipts)
                tasks.start_soon(self._send_announcements)
                tasks.start_soon(self._release_held)
                tasks.start_soon(self.files.run)
                await self._history.until_broken()
                raise OutcomeUnknown("it is unknown whether the history has the last records")
        finally:
            self._history.reset()

    async def wait_loaded(self) -> None:
        """Wait until the history is read, or the group is closed."""
        await self._history.wait_loaded()

    def close(self) -> None:
        """End: waiting calls raise UnknownPeer."""
        self._history.close()

    def wake(self) -> None:
        """There is a new prekey, or a change in the address book."""
        self._message_added()
        self._receipt_due()
        self._announced()

    def name_of(self, key: bytes) -> str:
        """The name of a member: that of the address book, that of the admin, or its id."""
        if key == self._own:
            return "you"
        peer = self._outbox.context.book.by_public(key)
        if peer is not None and peer.trust is not Trust.PINNED:
            return peer.name
        label, short = self.membership.labels.get(key, ""), peer_id(key)[:8]
        return f"{label} ({short})" if label else short

    # Requests of the user.

    async def send(
        self,
        text: str,
        uuid: str,
        action: Action | None = None,
        about: str = "",
        file: File | None = None,
    ) -> int:
        """Store a message, which is then sent; returns its sequence. See `ConversationTask`."""
        text = said_text(action, text)
        if not text.strip():
            raise EmptyData("the message has no text")
        bytes_max = REACTION_BYTES_MAX if action is Action.REACT else TEXT_BYTES_MAX
        if len(text.encode("utf-8", "surrogatepass")) > bytes_max:
            raise DataTooLarge(f"it has at most {bytes_max} bytes")
        conversation = await self._history.wait_conversation()
        async with self._history.lock:
            own = conversation.own_message(uuid)
            if own is None:
                self._check_sending(conversation, action, about)
                said_at = int(self._outbox.context.latest() * 1000)
                entropy = self._outbox.context.entropy
                line = conversation.line or entropy(LINE_DIGITS // 2).hex()
                what = "" if action is None else action.value
                n = conversation.count + 1
                payload = Text(line, n, said_at, text, what, about, file)
                message = self._message(encode_payload(payload), bytes.fromhex(uuid), conversation)
                signed = sign(message, self._outbox.context.identity)
                others = [each for each in self.membership.active if each != self._own]
                members = () if file is None else tuple(peer_id(each) for each in others)
                record = conversation.add_own(message, payload, signed, said_at, members)
                await self._history.append(conversation, [record])
                own = conversation.own_message(uuid)
        assert own is not None
        self._typing_sent_at = -inf
        self._message_added()
        if file is not None or action is Action.DELETE:
            self.files.outgoing()
        return own.sequence

    @property
    def key(self) -> bytes:
        """The id of the group, by which its files are named."""
        return self.group

    def check_takes_files(self) -> None:
        """Raises NotAllowed if nobody would get a file."""
        if not self.is_joined:
            raise NotAllowed("this node takes no part in the group")
        if len(self.membership.active) < 2:
            raise NotAllowed("nobody else takes part in the group yet: later members get no file")

    async def sequence_of(self, uuid: str) -> int | None:
        """The sequence of a recent message of this node; None: there is none of this uuid."""
        own = (await self._history.wait_conversation()).own_message(uuid)
        return None if own is None else own.sequence

    async def record_at(self, sequence: int) -> Record | None:
        """The record at a sequence of the history. Raises RequestErrors."""
        return await self._history.record_at(sequence)

    def file_transfers(self) -> Iterable[FileTransfer]:
        """The files that are on their way."""
        return self.files.transfers()

    def _check_sending(
        self, conversation: GroupConversation, action: Action | None, about: str
    ) -> None:
        if not self.is_joined:
            raise NotAllowed("this node takes no part in the group")
        if conversation.waiting >= WAITING_MAX:
            raise BufferFull(f"{WAITING_MAX} messages already wait for members")
        now_ms = int(self._outbox.context.latest() * 1000)
        is_change = action in (Action.EDIT, Action.DELETE)
        if is_change and not conversation.can_change(about, now_ms):
            raise NotFound("this message cannot be changed: it is not yours, or is too old")

    def _message(
        self, body: bytes, uuid: bytes, conversation: GroupConversation | None = None
    ) -> GroupMessage:
        state = self.membership.state
        assert state is not None
        return GroupMessage(
            VERSION,
            self.group,
            state.epoch,
            state.head,
            self._own,
            uuid,
            b"" if conversation is None else conversation.last_hash,
            () if conversation is None else conversation.heads,
            body,
        )

    async def send_typing(self) -> None:
        """Tell members that somebody writes: those that are contacts and connected, of a group that
        is not too large, unless they were told a moment ago."""
        now, context = self._history.now(), self._outbox.context
        if not self.is_joined or 0.0 <= now - self._typing_sent_at < TYPING_EVERY_S:
            return
        self._typing_sent_at = now
        active = self.membership.active
        if len(active) > TYPING_MEMBERS_MAX:
            return
        message = self._message(encode_payload(Typing()), context.entropy(UUID_BYTES))
        plaintext = encode_payload(self._payload(messages=(sign(message, context.identity),)))
        for member in active:
            is_online = self._outbox.presence.last_seen(member).is_online
            if member == self._own or not is_online or not context.book.is_contact(member):
                continue
            try:
                await self._outbox.send(member, self._channel, plaintext, TYPING_TTL_S)
            except RequestError as error:
                log.debug("typing not told: to=%s: %s", peer_id(member), error)

    @property
    def typing(self) -> list[str]:
        """The names of the members that write at this moment."""
        now = self._history.now()
        return [
            self.name_of(key) for key, at in self._typing_at.items() if 0.0 <= now - at < TYPING_S
        ]

    async def mark_read(self, sequence: int) -> int:
        """Mark everything up to this record as read; returns the number of unread messages."""
        conversation = await self._history.wait_conversation()
        async with self._history.lock:
            end = min(sequence + 1, conversation.tail)
            if end > conversation.read:
                await self._history.mark_read(conversation, end)
                self._receipt_due()
        return conversation.unread

    async def found(self, first: bytes) -> None:
        """Store the first record of a new group."""
        await self._take_records([first])

    async def change(
        self,
        change: Change,
        members: Sequence[tuple[bytes, str]] = (),
        text: str = "",
        other: bytes = b"",
    ) -> None:
        """Sign a record or statement, store it, and tell the members. Raises BadRecord, and the
        errors of the streams."""
        conversation = await self._history.wait_conversation()
        async with self._history.lock:
            before = set(self.membership.active)
            signed = self.membership.make(
                self._outbox.context.identity,
                change,
                self._history.now_ms,
                members=members,
                text=text,
                other=other,
            )
            await self._store_records(conversation, [signed])
        self._announce(signed, before | set(self.membership.active) | _about(members))

    def _announce(self, signed: bytes, targets: set[bytes]) -> None:
        """Tell members of a record; those that are invited by it get all records."""
        status = {key: self.membership.status(key) for key in targets}
        invited = {key for key in targets if status[key] is MemberStatus.INVITED}
        until = self._outbox.context.now() + self._ttl_s
        others = targets - invited - {self._own}
        if others:
            self._announcements.append(Announcement(others, until, (signed,)))
        if invited:
            state = self.membership.state
            name = "" if state is None else state.name
            text = f"invites you to the group {name!r}; a later version of millpond shows it"
            for records in _chunks(self.membership.signed_since(0)):
                self._announcements.append(Announcement(set(invited), until, records, text=text))
        self._announced()

    def _announce_again(self) -> None:
        """Send the last own records again: a crash may have come between."""
        after = (self._outbox.context.now() - ANNOUNCED_S) * 1000
        own = [each for each in self.membership.own_records(self._own) if each[0].at >= after]
        for record, signed in own[-ANNOUNCED_AGAIN_MAX:]:
            about = {key for key, _ in record.members}
            self._announce(signed, set(self.membership.active) | about)

    def described(self, digest: bytes) -> str:
        """A known record of the chain in words."""
        record = self.membership.record(digest)
        return f"{self.name_of(record.by)} {self._note_text(record, Added.FOLLOWED)}"

    async def flush(self) -> None:
        """Send each announcement once. Those that do not reach all stay."""
        async with self._flush_lock:
            for _ in range(len(self._announcements)):
                each = self._announcements.popleft()
                try:
                    each.targets -= await self._dispatch(each)
                finally:
                    if each.targets:
                        self._announcements.append(each)

    # Receiving.

    async def receive(self, peer: bytes, payload: GroupPayload) -> None:
        """Store what a contact has sent, and pass it on. Raises RequestErrors."""
        known = await self._history.wait_conversation()
        async with self._history.lock:
            conversation = await self._history.wait_conversation()
            if conversation is not known:
                raise OutcomeUnknown("the history is read again")
            was_member = self._takes_part(peer)
            stored = await self._store_records(conversation, payload.records)
            is_member = was_member or self._takes_part(peer)
            if not is_member:  # it may be one that is not known yet: it speaks for itself alone
                payload = msgspec.structs.replace(payload, targets=())
            if self.is_joined:
                for signed in payload.messages:
                    by = None if is_member else peer
                    await self._receive_message(conversation, peer, signed, payload, by)
                await self._release(conversation)
        waiting, self._told_of_files = self._told_of_files, []
        for member, status in waiting:
            await self.files.told(member, status)
        self._announce_statements(stored)
        self._pass_on(payload)
        self._compare(peer, payload)
        self._message_added()
        self._receipt_due()
        self._has_held()
        self.files.incoming()

    def _announce_statements(self, stored: Iterable[GroupRecord]) -> None:
        """Tell all members of statements of those that this node has added: two that were invited
        together do not know of each other that they have joined."""
        members = {} if self.membership.state is None else self.membership.state.members
        for record in stored:
            member = members.get(record.by)
            if record.change in STATEMENTS and member is not None and member.added_by == self._own:
                signed = self.membership.stored(record)
                self._announce(signed, set(self.membership.active) - {record.by})

    async def _take_records(self, signed: Sequence[bytes]) -> None:
        conversation = await self._history.wait_conversation()
        async with self._history.lock:
            await self._store_records(conversation, signed)

    async def _store_records(
        self, conversation: GroupConversation, signed: Iterable[bytes]
    ) -> list[GroupRecord]:
        """Store new records, with the lock held; gives them. Signatures are verified in several
        turns, and then all that is good holds at once: no message is sent in a state between."""
        was_joined, taken = self.is_joined, list[tuple[GroupRecord, Added]]()
        refused_count, is_kept = 0, False
        verified = await self._verified(conversation, signed)
        try:
            for each, record in verified:
                added = self._added(each, record)
                taken += added
                refused_count += not added
                if not added and not refused_count % RECORDS_AT_ONCE:
                    await self._give_turn(conversation)  # nobody honest sends so many of them
            stored = [self.membership.stored(record) for record, _ in taken]
            if stored:
                if not (await self._members_tail()):
                    await self._members_stream.create(2 * BYTES_MAX)
                await self._members_stream.append(stored)
            is_kept = True
        finally:
            if not is_kept:
                self._history.reset()  # what is known is not what is stored
        if stored and (was_joined or self.is_joined):
            now_ms, news = self._history.now_ms, taken
            if not was_joined:  # all before is no news
                news = [each for each in taken if each[0].by == self._own][-1:]
            notes = [
                conversation.note(
                    record_hash(record)[:UUID_BYTES].hex(),
                    self._note_text(record, outcome),
                    peer_id(record.by),
                    now_ms,
                )
                for record, outcome in news
            ]
            await self._history.append(conversation, notes)
        return [record for record, _ in taken]

    async def _verified(
        self, conversation: GroupConversation, signed: Iterable[bytes]
    ) -> list[tuple[bytes, GroupRecord]]:
        """The records with a good signature that are not known."""
        found = []
        for number, each in enumerate(signed, 1):
            try:
                if not self.membership.has(each):
                    found.append((each, read_record(each)))
            except BadRecord as error:
                log.warning("group record refused: group=%s: %s", self.id, error)
            if not number % RECORDS_AT_ONCE:
                await self._give_turn(conversation)
        return found

    async def _give_turn(self, conversation: GroupConversation) -> None:
        await anyio.lowlevel.checkpoint()
        if self._history.conversation is not conversation:
            raise OutcomeUnknown("the history is read again")

    def _added(self, signed: bytes, record: GroupRecord) -> list[tuple[GroupRecord, Added]]:
        """The new records that are known by a verified one: that itself, and those that waited."""
        try:
            outcomes = self.membership.add(signed, self._history.now(), record=record)
        except BadRecord as error:
            log.warning("group record refused: group=%s: %s", self.id, error)
            return []
        return [each for each in outcomes if each[1] not in (Added.KNOWN, Added.WAITING)]

    async def _members_tail(self) -> int:
        try:
            return (await self._members_stream.describe()).info.tail
        except UnknownStream:
            return 0

    def _note_text(self, record: GroupRecord, outcome: Added) -> str:
        names = ", ".join(self.name_of(key) for key, _ in record.members)
        is_own_leave = record.members == ((record.by, ""),)
        match record.change:
            case Change.CREATE:
                text = f"created the group {record.text!r}"
            case Change.ADD:
                text = f"added {names}"
            case Change.REMOVE:
                text = "left the group" if is_own_leave else f"removed {names}"
            case Change.ADMIN:
                text = f"made admin: {names}"
            case Change.MEMBER:
                text = f"made admin no more: {names}"
            case Change.RENAME:
                text = f"named the group {record.text!r}"
            case Change.SETTLE:
                text = "settled a fork of the group"
            case Change.JOIN:
                text = "joined the group"
            case _:
                text = "left the group"
        if outcome is Added.FORKED:
            return f"FORK of the group: {text}, at the same time as another admin; not followed"
        return text

    def _takes_part(self, key: bytes) -> bool:
        return self.membership.status(key) in (MemberStatus.INVITED, MemberStatus.JOINED)

    async def _receive_message(
        self,
        conversation: GroupConversation,
        peer: bytes,
        signed: bytes,
        payload: GroupPayload,
        by_alone: bytes | None,
    ) -> None:
        """`by_alone`: messages of other authors are refused."""
        try:
            message = read_message(signed)
        except BadRecord as error:
            log.warning("group message refused: group=%s: %s", self.id, error)
            return
        if message.by == self._own or message.group != self.group:
            return
        if by_alone not in (None, message.by):
            self._outbox.context.drop("group_message", f"group={self.id} by no member")
            return
        now_ms, by = self._history.now_ms, peer_id(message.by)
        try:
            body = decode_payload(message.body)
        except UnknownPayload as error:
            name = (by, message.uuid.hex())
            if self.membership.status(message.by) is MemberStatus.JOINED and (
                not conversation.is_known(name) and not self._is_blocked(message.by)
            ):
                text = f"wrote a message that this version does not understand: {error.text}"
                await self._history.append(
                    conversation, [conversation.note(name[1], text, by, now_ms)]
                )
            return
        if isinstance(body, Receipt):
            if self.membership.status(message.by) is MemberStatus.JOINED:
                await self._history.append(conversation, conversation.receipts(by, body, now_ms))
                self.files.delivered(message.by)
        elif isinstance(body, FileStatus):
            if self.membership.status(message.by) is MemberStatus.JOINED:
                self._told_of_files.append((message.by, body))
        elif isinstance(body, Typing):  # by nobody else: it has no time, and could be an old one
            is_joined = self.membership.status(message.by) is MemberStatus.JOINED
            if message.by == peer and is_joined and not self._is_blocked(peer):
                self._typing_at[peer] = self._history.now()
        elif isinstance(body, Text):
            self._typing_at.pop(message.by, None)
            targets = self._targets(payload)
            received = Received(message, body, message_hash(message), signed, targets)
            if conversation.is_known(received.name) and targets:
                self._queue(payload, (signed,), targets)
            verdict = self._judge(received)
            if verdict is Verdict.HOLD and not self._may_wait(conversation, message.by):
                verdict = Verdict.REFUSE
            if verdict is Verdict.REFUSE:
                self._outbox.context.drop("group_message", f"group={self.id} sender={by}")
            await self._history.append(
                conversation, conversation.receive(received, verdict, now_ms)
            )

    def _may_wait(self, conversation: GroupConversation, author: bytes) -> bool:
        """True unless the author is no member, as far as is known, and many such messages wait."""
        if self._takes_part(author):
            return True
        strangers = [
            each for each in conversation.held_authors if not self._takes_part(public_key_of(each))
        ]
        return len(strangers) < HELD_OF_STRANGERS_MAX

    def _targets(self, payload: GroupPayload) -> tuple[bytes, ...]:
        if payload.hops >= HOPS_MAX:
            return ()
        members = () if self.membership.state is None else self.membership.state.members
        return tuple(each for each in payload.targets if each in members and each != self._own)

    def _judge(self, received: Received) -> Verdict:
        if self._is_blocked(received.message.by):
            return Verdict.REFUSE
        return self.membership.verdict(received.message, received.text.at, self._history.now())

    def _is_blocked(self, key: bytes) -> bool:
        peer = self._outbox.context.book.by_public(key)
        return peer is not None and peer.trust is Trust.BLOCKED

    async def _release(self, conversation: GroupConversation) -> None:
        while conversation.has_held:
            records = conversation.release(self._judge, self._history.now_ms)
            if not records:
                return
            await self._history.append(conversation, records)

    async def _release_held(self) -> None:
        while True:
            conversation = await self._history.wait_conversation()
            is_waiting = conversation.has_held or bool(self._lacking)
            await self._has_held.wait(RELEASE_S if is_waiting else CHECK_S)
            async with self._history.lock:
                await self._release(await self._history.wait_conversation())
            for peer in list(self._lacking):
                await self._ask(peer)
            self._receipt_due()

    # Passing on, and comparing.

    def _pass_on(self, payload: GroupPayload) -> None:
        """Pass on records and receipts; texts are in the history until they are passed on."""
        targets = self._targets(payload)
        if not targets or not self.is_joined:
            return
        messages = []
        for signed in payload.messages:
            try:
                message = read_message(signed)
                body = decode_payload(message.body)
                is_receipt = isinstance(body, Receipt | FileStatus)
            except (BadRecord, UnknownPayload):
                continue
            is_member = self.membership.status(message.by) is MemberStatus.JOINED
            is_blocked_text = not is_receipt and self._is_blocked(message.by)
            if is_member and (is_receipt or is_blocked_text):
                messages.append(signed)
        records = tuple(each for each in payload.records if self.membership.has(each))
        if records or messages:
            self._queue(payload, tuple(messages), targets, records)

    def _queue(
        self,
        payload: GroupPayload,
        messages: tuple[bytes, ...],
        targets: Iterable[bytes],
        records: tuple[bytes, ...] = (),
    ) -> None:
        until = self._outbox.context.now() + self._ttl_s
        hops = payload.hops + 1
        self._announcements.append(
            Announcement(set(targets), until, records, messages, hops, payload.text)
        )
        self._announced()

    def _compare(self, peer: bytes, payload: GroupPayload) -> None:
        """Ask a member for records that it knows and this node does not, or send it those that it
        lacks."""
        state, status = self.membership.state, self.membership.status(peer)
        if state is None or status not in (MemberStatus.INVITED, MemberStatus.JOINED):
            return
        knows_more = payload.statements > self.membership.statement_count
        if payload.head and (knows_more or not self.membership.knows(payload.head)):
            self._lacking.setdefault(peer, 0)
            self._has_held()
        else:
            self._lacking.pop(peer, None)
        is_behind = payload.epoch < state.epoch or (
            payload.statements < self.membership.statement_count
        )
        if payload.ask is None and not (payload.head and is_behind):
            return
        now = self._outbox.context.now()
        times = self._told_at if payload.ask is None else self._answered_at
        if not self._is_due(times, peer, now):
            return
        start = payload.epoch if payload.ask is None else payload.ask
        for records in _chunks(self.membership.signed_since(start)):
            self._announcements.append(Announcement({peer}, now + self._ttl_s, records))
        self._announced()

    async def _ask(self, peer: bytes) -> None:
        now, state = self._outbox.context.now(), self.membership.state
        if state is None or not self._is_due(self._asked_at, peer, now):
            return
        self._lacking[peer] = self._lacking.get(peer, 0) + 1
        if self._lacking[peer] >= ASKED_MAX:
            del self._lacking[peer]  # until its next message
        payload = self._payload(ask=max(0, state.epoch - 16))
        try:
            await self._outbox.send(peer, self._channel, encode_payload(payload))
        except RequestError as error:
            log.debug("group not asked for: from=%s: %s", peer_id(peer), error)

    @staticmethod
    def _is_due(times: dict[bytes, float], peer: bytes, now: float) -> bool:
        if 0.0 <= now - times.get(peer, -ASK_S) < ASK_S:
            return False
        times[peer] = now
        return True

    # Sending.

    @property
    def id(self) -> str:
        """The id of the group, as people see it."""
        return peer_id(self.group)

    def _payload(
        self,
        records: tuple[bytes, ...] = (),
        messages: tuple[bytes, ...] = (),
        targets: Iterable[bytes] = (),
        hops: int = 0,
        ask: int | None = None,
        text: str = "",
    ) -> GroupPayload:
        state = self.membership.state
        return GroupPayload(
            group=self.group,
            epoch=0 if state is None else state.epoch,
            head=b"" if state is None else state.head,
            statements=self.membership.statement_count,
            records=records,
            messages=messages,
            targets=tuple(targets),
            hops=hops,
            ask=ask,
            text=text,
        )

    async def _dispatch(self, what: Announcement) -> set[bytes]:
        """Send something to its targets, or to those that pass it on; gives the targets that are
        served, or that cannot be."""
        book = self._outbox.context.book
        contacts = {each.public for each in book.peers if each.is_contact}
        ways, lost = self.membership.next_hops(self._own, what.targets, contacts)
        served = set(lost)
        left_s = what.until - self._outbox.context.now()
        if left_s <= 0:
            return set(what.targets)

        async def send(hop: bytes, passed: list[bytes]) -> None:
            payload = self._payload(what.records, what.messages, passed, what.hops, text=what.text)
            content = sha256(b"".join((*what.records, *what.messages))).digest()
            name = (b"millpond group message to v1\0", content, hop, *sorted(passed))
            uuid = sha256(b"".join(name)).digest()[:UUID_BYTES]
            ttl = left_s if self._outbox.can_seal(hop, left_s) else 0.0
            try:
                await self._outbox.send(hop, self._channel, encode_payload(payload), ttl, uuid)
            except RequestError as error:
                log.info("group message not sealed: to=%s: %s", peer_id(hop), error)
                return
            served.update({hop, *passed} & what.targets)

        async with anyio.create_task_group() as tasks:
            for hop, passed in ways.items():
                tasks.start_soon(send, hop, passed)
        return served

    async def _send_messages(self) -> None:
        while True:
            conversation = await self._history.wait_conversation()
            waiting = conversation.outgoing
            is_left = False
            for outgoing in waiting:
                is_left |= not await self._send_one(conversation, outgoing)
            if is_left or not waiting:
                await self._message_added.wait(CHECK_S)

    async def _send_one(self, conversation: GroupConversation, outgoing: Outgoing) -> bool:
        """True if all members have it."""
        active = {each for each in self.membership.active if each != self._own}
        targets = active if outgoing.targets is None else active & outgoing.targets
        targets = {each for each in targets if peer_id(each) not in outgoing.done}
        author = outgoing.name[0]
        if author:
            targets.discard(public_key_of(author))
        until = outgoing.at / 1000 + self._ttl_s
        is_over = until <= self._outbox.context.now() or not self.is_joined
        what = Announcement(targets, until, messages=(outgoing.signed,))
        what.hops = HOPS_UNKNOWN if author else 0
        served = set() if is_over else await self._dispatch(what)
        lost = [each for each in targets if each not in served] if is_over else []
        async with self._history.lock:
            if self._history.conversation is not conversation:
                raise OutcomeUnknown("the history is read again")
            done = [peer_id(each) for each in served]
            count, now_ms = len({*outgoing.done, *done}), self._history.now_ms
            if is_over or served >= targets:
                state = State.EXPIRED if lost and not count else State.KEPT
                record = conversation.sent_to_all(outgoing, count, state, now_ms)
            elif done:
                record = conversation.sent(outgoing, done, now_ms)
            else:
                return False
            await self._history.append(conversation, [record])
        return is_over or served >= targets

    async def _send_announcements(self) -> None:
        while True:
            await self.flush()
            await self._announced.wait(CHECK_S)

    async def _send_receipts(self) -> None:
        while True:
            conversation = await self._history.wait_conversation()
            pending = conversation.pending_receipts(RECEIPTS_MAX)
            if pending is None or not self.is_joined:
                await self._receipt_due.wait(CHECK_S)
                continue
            receipts, by_author = pending
            for author, uuids in by_author.items():
                await self._tell(public_key_of(author), Receipt.of_state(receipts.state, uuids))
            await self._history.mark_receipt_sent(conversation, receipts)

    async def _tell(self, member: bytes, payload: Receipt | FileStatus) -> None:
        """Send what is no message of the history to a member; what cannot be sealed now is sent
        later, from memory."""
        context = self._outbox.context
        message = self._message(encode_payload(payload), context.entropy(UUID_BYTES))
        signed = sign(message, context.identity)
        what = Announcement({member}, context.now() + self._ttl_s, messages=(signed,))
        what.targets -= await self._dispatch(what)
        if what.targets:
            self._announcements.append(what)

    # The stored membership.

    async def _load_members(self) -> Membership:
        membership = Membership(self.group)
        try:
            info = (await self._members_stream.describe()).info
        except UnknownStream:
            return membership
        async for sequence, signed in self._members_stream.read(info.trim_point, info.tail):
            if not sequence % RECORDS_AT_ONCE:
                await anyio.lowlevel.checkpoint()
            try:
                membership.add(signed, self._outbox.context.now(), is_stored=True)
            except BadRecord as error:
                log.warning("group record skipped: %s sequence=%d: %s", self.id, sequence, error)
        return membership


def group_stream(group: bytes) -> bytes:
    """The stream with the history of a group. No peer can have this name for a channel."""
    return PREFIX + peer_id(group).encode() + b"!group"


def members_stream(group: bytes) -> bytes:
    """The stream with the signed records of a group."""
    return PREFIX + peer_id(group).encode() + b"!members"


def _make_conversation(
    own: str, life_ms: int, positions: ReadPositions, is_whole: bool
) -> GroupConversation:
    return GroupConversation(own, life_ms, positions, is_whole=is_whole)


def _about(members: Sequence[tuple[bytes, str]]) -> set[bytes]:
    return {key for key, _ in members}


def _chunks(records: Iterable[bytes]) -> list[tuple[bytes, ...]]:
    """Records in parts that fit into messages."""
    found: list[tuple[bytes, ...]] = []
    part: list[bytes] = []
    size = 0
    for each in records:
        if part and (size + len(each) > PAYLOAD_BYTES_MAX or len(part) >= GROUP_RECORDS_MAX):
            found.append(tuple(part))
            part, size = [], 0
        part.append(each)
        size += len(each)
    if part:
        found.append(tuple(part))
    return found
