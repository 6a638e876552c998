"""Durations and sizes, spelled the same in all commands."""

from __future__ import annotations

import argparse
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.node.cli.main import build_parser
from millpond.node.cli.options.units import duration_s, size, some_seconds, whole_seconds
from millpond.node.cli.options.units import seconds as seconds_of


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        *(("90", 90), ("90s", 90), ("15m", 900), ("1h30m", 5400), ("7d", 604_800), ("0", 0)),
        *(("1w", 604_800), ("1.5h", 5400), ("0.25", 0.25), ("500ms", 0.5), ("1m500ms", 60.5)),
    ],
)
def test_durations(text: str, seconds: float) -> None:
    assert duration_s(text) == seconds_of(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "text", ["", "s", "1x", "-1", "1h 30m", "1h30", "nan", "inf", "h1", "1e400"]
)
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="is not a duration: 90, 15m, 1h30m, 7d"):
        seconds_of(text)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        *(("1000", 1000), ("1000B", 1000), ("64K", 2**16), ("64KiB", 2**16), ("64kb", 2**16)),
        *(("2GB", 2**31), ("1T", 2**40), ("10M", 10 * 2**20)),
    ],
)
def test_sizes(text: str, number: int) -> None:
    assert size(text) == number


@pytest.mark.parametrize("text", ["", "0", "-1", "1.5G", "K", "1X", "1iB", str(2**63)])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="is not a size"):
        size(text)


@pytest.mark.parametrize("of", [whole_seconds, some_seconds])
@pytest.mark.parametrize("text", ["0.5", "500ms", str(2**32), "soon"])
def test_whole_seconds_are_whole(of: Callable[[str], int], text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        of(text)


def test_some_seconds_are_not_none() -> None:
    assert some_seconds("1") == 1 and whole_seconds("0") == 0
    with pytest.raises(argparse.ArgumentTypeError):
        some_seconds("0")


@given(st.text(max_size=30))
def test_any_text_is_a_duration_or_refused(text: str) -> None:
    found = duration_s(text)
    assert found is None or found >= 0


@pytest.mark.parametrize(
    "line",
    [
        "put c x --ttl 1h30m --timeout 5s",
        "recv c --timeout 1m",
        "jobs put mail {} --ttl 7d --due 1h30m",
        "stream create s --age 7d --bytes 64MiB",
        "stream read s --time -1h30m",
        "token new --rights put --expires 1w2d --data d",
        "work m:f --lease 2m --grace 10s",
        "ping --timeout 500ms",
    ],
)
def test_commands_take_them(line: str) -> None:
    build_parser().parse_args(line.split())
