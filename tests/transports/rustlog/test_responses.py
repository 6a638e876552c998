"""Responses of RustLog about many things at once fit into a frame."""

from __future__ import annotations

import json

import pytest

from millpond.actors.errors import Code
from millpond.actors.store.changes import Position
from millpond.actors.streams.messages import StreamDescription, StreamInfo
from millpond.transports.rustlog.metrics import GroupLag, RustlogMetrics
from millpond.transports.rustlog.responses import LAGS_MAX, all_topics, error_of, lags_of

FRAME_MAX = 10_485_760


def described(tail: int, groups: dict[bytes, int]) -> StreamDescription:
    """A stream's outline, of which its end and its groups matter."""
    info = StreamInfo(
        age_s=None,
        bytes_max=None,
        content_type=None,
        created_ms=0,
        trim_point=0,
        tail=tail,
        last_id=Position(0, 0),
        last_timestamp=0,
        bytes_kept=0,
        segments=1,
        waiting=0,
        fence=b"",
        groups=groups,
    )
    return StreamDescription(0, info)


def test_topics_that_do_not_fit_are_left_out_and_marked() -> None:
    """RL-30: a list has no pages."""
    topics = [(b"%05d" % number + b"x" * 250, 1000) for number in range(100)]
    whole = json.loads(all_topics(topics, FRAME_MAX)[4:])
    assert len(whole["topics"]) == 100 and "truncated" not in whole
    frame = all_topics(topics, 20_000)
    part = json.loads(frame[4:])
    assert len(frame) - 4 <= 20_000 and part["truncated"] is True
    assert part["topics"] == whole["topics"][: len(part["topics"])] and len(part["topics"]) > 50


def test_rla_25_lag_is_never_below_nothing_and_in_order() -> None:
    places = [("b", 0), ("a", 1), ("a", 0)]
    answers = {
        0: described(10, {b"y": 4, b"x": 11}),
        1: described(5, {b"\xff": 0}),
        2: Code.UNKNOWN_STREAM,
    }
    assert lags_of(places, answers) == [
        GroupLag("a", 1, "\ufffd", 5),
        GroupLag("b", 0, "x", 0),
        GroupLag("b", 0, "y", 6),
    ]


def test_rla_25_the_longest_names_of_groups_fit_into_a_frame() -> None:
    groups = {b"\1" * 252 + number.to_bytes(4, "big"): 0 for number in range(LAGS_MAX + 500)}
    lags = lags_of([("t" * 255, 999)], {0: described(2**64 - 1, groups)})
    assert len(lags) == LAGS_MAX
    metrics = RustlogMetrics(int)
    told = json.dumps({"a": metrics.prometheus(lags)}) + json.dumps(
        [[each.topic, each.partition, each.group_id, each.lag] for each in lags]
    )
    assert len(told) + 60 * LAGS_MAX < FRAME_MAX


@pytest.mark.parametrize("code", Code)
def test_rl_36_every_refusal_has_one_of_the_codes(code: Code) -> None:
    error = error_of(code)
    assert error.code in (400, 413, 500, 503, 507) and error.message
