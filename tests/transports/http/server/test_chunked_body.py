"""The end of a body in chunks: in any split, whatever its bytes look like, in few pieces."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from millpond.transports.http.server.chunked_body import ChunkedBody

NEXT = b"GET  /next HTTP/1.1\r\n\r\n"
DATA = st.binary(min_size=1, max_size=40) | st.sampled_from(
    (b"\r\n\r\n", b"\r\n0\r\n\r\n", b"0\r\n")
)
SUFFIXES = st.sampled_from((b"", b";a", b';a="b;0"', b" ;" + b"x" * 50))
TRAILERS = st.lists(st.sampled_from((b"x: y\r\n", b"a:\r\n", b"0: 0\r\n")), max_size=3)


def end_of(wire: bytes, cuts: list[int]) -> int:
    """The end of the body that the wire begins with, received in these pieces."""
    chunked = ChunkedBody()
    edges = [0, *sorted(cuts), len(wire)]
    for start, stop in pairwise(edges):
        if start < stop:
            size = chunked.size_to_end(wire, start, stop)
            assert 0 <= size <= stop - start
            if size < stop - start:
                return start + size
    return len(wire)


@given(
    chunks=st.lists(st.tuples(DATA, SUFFIXES, st.sampled_from((b"%x", b"%X", b"000%x")))),
    trailers=TRAILERS,
    draw=st.data(),
)
def test_a_body_ends_behind_its_trailers_in_any_split(
    chunks: list[tuple[bytes, bytes, bytes]], trailers: list[bytes], draw: st.DataObject
) -> None:
    body = b"".join(
        size % len(data) + suffix + b"\r\n" + data + b"\r\n" for data, suffix, size in chunks
    )
    body += b"0\r\n" + b"".join(trailers) + b"\r\n"
    # The parser tells of an end that is that of a piece, too.
    cuts = draw.draw(st.lists(st.integers(0, len(body) - 1), max_size=30))
    for each in cuts, list(range(len(body))):
        assert end_of(body + NEXT, each) == len(body)


@given(wire=st.binary(max_size=60) | st.from_regex(rb"[-0-9a-f_+x;\r\n ]{0,40}"), draw=st.data())
def test_broken_chunks_are_followed_to_some_end(wire: bytes, draw: st.DataObject) -> None:
    end_of(wire, draw.draw(st.lists(st.integers(0, len(wire)), max_size=9)))


def test_a_body_of_line_ends_is_one_piece() -> None:
    body = b"10000\r\n" + b"\r\n\r\n" * 2**14 + b"\r\n0\r\n\r\n"
    assert ChunkedBody().size_to_end(body + NEXT, 0, len(body + NEXT)) == len(body)
