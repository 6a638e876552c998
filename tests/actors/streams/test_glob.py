"""Globs of subscriptions (DSS-06)."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.actors.streams.glob import BadGlob, Glob


@pytest.mark.parametrize(
    ("pattern", "name", "is_match"),
    [
        (b"events/*", b"events/a", True),
        (b"events/*", b"events", False),
        (b"events/*", b"events/a/b", False),
        (b"events/*", b"events/", True),
        (b"**", b"a", True),
        (b"**", b"a/b/c", True),
        (b"a/**/b", b"a/b", True),
        (b"a/**/b", b"a/x/y/b", True),
        (b"a/**/b", b"a/x/y/c", False),
        (b"a/**", b"a", True),
        (b"*", b"a", True),
        (b"*", b"a/b", False),
        (b"ev*", b"events", False),
        (b"ev*", b"ev*", True),
        (b"a?", b"ab", False),
        (b"%2A", b"*", True),
        (b"%2A", b"a", False),
        (b"a/%2a%2A/b", b"a/**/b", True),
        (b"a%2Fb", b"a/b", False),
        ("größe/*".encode(), "größe/ä".encode(), True),
    ],
)
def test_what_matches(pattern: bytes, name: bytes, is_match: bool) -> None:
    assert Glob(pattern).matches(name) is is_match


@pytest.mark.parametrize(
    "pattern",
    [
        b"",
        b"a" * 1025,
        b"/".join([b"a"] * 65),
        b"/".join([b"**"] * 9),
        b"a/%",
        b"%2",
        b"%zz",
    ],
)
def test_what_is_no_glob(pattern: bytes) -> None:
    with pytest.raises(BadGlob):
        Glob(pattern)


def test_many_wildcards_take_no_exponential_time() -> None:
    glob = Glob(b"/".join([b"**", b"a"] * 8))
    began = time.process_time()
    assert not glob.matches(b"/".join([b"a"] * 250 + [b"b"]))
    assert time.process_time() - began < 1  # backtracking would take ages


SEGMENTS = st.lists(st.sampled_from([b"a", b"b", b""]), min_size=1, max_size=6)
PARTS = st.lists(st.sampled_from([b"a", b"b", b"*", b"**"]), min_size=1, max_size=6)


@given(PARTS, SEGMENTS)
def test_the_same_as_a_regular_expression(parts: list[bytes], segments: list[bytes]) -> None:
    # Each segment with a slash behind it; `**` is any number of these.
    words = {b"*": b"[^/]*/", b"**": b"(?:[^/]*/)*"}
    expression = b"".join(words.get(each, each + b"/") for each in parts)
    is_match = re.fullmatch(expression, b"/".join(segments) + b"/") is not None
    assert Glob(b"/".join(parts)).matches(b"/".join(segments)) is is_match
