"""Fetching of the messages for this node from its relays, and from peers that it can dial."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

import anyio
import msgspec

from millpond.actors.errors import KeyReused, RequestError
from millpond.actors.messages import Put, Reply
from millpond.node.client.future import ReplyFuture
from millpond.node.outbox.context import GONE, OutboxContext, Wakeup
from millpond.node.outbox.key_exchange import (
    ASKED_EVERY_S,
    fetch_prekey,
    give_delivery_keys,
    give_one_time_prekeys,
    publish_prekey,
)
from millpond.node.outbox.local_channels import seconds_left
from millpond.node.outbox.mailbox import mailbox_of
from millpond.node.outbox.relayed_message import (
    MalformedRelayedMessage,
    RelayedMessage,
    decode_relayed_message,
    encode_relayed_message,
    relayed_idempotency_key,
)
from millpond.node.outbox.routes import RedialDelay, Route

if TYPE_CHECKING:
    from millpond.node.client.channel import Channel, Message

log = logging.getLogger(__name__)

WINDOW = 32
LATER_S = 5.0
KEYS_TRIED_MAX = 4
LATE_S = 60.0
"""The least time to live of a fetched message: the clock of the node that stored it may be
behind."""


class FetchSource(msgspec.Struct, frozen=True):
    """A node to fetch from.

    `owner` is the peer whose prekey is read there; `leaves_key`: the prekey of this node is
    published there.
    """

    routes: Callable[[], list[Route]]
    owner: bytes | None
    leaves_key: bool


class _Fetched(msgspec.Struct, frozen=True, gc=False):
    """A fetched message, and the answer of the own mailbox to come; None: it cannot be read."""

    message: Message
    relayed: RelayedMessage | None
    answer: ReplyFuture[Reply] | None


class RelayFetcher:
    """The task that fetches from one source until it is cancelled."""

    def __init__(self, context: OutboxContext, source: FetchSource) -> None:
        self.wakeup = Wakeup()
        self.prekey_changed = Wakeup()
        self._context = context
        self._source = source
        self._mailbox = mailbox_of(context.identity.public)
        self._delay = RedialDelay(context.rng)

    async def run(self) -> None:
        """Stay connected over the first route that works."""
        while True:
            for route in self._source.routes():
                try:
                    await self._fetch(route)
                except GONE as error:
                    log.debug("not fetched: at=%s: %s", route.url, error)
            await self.wakeup.wait(self._delay.next_s())

    async def _fetch(self, route: Route) -> None:
        context = self._context
        async with context.dial(route, self._mailbox, "consumer", WINDOW) as channel:
            self.wakeup.clear()  # set by this very connection
            self._delay.reset()
            failure = await self._receive(channel, route)
        raise failure

    async def _receive(self, channel: Channel, route: Route) -> Exception:
        """Receive until the connection fails; returns the error."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._exchange_keys, route)
            try:
                while True:
                    messages = [await channel.receive()]
                    while channel.has_messages:
                        messages.append(await channel.receive())
                    tasks.start_soon(self._settle, self._store(messages))
            except GONE as error:
                tasks.cancel_scope.cancel()
                return error
        raise AssertionError("messages are received until there is an error")

    async def _exchange_keys(self, route: Route) -> None:
        while True:
            try:
                if self._source.owner is not None:
                    await fetch_prekey(self._context, self._source.owner, route)
                if self._source.leaves_key:
                    await publish_prekey(self._context, route)
                    await give_delivery_keys(self._context, route)
                    await give_one_time_prekeys(self._context, route)
            except GONE as error:
                log.debug("no keys exchanged: at=%s: %s", route.url, error)
            await self.prekey_changed.wait(ASKED_EVERY_S)

    def _read(self, message: Message) -> RelayedMessage | None:
        """The relayed message; None if it is malformed or for another node."""
        try:
            relayed = decode_relayed_message(message.data)
        except MalformedRelayedMessage as error:
            log.warning("malformed message fetched: id=%d: %s", message.id, error)
            return None
        if relayed.recipient != self._context.identity.public:
            log.warning("message for another node fetched: id=%d", message.id)
            return None
        return relayed

    def _store(self, messages: list[Message]) -> list[_Fetched]:
        """Put messages into the own mailbox, in their order."""
        read = [(message, self._read(message)) for message in messages]
        puts = [self._put(relayed, 0) for _, relayed in read if relayed is not None]
        answers = iter(self._context.local.put_all_nowait(self._mailbox, puts) if puts else [])
        return [
            _Fetched(message, relayed, None if relayed is None else next(answers))
            for message, relayed in read
        ]

    def _put(self, relayed: RelayedMessage, attempt: int) -> Put:
        """The PUT of a message, with the same bytes on every route."""
        now = self._context.now()
        ttl = seconds_left(max(relayed.deadline, now + LATE_S), now)
        data = encode_relayed_message(msgspec.structs.replace(relayed, hops=0))
        key = relayed_idempotency_key(relayed, attempt, data)
        return Put(key, ttl, data)

    async def _is_done(self, fetched: _Fetched) -> bool:
        """True if the message is stored, or cannot be read."""
        answer, relayed = fetched.answer, fetched.relayed
        if answer is None or relayed is None:
            return True
        for attempt in range(1, KEYS_TRIED_MAX + 1):
            try:
                await answer
            except KeyReused:
                put = self._put(relayed, attempt)
                answer = self._context.local.put_nowait(self._mailbox, put)
            except RequestError as error:
                log.warning("message not stored: %s", error)
                return False
            else:
                return True
        log.warning("message not stored: its idempotency keys are taken by other messages")
        return False

    async def _settle(self, messages: list[_Fetched]) -> None:
        for each in messages:
            is_done = await self._is_done(each)
            try:
                if is_done:
                    await each.message.ack()
                else:
                    await each.message.nack(LATER_S)
            except GONE as error:
                # It is pushed again on the next connection, and recognized by its key.
                log.debug("message not acknowledged: id=%d: %s", each.message.id, error)
