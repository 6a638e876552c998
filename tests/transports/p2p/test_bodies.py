"""Bodies of packets: bytes of another shape are Malformed."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.actors.errors import Malformed
from millpond.node.outbox.messages import SendRequest
from millpond.transports.p2p.bodies import read_body
from millpond.transports.p2p.streams.bodies import ListBody

SHAPES = st.sampled_from([SendRequest, ListBody])


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"\x81\xa4peer\xa2\xff\xfe", id="text that is not UTF-8"),
        pytest.param(b"\x81\xa2\xff\xfe\x01", id="a name that is not UTF-8"),
        pytest.param(b"\x91" * 100_000, id="nested"),
        pytest.param(b"\x81\xa4peer", id="cut short"),
        pytest.param(b"\x80\x80", id="more behind it"),
    ],
)
def test_bytes_that_are_no_body_are_malformed(body: bytes) -> None:
    with pytest.raises(Malformed):
        read_body(body, SendRequest)


@given(body=st.binary(max_size=64), shape=SHAPES)
def test_any_bytes_are_a_body_or_malformed(body: bytes, shape: type[msgspec.Struct]) -> None:
    try:
        assert isinstance(read_body(body, shape), shape)
    except Malformed:
        pass
