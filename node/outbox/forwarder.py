"""Carries the letters of one mailbox to their owner, or to a relay of the owner
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
from millpond.node.outbox.key_exchange import ASKED_EVERY_S, learn
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
"""Refused for now."""
LATER_S = 2.0
ANSWERED_WITHIN_S = 60.0
"""Who takes longer to answer a PUT is left, whatever other life it shows."""
IDLE_LOOK_S = 0.5
"""A carrier with nothing to do makes room so soon for another that waits."""
KEYS_TRIED_MAX = 4
RELAY_STAY_S = 300.0
"""After this a peer that may be back is tried before its relays again."""


class Forwarder:
    """Works as long as there is something to do for `peer`; `run` then ends."""

    def __init__(self, office: OutboxContext, peer: bytes) -> None:
        self.peer = peer
        self.nudge = Wakeup()
        self.wants_key = False
        self.has_mail = False
        self._office = office
        self._mailbox = mailbox_of(peer)
        self._patience = RedialDelay(office.rng)
        self._asked_at = -inf
        self._delivery: _Delivery | None = None

    @property
    def is_wanted(self) -> bool:
        """Is there something to do that the peer does not do itself?"""
        return self.wants_key or (self.has_mail and not self._is_fetched)

    @property
    def _is_fetched(self) -> bool:
        return self._office.presence.is_fetching(self.peer, self._mailbox)

    def stand_down(self) -> None:
        """The peer takes its letters itself now, on a connection of its own."""
        if self._delivery is not None and self._is_fetched:
            self._delivery.stop(None)

    async def run(self) -> None:
        """Carry until nothing is left to carry, or there is no place to carry it to."""
        while self.is_wanted:
            peer = self._office.book.by_public(self.peer)
            trusted = peer is not None and self._office.book.is_trusted(self.peer)
            places = list(routes_to(peer, self._office.book)) if peer and trusted else []
            if not places:
                self.wants_key = self.has_mail = False
                return
            async with self._office.carriers:
                rest_s = await self._visit(places)
            if rest_s is not None:
                await self.nudge.rest(rest_s)

    async def _visit(self, places: list[Route]) -> float | None:
        """Go to the first place that is there, and to the next ones while these are relays that
        take nothing now; gives how long to rest before the next time."""
        rests: list[float] = []
        for place in places:
            try:
                rest_s = await self._stay(place)
            except GONE as error:
                log.debug("no way: peer=%s at=%s: %s", peer_id(self.peer), place.url, error)
            else:
                if rest_s is None or not place.is_relay:
                    return rest_s
                rests.append(rest_s)
        return min(rests, default=None) or self._patience.next_s()

    async def _stay(self, place: Route) -> float | None:
        office = self._office
        if self.wants_key or office.now() > self._asked_at + ASKED_EVERY_S:
            await learn(office, self.peer, place)
            self._asked_at = office.now()
            has_key = office.known.best(self.peer, office.now() + ASKED_EVERY_S) is not None
            if self.wants_key and not has_key and not self.has_mail:
                return self._patience.next_s()  # they may publish one later
            self.wants_key = False
        if not self.has_mail or self._is_fetched:
            return None
        async with office.reach(place, self._mailbox, "producer") as channel:
            self.nudge.forget()  # that the peer is here is said by this very connection
            self._delivery = _Delivery(office, self.peer, place, channel, self._patience)
            try:
                with office.local.consumer(self._mailbox, IN_FLIGHT_MAX) as guest:
                    await self._delivery.run(guest)
                    is_done = self._delivery.is_idle and not guest.awaits_mail
                if is_done:
                    self.has_mail = False
                if self._delivery.failure is not None:
                    raise self._delivery.failure
                return self._delivery.rest_s
            finally:
                self._delivery = None


class _Delivery:
    """One connection's worth of letters."""

    def __init__(
        self,
        office: OutboxContext,
        peer: bytes,
        place: Route,
        channel: Channel,
        patience: RedialDelay,
    ) -> None:
        self.rest_s: float | None = None
        self.failure: Exception | None = None
        self.is_idle = False
        self._office = office
        self._peer = peer
        self._place = place
        self._channel = channel
        self._patience = patience
        self._pending = 0
        self._receiving = anyio.CancelScope()

    def stop(self, rest_s: float | None) -> None:
        """Take no more letters, and leave once those that are under way are answered."""
        self.rest_s = rest_s
        self._receiving.cancel()

    async def run(self, guest: LocalConsumer) -> None:
        """Carry letters until there are none for a while, or something is wrong."""
        leave_at = self._office.now() + RELAY_STAY_S if self._place.is_relay else inf
        async with anyio.create_task_group() as tasks:
            with self._receiving:
                while self._office.now() < leave_at:
                    message = await self._next(guest)
                    if message is None:
                        self.is_idle = True
                        return
                    if not self._is_trusted():
                        return
                    letter = self._read(guest, message)
                    if letter is not None:
                        self._pending += 1
                        answer = self._put(letter, 0)
                        tasks.start_soon(self._settle, guest, message, letter, answer)

    def _is_trusted(self) -> bool:
        """Are both still, the peer and who carries on from there?"""
        book, public = self._office.book, self._place.public
        return book.is_trusted(self._peer) and (public is None or book.is_trusted(public))

    async def _next(self, guest: LocalConsumer) -> Msg | None:
        """None: nothing came for a while and nothing is under way."""
        idle_until = self._office.now() + self._office.settings.idle_s
        while True:
            with anyio.move_on_after(IDLE_LOOK_S):
                return await guest.receive()
            is_awaited = self._office.carriers.statistics().tasks_waiting > 0
            if not self._pending and (is_awaited or self._office.now() >= idle_until):
                return None

    def _read(self, guest: LocalConsumer, message: Msg) -> RelayedMessage | None:
        """None: it is not carried any further."""
        try:
            letter = decode_relayed_message(message.data)
        except MalformedRelayedMessage as error:
            log.warning("no letter: mailbox=%s id=%d: %s", peer_id(self._peer), message.id, error)
            self._office.local.dead_letter(guest.channel, message, "malformed")
            return None
        if letter.recipient != self._peer:
            self._office.local.dead_letter(guest.channel, message, "malformed")
            return None
        if letter.hops >= HOPS_MAX:
            # It came as far as it may; its owner can still fetch it.
            guest.tell(Nack(message.id, NackReason.CANNOT_DECRYPT))
            return None
        return letter

    def _put(self, letter: RelayedMessage, attempt: int) -> ReplyFuture[Receipt]:
        """In the order of the calls."""
        data = encode_relayed_message(msgspec.structs.replace(letter, hops=letter.hops + 1))
        ttl = seconds_left(letter.deadline, self._office.now())
        try:
            key = envelope_idempotency_key(letter.envelope, attempt, data)
            return self._channel.put_nowait(data, ttl=ttl, key=key)
        except (RequestError, anyio.WouldBlock, *GONE) as error:
            answer: ReplyFuture[Receipt] = ReplyFuture()
            answer.fail(error)
            return answer

    async def _settle(
        self,
        guest: LocalConsumer,
        message: Msg,
        letter: RelayedMessage,
        answer: ReplyFuture[Receipt],
    ) -> None:
        try:
            with anyio.fail_after(ANSWERED_WITHIN_S):
                refusal = await self._fate(letter, answer)
            self._patience.forgive()
            if refusal is not None:
                self._office.local.dead_letter(guest.channel, message, refusal)
                return
            if letter.hops == 0:
                await self._office.report(
                    self._peer, envelope_uuid(letter.envelope), DeliveryStatus.SENT
                )
            guest.tell(Ack(message.id))
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

    async def _fate(self, letter: RelayedMessage, answer: ReplyFuture[Receipt]) -> str | None:
        """None: it is kept there. Else why it is refused for good; raises what may pass.

        For good nobody refuses it but the peer itself. What a relay does not take stays here.
        """
        refusal = "its keys were used for other letters"
        for attempt in range(1, KEYS_TRIED_MAX + 1):
            try:
                await answer
            except KeyReused:
                answer = self._put(letter, attempt)
            except LATER:
                raise
            except RequestError as error:
                refusal = str(error)
                break
            else:
                return None
        if self._place.is_relay:
            whose, where = peer_id(self._peer), self._place.url
            log.warning("relay takes no letter: for=%s at=%s: %s", whose, where, refusal)
            raise HandshakeRefused(refusal)
        return f"refused: {refusal}"
