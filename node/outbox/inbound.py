"""Inbound messages: each envelope in the own mailbox goes to the local channel that it names."""

from __future__ import annotations

import logging

import anyio

from millpond.actors.errors import DataTooLarge, EmptyData, KeyReused, RequestError, TtlRefused
from millpond.actors.messages import Ack, Msg, Nack, NackReason, Put, Reply
from millpond.actors.streams.names import RESERVED
from millpond.node.client.future import ReplyFuture
from millpond.node.outbox.context import OutboxContext
from millpond.node.outbox.local_channels import LocalConsumer, seconds_left
from millpond.node.outbox.mailbox import PREFIX, mailbox_of
from millpond.node.outbox.relayed_message import (
    MalformedRelayedMessage,
    RelayedMessage,
    decode_relayed_message,
    envelope_idempotency_key,
)

log = logging.getLogger(__name__)

WINDOW = 32
KEYS_TRIED_MAX = 4
LATER_MS = 5000
LATE_S = 60.0
INTERNAL_SEPARATOR = b"!"
PERMANENT = (DataTooLarge, EmptyData, TtlRefused)


class InboundRouter:
    """The consumer of the own mailbox, for as long as the node runs."""

    def __init__(self, context: OutboxContext) -> None:
        self._context = context
        self._mailbox = mailbox_of(context.identity.public)

    async def run(self) -> None:
        """Route messages in the order in which they were stored."""
        with self._context.local.consumer(self._mailbox, WINDOW) as consumer:
            async with anyio.create_task_group() as tasks:
                while True:
                    message = await consumer.receive()
                    relayed = self._read(consumer, message)
                    if relayed is not None:
                        answer = self._put(relayed, 0)
                        tasks.start_soon(self._settle, consumer, message, relayed, answer)

    def _read(self, consumer: LocalConsumer, message: Msg) -> RelayedMessage | None:
        try:
            relayed = decode_relayed_message(message.data)
        except MalformedRelayedMessage as error:
            log.warning("malformed message in the own mailbox: id=%d: %s", message.id, error)
        else:
            if relayed.recipient == self._context.identity.public and accepts_relayed(
                relayed.channel
            ):
                return relayed
            log.warning("message not accepted: id=%d channel=%r", message.id, relayed.channel)
        consumer.settle(Ack(message.id))
        return None

    def _put(self, relayed: RelayedMessage, attempt: int) -> ReplyFuture[Reply]:
        now = self._context.now()
        ttl = seconds_left(max(relayed.deadline, now + LATE_S), now)
        key = envelope_idempotency_key(relayed.envelope, attempt)
        return self._context.local.put_nowait(relayed.channel, Put(key, ttl, relayed.envelope))

    async def _settle(
        self,
        consumer: LocalConsumer,
        message: Msg,
        relayed: RelayedMessage,
        answer: ReplyFuture[Reply],
    ) -> None:
        for attempt in range(1, KEYS_TRIED_MAX + 1):
            try:
                await answer
            except KeyReused:
                answer = self._put(relayed, attempt)
            except PERMANENT as error:
                self._context.local.dead_letter(self._mailbox, message, f"refused: {error}")
                return
            except RequestError as error:
                log.warning("message not delivered: channel=%r: %s", relayed.channel, error)
                consumer.settle(Nack(message.id, NackReason.LATER, LATER_MS))
                return
            else:
                consumer.settle(Ack(message.id))
                return
        self._context.local.dead_letter(
            self._mailbox, message, "refused: its idempotency keys are taken"
        )


def accepts_relayed(channel: bytes) -> bool:
    """True for channels that a relayed message may name: no mailboxes and none of the node's
    own."""
    return not channel.startswith((RESERVED, PREFIX)) and INTERNAL_SEPARATOR not in channel
