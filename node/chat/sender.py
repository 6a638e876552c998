"""Sends what we write to one peer, and receipts for what it writes, from what is kept."""

from __future__ import annotations

import logging

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
from millpond.node.chat.payloads import RECEIPTS_MAX, Receipt, encode_payload
from millpond.node.chat.records import State, conversation_stream
from millpond.node.outbox.context import Wakeup
from millpond.node.outbox.outbox import Outbox
from millpond.node.peers.identity import peer_id

log = logging.getLogger(__name__)

SEALED_AT_ONCE = 16
RETRY_S = 5.0
LOOK_S = 60.0
FOR_GOOD = (DataTooLarge, EmptyData, NotAllowed)


class Sender:
    """To the holder of the key `peer`. `nudge` when there may be something to send."""

    def __init__(self, peer: bytes, post: Outbox, keeping: ConversationLog) -> None:
        self.something_said = Wakeup()
        self.something_owed = Wakeup()
        self._peer = peer
        self._post = post
        self._keeping = keeping
        self._channel = conversation_stream(post.context.identity.public)
        self._ttl_s = float(post.context.settings.ttl_s)

    async def keep_speaking(self) -> None:
        """Send what waits, in order, until cancelled. Raises RequestErrors of the history."""
        while True:
            rest_s = await self._speak(await self._keeping.opened())
            if rest_s:
                await self.something_said.wait(rest_s)

    async def keep_telling(self) -> None:
        """Send receipts that are owed, until cancelled. Raises RequestErrors of the history."""
        while True:
            conversation = await self._keeping.opened()
            owed = conversation.owed(RECEIPTS_MAX)
            rest_s = LOOK_S if owed is None else await self._send_receipt(conversation, owed)
            if rest_s:
                await self.something_owed.wait(rest_s)

    async def _speak(self, conversation: Conversation) -> float:
        """Seal some of what waits; gives how long to rest."""
        fates: list[tuple[str, State]] = []
        waiting = conversation.waiting[:SEALED_AT_ONCE]
        rest_s = 0.0 if waiting else LOOK_S
        for ours in waiting:
            try:
                fates.append((ours.uuid, await self._seal(ours)))
            except (NoPrekey, UnknownPeer):
                rest_s = LOOK_S
                break
            except RequestError as error:
                log.warning("message not sealed: to=%s: %s", peer_id(self._peer), error)
                rest_s = RETRY_S
                break
        await self._keeping.tell(fates)
        return rest_s

    async def _seal(self, ours: OwnMessage) -> State:
        left_s = ours.text.at / 1000 + self._ttl_s - self._keeping.now()
        if left_s <= 0:
            return State.EXPIRED
        clear, uuid = encode_payload(ours.text), bytes.fromhex(ours.uuid)
        # Rather for as long as a key is good than not at all before there is a new one.
        ttl = left_s if self._post.can_seal(self._peer, left_s) else 0.0
        try:
            await self._post.send(self._peer, self._channel, clear, ttl, uuid)
        except FOR_GOOD as error:
            log.warning("message refused: to=%s: %s", peer_id(self._peer), error)
            return State.REFUSED
        return State.KEPT

    async def _send_receipt(self, conversation: Conversation, owed: PendingReceipts) -> float:
        clear = encode_payload(Receipt.of_state(owed.state, owed.uuids))
        try:
            await self._post.send(self._peer, self._channel, clear)
        except (NoPrekey, UnknownPeer):
            return LOOK_S
        except RequestError as error:
            log.warning("receipt not sealed: to=%s: %s", peer_id(self._peer), error)
            return RETRY_S
        await self._keeping.mark_told(conversation, owed)
        return 0.0
