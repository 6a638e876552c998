"""Bounces: dead letters of the mailboxes of peers, reported to the senders on this node."""

from __future__ import annotations

import logging

import anyio

from millpond.actors.messages import Ack, Msg
from millpond.node.outbox.context import DeliveryStatus, OutboxContext
from millpond.node.outbox.local_channels import LocalConsumer
from millpond.node.outbox.mailbox import DEAD_SUFFIX, mailbox_of
from millpond.node.outbox.relayed_message import MalformedRelayedMessage, decode_relayed_message
from millpond.node.peers.envelope import envelope_uuid

log = logging.getLogger(__name__)

EXPIRED = "expired"
IDLE_S = 10.0


class BounceReader:
    """The reader of the dead letters for `peer`. `run` ends when there are no more."""

    def __init__(self, context: OutboxContext, peer: bytes) -> None:
        self.peer = peer
        self._has_messages = False
        self._context = context
        self._channel = mailbox_of(peer) + DEAD_SUFFIX

    def message_arrived(self) -> None:
        """There is a dead letter."""
        self._has_messages = True

    @property
    def has_messages(self) -> bool:
        """True while there may be dead letters."""
        return self._has_messages

    @property
    def is_wanted(self) -> bool:
        """True while there are dead letters."""
        return self._has_messages

    async def run(self) -> None:
        """Report and acknowledge dead letters; one is acknowledged after all callbacks have
        returned."""
        while self._has_messages:
            with self._context.local.consumer(self._channel, 1) as consumer:
                await self._read(consumer)
                is_done = not consumer.expects_messages
            if is_done:
                self._has_messages = False

    async def _read(self, consumer: LocalConsumer) -> None:
        while True:
            message = None
            with anyio.move_on_after(IDLE_S):
                message = await consumer.receive()
            if message is None:
                return
            await self._report(message)
            consumer.settle(Ack(message.id))

    async def _report(self, message: Msg) -> None:
        try:
            relayed = decode_relayed_message(message.data)
        except MalformedRelayedMessage:
            return  # not from this node's outbox
        if relayed.hops > 0:
            return  # relayed for another node, which reports it itself
        row = self._context.local.message(self._channel, message.id)
        origin = None if row is None else row.origin
        reason = origin.reason if origin is not None else EXPIRED
        log.info("message bounced: channel=%s reason=%s", self._channel.decode(), reason)
        if not relayed.is_version_1:
            if origin is not None and reason != EXPIRED:
                await self._context.report_forwarded(self.peer, [origin.id], reason)
            return  # the outbox knows by itself when a message expires
        status = DeliveryStatus.EXPIRED if reason == EXPIRED else DeliveryStatus.REFUSED
        await self._context.report_status(self.peer, [envelope_uuid(relayed.envelope)], status)
