"""Reads the dead letters of others' mailboxes: who sent them hears that they did not arrive."""

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
    """Works as long as there are dead letters for `peer`; `run` then ends."""

    def __init__(self, office: OutboxContext, peer: bytes) -> None:
        self.peer = peer
        self.has_mail = False
        self._office = office
        self._channel = mailbox_of(peer) + DEAD_SUFFIX

    @property
    def is_wanted(self) -> bool:
        """Are there dead letters?"""
        return self.has_mail

    async def run(self) -> None:
        """A dead letter goes when everybody who asked for reports has heard of it."""
        while self.has_mail:
            with self._office.local.consumer(self._channel, 1) as guest:
                await self._read(guest)
                is_done = not guest.awaits_mail
            if is_done:
                self.has_mail = False

    async def _read(self, guest: LocalConsumer) -> None:
        while True:
            message = None
            with anyio.move_on_after(IDLE_S):
                message = await guest.receive()
            if message is None:
                return
            await self._report(message)
            guest.tell(Ack(message.id))

    async def _report(self, message: Msg) -> None:
        try:
            letter = decode_relayed_message(message.data)
        except MalformedRelayedMessage:
            return  # whatever it was, nobody waits for it
        if letter.hops > 0:
            return  # a relay does not know who sent it
        row = self._office.local.row(self._channel, message.id)
        origin = None if row is None else row.origin
        reason = origin.reason if origin is not None else EXPIRED
        log.info("letter dead: channel=%s reason=%s", self._channel.decode(), reason)
        fate = DeliveryStatus.EXPIRED if reason == EXPIRED else DeliveryStatus.REFUSED
        await self._office.report(self.peer, envelope_uuid(letter.envelope), fate)
