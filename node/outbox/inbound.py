"""Inbound messages: each is opened, verified and authorized before anything else happens to it.

A message in the own mailbox is opened in a worker thread; then the sender, the channel and the
counter decide. An accepted message is recorded first (`peers.db`), together with its id in the
mailbox. Then it is put into its channel, sealed for this disk; the same commit has the channel
remember that id. Then the sender is told, and the copy in the mailbox is acknowledged. The record
is removed with those of later messages, and only then does the channel forget the id. If a crash
prevents that, the first message into the channel in a later run makes it forget.

So after a crash at any moment, and however much later, a recorded message is in its channel if the
channel remembers its id. If not, the copy in the mailbox is put there; without a copy, which has
expired before its move, the message counts as missing again.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Iterable, Sequence

import anyio
import msgspec

from millpond.actors.errors import (
    DataTooLarge,
    EmptyData,
    KeyReused,
    NotFound,
    RequestError,
    TtlRefused,
)
from millpond.actors.messages import Ack, Move, Msg, Nack, NackReason, Put, Reply
from millpond.actors.streams.names import RESERVED
from millpond.node.client.future import ReplyFuture
from millpond.node.outbox.context import OutboxContext, StrangerMessages, Unfinished, Wakeup
from millpond.node.outbox.deliveries import Deliveries, ReceiptReason
from millpond.node.outbox.local_channels import LocalConsumer, seconds_left
from millpond.node.outbox.mailbox import PREFIX, mailbox_of
from millpond.node.outbox.relayed_message import (
    MalformedRelayedMessage,
    RelayedMessage,
    decode_relayed_message,
    uuid_idempotency_key,
)
from millpond.node.peers.contact_keys import replaces
from millpond.node.peers.envelope import KID_BYTES, CannotOpen, Reason, open_envelope
from millpond.node.peers.identity import peer_id
from millpond.node.peers.lines import ReplayStatus
from millpond.node.peers.peer import Peer, Trust
from millpond.node.peers.peer_store import CHANNELS_MAX, PeerState, Statement
from millpond.node.peers.prekeys import CLOCKS_APART_S, KEPT_BEYOND_TTL_S
from millpond.node.peers.sealed_message import Kind, OpenedMessage, kid_in, open_message
from millpond.transports.p2p.admission import is_channel_name

log = logging.getLogger(__name__)

WINDOW = 32
KEYS_TRIED_MAX = 4
LATER_MS = 5000
LATER_MS_PER_MESSAGE = 10
"""A message that waits is opened again after 5 s, or after so much for each one in the mailbox."""
LATE_S = 60.0
MISSING_EVERY_S = 60.0
SENDER_BYTES_MAX = 64 * 2**20
"""The most bytes in the channels that one sender has used; more of its messages wait."""
UNFINISHED_MAX = 10_000
"""The most accepted messages of one sender that are in no channel yet; more of them wait."""
V1_UUIDS_MAX = 100_000
"""The most messages of version 1 of one sender that are remembered; more of them wait."""
INTERNAL_SEPARATOR = b"!"
RECORDS_REMOVED_AFTER_S = 1.0
"""Records of finished moves are removed with the next messages, or after this."""
INSERT_RECORD = "INSERT OR REPLACE INTO unfinished VALUES (?, ?, ?, ?, ?)"
REMOVE_RECORDS = "DELETE FROM unfinished WHERE mailbox_id IN (SELECT value FROM json_each(?))"
PERMANENT = (DataTooLarge, EmptyData, TtlRefused)


class _Opened(msgspec.Struct):
    """A message of the own mailbox that is opened, and signed by `sender`.

    `until`: its deadline in seconds. `message` is None in version 1: there `v1_id` is the id under
    which its uuid came before.
    """

    id: int
    sender: bytes
    channel: bytes
    uuid: bytes
    clear: bytes
    until: float
    message: OpenedMessage | None = None
    kid: bytes = b""
    sealed: bytes = b""
    """The relayed message."""
    v1_id: int | None = None

    @property
    def kept_until(self) -> int:
        """The end of the life of what is known of its move, in seconds: its sender has given it up
        long before."""
        return int(self.until + KEPT_BEYOND_TTL_S)


class _Later(Exception):
    """A message that cannot be handled now."""


class _Batch:
    """Messages that were received together, and the changes that they cause."""

    def __init__(self, unfinished: Iterable[Unfinished]) -> None:
        self.accepted: list[_Opened] = []
        self.finished: list[int] = []
        self.changed: dict[bytes, None] = {}
        """Senders whose state is changed."""
        self.statements: list[Statement] = []
        self.used_keys: dict[bytes, None] = {}
        """The kids of one-time prekeys that are to be destroyed: no copy of a message opened with
        them is needed any more."""
        self.v1: set[tuple[bytes, bytes]] = set()
        self.unfinished = Counter(each.sender for each in unfinished)


class InboundRouter:
    """The consumer of the own mailbox, for as long as the node runs."""

    def __init__(
        self,
        context: OutboxContext,
        deliveries: Deliveries,
        strangers: StrangerMessages | None = None,
    ) -> None:
        """`strangers` keeps messages of unknown senders; None: they are dropped."""
        self._context = context
        self._deliveries = deliveries
        self._strangers = strangers
        self._mailbox = mailbox_of(context.identity.public)
        self._moving: dict[int, _Opened] = {}
        """Accepted messages that are not in their channels yet."""
        self._moved: dict[int, bytes] = {}
        """The channels of messages that are in them, and whose records are not removed yet."""
        self._taken_back: dict[int, bytes] = {}
        """The senders of messages that are missing again, and whose records are not removed yet."""
        self._has_moved = Wakeup()
        self._used: set[bytes] = set()
        """The channels into which messages have moved in this run."""

    async def run(self) -> None:
        """Handle messages in the order in which they were stored."""
        self._moving.clear()  # of an earlier run
        await self._look_for_missing()
        with self._context.local.consumer(self._mailbox, WINDOW) as consumer:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._watch_records)
                while True:
                    accepted = await self._accept(consumer, await consumer.receive_all())
                    for channel, group in _by_channel(accepted).items():
                        answers = self._put(channel, group)
                        tasks.start_soon(self._deliver, consumer, group, answers)

    # Records of moves.

    async def _watch_records(self) -> None:
        looked_at = self._context.now()
        while True:
            await self._has_moved.wait(MISSING_EVERY_S)
            if self._moved or self._context.one_time.erase_wanted:
                await anyio.sleep(RECORDS_REMOVED_AFTER_S)
                try:
                    await self._write([])
                    await self._context.one_time.erase()
                except OSError as error:
                    log.error("records of moves not removed: %s", error)
            if self._context.now() >= looked_at + MISSING_EVERY_S:
                await self._look_for_missing()
                looked_at = self._context.now()

    async def _look_for_missing(self) -> None:
        """Settle the records of messages that are not in the mailbox any more: they are in their
        channels, or have expired before."""
        for message_id, mark in list(self._context.unfinished.items()):
            try:
                if message_id not in self._moving and not await self._is_in_mailbox(message_id):
                    await self._settle_record(message_id, mark)
            except (RequestError, OSError) as error:
                log.warning("accepted message not looked for: id=%d: %s", message_id, error)

    async def _settle_record(self, message_id: int, mark: Unfinished) -> None:
        """Raises RequestErrors and OSError."""
        context, sender = self._context, mark.sender
        for channel in list(context.store.state(sender).channels):
            if await context.local.has_moved(channel, message_id):
                await self._finish(message_id, channel)
                self._deliveries.receipt_due(sender, ReceiptReason.ALL, mark.line)
                return
        if context.unfinished.pop(message_id, None) is None:
            return  # it was moved meanwhile
        context.store.state(sender).lines.take_back(mark.line, mark.counter)
        log.info("accepted message expired: sender=%s", peer_id(sender))
        self._taken_back[message_id] = sender
        await self._write([])
        self._deliveries.receipt_due(sender, ReceiptReason.ALL, mark.line)

    async def _finish(self, message_id: int, channel: bytes) -> None:
        """A message is in its channel. Raises OSError."""
        self._context.unfinished.pop(message_id, None)
        self._moved[message_id] = channel
        self._has_moved()
        if not self._context.local.is_stored(channel):
            await self._write([])  # after a crash the channel remembers nothing

    async def _write(
        self, statements: Sequence[Statement], used_keys: Iterable[bytes] = ()
    ) -> None:
        """Carry out statements, and remove the records that are settled, with the one-time prekeys
        of their messages and those used otherwise. Raises OSError."""
        store, moved, taken = self._context.store, dict(self._moved), dict(self._taken_back)
        one_time = self._context.one_time
        kids = [*used_keys, *one_time.kids_of([*moved, *taken])]
        if moved or taken:
            removal = REMOVE_RECORDS, (json.dumps([*moved, *taken]),)
            states = map(store.stored, dict.fromkeys(taken.values()))
            statements = [removal, *statements, *states]
        await store.write([*statements, *one_time.removals(kids)])
        one_time.removed(kids)
        if one_time.erase_wanted:
            self._has_moved()
        for message_id in taken:
            self._taken_back.pop(message_id, None)
        origins: dict[bytes, list[int]] = {}
        for message_id, channel in moved.items():
            if self._moved.pop(message_id, None) is not None:
                origins.setdefault(channel, []).append(message_id)
        for channel, ids in origins.items():
            self._context.local.moves_done(channel, ids)

    async def _is_in_mailbox(self, message_id: int) -> bool:
        try:
            await self._context.local.get(self._mailbox, message_id)
        except NotFound:
            return False
        return True

    async def _accept(self, consumer: LocalConsumer, messages: list[Msg]) -> list[_Opened]:
        """The accepted ones of some messages, recorded; the others are settled."""
        context, batch = self._context, _Batch(self._context.unfinished.values())
        messages = [each for each in messages if each.id not in self._moving]
        if not messages:
            return []
        opened = await anyio.to_thread.run_sync(self._open_all, messages)
        for message, each in zip(messages, opened, strict=True):
            try:
                self._accept_or_drop(message.id, each, batch)
            except _Later as reason:
                log.warning("message waits: id=%d: %s", message.id, reason)
                consumer.settle(self._retry_later(message.id))
        try:
            states = [context.store.stored(sender) for sender in batch.changed]
            await self._write([*batch.statements, *states], batch.used_keys)
        except OSError as error:
            log.error("messages not accepted: %s", error)
            if self._strangers is not None:
                self._strangers.reload()
            for message in messages:
                self._moving.pop(message.id, None)
            consumer.settle(*(self._retry_later(each.id) for each in messages))
            return []
        consumer.settle(*map(Ack, batch.finished))
        return batch.accepted

    def _retry_later(self, message_id: int) -> Nack:
        """Have a message come again; many that wait take little of the node's time."""
        count = self._context.local.count(self._mailbox)
        delay_ms = max(LATER_MS, count * LATER_MS_PER_MESSAGE)
        return Nack(message_id, NackReason.LATER, delay_ms)

    # Opening, in a worker thread.

    def _open_all(self, messages: list[Msg]) -> list[_Opened | _Later | str]:
        return [self._open(each) for each in messages]

    def _open(self, message: Msg) -> _Opened | _Later | str:
        """The opened message; else the reason to drop it."""
        try:
            relayed = decode_relayed_message(message.data)
            if relayed.recipient != self._context.identity.public:
                return "misdirected"
            if relayed.is_version_1:
                return self._open_v1(message.id, relayed)
            return self._open_v2(message.id, relayed, message.data)
        except MalformedRelayedMessage:
            return "malformed"
        except CannotOpen as error:
            return error.reason.name.lower()
        except OSError as error:
            return _Later(str(error))

    def _open_v2(self, message_id: int, relayed: RelayedMessage, sealed: bytes) -> _Opened:
        context, kid = self._context, kid_in(relayed.envelope)
        own = context.store.contact_key(kid)

        def prekey_of(kid: bytes) -> bytes | None:
            if own is not None:
                return own[1]
            return context.one_time.private(kid) or context.prekeys.private(kid[:KID_BYTES])

        opened = open_message(relayed.envelope, recipient=context.identity, prekey_of=prekey_of)
        if own is not None and own[0] != opened.sender:
            raise CannotOpen(Reason.WRONG_SENDER)
        content = opened.content
        return _Opened(
            id=message_id,
            sender=opened.sender,
            channel=content.channel,
            uuid=content.uuid,
            clear=content.body,
            until=content.deadline / 1000,
            message=opened,
            kid=kid,
            sealed=sealed,
        )

    def _open_v1(self, message_id: int, relayed: RelayedMessage) -> _Opened | _Later:
        context = self._context
        opened = open_envelope(
            relayed.envelope,
            recipient=context.identity,
            prekey_of=context.prekeys.private,
            channel=relayed.channel,
        )
        seen = context.store.query(
            "SELECT mailbox_id FROM seen_v1 WHERE sender = ? AND uuid = ?",
            (opened.sender, opened.uuid),
        )
        if not seen:
            text = "SELECT COUNT(*) FROM seen_v1 WHERE sender = ?"
            if context.store.query(text, (opened.sender,))[0][0] >= V1_UUIDS_MAX:
                return _Later(f"too many messages of version 1 from {peer_id(opened.sender)}")
        return _Opened(
            id=message_id,
            sender=opened.sender,
            channel=relayed.channel,
            uuid=opened.uuid,
            clear=opened.plaintext,
            until=relayed.deadline,
            v1_id=seen[0][0] if seen else None,
        )

    # Deciding, in the loop.

    def _accept_or_drop(
        self, message_id: int, opened: _Opened | _Later | str, batch: _Batch
    ) -> None:
        """Accept or drop a message. Raises _Later."""
        match opened:
            case _Later():
                raise opened
            case _Opened() if self._is_accepted(opened, batch):
                batch.accepted.append(opened)
                return
            case str():
                self._context.drop(opened, "")
        batch.finished.append(message_id)

    def _is_accepted(self, opened: _Opened, batch: _Batch) -> bool:
        """True for a message to be delivered. Raises _Later."""
        peer = self._context.book.by_public(opened.sender)
        if peer is None or not self._context.book.is_contact(opened.sender):
            return self._keep_or_drop(opened, peer, batch)
        if opened.message is None:
            return self._is_accepted_v1(opened, batch)
        if self._is_accepted_v2(opened, opened.message, batch):
            batch.statements += self._context.one_time.used_by(opened.kid, opened.id)
            return True
        batch.used_keys |= dict.fromkeys(self._context.one_time.spent_by(opened.kid, opened.id))
        return False

    def _keep_or_drop(self, opened: _Opened, peer: Peer | None, batch: _Batch) -> bool:
        """Always False: the sender is no contact. Its message is kept as a request, or dropped."""
        reason = f"{'unknown' if peer is None else peer.trust.value}_sender"
        is_stranger = peer is None or peer.trust is Trust.PINNED
        if is_stranger and opened.message is not None and self._strangers is not None:
            content = opened.message.content
            kept = self._strangers.receive(opened.sender, content, opened.sealed)
            if not isinstance(kept, str):
                batch.statements += kept
                return False
            reason = kept if self._strangers.is_on else reason
        return self._dropped(opened, reason)

    def _is_accepted_v2(self, opened: _Opened, message: OpenedMessage, batch: _Batch) -> bool:
        context, sender, content = self._context, opened.sender, message.content
        state = context.store.state(sender)
        self._learn_keys(opened, message, state, batch)
        self._deliveries.on_seen(sender, content.seen, content.floor)
        if content.kind is Kind.RECEIPT:
            return False
        mark = Unfinished(sender, content.line, content.counter)
        if context.unfinished.get(opened.id) != mark:
            status = state.lines.replay_status(content)
            if status is not ReplayStatus.NEW:
                self._deliveries.receipt_due(sender, ReceiptReason.REPEATED, content.line)
                return self._dropped(opened, f"{status.value}_counter")
            if opened.until + CLOCKS_APART_S < context.now():
                return self._dropped(opened, "late")
            if batch.unfinished[sender] >= UNFINISHED_MAX:
                raise _Later("too many accepted messages of its sender are in no channel")
            now_ms = int(context.now() * 1000)
            batch.changed[sender] = None
            if not self._may_send(opened, state):
                state.lines.mark(content, message.hash, now_ms, is_refused=True)
                self._deliveries.receipt_due(sender, ReceiptReason.ALL, content.line)
                return self._dropped(opened, "denied")
            self._check_usage(opened, state)
            state.lines.mark(content, message.hash, now_ms)
            context.unfinished[opened.id] = mark
            batch.unfinished[sender] += 1
        self._moving[opened.id] = opened
        batch.changed[sender] = None  # again, if it was not stored the first time
        values = (opened.id, sender, content.line, content.counter, opened.kept_until)
        batch.statements.append((INSERT_RECORD, values))
        return True

    def _learn_keys(
        self, opened: _Opened, message: OpenedMessage, state: PeerState, batch: _Batch
    ) -> None:
        key, now_ms = message.content.key, int(self._context.now() * 1000)
        is_changed = state.keys.used(opened.kid) or not state.speaks_v2
        state.speaks_v2 = True
        if key is not None and replaces(key, state.their_key, now_ms):
            state.their_key = key
            is_changed = True
        if is_changed:
            batch.changed[opened.sender] = None

    def _is_accepted_v1(self, opened: _Opened, batch: _Batch) -> bool:
        context, name = self._context, (opened.sender, opened.uuid)
        if opened.v1_id == opened.id:
            return True  # unfinished
        if opened.v1_id is not None or name in batch.v1:
            return self._dropped(opened, "seen_counter")
        state = context.store.state(opened.sender)
        if not self._may_send(opened, state):
            return self._dropped(opened, "denied")
        self._check_usage(opened, state)
        batch.v1.add(name)
        batch.changed[opened.sender] = None
        until = int(context.now() + context.prekeys.lifetime_s)
        text = "INSERT OR IGNORE INTO seen_v1 VALUES (?, ?, ?, ?)"
        batch.statements.append((text, (*name, opened.id, until)))
        return True

    def _may_send(self, opened: _Opened, state: PeerState) -> bool:
        """True if the sender may use the channel, which then counts as one of its channels. Raises
        _Later."""
        channel = opened.channel
        if not is_channel_name(channel) or not accepts_relayed(channel):
            return False
        if not self._context.may_send(opened.sender, channel):
            return False
        if channel not in state.channels:
            if len(state.channels) >= CHANNELS_MAX:
                self._forget_empty_channels(opened.sender, state)
            if len(state.channels) >= CHANNELS_MAX:
                return False
            state.channels.append(channel)
        return True

    def _forget_empty_channels(self, sender: bytes, state: PeerState) -> None:
        """Raises _Later if the records of moves have to be settled first: they are looked for in
        the channels of the sender."""
        empty = [each for each in state.channels if not self._context.local.count(each)]
        if not empty:
            return
        for message_id, mark in self._context.unfinished.items():
            if mark.sender == sender and message_id not in self._moving:  # of an earlier run
                raise _Later("an earlier message of its sender may be in any of its channels")
        moving = {*self._moved.values(), *(each.channel for each in self._moving.values())}
        forgotten = set(empty) - moving
        if not forgotten:
            raise _Later("the empty channels of its sender are in use")
        state.channels = [each for each in state.channels if each not in forgotten]

    def _check_usage(self, opened: _Opened, state: PeerState) -> None:
        """Raises _Later if the message does not fit into the sender's share."""
        moving = sum(
            len(each.clear) for each in self._moving.values() if each.sender == opened.sender
        )
        kept = sum(map(self._context.local.size, state.channels))
        if kept + moving + len(opened.clear) > SENDER_BYTES_MAX:
            raise _Later("the channels of its sender are full")
        self._moving[opened.id] = opened

    def _dropped(self, opened: _Opened, reason: str) -> bool:
        self._context.drop(reason, f"sender={peer_id(opened.sender)} channel={opened.channel!r}")
        return False

    # Delivery.

    def _put(self, channel: bytes, group: list[_Opened]) -> list[ReplyFuture[Reply]]:
        """Put messages into their channel. Messages of version 1 have no record, and are remembered
        only by their keys."""
        if channel not in self._used:
            self._used.add(channel)
            origins = {*self._context.unfinished, *self._moved}
            self._context.local.forget_other_moves(channel, origins)
        moves = [
            self._put_of(each, 0) if each.message is None else self._move_of(each, 0)
            for each in group
        ]
        return self._context.local.put_all_nowait(channel, moves)

    def _move_of(self, opened: _Opened, attempt: int) -> Move:
        return Move(opened.id, opened.kept_until, self._put_of(opened, attempt))

    def _put_of(self, opened: _Opened, attempt: int) -> Put:
        now = self._context.now()
        ttl = seconds_left(max(opened.until, now + LATE_S), now)
        sealed = self._context.local_key.seal(
            opened.sender, opened.uuid, opened.clear, opened.channel
        )
        return Put(uuid_idempotency_key(opened.uuid, attempt, sealed), ttl, sealed)

    async def _deliver(
        self, consumer: LocalConsumer, group: list[_Opened], answers: list[ReplyFuture[Reply]]
    ) -> None:
        """Wait until messages of one channel are in it, and settle them together in the
        mailbox."""
        settled: list[Ack | Nack] = []
        for opened, answer in zip(group, answers, strict=True):
            try:
                refusal = await self._refusal(opened, answer)
                if refusal is not None:
                    await self._refuse(opened, refusal)
                elif opened.message is not None:
                    await self._finish(opened.id, opened.channel)
            except (RequestError, OSError) as error:
                log.warning("message not delivered: channel=%r: %s", opened.channel, error)
                settled.append(self._retry_later(opened.id))
            else:
                self._tell(opened, is_refused=refusal is not None)
                settled.append(Ack(opened.id))
        consumer.settle(*settled)
        for opened in group:
            self._moving.pop(opened.id, None)

    async def _refusal(self, opened: _Opened, answer: ReplyFuture[Reply]) -> str | None:
        """None if the message is in its channel, else why it never will be. Raises
        RequestErrors."""
        for attempt in range(1, KEYS_TRIED_MAX + 1):
            try:
                await answer
            except KeyReused:
                move: Move | Put = self._move_of(opened, attempt)
                if opened.message is None:
                    move = self._put_of(opened, attempt)
                (answer,) = self._context.local.put_all_nowait(opened.channel, [move])
            except PERMANENT as error:
                return str(error)
            else:
                return None
        return "its idempotency keys are taken"

    async def _refuse(self, opened: _Opened, refusal: str) -> None:
        """Record that a message is refused for good, before anybody is told. Raises OSError."""
        context, sender = self._context, opened.sender
        self._dropped(opened, "refused")
        log.warning("message refused: channel=%r: %s", opened.channel, refusal)
        if opened.message is not None:
            content, now_ms = opened.message.content, int(context.now() * 1000)
            lines = context.store.state(sender).lines
            lines.mark(content, opened.message.hash, now_ms, is_refused=True)
            removal = REMOVE_RECORDS, (json.dumps([opened.id]),)
            keys = context.one_time.kids_of([opened.id])
            removals = [removal, *context.one_time.removals(keys)]
            await context.store.write([*removals, context.store.stored(sender)])
            context.one_time.removed(keys)
            context.unfinished.pop(opened.id, None)

    def _tell(self, opened: _Opened, *, is_refused: bool) -> None:
        """A message is in its channel, or refused: its sender hears of it."""
        if opened.message is None:
            return
        line, lines = opened.message.content.line, self._context.store.state(opened.sender).lines
        is_newest = lines.lines[-1].line == line
        reason = ReceiptReason.NEW if is_newest and not is_refused else ReceiptReason.ALL
        self._deliveries.receipt_due(opened.sender, reason, line)


def _by_channel(messages: list[_Opened]) -> dict[bytes, list[_Opened]]:
    """Messages by their channels, in their order."""
    found: dict[bytes, list[_Opened]] = {}
    for each in messages:
        found.setdefault(each.channel, []).append(each)
    return found


def accepts_relayed(channel: bytes) -> bool:
    """True for channels that a message from a peer may name: no mailboxes and none of the node's
    own."""
    return not channel.startswith((RESERVED, PREFIX)) and INTERNAL_SEPARATOR not in channel
