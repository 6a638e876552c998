"""Runs what docs/guides/tls.md shows, in two folders: the first two parts, and what follows
them."""

from __future__ import annotations

import re
from contextlib import ExitStack
from pathlib import Path

import pytest

from millpond.node.tls.errors import PLAIN, REASONS, VERIFY_CODES
from tests.test_readme import FENCE, Place, Terminal, commands_of, comparable

pytestmark = pytest.mark.readme

PAGE = (Path(__file__).resolve().parents[1] / "docs" / "guides" / "tls.md").read_text("utf-8")
PARTS = PAGE.split("\n## An authority of your own")
VARIES = (
    (re.compile(r"[0-9a-f]{64}"), "HASH"),
    (re.compile(r"\d{4}-\d\d-\d\d( \d\d:\d\d UTC)?"), "DAY"),
    (re.compile(r"\b36[45] days"), "DAYS"),
)


def masked(text: str) -> str:
    for pattern, name in VARIES:
        text = pattern.sub(name, text)
    return comparable(text)


@pytest.mark.parametrize("part", PARTS, ids=["one-certificate", "an-authority"])
def test_what_is_shown_is_what_happens(part: str, tmp_path: Path) -> None:
    place = Place(tmp_path)
    blocks = FENCE.findall(part)
    assert len(blocks) >= 4
    with ExitStack() as stack:
        for _, rest, text in blocks:
            if "terminal" in rest:
                terminal = Terminal(place, text)
                stack.callback(terminal.close)
                terminal.finish()
                continue
            for command, shown in commands_of(text):
                printed = place.run(place.here(command))
                assert masked(printed) == masked(place.here(shown)), f"$ {command}"


def test_the_words_for_what_goes_wrong_are_those_of_the_table() -> None:
    known = [text for text, _ in (*VERIFY_CODES.values(), *REASONS.values(), PLAIN)]
    for text in (
        "nobody but itself vouches for the certificate",
        "the certificate's authority is not known here",
        "the certificate has another name",
        "the certificate has expired",
        "the other end demands a certificate",
        "our certificate is refused by the other end: its authority is not trusted there",
        "the other end does not speak TLS here",
        "the other end does not speak TLS 1.3",
    ):
        assert text in known and text in PAGE
