"""Takes what one peer writes out of its channel; it is acknowledged when it is in the history."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from math import inf

import anyio

from millpond.actors.messages import Ack, Msg, Nack, NackReason
from millpond.node.chat.conversation import Conversation
from millpond.node.chat.conversation_log import ConversationLog
from millpond.node.chat.payloads import Payload, Receipt, Text, UnknownPayload, decode_payload
from millpond.node.chat.records import conversation_stream
from millpond.node.outbox.local_channels import LocalConsumer
from millpond.node.outbox.outbox import Outbox
from millpond.node.peers.envelope import CannotOpen
from millpond.node.peers.identity import peer_id

log = logging.getLogger(__name__)

WINDOW = 64
NOT_UNDERSTOOD = "a message came that this version does not understand"

Heard = tuple[str, Payload | None]
"""The uuid of a message and what it says; None: that is not understood."""


class Receiver:
    """To the holder of the key `peer`. `on_kept` is called when something was kept."""

    def __init__(
        self, peer: bytes, post: Outbox, keeping: ConversationLog, on_kept: Callable[[], None]
    ) -> None:
        self._peer = peer
        self._post = post
        self._keeping = keeping
        self._on_kept = on_kept
        self._channel = conversation_stream(peer)

    async def listen(self) -> None:
        """Until cancelled. Raises RequestErrors of the history."""
        unsettled: dict[str, list[Msg]] = {}
        with self._post.context.local.consumer(self._channel, WINDOW) as guest:
            while True:
                conversation = await self._keeping.opened()
                messages = await self._arrived(guest, conversation.order.deadline)
                heard = [(each, await self._open(guest, each)) for each in messages]
                await self._keep(conversation, heard, unsettled)
                for uuid in unsettled.keys() - conversation.order.held:
                    for message in unsettled.pop(uuid):
                        guest.settle(Ack(message.id))
                self._on_kept()

    async def _arrived(self, guest: LocalConsumer, deadline: float) -> list[Msg]:
        """What came, together; nothing once it is time to go on without what is missing."""
        messages: list[Msg] = []
        left_s = max(0.0, deadline - self._keeping.now())
        with anyio.move_on_after(left_s if deadline < inf else None):
            messages.append(await guest.receive())
            while guest.has_messages and len(messages) < WINDOW:
                messages.append(await guest.receive())
        return messages

    async def _keep(
        self,
        conversation: Conversation,
        heard: Sequence[tuple[Msg, Heard | None]],
        unsettled: dict[str, list[Msg]],
    ) -> None:
        now, now_ms = self._keeping.now(), self._keeping.now_ms
        async with self._keeping.lock:
            records, fates = conversation.wake(now), []
            for message, each in heard:
                if each is None:
                    continue
                uuid, words = each
                pushes = unsettled.setdefault(uuid, [])
                pushes.append(message)
                if len(pushes) > 1 or conversation.is_known(uuid):
                    continue
                match words:
                    case Text():
                        records += conversation.hear(uuid, words, now)
                    case Receipt():
                        fates += [(of, words.fate) for of in words.of]
                    case None:
                        records.append(conversation.note(uuid, NOT_UNDERSTOOD, now_ms))
            records += conversation.tell(fates, now_ms)
            await self._keeping.keep(conversation, records)

    async def _open(self, guest: LocalConsumer, message: Msg) -> Heard | None:
        """None for what somebody else wrote, or nobody can open: it is never pushed again."""
        try:
            opened = await self._post.open(self._channel, message.data)
        except CannotOpen as error:
            log.warning("message not opened: channel=%r: %s", self._channel, error)
            guest.settle(Nack(message.id, NackReason.CANNOT_DECRYPT))
            return None
        if opened.sender != self._peer:
            log.warning("message of %s in %r", peer_id(opened.sender), self._channel)
            guest.settle(Nack(message.id, NackReason.CANNOT_DECRYPT))
            return None
        try:
            return opened.uuid.hex(), decode_payload(opened.plaintext)
        except UnknownPayload as error:
            log.warning("message not understood: channel=%r: %s", self._channel, error)
            return opened.uuid.hex(), None
