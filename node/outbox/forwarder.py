"""Forwarding of the messages in one mailbox, to the peer or to its relays
(docs/internals/peers.md)."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from math import inf
from typing import TYPE_CHECKING

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
from millpond.node.client.errors import HandshakeRefused
from millpond.node.client.future import ReplyFuture
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
    relayed_idempotency_key,
)
from millpond.node.outbox.routes import RedialDelay, Route, may_serve, routes_to
from millpond.node.peers.envelope import envelope_uuid
from millpond.node.peers.identity import peer_id

if TYPE_CHECKING:
    from millpond.node.client.channel import Channel
    from millpond.node.client.in_flight import Receipt

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
        self._wants_one_time = False
        self._has_messages = False
        self._context = context
        self._mailbox = mailbox_of(peer)
        self._delay = RedialDelay(context.rng)
        self._asked_at = -inf
        self._has_answered = False
        self._delivery: _Delivery | None = None

    def message_arrived(self) -> None:
        """There is a message in the mailbox."""
        self._has_messages = True

    def request_prekey(self) -> None:
        """Fetch a prekey of the peer soon, even if there is nothing to forward."""
        self._wants_prekey = True
        self.wakeup()

    def request_one_time(self) -> None:
        """Look once for one-time prekeys of the peer, on all routes."""
        self._wants_one_time = True
        self.wakeup()

    @property
    def has_messages(self) -> bool:
        """True if the mailbox may not be empty."""
        return self._has_messages

    @property
    def is_wanted(self) -> bool:
        """True if there is work that the peer does not do itself by fetching."""
        has_work = self._has_messages and not self._is_fetched
        return self._wants_prekey or self._wants_one_time or has_work

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
            has_route = peer is not None and peer.is_contact
            own, book = self._context.identity.public, self._context.book
            routes = list(routes_to(peer, book, own)) if peer and has_route else []
            if not routes:
                self._wants_prekey = self._wants_one_time = self._has_messages = False
                return
            async with self._context.forwarders:
                retry_s = await self._try_routes(routes)
            self._wants_one_time = False
            if retry_s is not None and self.is_wanted:
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
                self._has_answered = False
                log.debug("no connection: peer=%s at=%s: %s", peer_id(self.peer), route.url, error)
            else:
                if retry_s is None or not route.is_relay:
                    return retry_s
                delays.append(retry_s)
        return min(delays, default=None) or self._delay.next_s()

    async def _forward(self, route: Route) -> float | None:
        context = self._context
        is_due = context.now() > self._asked_at + ASKED_EVERY_S
        if self._wants_prekey or self._wants_one_time or is_due:
            await fetch_prekey(context, self.peer, route)
            self._asked_at = context.now()
            if not self._has_answered:
                self._has_answered = True
                self._delay.reset()  # it has just started, and may publish its prekey soon
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


class _Sent(msgspec.Struct, frozen=True, gc=False):
    """A message of the mailbox that was sent with a PUT, and the answer to come."""

    message: Msg
    relayed: RelayedMessage
    answer: ReplyFuture[Receipt]


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
                    messages = await self._next(consumer)
                    if not messages:
                        self.is_idle = True
                        return
                    if not self._is_allowed():
                        return
                    sent = list(self._send(consumer, messages))
                    self._pending += len(sent)
                    tasks.start_soon(self._settle, consumer, sent)

    def _is_allowed(self) -> bool:
        """True if the peer is still a contact, and the node at the other end one or a relay."""
        book, public = self._context.book, self._route.public
        return book.is_contact(self._peer) and (
            public is None or may_serve(book, public, self._route)
        )

    async def _next(self, consumer: LocalConsumer) -> list[Msg]:
        """The next messages; none if nothing came for a while and nothing is in flight."""
        idle_until = self._context.now() + self._context.settings.idle_s
        while True:
            with anyio.move_on_after(IDLE_CHECK_S):
                return await consumer.receive_all()
            is_awaited = self._context.forwarders.statistics().tasks_waiting > 0
            if not self._pending and (is_awaited or self._context.now() >= idle_until):
                return []

    def _send(self, consumer: LocalConsumer, messages: list[Msg]) -> Iterator[_Sent]:
        """Send PUTs of the messages that are forwarded."""
        for message in messages:
            relayed = self._read(consumer, message)
            if relayed is not None:
                yield _Sent(message, relayed, self._put(relayed, 0))

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
            key = relayed_idempotency_key(relayed, attempt, data)
            return self._channel.put_nowait(data, ttl=ttl, key=key)
        except (RequestError, anyio.WouldBlock, *GONE) as error:
            answer: ReplyFuture[Receipt] = ReplyFuture()
            answer.fail(error)
            return answer

    async def _settle(self, consumer: LocalConsumer, sent: list[_Sent]) -> None:
        """Settle messages by the answers to their PUTs. One without an answer stays."""
        stored: list[_Sent] = []
        with anyio.move_on_after(ANSWERED_WITHIN_S) as waiting:
            for each in sent:
                with self._stopping_on_errors():
                    refusal = await self._refusal(each)
                    self._delay.reset()
                    if refusal is None:
                        stored.append(each)
                    else:
                        self._context.local.dead_letter(consumer.channel, each.message, refusal)
        if waiting.cancelled_caught:
            self._fail(TimeoutError(f"no answer within {ANSWERED_WITHIN_S:.0f} s"))
        with self._stopping_on_errors(), anyio.fail_after(ANSWERED_WITHIN_S):
            await self._report_sent([each for each in stored if each.relayed.hops == 0])
            consumer.settle(*(Ack(each.message.id) for each in stored))
        self._pending -= len(sent)

    @contextmanager
    def _stopping_on_errors(self) -> Iterator[None]:
        """Send nothing more over this connection after an error of it, or of the other end."""
        try:
            yield
        except (*LATER, anyio.WouldBlock) as error:
            delay_ms = error.delay_ms if isinstance(error, RequestError) else None
            self.stop(LATER_S if delay_ms is None else max(LATER_S, delay_ms / 1000))
        except GONE as error:
            self._fail(error)

    async def _report_sent(self, sent: list[_Sent]) -> None:
        peer, v1 = self._peer, [each for each in sent if each.relayed.is_version_1]
        if v1:
            uuids = [envelope_uuid(each.relayed.envelope) for each in v1]
            await self._context.report_status(peer, uuids, DeliveryStatus.SENT)
        ids = [each.message.id for each in sent if not each.relayed.is_version_1]
        if ids:
            await self._context.report_forwarded(peer, ids, None)

    def _fail(self, error: Exception) -> None:
        self.failure = error
        self.stop(None)

    async def _refusal(self, sent: _Sent) -> str | None:
        """None if the message is stored at the other end, else the reason of a final refusal.

        Only the peer itself can refuse a message for good; what a relay refuses stays here.
        """
        refusal = "its idempotency keys are taken by other messages"
        answer = sent.answer
        for attempt in range(1, KEYS_TRIED_MAX + 1):
            try:
                await answer
            except KeyReused:
                answer = self._put(sent.relayed, attempt)
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
