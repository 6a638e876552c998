"""Receiving in a conversation: a message is acknowledged when it is in the history."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from math import inf

import anyio
import msgspec

from millpond.actors.messages import Ack, Msg, Nack, NackReason
from millpond.node.chat.conversation import Conversation
from millpond.node.chat.conversation_log import ConversationLog
from millpond.node.chat.payloads import (
    FileStatus,
    GroupPayload,
    Introduction,
    Payload,
    Receipt,
    Text,
    Typing,
    UnknownPayload,
    decode_payload,
)
from millpond.node.chat.records import conversation_stream
from millpond.node.outbox.local_channels import LocalConsumer
from millpond.node.outbox.outbox import Outbox
from millpond.node.peers.envelope import CannotOpen
from millpond.node.peers.identity import peer_id

log = logging.getLogger(__name__)

WINDOW = 64
TYPING_S = 8.0
"""The time for which a notice that the peer writes is shown."""
KEPT_BYTES_MAX = 64 * 1024
"""The largest payload of an unknown kind that is kept, in the JSON of its record."""
UNKNOWN_PAYLOAD = "a message came that this version does not understand"
INTRODUCED = "accepted your invite"
NOT_INTRODUCED = "used an invite that is not open: it was used before, has expired, or is not yours"

OnIntroduction = Callable[[bytes, Introduction], Awaitable[bool]]
"""A callback with the key of a contact that uses an invite; False: no open invite of this node, and
not the one that has introduced this contact. Raises RequestErrors; it is called again then."""


OnFileStatus = Callable[[FileStatus], Awaitable[None]]
"""A callback with what the peer says of a file. Raises RequestErrors; it is called again then."""


class LaterPayload(msgspec.Struct, frozen=True):
    """A payload of a kind that this version does not know (empty: it is too large to be kept), and
    the text that it has for people."""

    payload: str
    text: str


OnGroup = Callable[[bytes, GroupPayload], Awaitable[None]]
"""A callback with the key of a contact, and records or messages of a group that it has sent. It
returns when they are stored. Raises RequestErrors; it is called again then."""

ReceivedPayload = tuple[str, Payload | LaterPayload]
"""The uuid of a message and its payload."""


class Receiver:
    """The receiver of the messages of one peer. `on_stored` is called after records were stored."""

    def __init__(
        self,
        peer: bytes,
        outbox: Outbox,
        history: ConversationLog[Conversation],
        on_stored: Callable[[], None],
        on_introduction: OnIntroduction,
        on_group: OnGroup,
        on_file_status: OnFileStatus,
    ) -> None:
        self.peer_knows: tuple[str, ...] = ()
        """The kinds that the peer understands, by its last receipt in this run."""
        self.has_sent_files = False
        """True if a file of the peer has come in this run."""
        self._typing_at = -inf
        self._on_introduction = on_introduction
        self._on_group = on_group
        self._on_file_status = on_file_status
        self._peer = peer
        self._outbox = outbox
        self._history = history
        self._on_stored = on_stored
        self._channel = conversation_stream(peer)

    @property
    def is_peer_typing(self) -> bool:
        """True for a while after a notice, whatever is done to the clock."""
        return 0.0 <= self._history.now() - self._typing_at < TYPING_S

    async def run(self) -> None:
        """Receive until cancelled. Raises RequestErrors of the history."""
        unacknowledged: dict[str, list[Msg]] = {}
        with self._outbox.context.local.consumer(self._channel, WINDOW) as consumer:
            while True:
                conversation = await self._history.wait_conversation()
                messages = await self._receive(consumer, conversation.reorder_buffer.deadline)
                received = [(each, await self._open(consumer, each)) for each in messages]
                for _, each in received:
                    if each is not None and isinstance(each[1], FileStatus):
                        await self._on_file_status(each[1])
                await self._store(conversation, received, unacknowledged)
                for uuid in unacknowledged.keys() - conversation.reorder_buffer.held:
                    for message in unacknowledged.pop(uuid):
                        consumer.settle(Ack(message.id))
                self._on_stored()

    async def _receive(self, consumer: LocalConsumer, deadline: float) -> list[Msg]:
        """The messages that have arrived; none if the deadline of held messages has passed."""
        messages: list[Msg] = []
        left_s = max(0.0, deadline - self._history.now())
        with anyio.move_on_after(left_s if deadline < inf else None):
            messages.append(await consumer.receive())
            while consumer.has_messages and len(messages) < WINDOW:
                messages.append(await consumer.receive())
        return messages

    async def _store(
        self,
        conversation: Conversation,
        received: Sequence[tuple[Msg, ReceivedPayload | None]],
        unacknowledged: dict[str, list[Msg]],
    ) -> None:
        now, now_ms = self._history.now(), self._history.now_ms
        async with self._history.lock:
            records, changes = conversation.release(now), []
            for message, each in received:
                if each is None:
                    continue
                uuid, payload = each
                pushes = unacknowledged.setdefault(uuid, [])
                pushes.append(message)
                if len(pushes) > 1 or conversation.is_seen(uuid):
                    continue
                match payload:
                    case Typing():
                        self._typing_at = now
                    case Text():
                        self._typing_at = -inf
                        self.has_sent_files |= payload.file is not None
                        records += conversation.receive(uuid, payload, now)
                    case Receipt():
                        changes += [(of, payload.new_state) for of in payload.of]
                        self.peer_knows = payload.knows
                    case FileStatus():
                        continue  # it is done, and acknowledged with the others
                    case Introduction():
                        is_ours = await self._on_introduction(self._peer, payload)
                        note = INTRODUCED if is_ours else NOT_INTRODUCED
                        records.append(conversation.note(uuid, note, now_ms))
                    case GroupPayload():
                        await self._on_group(self._peer, payload)
                    case LaterPayload(payload=kept, text=text):
                        line = f"{UNKNOWN_PAYLOAD}: {text}" if text else UNKNOWN_PAYLOAD
                        records.append(conversation.note(uuid, line, now_ms, kept))
            records += conversation.state_records(changes, now_ms)
            await self._history.append(conversation, records)

    async def _open(self, consumer: LocalConsumer, message: Msg) -> ReceivedPayload | None:
        """The payload of a message; None if another peer wrote it or it cannot be opened."""
        try:
            opened = await self._outbox.open(self._channel, message.data)
        except CannotOpen as error:
            log.warning("message not opened: channel=%r: %s", self._channel, error)
            consumer.settle(Nack(message.id, NackReason.CANNOT_DECRYPT))
            return None
        if opened.sender != self._peer:
            log.warning("message from %s in %r", peer_id(opened.sender), self._channel)
            consumer.settle(Nack(message.id, NackReason.CANNOT_DECRYPT))
            return None
        try:
            return opened.uuid.hex(), decode_payload(opened.plaintext)
        except UnknownPayload as error:
            log.warning("unknown payload: channel=%r: %s", self._channel, error)
            kept = opened.plaintext.decode("utf-8", "replace")
            is_small = len(msgspec.json.encode(kept)) <= KEPT_BYTES_MAX
            return opened.uuid.hex(), LaterPayload(kept if is_small else "", error.text)
