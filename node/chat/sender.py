"""Sending in a conversation: messages and receipts go from the history to the outbox."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from math import inf

from millpond.actors.errors import (
    DataTooLarge,
    EmptyData,
    NoPrekey,
    NotAllowed,
    RequestError,
    UnknownPeer,
)
from millpond.node.chat.conversation import Conversation, OwnMessage, PendingReceipts
from millpond.node.chat.conversation_log import ConversationLog
from millpond.node.chat.payloads import (
    KNOWN,
    RECEIPTS_MAX,
    Introduction,
    Receipt,
    Typing,
    encode_payload,
)
from millpond.node.chat.records import State, conversation_stream
from millpond.node.outbox.context import Wakeup
from millpond.node.outbox.outbox import Outbox
from millpond.node.peers.identity import peer_id

log = logging.getLogger(__name__)

SEALED_AT_ONCE = 16
RETRY_S = 5.0
CHECK_S = 60.0
TYPING_EVERY_S = 4.0
TYPING_TTL_S = 10.0
PERMANENT = (DataTooLarge, EmptyData, NotAllowed)


class Sender:
    """The sender to one peer. `message_added` and `receipt_due` wake it."""

    def __init__(
        self,
        peer: bytes,
        outbox: Outbox,
        history: ConversationLog[Conversation],
        own_card: Callable[[], Awaitable[str]],
    ) -> None:
        """`own_card` makes the card of this node, for introductions."""
        self._own_card = own_card
        self._typing_sent_at = -inf
        self.message_added = Wakeup()
        self.receipt_due = Wakeup()
        self._peer = peer
        self._outbox = outbox
        self._history = history
        self._channel = conversation_stream(outbox.context.identity.public)
        self._ttl_s = float(outbox.context.settings.ttl_s)

    async def send_messages(self) -> None:
        """Send waiting messages in order, until cancelled. Raises RequestErrors of the history."""
        while True:
            retry_s = await self._send_waiting(await self._history.wait_conversation())
            if retry_s:
                await self.message_added.wait(retry_s)

    async def send_receipts(self) -> None:
        """Send due receipts, until cancelled. Raises RequestErrors of the history."""
        while True:
            conversation = await self._history.wait_conversation()
            pending = conversation.pending_receipts(RECEIPTS_MAX)
            retry_s = (
                CHECK_S if pending is None else await self._send_receipt(conversation, pending)
            )
            if retry_s:
                await self.receipt_due.wait(retry_s)

    async def send_typing(self) -> None:
        """Tell the peer that somebody writes to it, unless it was told a moment ago."""
        now = self._history.now()
        if 0.0 <= now - self._typing_sent_at < TYPING_EVERY_S:
            return
        self._typing_sent_at = now
        try:
            plaintext = encode_payload(Typing())
            await self._outbox.send(self._peer, self._channel, plaintext, TYPING_TTL_S)
        except RequestError as error:
            log.debug("typing not told: to=%s: %s", peer_id(self._peer), error)

    def typing_ended(self) -> None:
        """A message was written: the next notice is about another one."""
        self._typing_sent_at = -inf

    async def _send_waiting(self, conversation: Conversation) -> float:
        """Seal some of the waiting messages; returns the delay before the next ones."""
        changes: list[tuple[str, State]] = []
        waiting = conversation.waiting[:SEALED_AT_ONCE]
        retry_s = 0.0 if waiting else CHECK_S
        for own in waiting:
            try:
                changes.append((own.uuid, await self._seal(own)))
            except (NoPrekey, UnknownPeer):
                retry_s = CHECK_S
                break
            except RequestError as error:
                log.warning("message not sealed: to=%s: %s", peer_id(self._peer), error)
                retry_s = RETRY_S
                break
        await self._history.save_states(changes)
        return retry_s

    async def _seal(self, own: OwnMessage) -> State:
        left_s = own.text.at / 1000 + self._ttl_s - self._history.now()
        if left_s <= 0:
            return State.EXPIRED
        payload = Introduction(own.secret, await self._own_card()) if own.secret else own.text
        plaintext, uuid = encode_payload(payload), bytes.fromhex(own.uuid)
        # If no prekey is valid for so long, the message lives as long as the prekey.
        ttl = left_s if self._outbox.can_seal(self._peer, left_s) else 0.0
        try:
            await self._outbox.send(self._peer, self._channel, plaintext, ttl, uuid)
        except PERMANENT as error:
            log.warning("message refused: to=%s: %s", peer_id(self._peer), error)
            return State.REFUSED
        return State.KEPT

    async def _send_receipt(self, conversation: Conversation, pending: PendingReceipts) -> float:
        plaintext = encode_payload(Receipt.of_state(pending.state, pending.uuids, KNOWN))
        try:
            await self._outbox.send(self._peer, self._channel, plaintext)
        except (NoPrekey, UnknownPeer):
            return CHECK_S
        except RequestError as error:
            log.warning("receipt not sealed: to=%s: %s", peer_id(self._peer), error)
            return RETRY_S
        await self._history.mark_receipt_sent(conversation, pending)
        return 0.0
