"""A stream against a plain list: any history, in memory and on a disk, over restarts.

Clients stamp as they like, far in the past and the future; records go by their arrival. Followers
wait at the tail while appends with command records, requests and the clock trim what is before and
within them.
"""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from millpond.actors.errors import Code
from millpond.actors.store.changes import Position
from millpond.actors.streams import messages as m
from millpond.actors.streams.settings import StreamLimits
from tests.actors.recording_port import RecordingPort
from tests.actors.streams.harness import StreamHarness, at_timestamp, read_of, rows_of

bodies = st.lists(st.binary(max_size=40), min_size=1, max_size=6)
places = st.floats(0, 1)
GRACE_S = 10.0
DAY_MS = 86_400_000
stamps = st.one_of(st.integers(-5000, 5000), st.sampled_from([-9 * DAY_MS, 9 * DAY_MS]))
"""From now, in milliseconds."""
TRIM, FENCE = (b"", b"trim"), (b"", b"fence")


@dataclass
class Plain:
    """A plain model of a stream."""

    rows: list[tuple[int, int, Position, bytes]] = field(default_factory=list)
    arrivals_ms: list[int] = field(default_factory=list)
    later: list[tuple[float, int]] = field(default_factory=list)
    """Trims by command records: the ends of their graces, and their points."""
    trim_point: int = 0
    last_id: Position | None = None
    last_timestamp: int = 0

    @property
    def tail(self) -> int:
        return len(self.rows)

    @property
    def kept(self) -> list[tuple[int, int, Position, bytes]]:
        return self.rows[self.trim_point :]

    def trim(self, point: int) -> None:
        self.trim_point = max(self.trim_point, min(point, self.tail))

    def expire(self, floor_ms: int) -> None:
        while self.kept and self.arrivals_ms[self.trim_point] <= floor_ms:
            self.trim_point += 1

    def end_grace(self, now: float) -> None:
        for due_at, point in self.later:
            if due_at <= now:
                self.trim(point)
        self.later = [each for each in self.later if each[0] > now]


class Streams(RuleBasedStateMachine):
    """One stream under test; what it gives is what the list gives."""

    folder: Path | None = None
    age_s: int | None = None

    @initialize(
        is_durable=st.booleans(),
        age_s=st.one_of(st.none(), st.integers(5, 60)),
        first=st.none() | stamps,
    )
    def begin(self, is_durable: bool, age_s: int | None, first: int | None) -> None:
        self.folder = Path(tempfile.mkdtemp()) if is_durable else None
        self.age_s = age_s
        self.streams = StreamHarness(self.folder, StreamLimits(trim_grace_s=GRACE_S))
        self.make()
        if first is not None:
            self.append_with_ids([b"first"], None, first, all_stamped=True)

    def make(self) -> None:
        self.streams.create(age_s=self.age_s)
        self.plain = Plain()
        self.followers: list[tuple[RecordingPort, int]] = []

    def teardown(self) -> None:
        if hasattr(self, "streams"):
            self.streams.close()
        if self.folder is not None:
            shutil.rmtree(self.folder)

    @rule(batches=st.lists(bodies, min_size=1, max_size=4))
    def append(self, batches: list[list[bytes]]) -> None:
        replies = self.streams.ask(*(m.Append(at, batch) for at, batch in enumerate(batches)))
        for batch, reply in zip(batches, replies, strict=True):
            self._record(batch, reply, None)

    @rule(batch=bodies, ahead_ms=st.none() | stamps, late_ms=stamps, all_stamped=st.booleans())
    def append_with_ids(
        self, batch: list[bytes], ahead_ms: int | None, late_ms: int, *, all_stamped: bool
    ) -> None:
        """IDs and timestamps of the client's."""
        ms = None if ahead_ms is None else self.streams.now_ms + ahead_ms
        stamp = self.streams.now_ms + late_ms
        given: list[int | None] = [stamp, *[stamp if all_stamped else None] * (len(batch) - 1)]
        (reply,) = self.streams.ask(m.Append(0, batch, ms=ms, timestamps=given))
        last = self.plain.last_id
        if last is not None and ms is not None and ms < last.ms:
            assert isinstance(reply, m.StreamFailed) and reply.code is Code.NON_MONOTONIC_ID
        else:
            self._record(batch, reply, ms, given)

    def _record(
        self,
        batch: list[bytes],
        reply: object,
        ms: int | None,
        given: list[int | None] | None = None,
    ) -> None:
        plain, now_ms = self.plain, self.streams.now_ms
        wanted = now_ms if ms is None else ms
        last = plain.last_id
        at = Position(wanted, 0) if last is None or wanted > last.ms else None
        if at is None:
            assert last is not None
            at = Position(last.ms, last.seq + 1)
        assert isinstance(reply, m.Appended)
        assert (reply.first, reply.count) == (plain.tail, len(batch))
        for index, body in enumerate(batch):
            arrival = None if given is None else given[index]
            plain.last_timestamp = max(plain.last_timestamp, now_ms if arrival is None else arrival)
            plain.last_id = Position(at.ms, at.seq + index)
            plain.rows.append((plain.tail, plain.last_timestamp, plain.last_id, body))
            plain.arrivals_ms.append(now_ms)
        assert reply.id == plain.last_id

    @rule()
    def follow(self) -> None:
        """A read waits at the tail."""
        port = self.streams.port()
        wait = read_of(self.plain.tail, wait_until=self.streams.now + 1e6)
        self.streams.say(port, wait)
        self.streams.settle()
        assert port.take() == []
        self.followers.append((port, self.plain.tail))

    @rule(
        batches=st.lists(st.tuples(bodies, places, st.booleans()), min_size=1, max_size=3),
        then_trims=st.booleans(),
    )
    def append_with_commands(
        self, batches: list[tuple[list[bytes], float, bool]], *, then_trims: bool
    ) -> None:
        """Records, a trim, a fence in one append; then maybe a trim by request, in one batch."""
        requests: list[m.StreamRequest] = []
        appends: list[list[bytes]] = []
        tail = self.plain.tail
        for bodies, place, is_far in batches:
            point = 2**53 - 1 if is_far else int((tail + len(bodies)) * place)
            appends.append([*bodies, point.to_bytes(8), b"end"])
            headers: list[m.Headers] = [*([] for _ in bodies), [TRIM], [FENCE]]
            requests.append(m.Append(len(requests), appends[-1], headers=headers))
            tail += len(bodies) + 2
        if then_trims:
            requests.append(m.Trim(len(requests), tail - 1))
        replies = self.streams.ask(*requests)
        for batch, reply in zip(appends, replies, strict=False):
            self._record(batch, reply, None)
            point = min(int.from_bytes(batch[-2]), self.plain.tail - 1)
            self.plain.later.append((self.streams.now + GRACE_S, point))
        if then_trims:
            self.plain.trim(tail - 1)

    @rule(place=places)
    def trim_by_sequence(self, place: float) -> None:
        point = int(self.plain.tail * place)
        self.streams.one(m.Trim(0, point), m.Done)
        self.plain.trim(point)

    @rule(place=places)
    def trim_by_id(self, place: float) -> None:
        if self.plain.rows:
            row = self.plain.rows[int((self.plain.tail - 1) * place)]
            self.streams.one(m.Trim(0, row[2]), m.Done)
            self.plain.trim(row[0])

    @rule()
    def trim_all(self) -> None:
        self.streams.one(m.Trim(0, 2**64 - 1), m.Done)
        self.plain.trim_point = self.plain.tail

    @rule()
    def delete(self) -> None:
        self.streams.one(m.Delete(0), m.Done)
        self.make()

    @rule()
    def restart(self) -> None:
        """The end of each grace, and of what waits."""
        if self.folder is not None:
            self.streams.restart()
            self.plain.end_grace(float("inf"))
            self.followers.clear()

    @rule(seconds=st.integers(1, 70))
    def pass_time(self, seconds: int) -> None:
        self.streams.advance(seconds)

    @rule(seconds=st.integers(1, 70))
    def pass_time_alone(self, seconds: int) -> None:
        """Nothing that is due happens before the next request."""
        self.streams.clock.now += seconds

    @rule(place=places, count=st.integers(1, 20), bytes_max=st.integers(0, 200))
    def read(self, place: float, count: int, bytes_max: int) -> None:
        sequence = int((self.plain.tail + 1) * place)
        self._expire()
        limits = {"count": count, "bytes_max": bytes_max}
        starts = [(sequence, sequence)]
        if sequence < self.plain.tail:
            _, timestamp, position, _ = self.plain.rows[sequence]
            first = next(row[0] for row in self.plain.rows if row[1] >= timestamp)
            starts += [(position, sequence), (at_timestamp(timestamp), first)]
        for start, first in starts:
            expected = self.plain.rows[max(first, self.plain.trim_point) :]
            found = list(rows_of(self.streams.one(read_of(start, **limits), m.Records)))
            assert found == expected[: len(found)]
            assert len(found) <= count and bool(found) is bool(expected)
            if len(found) > 1:
                assert sum(len(row[3]) for row in found) <= bytes_max

    def _expire(self) -> None:
        self.plain.end_grace(self.streams.now)
        if self.age_s is not None:
            self.plain.expire(self.streams.now_ms - self.age_s * 1000)

    @invariant()
    def followers_get_all(self) -> None:
        """A waiting reader has every record of the batch, also trimmed ones; no other reader has a
        reply."""
        for port, tail in getattr(self, "followers", ()):
            replies = port.take()
            assert bool(replies) is (self.plain.tail > tail)
            for reply in replies:
                assert isinstance(reply, m.Records)
                assert list(rows_of(reply)) == self.plain.rows[tail:]
        if hasattr(self, "plain"):
            waits = self.plain.tail
            self.followers = [each for each in self.followers if each[1] == waits]

    @invariant()
    def all_of_it(self) -> None:
        if hasattr(self, "plain"):
            self._expire()
            assert list(rows_of(self.streams.read())) == self.plain.kept
            info = self.streams.describe().info
            assert info.tail == self.plain.tail
            assert info.trim_point <= self.plain.trim_point
            assert info.bytes_kept >= 0 and (info.bytes_kept == 0 or self.plain.rows)


Streams.TestCase.settings = settings(max_examples=100, stateful_step_count=25, deadline=None)
TestStreams = Streams.TestCase
