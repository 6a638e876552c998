"""Fetches our own mail from where it waits: a relay of ours, or a peer that we can dial."""

from __future__ import annotations

import logging
from collections.abc import Callable

import anyio
import msgspec

from millpond.actors.errors import KeyReused, RequestError
from millpond.actors.messages import Put, Reply
from millpond.node.client.channel import Channel
from millpond.node.client.future import ReplyFuture
from millpond.node.client.message import Message
from millpond.node.outbox.context import GONE, OutboxContext, Wakeup
from millpond.node.outbox.key_exchange import ASKED_EVERY_S, learn, publish
from millpond.node.outbox.local_channels import seconds_left
from millpond.node.outbox.mailbox import mailbox_of
from millpond.node.outbox.relayed_message import (
    MalformedRelayedMessage,
    RelayedMessage,
    decode_relayed_message,
    encode_relayed_message,
    envelope_idempotency_key,
)
from millpond.node.outbox.routes import RedialDelay, Route

log = logging.getLogger(__name__)

WINDOW = 32
LATER_S = 5.0
KEYS_TRIED_MAX = 4
LATE_S = 60.0
"""A letter whose deadline is over by our clock was alive by that of its keeper: it gets so long."""


class FetchSource(msgspec.Struct, frozen=True):
    """Where to fetch. `owner`: whose prekey to read there; `leaves_key`: ours is left there."""

    places: Callable[[], list[Route]]
    owner: bytes | None
    leaves_key: bool


class RelayFetcher:
    """One errand, for as long as the node runs or until it is cancelled."""

    def __init__(self, office: OutboxContext, errand: FetchSource) -> None:
        self.nudge = Wakeup()
        self.new_key = Wakeup()
        self._office = office
        self._errand = errand
        self._mailbox = mailbox_of(office.identity.public)
        self._patience = RedialDelay(office.rng)

    async def run(self) -> None:
        """Stay connected to the first place that is there."""
        while True:
            for place in self._errand.places():
                try:
                    await self._stay(place)
                except GONE as error:
                    log.debug("not fetched: at=%s: %s", place.url, error)
            await self.nudge.rest(self._patience.next_s())

    async def _stay(self, place: Route) -> None:
        office = self._office
        async with office.reach(place, self._mailbox, "consumer", WINDOW) as channel:
            self.nudge.forget()  # that the peer is here is said by this very connection
            self._patience.forgive()
            failure = await self._receive(channel, place)
        raise failure

    async def _receive(self, channel: Channel, place: Route) -> Exception:
        """Until there is no more to be received; gives why."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._exchange_keys, place)
            try:
                while True:
                    message = await channel.receive()
                    letter = self._read(message)
                    if letter is None:
                        await message.ack()
                    else:
                        tasks.start_soon(self._settle, message, letter, self._keep(letter, 0))
            except GONE as error:
                tasks.cancel_scope.cancel()
                return error
        raise AssertionError("messages are received until there is an error")

    async def _exchange_keys(self, place: Route) -> None:
        while True:
            try:
                if self._errand.owner is not None:
                    await learn(self._office, self._errand.owner, place)
                if self._errand.leaves_key:
                    await publish(self._office, place)
            except GONE as error:
                log.debug("no keys exchanged: at=%s: %s", place.url, error)
            await self.new_key.rest(ASKED_EVERY_S)

    def _read(self, message: Message) -> RelayedMessage | None:
        """None: it is not for us to have."""
        try:
            letter = decode_relayed_message(message.data)
        except MalformedRelayedMessage as error:
            log.warning("no letter fetched: id=%d: %s", message.id, error)
            return None
        if letter.recipient != self._office.identity.public:
            log.warning("a letter for somebody else was fetched: id=%d", message.id)
            return None
        return letter

    def _keep(self, letter: RelayedMessage, attempt: int) -> ReplyFuture[Reply]:
        """Put the letter into our own mailbox, with the same bytes whichever way it came."""
        now = self._office.now()
        ttl = seconds_left(max(letter.deadline, now + LATE_S), now)
        data = encode_relayed_message(msgspec.structs.replace(letter, hops=0))
        key = envelope_idempotency_key(letter.envelope, attempt, data)
        return self._office.local.put_soon(self._mailbox, Put(key, ttl, data))

    async def _is_kept(self, letter: RelayedMessage, answer: ReplyFuture[Reply]) -> bool:
        for attempt in range(1, KEYS_TRIED_MAX + 1):
            try:
                await answer
            except KeyReused:
                answer = self._keep(letter, attempt)
            except RequestError as error:
                log.warning("letter not kept: %s", error)
                return False
            else:
                return True
        log.warning("letter not kept: its keys were used for other letters")
        return False

    async def _settle(
        self, message: Message, letter: RelayedMessage, answer: ReplyFuture[Reply]
    ) -> None:
        is_kept = await self._is_kept(letter, answer)
        try:
            if is_kept:
                await message.ack()
            else:
                await message.nack(LATER_S)
        except GONE as error:
            # It is pushed again on the next connection, and known by its key.
            log.debug("letter not acknowledged: id=%d: %s", message.id, error)
