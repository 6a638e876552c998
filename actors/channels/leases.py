"""Leases while the disk hangs or fails: of pushes that wait for the store, and in a new channel.

A push waits behind the commits of its channel. Until it leaves, no consumer has the message: its
lease does not end, and begins when the push leaves. Nor is it sent if the message is gone by then.
When a commit fails, the channel is built anew from what is stored. Leases are not stored, so those
of a queue are handed over: no other consumer gets a message that is still leased (PS-02).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from math import inf
from typing import NamedTuple

from msgspec.structs import replace

from millpond.actors.channels.buffer import Buffer
from millpond.actors.channels.consumer import Consumer, Lease
from millpond.actors.channels.delivery import Delivery
from millpond.actors.channels.delivery_modes import QueueDelivery
from millpond.actors.channels.tee import Post
from millpond.actors.messages import Attach, Mode, Msg, Port
from millpond.actors.runtime.cell import Effects


class HeldLease(NamedTuple):
    """A message that a connection holds."""

    port: Port
    message_id: int
    lease: Lease


class Handover(NamedTuple):
    """The knowledge of a channel that its store does not have."""

    leases: Collection[HeldLease]
    removed: Collection[int]
    """Ids of messages whose removal waits for a tee."""
    posts: Collection[Post] = ()
    """Messages to other cells that wait for these removals."""


def _pushes(effects: Iterable[Effects]) -> Iterator[tuple[Port, Msg]]:
    for each in effects:
        for port, reply in each.port_replies:
            if isinstance(reply, Msg):
                yield port, reply


def _lease_of(delivery: Delivery, port: Port, push: Msg) -> tuple[Consumer, Lease] | None:
    """The lease that a push was made under; None if it is over."""
    consumer = delivery.consumers.get(port)
    lease = None if consumer is None else consumer.leases.get(push.id)
    if consumer is None or lease is None or lease.attempt != push.attempt:
        return None
    return consumer, lease


def delay_leases(delivery: Delivery, pending: Iterable[Effects], now: float) -> None:
    """Restart leases that end while their pushes still wait."""
    if now < delivery.leases_at:
        return
    for port, push in _pushes(pending):
        found = _lease_of(delivery, port, push)
        if found is not None and found[1].until <= now:
            delivery.restart_lease(found[0], push.id, now)


def cancel_leases(delivery: Delivery, port: Port, pending: Iterable[Effects]) -> None:
    """Mark the leases of pushes that this connection will not get: no attempt was started."""
    for receiver, push in _pushes(pending):
        found = _lease_of(delivery, receiver, push) if receiver is port else None
        if found is not None:
            consumer, lease = found
            consumer.leases[push.id] = replace(lease, started=False)


def drop_outdated_pushes(delivery: Delivery, effects: Effects) -> None:
    """Take out pushes whose lease is over, or whose message is gone."""
    effects.port_replies = [
        (port, reply)
        for port, reply in effects.port_replies
        if not isinstance(reply, Msg) or _lease_of(delivery, port, reply) is not None
    ]


def start_late_leases(delivery: Delivery, late: Iterable[Effects], now: float) -> None:
    """Restart the leases of pushes that have left late."""
    for port, push in _pushes(late):
        found = _lease_of(delivery, port, push)
        if found is not None:
            delivery.restart_lease(found[0], push.id, now)


def held_leases(delivery: Delivery, lost: Iterable[Effects]) -> list[HeldLease]:
    """The leases of a queue, without those of pushes that are lost."""
    if delivery.mode is not Mode.QUEUE:
        return []
    unsent = {(port, push.id, push.attempt) for port, push in _pushes(lost)}
    return [
        HeldLease(consumer.port, message_id, lease)
        for consumer in delivery.consumers.values()
        for message_id, lease in consumer.leases.items()
        if (consumer.port, message_id, lease.attempt) not in unsent
    ]


def restore_leases(delivery: Delivery, leases: Iterable[HeldLease], buffer: Buffer) -> list[int]:
    """Give leases back to their consumers, in a channel that was built anew and has pushed
    nothing. Gives the messages that are leased again."""
    restored: list[int] = []
    if not isinstance(delivery, QueueDelivery):
        return restored
    for port, message_id, lease in leases:
        if message_id not in buffer:
            continue
        consumer = delivery.consumers.get(port) or _attach_ended(delivery, port)
        if consumer.backlog is not None:
            delivery.restore_lease(consumer, message_id, lease)
            restored.append(message_id)
    return restored


def _attach_ended(delivery: Delivery, port: Port) -> Consumer:
    """Attach a connection that ended before the channel was built: its last acks and its `Detach`
    are still to come, and end its leases as ever. It gets no pushes and no pings."""
    consumer = delivery.attach(port, Attach(keep_alive_s=inf))
    delivery.stop(consumer)
    return consumer
