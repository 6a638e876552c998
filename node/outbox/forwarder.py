"""Forwarding of the messages in one mailbox, to the peer or to its relays
(docs/internals/peers.md)."""

from __future__ import annotations

import logging
from math import inf

import anyio
import msgspec

from millpond.actors.errors import (
    BufferFull,
    IdsExhausted,
    KeyReused,
    OutcomeUnknown,
    Quarantined,
    RequestError,
    SlowDown,
    StorageFailed,
)
from millpond.actors.messages import Ack, Msg, Nack, NackReason
from millpond.node.client.channel import Channel
from millpond.node.client.errors import HandshakeRefused
from millpond.node.client.future import ReplyFuture
from millpond.node.client.in_flight import Receipt
from millpond.node.outbox.context import GONE, DeliveryStatus, OutboxContext, Wakeup
from millpond.node.outbox.key_exchange import ASKED_EVERY_S, fetch_prekey
from millpond.node.outbox.local_channels import LocalConsumer, seconds_left
from millpond.node.outbox.mailbox import mailbox_of
from millpond.node.outbox.relayed_message import (
    HOPS_MAX,
    MalformedRelayedMessage,
    RelayedMessage,
    decode_relayed_message,
    encode_relayed_message,
    envelope_idempotency_key,
)
from millpond.node.outbox.routes import RedialDelay, Route, routes_to
from millpond.node.peers.envelope import envelope_uuid
from millpond.node.peers.identity import peer_id

log = logging.getLogger(__name__)

IN_FLIGHT_MAX = 16
LATER = (BufferFull, SlowDown, IdsExhausted, StorageFailed, OutcomeUnknown, Quarantined)
"""Errors after which a PUT is tried again later."""
LATER_S = 2.0
ANSWERED_WITHIN_S = 60.0
"""A peer that takes longer to answer a PUT is left, even if the connection is alive."""
IDLE_CHECK_S = 0.5
"""The interval at which a forwarder without work checks whether another waits for its slot."""
KEYS_TRIED_MAX = 4
RELAY_STAY_S = 300.0
"""A relay is left after this, so that the peer itself is tried again."""


class Forwarder:
    """The forwarder of one mailbox. `run` ends when there is nothing left to do for `peer`."""

    def __init__(self, context: OutboxContext, peer: bytes) -> None:
        self.peer = peer
        self.wakeup = Wakeup()
        self._wants_prekey = False
        self._has_messages = False
        self._context = context
        self._mailbox = mailbox_of(peer)
        self._delay = RedialDelay(context.rng)
        self._asked_at = -inf
        self._delivery: _Delivery | None = None

    def message_arrived(self) -> None:
        """There is a message in the mailbox."""
        self._has_messages = True

    def request_prekey(self) -> None:
        """Fetch a prekey of the peer soon, even if there is nothing to forward."""
        self._wants_prekey = True
        self.wakeup()

    @property
    def has_messages(self) -> bool:
        """True if the mailbox may not be empty."""
        return self._has_messages

    @property
    def is_wanted(self) -> bool:
        """True if there is work that the peer does not do itself by fetching."""
        return self._wants_prekey or (self._has_messages and not self._is_fetched)

    @property
    def _is_fetched(self) -> bool:
        return self._context.presence.is_fetching(self.peer, self._mailbox)

    def stop_forwarding(self) -> None:
        """Stop if the peer now fetches its messages on its own connection."""
        if self._delivery is not None and self._is_fetched:
            self._delivery.stop(None)

    async def run(self) -> None:
        """Forward until the mailbox is empty, or there is no route."""
        while self.is_wanted:
            peer = self._context.book.by_public(self.peer)
            trusted = peer is not None and self._context.book.is_trusted(self.peer)
            routes = list(routes_to(peer, self._context.book)) if peer and trusted else []
            if not routes:
                self._wants_prekey = self._has_messages = False
                return
            async with self._context.forwarders:
                retry_s = await self._try_routes(routes)
            if retry_s is not None:
                await self.wakeup.wait(retry_s)

    async def _try_routes(self, routes: list[Route]) -> float | None:
        """Forward over the first route that works; a relay that takes nothing is skipped.

        Returns the delay in seconds before the next attempt.
        """
        delays: list[float] = []
        for route in routes:
            try:
                retry_s = await self._forward(route)
            except GONE as error:
                log.debug("no connection: peer=%s at=%s: %s", peer_id(self.peer), route.url, error)
            else:
                if retry_s is None or not route.is_relay:
                    return retry_s
                delays.append(retry_s)
        return min(delays, default=None) or self._delay.next_s()

    async def _forward(self, route: Route) -> float | None:
        context = self._context
        if self._wants_prekey or context.now() > self._asked_at + ASKED_EVERY_S:
            await fetch_prekey(context, self.peer, route)
            self._asked_at = context.now()
            has_key = (
                context.prekey_cache.best(self.peer, context.now() + ASKED_EVERY_S) is not None
            )
            if self._wants_prekey and not has_key and not self._has_messages:
                return self._delay.next_s()  # the peer may publish one later
            self._wants_prekey = False
        if not self._has_messages or self._is_fetched:
            return None
        async with context.dial(route, self._mailbox, "producer") as channel:
            self.wakeup.clear()  # set by this very connection
            self._delivery = _Delivery(context, self.peer, route, channel, self._delay)
            try:
                with context.local.consumer(self._mailbox, IN_FLIGHT_MAX) as consumer:
                    await self._delivery.run(consumer)
                    is_done = self._delivery.is_idle and not consumer.expects_messages
                if is_done:
                    self._has_messages = False
                if self._delivery.failure is not None:
                    raise self._delivery.failure
                return self._delivery.retry_s
            finally:
                self._delivery = None


class _Delivery:
    """The messages that are forwarded over one connection."""

    def __init__(
        self,
        context: OutboxContext,
        peer: bytes,
        route: Route,
        channel: Channel,
        delay: RedialDelay,
    ) -> None:
        self.retry_s: float | None = None
        self.failure: Exception | None = None
        self.is_idle = False
        self._context = context
        self._peer = peer
        self._route = route
        self._channel = channel
        self._delay = delay
        self._pending = 0
        self._receiving = anyio.CancelScope()

    def stop(self, retry_s: float | None) -> None:
        """Send no more messages, and end when those in flight are answered."""
        self.retry_s = retry_s
        self._receiving.cancel()

    async def run(self, consumer: LocalConsumer) -> None:
        """Forward messages until none has come for a while, or something fails."""
        leave_at = self._context.now() + RELAY_STAY_S if self._route.is_relay else inf
        async with anyio.create_task_group() as tasks:
            with self._receiving:
                while self._context.now() < leave_at:
                    message = await self._next(consumer)
                    if message is None:
                        self.is_idle = True
                        return
                    if not self._is_trusted():
                        return
                    relayed = self._read(consumer, message)
                    if relayed is not None:
                        self._pending += 1
                        answer = self._put(relayed, 0)
                        tasks.start_soon(self._settle, consumer, message, relayed, answer)

    def _is_trusted(self) -> bool:
        """True if the peer and the node at the other end are still trusted."""
        book, public = self._context.book, self._route.public
        return book.is_trusted(self._peer) and (public is None or book.is_trusted(public))

    async def _next(self, consumer: LocalConsumer) -> Msg | None:
        """The next message; None if nothing came for a while and nothing is in flight."""
        idle_until = self._context.now() + self._context.settings.idle_s
        while True:
            with anyio.move_on_after(IDLE_CHECK_S):
                return await consumer.receive()
            is_awaited = self._context.forwarders.statistics().tasks_waiting > 0
            if not self._pending and (is_awaited or self._context.now() >= idle_until):
                return None

    def _read(self, consumer: LocalConsumer, message: Msg) -> RelayedMessage | None:
        """The relayed message; None if it is not forwarded."""
        try:
            relayed = decode_relayed_message(message.data)
        except MalformedRelayedMessage as error:
            log.warning(
                "malformed message: mailbox=%s id=%d: %s", peer_id(self._peer), message.id, error
            )
            self._context.local.dead_letter(consumer.channel, message, "malformed")
            return None
        if relayed.recipient != self._peer:
            self._context.local.dead_letter(consumer.channel, message, "malformed")
            return None
        if relayed.hops >= HOPS_MAX:
            # The hop limit is reached; the peer can still fetch the message.
            consumer.settle(Nack(message.id, NackReason.CANNOT_DECRYPT))
            return None
        return relayed

    def _put(self, relayed: RelayedMessage, attempt: int) -> ReplyFuture[Receipt]:
        """Send a PUT, in the order of the calls."""
        data = encode_relayed_message(msgspec.structs.replace(relayed, hops=relayed.hops + 1))
        ttl = seconds_left(relayed.deadline, self._context.now())
        try:
            key = envelope_idempotency_key(relayed.envelope, attempt, data)
            return self._channel.put_nowait(data, ttl=ttl, key=key)
        except (RequestError, anyio.WouldBlock, *GONE) as error:
            answer: ReplyFuture[Receipt] = ReplyFuture()
            answer.fail(error)
            return answer

    async def _settle(
        self,
        consumer: LocalConsumer,
        message: Msg,
        relayed: RelayedMessage,
        answer: ReplyFuture[Receipt],
    ) -> None:
        try:
            with anyio.fail_after(ANSWERED_WITHIN_S):
                refusal = await self._refusal(relayed, answer)
            self._delay.reset()
            if refusal is not None:
                self._context.local.dead_letter(consumer.channel, message, refusal)
                return
            if relayed.hops == 0:
                await self._context.report_status(
                    self._peer, envelope_uuid(relayed.envelope), DeliveryStatus.SENT
                )
            consumer.settle(Ack(message.id))
        except (*LATER, anyio.WouldBlock) as error:
            delay_ms = error.delay_ms if isinstance(error, RequestError) else None
            self.stop(LATER_S if delay_ms is None else max(LATER_S, delay_ms / 1000))
        except GONE as error:
            self._fail(error)
        finally:
            self._pending -= 1

    def _fail(self, error: Exception) -> None:
        self.failure = error
        self.stop(None)

    async def _refusal(self, relayed: RelayedMessage, answer: ReplyFuture[Receipt]) -> str | None:
        """None if the message is stored at the other end, else the reason of a final refusal.

        Only the peer itself can refuse a message for good; what a relay refuses stays here.
        """
        refusal = "its idempotency keys are taken by other messages"
        for attempt in range(1, KEYS_TRIED_MAX + 1):
            try:
                await answer
            except KeyReused:
                answer = self._put(relayed, attempt)
            except LATER:
                raise
            except RequestError as error:
                refusal = str(error)
                break
            else:
                return None
        if self._route.is_relay:
            owner, url = peer_id(self._peer), self._route.url
            log.warning("relay refuses a message: for=%s at=%s: %s", owner, url, refusal)
            raise HandshakeRefused(refusal)
        return f"refused: {refusal}"
