"""Sorts our own mail: each envelope into the local channel that its letter names."""

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
NODE_MARK = b"!"
FOR_GOOD = (DataTooLarge, EmptyData, TtlRefused)


class InboundRouter:
    """A guest of our own mailbox, for as long as the node runs."""

    def __init__(self, office: OutboxContext) -> None:
        self._office = office
        self._mailbox = mailbox_of(office.identity.public)

    async def run(self) -> None:
        """Sort, in the order in which letters were kept."""
        with self._office.local.consumer(self._mailbox, WINDOW) as guest:
            async with anyio.create_task_group() as tasks:
                while True:
                    message = await guest.receive()
                    letter = self._read(guest, message)
                    if letter is not None:
                        answer = self._put(letter, 0)
                        tasks.start_soon(self._settle, guest, message, letter, answer)

    def _read(self, guest: LocalConsumer, message: Msg) -> RelayedMessage | None:
        try:
            letter = decode_relayed_message(message.data)
        except MalformedRelayedMessage as error:
            log.warning("no letter in our mailbox: id=%d: %s", message.id, error)
        else:
            if letter.recipient == self._office.identity.public and is_open(letter.channel):
                return letter
            log.warning("letter not for us: id=%d channel=%r", message.id, letter.channel)
        guest.tell(Ack(message.id))
        return None

    def _put(self, letter: RelayedMessage, attempt: int) -> ReplyFuture[Reply]:
        now = self._office.now()
        ttl = seconds_left(max(letter.deadline, now + LATE_S), now)
        key = envelope_idempotency_key(letter.envelope, attempt)
        return self._office.local.put_soon(letter.channel, Put(key, ttl, letter.envelope))

    async def _settle(
        self, guest: LocalConsumer, message: Msg, letter: RelayedMessage, answer: ReplyFuture[Reply]
    ) -> None:
        for attempt in range(1, KEYS_TRIED_MAX + 1):
            try:
                await answer
            except KeyReused:
                answer = self._put(letter, attempt)
            except FOR_GOOD as error:
                self._office.local.dead_letter(self._mailbox, message, f"refused: {error}")
                return
            except RequestError as error:
                log.warning("letter not sorted: channel=%r: %s", letter.channel, error)
                guest.tell(Nack(message.id, NackReason.LATER, LATER_MS))
                return
            else:
                guest.tell(Ack(message.id))
                return
        self._office.local.dead_letter(self._mailbox, message, "refused: its keys are used")


def is_open(channel: bytes) -> bool:
    """May a letter name this channel? Not a mailbox, nor what is the node's own."""
    return not channel.startswith((RESERVED, PREFIX)) and NODE_MARK not in channel
