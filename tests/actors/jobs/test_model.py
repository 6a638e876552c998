"""Random lives of a channel of jobs against a model: none is lost, doubled, shared or mistimed."""

from __future__ import annotations

from collections.abc import Collection
from math import ceil, inf
from random import Random

import pytest

from millpond.actors.channels.settings import ChannelSettings
from millpond.actors.jobs import messages as m
from millpond.actors.messages import Mode, NackReason
from tests.actors.channels.harness import ChannelHarness, Peer, queue
from tests.actors.jobs.harness import asked, counts, put, rows, worker

STEPS = 120
NAMES = (b"", b"", b"", b"alice", b"bob")
TTLS = (0, 0, 60, 400, 86_400)
EXPIRED, REJECTED = "expired", "no"


class Life:
    """Each job is told by its data. `live` are ids, `due` when each may be pushed at the earliest,
    `ends_at` when it expires, `dead` are reasons; `held` is who works on what."""

    def __init__(self, seed: int, settings: ChannelSettings) -> None:
        self.rng = Random(seed)
        self.harness = ChannelHarness(settings, seed=seed)
        self.ends: list[Peer] = []
        self.live: dict[bytes, int] = {}
        self.due: dict[bytes, float] = {}
        self.ends_at: dict[bytes, float] = {}
        self.names: dict[bytes, bytes] = {}
        self.dead: dict[bytes, str] = {}
        self.held: dict[bytes, Peer] = {}
        self.serial = 0
        self.pushed_from = self.harness.now
        self.connect()

    def connect(self) -> None:
        self.held.clear()
        self.producer = self.harness.producer(mode=Mode.QUEUE)
        self.ends = [worker(self.harness, window=2, mode=Mode.QUEUE) for _ in range(2)]

    def step(self) -> None:
        deeds = [self.put, self.put, self.put, self.finish, self.finish, self.later, self.reject]
        deeds += [self.give_back, self.hurry, self.cancel, self.retry_dead, self.purge, self.wait]
        deeds += [self.wait, self.restart, self.crash, self.leave]
        self.rng.choice(deeds)()
        self.harness.run_due()
        self.look()

    def look(self) -> None:
        """The pushed messages, and a check that the channel lists all that exist."""
        for end in self.ends:
            for message in end.pushed():
                assert self.due[message.data] <= self.harness.now + 1e-6, "too early"
                assert self.ends_at[message.data] > self.pushed_from, "too late"
                assert self.live[message.data] == message.id
                holder = self.held.get(message.data)
                assert holder in (None, end), "two have it"
                self.held[message.data] = end
        for data in [each for each in self.live if self.ends_at[each] <= self.harness.now]:
            self.end(data)
            self.dead[data] = EXPIRED
        self.pushed_from = self.harness.now
        page = rows(self.producer)
        assert not page.more
        living = [row for row in page.rows if row.state is not m.JobState.DEAD]
        assert {row.data: row.id for row in living} == self.live and len(living) == len(self.live)
        dead = [row for row in page.rows if row.state is m.JobState.DEAD]
        assert {row.data: row.reason for row in dead} == self.dead and len(dead) == len(self.dead)
        assert {row.data for row in living if row.state is m.JobState.LEASED} == set(self.held)
        found = counts(self.producer)
        assert found.ready + found.delayed + found.leased == len(living)
        assert (found.leased, found.dead) == (len(self.held), len(self.dead))
        for row in living:
            assert row.state is not m.JobState.DELAYED or row.due > self.harness.now

    def some(self, data: Collection[bytes]) -> bytes | None:
        return self.rng.choice(sorted(data)) if data else None

    def put(self) -> None:
        self.serial += 1
        data, name = b"%d" % self.serial, self.rng.choice(NAMES)
        due_in, ttl = self.rng.choice((0, 0, 0, 20, 300)), self.rng.choice(TTLS)
        kept = put(self.producer, data, ttl=ttl, due_in=due_in, unique=name)
        holder = next((each for each, of in self.names.items() if of == name), None)
        assert kept.existing == (holder is not None and name != b"")
        if kept.existing:
            assert holder is not None and kept.id == self.live[holder]
            return
        self.live[data], self.due[data] = kept.id, self.harness.now + due_in
        self.ends_at[data] = self.harness.now + due_in + ttl if ttl else inf
        if name:
            self.names[data] = name

    def end(self, data: bytes) -> None:
        del self.live[data]
        self.held.pop(data, None)
        self.names.pop(data, None)

    def finish(self) -> None:
        data = self.some(self.held)
        if data is not None:
            self.held[data].ack(self.live[data])
            self.end(data)

    def later(self) -> None:
        data = self.some(self.held)
        if data is not None:
            delay = self.rng.choice((1, 40))
            self.held.pop(data).nack(self.live[data], NackReason.LATER, delay * 1000)
            self.due[data] = self.harness.now + delay

    def reject(self) -> None:
        data = self.some(self.held)
        if data is not None:
            asked(self.held[data], m.RejectJob, self.live[data], REJECTED)
            self.end(data)
            self.dead[data] = REJECTED

    def give_back(self) -> None:
        data = self.some(self.held)
        if data is not None:
            end = self.held.pop(data)
            assert asked(end, m.RetryJob, self.live[data]).state is m.JobState.LEASED
            self.look()
            if self.rng.random() < 0.7:
                end.credit(1)

    def hurry(self) -> None:
        data = self.some({each for each in self.live if each not in self.held})
        if data is not None:
            asked(self.producer, m.RetryJob, self.live[data])
            self.due[data] = 0.0

    def cancel(self) -> None:
        data = self.some(self.live)
        if data is not None:
            asked(self.producer, m.CancelJob, self.live[data])
            self.end(data)

    def retry_dead(self) -> None:
        before = dict(self.live)
        dead_letter = {row.data: row.id for row in rows(self.producer, m.JobState.DEAD).rows}
        wanted = {each for each in sorted(dead_letter) if self.rng.random() < 0.6}
        if wanted:
            ids = tuple(dead_letter[each] for each in sorted(wanted))
            assert asked(self.producer, m.RetryDeadLetters, ids).count == len(wanted)
        for row in rows(self.producer).rows:
            if row.state is not m.JobState.DEAD and row.data not in before:
                assert row.data in wanted
                self.live[row.data], self.due[row.data] = row.id, 0.0
                self.ends_at[row.data] = inf
        for data in wanted:
            del self.dead[data]
        assert wanted <= set(self.live)

    def purge(self) -> None:
        if self.rng.random() < 0.2:
            assert asked(self.producer, m.PurgeDeadLetters, None).count == len(self.dead)
            self.dead.clear()

    def wait(self) -> None:
        """Leases are touched before, so that none ends meanwhile."""
        for data, end in self.held.items():
            end.touch(self.live[data], 3_600_000)
        self.harness.advance(self.rng.choice((0.5, 10, 30, 310)))

    def leave(self) -> None:
        at = self.rng.randrange(2)
        gone = self.ends[at]
        gone.leave()
        self.held = {data: end for data, end in self.held.items() if end is not gone}
        self.ends[at] = worker(self.harness, window=2, mode=Mode.QUEUE)

    def restart(self) -> None:
        if self.rng.random() < 0.5:
            self.harness = self.harness.restarted()
            self.connect()

    def crash(self) -> None:
        """A crash of the channel: subscribers stay, leases do not; it restarts after a delay."""
        if self.rng.random() < 0.3:
            self.harness.crash()
            self.held.clear()
            self.harness.advance(ceil(11))


@pytest.mark.parametrize("seed", range(30))
def test_no_job_is_lost_doubled_early_late_or_shared(seed: int) -> None:
    life = Life(seed, queue(ack_timeout_s=3600.0, attempts_max=1000))
    for _ in range(STEPS):
        life.step()
