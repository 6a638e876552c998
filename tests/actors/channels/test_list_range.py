"""Ranges of LIST (P2P-13, PA-03 to PA-05)."""

from __future__ import annotations

import pytest

from millpond.actors.channels.queries import ListRange
from millpond.actors.messages import U64_MAX, List


@pytest.mark.parametrize(
    ("asked", "page"),
    [
        (List(0, 0, 0), ListRange(0, U64_MAX, None, False)),
        (List(0, 0, U64_MAX), ListRange(0, U64_MAX, None, False)),
        (List(9, 5, 0), ListRange(5, U64_MAX, 9, False)),
        (List(9, 5, 5), ListRange(5, 5, 9, False)),
        (List(9, 8, 5), ListRange(5, 8, 9, True)),
        (List(0, U64_MAX, 0), ListRange(0, U64_MAX, None, True)),
        (List(0, U64_MAX, U64_MAX), ListRange(U64_MAX, U64_MAX, None, False)),
        (List(0, U64_MAX - 1, 0), ListRange(U64_MAX - 1, U64_MAX, None, False)),
    ],
)
def test_pa_03_to_05_both_ends_inclusive_zero_open_above_the_end_newest_first(
    asked: List, page: ListRange
) -> None:
    assert ListRange.of(asked, cursors=False) == page


@pytest.mark.parametrize(
    ("asked", "page"),
    [
        (List(9, 5, 8), ListRange(6, 7, 9, False)),
        (List(9, 8, 5), ListRange(6, 7, 9, True)),
        (List(0, 5, 8), ListRange(6, 7, 0, False)),
        (List(9, 5, 0), ListRange(6, U64_MAX - 1, 9, False)),
    ],
)
def test_pa_03_negotiated_cursors_are_exclusive(asked: List, page: ListRange) -> None:
    assert ListRange.of(asked, cursors=True) == page
