"""Buckets, what connections of one peer share (P2P-24), and reasons that are counted and logged."""

from __future__ import annotations

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.transports.s3p.connection import S3pSettings, s3p_connection
from millpond.transports.server.rate_limit import RateLimit, SharedBuckets, TokenBucket
from millpond.transports.server.refusals import Refusal, RefusalLog
from tests.conformance.rig import RecordedWire
from tests.transports.s3p.test_connection import append, appended
from tests.transports.server.scripted_node import ScriptedNode

pytestmark = pytest.mark.wire


@given(st.integers(1, 1000), st.lists(st.floats(0, 2), max_size=200))
def test_no_more_is_let_through_than_the_rate_and_one_second_of_it(
    per_s: int, pauses: list[float]
) -> None:
    bucket, now, taken = TokenBucket(per_s, 0.0), 0.0, 0
    for pause in pauses:
        now += pause
        wait_ms = bucket.take(now)
        assert wait_ms >= 0
        taken += not wait_ms
    assert taken <= per_s + now * per_s + 1


def test_a_client_that_waits_for_the_given_delay_is_not_refused() -> None:
    bucket = TokenBucket(3, 0.0)
    assert [bucket.take(0.0) for _ in range(3)] == [0, 0, 0]
    wait_ms = bucket.take(0.0)
    assert wait_ms == 333 and bucket.take(wait_ms / 1000 + 0.001) == 0


def test_a_debt_is_paid_by_time() -> None:
    bucket = TokenBucket(10, 0.0)
    bucket.spend(30, 0.0)
    assert bucket.debt_ms(0.0) == 2000 and bucket.debt_ms(1.0) == 1000 and bucket.debt_ms(2.0) == 0


def test_an_allowance_is_the_tighter_of_ones_own_and_the_shared_one() -> None:
    shared = TokenBucket(3, 0.0)
    first, second = RateLimit(TokenBucket(2, 0.0), shared), RateLimit(TokenBucket(2, 0.0), shared)
    assert [first.take(0.0) for _ in range(3)] == [0, 0, 500]
    assert [second.take(0.0) > 0 for _ in range(2)] == [False, True]
    assert (first.refused, second.refused) == (1, 1)
    assert first.take(1.0) == 0 and first.refused == 0
    assert not RateLimit(None, None) and first


def test_connections_of_one_peer_share_and_the_table_is_bounded() -> None:
    table = SharedBuckets(5, kept_max=2)
    alice = table.bucket(b"alice", 0.0)
    assert table.bucket(b"alice", 0.0) is alice is not None
    assert table.bucket("192.0.2.7", 0.0) is not alice
    assert table.bucket(b"alice", 0.0) is alice
    assert table.bucket(b"bob", 0.0) is not alice  # the address goes: it came longest ago
    assert table.bucket(b"alice", 0.0) is alice
    assert table.bucket(None, 0.0) is None and SharedBuckets(0).bucket(b"alice", 0.0) is None


def test_p2p_24_streams_are_read_on_when_it_is_time() -> None:
    """S3P has no error for it, so nothing is refused: the client waits."""
    node, wire = ScriptedNode(), RecordedWire()
    node.bucket = TokenBucket(10, node.time)
    connection = s3p_connection(1, node, S3pSettings())
    connection.opened(wire)
    connection.received(append(b"x") * 20)
    connection.received(append(b"y"))
    assert len(node.asked) == 20 and wire.paused
    assert node.refusals == [Refusal.TOO_FAST] and node.counters.slowed == 1
    node.answer(*(appended(number) for number in range(20)))
    node.pass_time(connection, 0.9)
    assert len(node.asked) == 20
    node.pass_time(connection, 0.2)
    assert len(node.asked) == 21 and not wire.paused and not wire.closed


def test_each_reason_is_counted_and_logged_once_a_second(caplog: pytest.LogCaptureFixture) -> None:
    counts: dict[str, int] = {}
    now = 0.0
    refusals = RefusalLog(counts, lambda: now)
    with caplog.at_level(logging.INFO):
        for _ in range(500):
            refusals.record_refusal(Refusal.NOT_ALLOWED, "192.0.2.7")
        refusals.record_refusal(Refusal.BAD_PROOF, "192.0.2.8")
        now = 1.0
        refusals.record_refusal(Refusal.NOT_ALLOWED, "192.0.2.9")
    assert counts == {"not allowed": 501, "bad proof": 1}
    assert [line.partition(": ")[2] for line in caplog.messages] == [
        "reason='not allowed' address=192.0.2.7 times=1",
        "reason='bad proof' address=192.0.2.8 times=1",
        "reason='not allowed' address=192.0.2.9 times=500",
    ]
