"""The vectors of the State Protocol, and what our own classes make of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec

from millpond.actors.state.events import ChangeEvent, Control, ControlEvent, decode
from millpond.actors.state.fold import Fold
from millpond.actors.state.materialized import MaterializedState
from millpond.actors.state.schema import Collection, StreamState

FILE = Path(__file__).parent / "vectors.json"
VECTORS: list[dict[str, Any]] = json.loads(FILE.read_text("utf-8"))["vectors"]
STREAMS = [each for each in VECTORS if "events" in each]


def name_of(vector: dict[str, Any]) -> str:
    return str(vector["name"])


def with_row(row: str) -> list[dict[str, Any]]:
    """The vectors that show a row."""
    return [each for each in VECTORS if row in each["rows"]]


def records(vector: dict[str, Any]) -> list[bytes]:
    """The events of a vector as records of a stream."""
    return [
        each["$raw"].encode()
        if isinstance(each, dict) and "$raw" in each
        else json.dumps(each, ensure_ascii=False).encode()
        for each in vector["events"]
    ]


def definition_of(vector: dict[str, Any]) -> StreamState | None:
    if "collections" not in vector:
        return None
    return StreamState({name: Collection(**each) for name, each in vector["collections"].items()})


def content(state: MaterializedState) -> dict[str, dict[str, Any]]:
    return {kind: dict(state.get_type(kind)) for kind in state.types}


def by_the_seed(bodies: list[bytes]) -> MaterializedState:
    """Section 8 of the seed: changes are applied, a reset clears, the rest passes by."""
    state = MaterializedState()
    for body in bodies:
        event = decode(body)
        if isinstance(event, ChangeEvent):
            state.apply(event)
        elif isinstance(event, ControlEvent) and event.headers.control is Control.RESET:
            state.clear()
    return state


def folded(vector: dict[str, Any]) -> Fold:
    """All records as they are delivered."""
    fold, bodies = Fold(definition_of(vector)), records(vector)
    for sequence in vector.get("deliveries", range(len(bodies))):
        fold.take(sequence, bodies[sequence])
    return fold


def check(vector: dict[str, Any]) -> None:
    """Our classes have what the vector says."""
    if "events" not in vector:
        check_definition(vector)
        return
    fold = folded(vector)
    assert content(fold.state) == vector["state"]
    stats = msgspec.to_builtins(fold.stats)
    assert {name: stats[name] for name in vector.get("counts", {})} == vector.get("counts", {})
    if "collections" not in vector:
        assert content(by_the_seed(records(vector))) == vector["state"]
    assert fold.state.types == vector.get("types", list(vector["state"]))
    assert fold.state.type_count == len(vector["state"])
    check_access(vector, fold.state)
    if vector.get("resume"):
        check_resumed(vector)


def check_access(vector: dict[str, Any], state: MaterializedState) -> None:
    for kind, key, *value in vector.get("get", ()):
        assert ((kind, key) in state) is bool(value)
        assert state.get(kind, key, "nothing") == (value[0] if value else "nothing")
    for kind, values in vector.get("get_type", {}).items():
        assert dict(state.get_type(kind)) == values and len(state.get_type(kind)) == len(values)
    if vector.get("batch"):
        whole = MaterializedState()
        whole.apply_batch(
            event for event in map(decode, records(vector)) if isinstance(event, ChangeEvent)
        )
        assert whole == state
    if vector.get("clear"):
        state.clear()
        assert not state.types and not len(state)


def check_resumed(vector: dict[str, Any]) -> None:
    """From a checkpoint at any place the rest gives the same."""
    bodies, whole = records(vector), folded(vector)
    for place in range(len(bodies) + 1):
        first = Fold(definition_of(vector))
        for sequence in range(place):
            first.take(sequence, bodies[sequence])
        again = Fold(definition_of(vector))
        again.restore(first.checkpoint(7), 7)
        assert again.position == place
        for sequence in range(place, len(bodies)):
            again.take(sequence, bodies[sequence])
        assert again.state == whole.state and again.stats == whole.stats


def check_definition(vector: dict[str, Any]) -> None:
    """It is refused, or taken, by a definition."""
    try:
        if "definition" in vector:
            named = vector["definition"].items()
            StreamState({name: Collection(**each) for name, each in named})
        else:
            wanted = dict(vector["produce"])
            value = wanted.pop("value")
            event = StreamState(things=Collection(**wanted))["things"].insert(value)
            assert event.value == value
    except ValueError:
        assert vector["refused"]
    else:
        assert not vector["refused"]
