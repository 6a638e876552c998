"""Mistakes that a programmer could make in the product, each as a text and what it is instead."""

from __future__ import annotations

from typing import Literal, NamedTuple

Area = Literal[
    "acks",
    "leases",
    "ttl",
    "journal",
    "reconnect",
    "tees",
    "flows",
    "streams",
    "subscriptions",
    "limits",
]


class Mutant(NamedTuple):
    """`text` is once in `file`."""

    name: str
    area: Area
    file: str
    text: str
    instead: str


MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "one running job more",
        "limits",
        "actors/channels/queue_limits.py",
        "        if settings.concurrency and self.running >= settings.concurrency:",
        "        if settings.concurrency and self.running > settings.concurrency:",
    ),
    Mutant(
        "one running job of a key more",
        "limits",
        "actors/channels/queue_limits.py",
        "        if most and self._running_by_key.get(key, 0) >= most:",
        "        if most and self._running_by_key.get(key, 0) > most:",
    ),
    Mutant(
        "no token taken",
        "limits",
        "actors/channels/queue_limits.py",
        "            self._buckets.take(settings.rate, now)\n",
        "            pass\n",
    ),
    Mutant(
        "paused queue pushes",
        "limits",
        "actors/channels/delivery_modes.py",
        "        if self.is_stopped or self.is_paused:",
        "        if self.is_stopped:",
    ),
    Mutant(
        "ended job not counted down",
        "limits",
        "actors/channels/queue_limits.py",
        "        self.running -= 1\n        key = self._keys.pop",
        "        key = self._keys.pop",
    ),
    Mutant(
        "ack not written",
        "acks",
        "actors/channels/channel.py",
        "        effects.changes.append(MessageRemoved(message_id, row.key, retained, size))\n",
        "",
    ),
    Mutant(
        "ack ends the lease alone",
        "acks",
        "actors/channels/channel.py",
        (
            "        if self.delivery.ack(consumer, message_id):\n"
            "            self.remove(message_id, effects)"
        ),
        (
            "        self.delivery.ack(consumer, message_id)\n"
            "        self.delivery.end_leases(message_id)"
        ),
    ),
    Mutant(
        "last but one ack ends it",
        "acks",
        "actors/channels/delivery_modes.py",
        "        return self._waiting[message_id] == 0",
        "        return self._waiting[message_id] <= 1",
    ),
    Mutant(
        "ack of a subscriber not written",
        "acks",
        "actors/channels/delivery_modes.py",
        "        self._subscribers.store_ack(subscription, row.id)\n",
        "",
    ),
    Mutant(
        "floor passes what is not acked",
        "acks",
        "actors/channels/delivery_modes.py",
        "            if row.id not in acked and row.sender != subscription.number:",
        "            if row.id not in acked and row.sender == subscription.number:",
    ),
    Mutant(
        "nack taken for a rejection",
        "acks",
        "actors/channels/channel.py",
        "        if nack.reason not in (NackReason.REJECT, NackReason.CANNOT_DECRYPT):",
        (
            "        if nack.reason not in ("
            "NackReason.REJECT, NackReason.CANNOT_DECRYPT, NackReason.LATER):"
        ),
    ),
    Mutant(
        "waiting push acked",
        "acks",
        "node/client/inbox.py",
        "        if not msg.data or msg.id in self._settled:",
        "        if not msg.data or msg.id in self._settled or msg.id in self._waiting:",
    ),
    Mutant(
        "ack behind a refused write",
        "acks",
        "actors/store/group_commit.py",
        "                return id_ not in self._ids[entry]",
        "                return False",
    ),
    Mutant(
        "settled not remembered",
        "acks",
        "node/client/inbox.py",
        "        self._settled[message_id] = None\n",
        "",
    ),
    Mutant(
        "leases forgotten where a write fails",
        "leases",
        "actors/runtime/cell.py",
        "            self._handover = observer.hand_over(lost)",
        "            self._handover = None",
    ),
    Mutant(
        "touch not noted",
        "leases",
        "actors/channels/delivery.py",
        "        consumer.leases[message_id] = _ended_at(lease, until)\n",
        "",
    ),
    Mutant(
        "lease ends a second early",
        "leases",
        "actors/channels/delivery.py",
        "                if lease.until > now:",
        "                if lease.until > now + 1.0:",
    ),
    Mutant(
        "taken not noted",
        "leases",
        "actors/channels/delivery_modes.py",
        (
            "                else:\n"
            "                    self._taken.add(row.id)\n"
            "                return row"
        ),
        "                return row",
    ),
    Mutant(
        "lost connection keeps its messages",
        "leases",
        "actors/channels/delivery.py",
        (
            "                failed[message_id] = self._count(message_id, lease.attempt)\n"
            "            self._give_back(consumer, message_id)\n"
        ),
        "                failed[message_id] = self._count(message_id, lease.attempt)\n",
    ),
    Mutant(
        "one attempt more",
        "leases",
        "actors/channels/delivery_modes.py",
        "        return self.attempts.get(message_id, 0) >= self._settings.attempts_max",
        "        return self.attempts.get(message_id, 0) > self._settings.attempts_max",
    ),
    Mutant(
        "attempts not written",
        "leases",
        "actors/channels/channel.py",
        "            effects.changes.append(AttemptsSet(message_id, attempts))\n",
        "",
    ),
    Mutant(
        "leases do not grow",
        "leases",
        "actors/channels/delivery.py",
        "        if attempt > 1:\n",
        "        if attempt > 20:\n",
    ),
    Mutant(
        "rest not kept",
        "leases",
        "actors/channels/delivery.py",
        "            delay_s = min(nack.delay_ms / 1000, NACK_DELAY_S_MAX)",
        "            delay_s = min(nack.delay_ms / 1_000_000, NACK_DELAY_S_MAX)",
    ),
    Mutant(
        "credit back twice",
        "leases",
        "actors/channels/delivery.py",
        ("        if credit:\n            consumer.credit += 1\n"),
        ("        if credit:\n            consumer.credit += 2\n"),
    ),
    Mutant(
        "lost connection is no attempt",
        "leases",
        "actors/channels/delivery_modes.py",
        ("    def _keeps_attempt(self) -> bool:\n        return True"),
        ("    def _keeps_attempt(self) -> bool:\n        return False"),
    ),
    Mutant(
        "get after the deadline",
        "ttl",
        "actors/channels/buffer.py",
        "        return row if row is not None and row.expires_at > now else None",
        "        return row",
    ),
    Mutant(
        "push after the deadline",
        "ttl",
        "actors/channels/buffer.py",
        ("            if row is not None and row.expires_at > now:\n                return row"),
        ("            if row is not None:\n                return row"),
    ),
    Mutant(
        "list after the deadline",
        "ttl",
        "actors/channels/buffer.py",
        ("            if row is not None and row.expires_at > now:\n                yield row.id"),
        ("            if row is not None:\n                yield row.id"),
    ),
    Mutant(
        "a second more",
        "ttl",
        "actors/channels/publish.py",
        "                expires_at = since + ttl\n",
        "                expires_at = since + ttl + 1\n",
    ),
    Mutant(
        "a second less",
        "ttl",
        "actors/channels/publish.py",
        "                expires_at = since + ttl\n",
        "                expires_at = since + ttl - 1\n",
    ),
    Mutant(
        "default for all",
        "ttl",
        "actors/channels/publish.py",
        "min(requested, self._settings.ttl_max) if requested else",
        "min(requested, self._settings.ttl_max) if requested < 0 else",
    ),
    Mutant(
        "expired job removed",
        "ttl",
        "actors/channels/channel.py",
        "            makes_dead_letters = self.delivery.mode is Mode.QUEUE\n",
        "            makes_dead_letters = False\n",
    ),
    Mutant(
        "job without a ttl expires",
        "ttl",
        "actors/channels/publish.py",
        "            self._ttl_default = settings.ttl_queue\n",
        "            self._ttl_default = settings.ttl_default\n",
    ),
    Mutant(
        "sweep takes too much",
        "ttl",
        "actors/channels/buffer.py",
        "            if row.expires_at <= now:",
        "            if row.expires_at <= now + 2:",
    ),
    Mutant(
        "sweep skips",
        "ttl",
        "actors/channels/buffer.py",
        "        end = min(self._sweep_at + SWEEP_SLICE, len(self._order))",
        "        end = min(self._sweep_at + SWEEP_SLICE, len(self._order)) - 1",
    ),
    Mutant(
        "no sync",
        "journal",
        "actors/store/journal/writer.py",
        "self._sync(end) if needs_sync else",
        "self._sync(end) if now >= self._unsynced_at + self._retry_s else",
    ),
    Mutant(
        "disk taken for os",
        "journal",
        "actors/store/durable.py",
        ("        if entry.durability >= Durability.DISK:\n            group.needs_sync = True"),
        ("        if entry.durability is Durability.OS:\n            group.needs_sync = True"),
    ),
    Mutant(
        "torn tail too long",
        "journal",
        "actors/store/journal/reader.py",
        "        found.records = [each for each in found.records if each[1].lsn <= gap.after_lsn]",
        "        found.records = [each for each in found.records if each[1].lsn < gap.after_lsn]",
    ),
    Mutant(
        "sync put off by groups",
        "journal",
        "actors/store/journal/writer.py",
        "            needs_sync = True  # that",
        "            pass  # that",
    ),
    Mutant(
        "segment's name not synced",
        "journal",
        "actors/store/journal/writer.py",
        "        self._disk.sync_folder(self._folder)\n        self._crc = self",
        "        self._crc = self",
    ),
    Mutant(
        "header not synced",
        "journal",
        "actors/store/journal/writer.py",
        "        file.write(header, 0)\n        file.sync()\n",
        "        file.write(header, 0)\n",
    ),
    Mutant(
        "rotation without sync",
        "journal",
        "actors/store/journal/writer.py",
        "        self._sync(self._offset)\n        if self._is_listed and self._file",
        "        if self._is_listed and self._file",
    ),
    Mutant(
        "found records not synced",
        "journal",
        "actors/store/recovery.py",
        ("                file.sync()\n            finally:"),
        ("                pass\n            finally:"),
    ),
    Mutant(
        "key goes with its message",
        "journal",
        "actors/channels/channel.py",
        "MessageRemoved(message_id, row.key, retained, size)",
        "MessageRemoved(message_id, row.key, None, size)",
    ),
    Mutant(
        "carry replayed from its end",
        "journal",
        "actors/store/recovery.py",
        "        base = entry.lsn if rewritten is None else max(entry.lsn, rewritten[1].as_of)",
        "        base = entry.lsn if rewritten is None else max(entry.lsn, rewritten[1].lsn)",
    ),
    Mutant(
        "cut not noted",
        "journal",
        "actors/store/journal/writer.py",
        "            self._cuts[self._number] = Cut(self._offset, self._synced_offset)\n",
        "            self._cuts.pop(self._number, None)\n",
    ),
    Mutant(
        "puts not sent again",
        "reconnect",
        "node/client/link.py",
        (
            "        for packet in self.inflight.packets(self._live_at, self.packet_max):\n"
            "            session.send(packet)\n"
        ),
        "",
    ),
    Mutant(
        "puts sent in reverse",
        "reconnect",
        "node/client/in_flight.py",
        "        for key, put in list(self._puts.items()):",
        "        for key, put in list(self._puts.items())[::-1]:",
    ),
    Mutant(
        "inbox not emptied",
        "reconnect",
        "node/client/link.py",
        "                self.inbox.lost()\n",
        "",
    ),
    Mutant(
        "credit not given again",
        "reconnect",
        "node/client/link.py",
        "            session.send(encode(Credit(min(CREDIT_MAX, self._credit - start))))",
        "            pass",
    ),
    Mutant(
        "acks not kept",
        "reconnect",
        "node/client/link.py",
        "            self.inbox.acks.append(message_id)",
        "            pass",
    ),
    Mutant(
        "backoff without end",
        "reconnect",
        "node/client/retry.py",
        "        ceiling_s = min(self._max_s,",
        "        ceiling_s = max(self._max_s,",
    ),
    Mutant(
        "subscriber begins at the end",
        "reconnect",
        "actors/channels/delivery_modes.py",
        "        consumer.starts_after = consumer.subscription.floor",
        "        consumer.starts_after = self._buffer.last_id",
    ),
    Mutant(
        "touch waits for ever",
        "reconnect",
        "node/client/in_flight.py",
        '        self._fail_touches(LeaseLost("the connection that held the lease ended"))\n',
        "",
    ),
    Mutant(
        "goodbye is for good",
        "reconnect",
        "node/client/link.py",
        "                if self._is_final(give_up_at):",
        "                if session.closed_by_node or self._is_final(give_up_at):",
    ),
    Mutant(
        "connection stays",
        "reconnect",
        "transports/p2p/connection.py",
        (
            "        self._node.disarm(self)\n"
            "        self._leave_channel()\n"
            "        self._node.unregister(self)"
        ),
        ("        self._node.disarm(self)\n        self._node.unregister(self)"),
    ),
    Mutant(
        "age counts from the timestamp",
        "streams",
        "actors/streams/chunks.py",
        "    if arrived_ms is not None:\n        return arrived_ms\n",
        "    return chunk.last_timestamp\n",
    ),
    Mutant(
        "trim without grace",
        "streams",
        "actors/streams/stream.py",
        "        if not self._limits.trim_grace_s:\n",
        "        if True:\n",
    ),
    Mutant(
        "a lease is given twice",
        "subscriptions",
        "actors/subscriptions/subscription.py",
        "        if wake.phase is WakePhase.CLAIMED:\n            return s.SubscriptionRefused(\n",
        "        if False:\n            return s.SubscriptionRefused(\n",
    ),
    Mutant(
        "an ack of a worker is not stored",
        "subscriptions",
        "actors/subscriptions/subscription.py",
        "                effects.changes.append(self._links.change(link, acked=position))\n",
        "                self._links.change(link, acked=position)\n",
    ),
    Mutant(
        "a wake that is not stored",
        "subscriptions",
        "actors/subscriptions/subscription.py",
        "            effects.changes.append(self._wake.change())\n",
        "            pass\n",
    ),
    Mutant(
        "a lease that never runs out",
        "subscriptions",
        "actors/subscriptions/subscription.py",
        "        self._lost_holder = wake.holder\n        self._end_wake(now)\n",
        "        self._lost_holder = wake.holder\n",
    ),
    Mutant(
        "jump counts at once",
        "ttl",
        "node/clock.py",
        "        if ahead_s + self._trusted_s <= JUMP_S_MAX:\n",
        "        if True:\n",
    ),
    Mutant(
        "time of the last run forgotten",
        "ttl",
        "node/clock.py",
        "        self._offset = line - self._monotonic()\n",
        "",
    ),
)
