"""Leases where the disk hangs or fails: of pushes that wait in line, and in a channel built anew.

A push waits in line behind the commits of its channel. Until it leaves, nobody has the message:
its lease does not end, and begins when it leaves. Nor is it sent if the message is gone by then.
When a commit fails, the channel is built anew from what is kept. Leases are kept nowhere, so those
of a queue are handed over: nobody else gets a message that somebody has (PS-02).
"""

from __future__ import annotations

from collections.abc import Iterable

from millpond.actors.channels.buffer import Buffer
from millpond.actors.channels.consumer import Consumer, Lease
from millpond.actors.channels.delivery import Delivery
from millpond.actors.channels.delivery_modes import SharedBacklog
from millpond.actors.messages import Mode, Msg, Port

HeldLease = tuple[Port, int, Lease]
"""Who has which message, and how."""


def lease_of(delivery: Delivery, port: Port, push: Msg) -> tuple[Consumer, Lease] | None:
    """The lease that a push was made under; None if it is over."""
    consumer = delivery.consumers.get(port)
    lease = None if consumer is None else consumer.leases.get(push.id)
    if consumer is None or lease is None or lease.attempt != push.attempt:
        return None
    return consumer, lease


def postpone(delivery: Delivery, pushes: Iterable[tuple[Port, Msg]], now: float) -> None:
    """The leases of these pushes, which have not left, do not end now."""
    if now < delivery.leases_at:
        return
    for port, push in pushes:
        found = lease_of(delivery, port, push)
        if found is not None and found[1].until <= now:
            delivery.restart_lease(found[0], push.id, now)


def recall(delivery: Delivery, pushes: Iterable[tuple[Port, Msg]]) -> None:
    """These will not leave: whoever they were for has not begun on anything."""
    for port, push in pushes:
        found = lease_of(delivery, port, push)
        if found is not None:
            consumer, lease = found
            consumer.leases[push.id] = Lease(lease.until, lease.attempt, lease.size, False)


def restart(delivery: Delivery, pushes: Iterable[tuple[Port, Msg]], now: float) -> None:
    """These pushes, which were late, have left: their leases begin."""
    for port, push in pushes:
        found = lease_of(delivery, port, push)
        if found is not None:
            delivery.restart_lease(found[0], push.id, now)


def loans_of(delivery: Delivery, unsent: Iterable[tuple[Port, Msg]]) -> list[HeldLease]:
    """The leases of a queue, without those of pushes that will not leave."""
    if delivery.mode is not Mode.QUEUE:
        return []
    never = {(port, push.id, push.attempt) for port, push in unsent}
    return [
        (consumer.port, message_id, lease)
        for consumer in delivery.consumers.values()
        for message_id, lease in consumer.leases.items()
        if (consumer.port, message_id, lease.attempt) not in never
    ]


def lend_again(delivery: Delivery, loans: Iterable[HeldLease], buffer: Buffer) -> list[int]:
    """Who had a message has it, in a channel that was built anew and has handed out nothing. Gives
    the messages that somebody has."""
    lent = []
    for port, message_id, lease in loans:
        consumer = delivery.consumers.get(port)
        if consumer is None or message_id not in buffer:
            continue
        if isinstance(consumer.backlog, SharedBacklog):
            consumer.backlog.take(message_id)
            consumer.leases[message_id] = lease
            consumer.leased_bytes += lease.size
            consumer.credit -= 1
            delivery.leases_at = min(delivery.leases_at, lease.until)
            lent.append(message_id)
    return lent
