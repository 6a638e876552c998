"""Lines of `export`: every message comes back; bytes are a message, or a bad line."""

from __future__ import annotations

import json
from contextlib import suppress

from hypothesis import given
from hypothesis import strategies as st

from millpond.actors.messages import Mode
from millpond.actors.store.changes import Origin, StoredMessage
from millpond.node.cli.jsonl import ID_MAX, BadLine, MessageLine, decode_line, encode_line

U32, U64 = st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)
IDS = st.integers(1, ID_MAX)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
ROWS = st.builds(
    StoredMessage,
    id=IDS,
    key=U64,
    ttl=st.integers(1, 2**32 - 1),
    expires_at=st.floats(0, 2**40),
    data=st.binary() | TEXTS.map(str.encode),
    origin=st.none() | st.builds(Origin, id=IDS, attempts=U32, reason=TEXTS),
)
LINES = st.builds(
    MessageLine,
    channel=st.binary(min_size=1, max_size=255),
    row=ROWS,
    attempts=U32,
    mode=st.none() | st.sampled_from(Mode),
)


@given(LINES)
def test_a_line_gives_back_its_message(line: MessageLine) -> None:
    """P2P-30."""
    text = encode_line(line)
    assert text.count(b"\n") == 1 and text.endswith(b"\n")
    assert decode_line(text) == line


@given(LINES, st.data())
def test_a_line_that_was_changed_is_a_message_or_a_bad_line(
    line: MessageLine, data: st.DataObject
) -> None:
    text = bytearray(encode_line(line))
    at = data.draw(st.integers(0, len(text) - 1))
    text[at] = data.draw(st.integers(0, 255))
    with suppress(BadLine):
        decode_line(bytes(text))
    with suppress(BadLine):
        decode_line(bytes(text[:at]))


@given(st.dictionaries(st.sampled_from(["id", "key", "ttl", "data", "channel"]), st.integers()))
def test_fields_of_other_types_are_bad_lines(fields: dict[str, int]) -> None:
    with suppress(BadLine):
        decode_line(json.dumps(fields).encode())
        raise AssertionError("fields are missing or numbers, and it was taken")
