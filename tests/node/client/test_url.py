"""URLs of nodes, and the pins in them."""

from __future__ import annotations

import traceback
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.node.client.url import Address, parse_url
from millpond.node.replica.errors import BadAddress
from millpond.node.replica.object_store import open_object_store
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


@pytest.mark.parametrize("read", [parse_url, open_object_store])
@pytest.mark.parametrize("url", ["tcp://me:secret\u2100@host", "tcp://me:secret@[host"])
def test_an_error_of_a_url_that_cannot_be_read_has_no_password(
    read: Callable[[str], object], url: str
) -> None:
    with pytest.raises((ValueError, BadAddress), match="its host") as caught:
        read(url)
    assert "secret" not in "".join(traceback.format_exception_only(caught.value))
    assert caught.value.__suppress_context__, "the first error has the password"
