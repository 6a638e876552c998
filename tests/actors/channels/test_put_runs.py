"""PUTs of one read: `Publisher.put_run` does with all of them what `put` does with each."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from millpond.actors.channels.buffer import Buffer
from millpond.actors.channels.context import ChannelContext
from millpond.actors.channels.idempotency import IdempotencyKeys
from millpond.actors.channels.publish import Publisher
from millpond.actors.channels.settings import ChannelSettings, EmptyPolicy, NodeLimits
from millpond.actors.clock_jump import ClockJump
from millpond.actors.ids import EPOCH_MS, IdSource
from millpond.actors.messages import Ack, CellMessage, Mode, Put
from millpond.actors.runtime.cell import Effects
from millpond.actors.store.interface import Health, Usage

START_S = EPOCH_MS / 1000 + 1.7e8
SOURCE = 3

puts = st.builds(
    Put,
    st.integers(0, 12),
    st.sampled_from((0, 1, 60, 600, 604_800, 604_801, 2**32 - 1)),
    st.sampled_from((b"", b"a", b"bb", b"cccc", b"ddddd")),
)
messages = st.lists(puts | st.just(Ack(1)), max_size=12)
batches = st.lists(
    st.tuples(
        messages,
        st.sampled_from((0.0, 0.0005, 1.0, 700.0, 2e6)),
        st.booleans() | st.just(True),
        st.integers(0, 6),
    ),
    min_size=1,
    max_size=8,
)
channel_settings = st.builds(
    ChannelSettings,
    ttl_strict=st.just(False) | st.booleans(),
    empty=st.sampled_from(EmptyPolicy),
    data_bytes_max=st.just(4),
    messages_max=st.sampled_from((1, 3, 8, 100)),
    bytes_max=st.sampled_from((5, 12, 1000)),
    keys_max=st.sampled_from((2, 5, 100)),
)
node_limits = st.builds(
    NodeLimits,
    messages_max=st.sampled_from((4, 10, 1000)),
    bytes_max=st.sampled_from((9, 20, 1000)),
    keys_max=st.sampled_from((3, 1000)),
)


class Side:
    """A publisher with all that it changes. It is the sweeper as well: expired messages go."""

    def __init__(self, settings: ChannelSettings, limits: NodeLimits, mode: Mode) -> None:
        self.usage, self.health, self.jump = Usage(), Health(), ClockJump()
        self.context = ChannelContext(
            IdSource(1), Random(1), self.usage, limits, health=self.health, jump=self.jump
        )
        self.buffer, self.keys = Buffer(), IdempotencyKeys({})
        self.publisher = Publisher(self.buffer, self.keys, settings, self.context, mode)

    def sweep(self, now: float, effects: Effects) -> None:
        for row in self.buffer.sweep(now):
            removed = self.buffer.remove(row.id)
            assert removed is row
            self.publisher.quota.release(len(row.data))
            self.keys.retain_digest(row)

    def begin(self, elsewhere: int) -> None:
        """A batch begins; other channels have `elsewhere` messages of a byte."""
        self.publisher.quota.is_measured = False
        self.publisher.added.clear()
        self.usage.messages = elsewhere + len(self.buffer)
        self.usage.bytes = elsewhere + self.buffer.bytes
        self.usage.keys = elsewhere

    def together(self, batch: list[CellMessage], now: float) -> tuple[Effects, int]:
        effects, at = Effects(), 0
        while at < len(batch) and type(batch[at]) is Put:
            at = self.publisher.put_run(batch, at, SOURCE, now, effects, self)
        return effects, at

    def one_by_one(self, batch: list[CellMessage], now: float) -> tuple[Effects, int]:
        effects, at = Effects(), 0
        for message in batch:
            if not isinstance(message, Put):
                break
            reply = self.publisher.put(message, SOURCE, now, effects, self)
            if reply is not None:
                effects.batch_replies.append(reply)
            at += 1
        return effects, at

    def state(self, now: float) -> list[object]:
        buffer, keys, quota = self.buffer, self.keys, self.publisher.quota
        return [
            list(buffer.rows.items()),
            list(buffer.after(0, now)),
            (buffer.last_id, buffer.bytes, buffer.expiry_at),
            list(keys.rows.items()),
            keys.expiry_at,
            self.publisher.added,
            [quota.fits(size) for size in range(14)],
        ]


@given(channel_settings, node_limits, st.sampled_from(Mode), batches, st.sampled_from((0.0, 500.0)))
def test_puts_of_one_read_fare_as_each_alone(
    settings: ChannelSettings,
    limits: NodeLimits,
    mode: Mode,
    steps: list[tuple[list[CellMessage], float, bool, int]],
    jump_s: float,
) -> None:
    run, single = Side(settings, limits, mode), Side(settings, limits, mode)
    now = START_S
    for batch, later_s, is_writable, elsewhere in steps:
        now += later_s
        for side in (run, single):
            side.health.is_writable = is_writable
            side.jump.seconds = jump_s
            side.begin(elsewhere)
        assert run.together(batch, now) == single.one_by_one(batch, now)
        assert run.state(now) == single.state(now)
