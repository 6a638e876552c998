"""Folds: any batching, checkpoint or crash gives the same state, and no record counts twice."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.actors.state.events import ChangeEvent, Control, InvalidReason, decode, decode_raw
from millpond.actors.state.fold import (
    BadCheckpoint,
    Changed,
    ControlApplied,
    Fold,
    InvalidEvent,
    OnInvalid,
    OnReset,
    Rejected,
    StateReset,
)
from millpond.actors.state.materialized import MaterializedState
from millpond.actors.state.schema import Collection, StreamState

KINDS = st.sampled_from(["user", "team", ""])
KEYS = st.sampled_from(["1", "2", "3", "\u00e9", ""])
VALUES = st.integers(-(2**70), 2**70) | st.sampled_from(
    [None, True, 0.5, "", "\u00e9", [], {}, [None, {"a": [1]}], {"a": {"b": None}}]
)
OPERATIONS = st.sampled_from(["insert", "update", "delete", "upsert", "merge"])
CONTROLS = st.sampled_from([*(each.value for each in Control), "compact"])


@st.composite
def bodies(draw: st.DrawFn) -> bytes:
    """A record that is mostly a change."""
    match draw(st.integers(0, 11)):
        case 0:
            return json.dumps({"headers": {"control": draw(CONTROLS)}}).encode()
        case 1:
            return draw(st.binary(max_size=8))
        case 2:
            return json.dumps(draw(VALUES)).encode()
        case _:
            event = {"type": draw(KINDS), "key": draw(KEYS)}
            event["headers"] = {"operation": draw(OPERATIONS)}
            if draw(st.integers(0, 9)):
                event["value"] = draw(VALUES)
            return json.dumps(event, ensure_ascii=draw(st.booleans())).encode()


STREAMS = st.lists(bodies(), max_size=30)


def fold_of(records: list[bytes]) -> Fold:
    fold = Fold()
    for sequence, body in enumerate(records):
        fold.take(sequence, body)
    return fold


@given(STREAMS)
def test_a_batch_is_one_by_one(records: list[bytes]) -> None:
    events = [event for event in map(decode, records) if isinstance(event, ChangeEvent)]
    one, other = MaterializedState(), MaterializedState()
    for event in events:
        one.apply(event)
    other.apply_batch(events)
    assert one == other


@given(STREAMS, st.data())
def test_a_crash_at_any_event_loses_and_doubles_nothing(
    records: list[bytes], data: st.DataObject
) -> None:
    """Checkpoints are kept now and then; each crash goes back to the last one that was."""
    whole = fold_of(records)
    fold, kept, seen = Fold(), Fold().checkpoint(1), []
    for _ in range(data.draw(st.integers(0, 5))):
        end = data.draw(st.integers(fold.position, len(records)))
        for sequence in range(fold.position, end):
            fold.take(sequence, records[sequence])
            if data.draw(st.booleans()):
                kept = fold.checkpoint(1)
        fold = Fold()
        fold.restore(kept, 1)
        seen.append(fold.position)
    for sequence in range(fold.position, len(records)):
        fold.take(sequence, records[sequence])
    assert fold.state == whole.state and fold.stats == whole.stats
    assert fold.position == len(records) and seen == sorted(seen)


@given(STREAMS, st.data())
def test_repeated_records_change_nothing(records: list[bytes], data: st.DataObject) -> None:
    fold, sequence = Fold(), 0
    while sequence < len(records):
        fold.take(sequence, records[sequence])
        sequence = data.draw(st.integers(max(0, sequence - 3), sequence)) + 1
        if data.draw(st.booleans()):
            sequence = fold.position
    whole = fold_of(records)
    fold.stats.repeated = 0
    assert fold.state == whole.state and fold.stats == whole.stats


@given(STREAMS)
def test_values_as_written_are_the_same_values(records: list[bytes]) -> None:
    """The state of the node is, to the byte, the one that Python reads."""
    for body in records:
        plain, raw = decode(body), decode_raw(body)
        assert type(plain) is type(raw)
        if isinstance(plain, ChangeEvent) and isinstance(raw, ChangeEvent):
            assert (plain.type, plain.key, plain.headers) == (raw.type, raw.key, raw.headers)
            if plain.value is not raw.value:  # both are none
                assert json.loads(bytes(raw.value)) == plain.value


def put(key: str, value: Any, kind: str = "user") -> bytes:
    event = {"type": kind, "key": key, "value": value, "headers": {"operation": "insert"}}
    return json.dumps(event).encode()


RESET = b'{"headers":{"control":"reset"}}'
PEOPLE = StreamState(users=Collection("user", {"type": "integer", "minimum": 0}))


def test_each_record_is_reported() -> None:
    fold = Fold(PEOPLE, OnInvalid.QUARANTINE)
    first = fold.take(0, put("a", 1))
    assert isinstance(first, Changed) and (first.key, first.value) == ("a", 1)
    second = fold.take(1, put("a", 2))
    assert isinstance(second, Changed) and (second.before, second.value) == (1, 2)
    third = fold.take(2, put("a", -1))
    assert isinstance(third, Rejected) and third.error.reason is InvalidReason.BAD_VALUE
    assert third.error.text == "$: -1 is less than the minimum of 0" and third.data == put("a", -1)
    assert fold.take(3, put("x", 1, kind="other")) is None
    assert fold.take(3, put("a", 9)) is None
    assert fold.take(4, RESET) == ControlApplied(4, Control.RESET)
    stats = fold.stats
    assert (stats.changes, stats.skipped, stats.other_types, stats.repeated) == (2, 1, 1, 1)
    assert len(fold.state) == 0


def test_a_fold_that_stops_stays_before_the_record() -> None:
    fold = Fold(PEOPLE, OnInvalid.STOP, OnReset.STOP)
    fold.take(0, put("a", 1))
    for _ in range(2):
        with pytest.raises(
            InvalidEvent, match=r"sequence 1: .*: \$: -1 is less than the minimum of 0"
        ) as caught:
            fold.take(1, put("a", -1))
        assert caught.value.body == put("a", -1)
    with pytest.raises(StateReset):
        fold.take(1, RESET)
    assert fold.position == 1 and dict(fold.state.get_type("user")) == {"a": 1}
    fold.take(1, put("b", 2))
    assert dict(fold.state.get_type("user")) == {"a": 1, "b": 2} and fold.stats.resets == 0


def test_a_gap_is_counted() -> None:
    fold = Fold()
    fold.take(0, put("a", 1))
    fold.take(5, put("b", 2))
    assert fold.stats.missed == 4 and fold.position == 6


def test_a_checkpoint_of_another_stream_is_refused() -> None:
    fold = fold_of([put("a", 1)])
    kept = fold.checkpoint(7)
    for data, born in ((kept, 8), (kept[:-1], 7), (b"", 7), (b"{}", 7), (b"\xff", 7)):
        with pytest.raises(BadCheckpoint):
            Fold().restore(data, born)


def test_a_checkpoint_under_a_new_schema_keeps_valid_values() -> None:
    fold = fold_of([put("a", 1), put("b", "text")])
    again = Fold(PEOPLE)
    again.restore(fold.checkpoint())
    assert dict(again.state.get_type("user")) == {"a": 1}
    assert again.stats.rejected == {"bad_value": 1}
    with pytest.raises(InvalidEvent):
        Fold(PEOPLE, OnInvalid.STOP).restore(fold.checkpoint())


def test_a_view_follows_and_cannot_be_written_to() -> None:
    state = MaterializedState()
    view = state.get_type("user")
    assert not view
    state.put("user", "a", 1)
    assert dict(view) == {"a": 1} and "a" in view
    assert not hasattr(view, "__setitem__")
    state.remove("user", "a")
    state.put("user", "b", 2)
    assert dict(view) == {"b": 2}
