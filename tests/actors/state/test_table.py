"""A state as the node keeps it: pages in order while it changes, and its size in bytes."""

from __future__ import annotations

import json
from random import Random

import pytest

from millpond.actors.state.messages import ENTRY_BYTES, TYPE_BYTES
from millpond.actors.state.table import FORGET_AFTER, StateTable


def put(kind: str, key: str, value: int = 1) -> bytes:
    event = {"type": kind, "key": key, "value": value, "headers": {"operation": "insert"}}
    return json.dumps(event).encode()


def gone(kind: str, key: str) -> bytes:
    return json.dumps({"type": kind, "key": key, "headers": {"operation": "delete"}}).encode()


def listed(table: StateTable, kind: str | None, count: int) -> list[tuple[str, str]]:
    """All names, by pages."""
    found: list[tuple[str, str]] = []
    after, more = None, True
    while more:
        rows, more = table.page(kind, after, count, 10**6)
        found += [(row[0], row[1]) for row in rows]
        after = found[-1] if found else None
    return found


@pytest.mark.parametrize("seed", range(10))
def test_pages_are_in_order_whatever_changed_before_them(seed: int) -> None:
    rng = Random(seed)
    table = StateTable()
    there: dict[tuple[str, str], int] = {}
    for turn in range(400):
        place = (rng.choice("abc"), str(rng.randrange(30)))
        match rng.randrange(20):
            case 0 if turn % 7 == 0:
                table.take(b'{"headers":{"control":"reset"}}')
                there.clear()
            case each if each < 8:
                table.take(gone(*place))
                there.pop(place, None)
            case _:
                table.take(put(*place, turn))
                there[place] = turn
        if rng.random() < 0.3:
            assert listed(table, None, rng.choice([1, 3, 100])) == sorted(there)
            kind = rng.choice("abcd")
            names = sorted(each for each in there if each[0] == kind)
            assert listed(table, kind, 4) == names
        size = sum(ENTRY_BYTES + len(key) + len(str(value)) for (_, key), value in there.items())
        assert table.size == size + len({kind for kind, _ in there}) * (TYPE_BYTES + 1)


def test_a_list_goes_on_behind_a_removed_name_and_has_later_ones() -> None:
    table = StateTable()
    for key in "bdfh":
        table.take(put("t", key))
    rows, more = table.page(None, None, 2, 10**6)
    assert [row[1] for row in rows] == ["b", "d"] and more
    for body in (gone("t", "d"), put("t", "a"), put("t", "e"), put("u", "x"), put("s", "y")):
        table.take(body)
    rows, more = table.page(None, ("t", "d"), 10, 10**6)
    assert [row[:2] for row in rows] == [("t", "e"), ("t", "f"), ("t", "h"), ("u", "x")]
    assert not more


def test_an_abandoned_list_is_forgotten() -> None:
    table = StateTable()
    for number in range(10):
        table.take(put("t", f"{number}"))
    listed(table, None, 3)
    for number in range(2 * FORGET_AFTER):
        table.take(put("t", f"n{number}"))
    assert table._keys["t"]._names is None
    assert len(listed(table, None, 1000)) == 10 + 2 * FORGET_AFTER


def test_pages_are_bounded_by_bytes_but_have_a_row() -> None:
    table = StateTable()
    for number in range(5):
        table.take(put("t", f"{number}" * 100))
    rows, more = table.page("t", None, 100, 10)
    assert len(rows) == 1 and more
    rows, more = table.page("t", None, 100, 250)
    assert len(rows) == 2 and more
