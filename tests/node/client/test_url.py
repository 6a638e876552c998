"""URLs of nodes, and the pins in them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.node.client.url import Address, parse_url
from millpond.node.tls.pins import key_pin_of


@given(st.sampled_from(("tls", "wss")), st.binary(min_size=32, max_size=32))
def test_a_pin_is_part_of_the_url(scheme: str, digest: bytes) -> None:
    is_websocket = scheme == "wss"
    expected = Address("mill.lan", 7500, is_websocket, secure=True, key_pin=digest)
    assert parse_url(f"{scheme}://mill.lan:7500#{key_pin_of(digest)}") == expected
    assert parse_url(f"{scheme}://mill.lan:7500/#{key_pin_of(digest)}") == expected
    assert str(expected) == "mill.lan:7500"


@pytest.mark.parametrize(
    "url",
    [
        "tcp://mill.lan:7400#key-sha256:" + "ab" * 32,
        "ws://mill.lan:7401#key-sha256:" + "ab" * 32,
        "tls://mill.lan:7400#key-sha256:" + "ab" * 31,
        "tls://mill.lan:7400#sha256:" + "ab" * 32,
        "tls://mill.lan:7400#top",
    ],
)
def test_a_pin_that_nothing_checks_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match=r"pin needs|64 hexadecimal"):
        parse_url(url)
