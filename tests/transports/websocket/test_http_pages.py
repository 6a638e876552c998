"""Plain HTTP at the WebSocket listener: pages, forms, refusals; WebSockets go on as before."""

from __future__ import annotations

import tracemalloc
from http import HTTPStatus
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.transports.browser_policy import BrowserPolicy
from millpond.transports.errors import UpgradeRefused
from millpond.transports.websocket.framing import ServerFraming
from millpond.transports.websocket.http_pages import FORM_BYTES_MAX, HEAD_BYTES_MAX, Page, Site

PACKET_MAX = 2**16
POLICY = BrowserPolicy(origins=["https://pond.example"])
received: list[bytes] = []


def form(body: bytes) -> Page:
    received.append(body)
    status = HTTPStatus.OK if body != b"bad" else HTTPStatus.FORBIDDEN
    return Page(body.upper(), "text/plain", (("Cache-Control", "no-store"),), status)


SITE = Site(
    {"/": Page(b"<p>hi", "text/html; charset=utf-8", (("X-More", "1"),))},
    {"/form": form},
)
UPGRADE = (
    b"GET /v1/channels/chat%2F1 HTTP/1.1\r\nHost: 127.0.0.1:1\r\nUpgrade: websocket\r\n"
    b"Connection: Upgrade\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: p2pbuf.v1.hello\r\n\r\n"
)


def request(line: str, *fields: str, body: bytes = b"", host: str = "127.0.0.1:7401") -> bytes:
    lines = [line, *([f"Host: {host}"] if host else []), *fields, "", ""]
    return "\r\n".join(lines).encode("latin-1") + body


def answer_to(wire: bytes, cuts: list[int] | None = None, site: Site | None = SITE) -> bytes:
    """The answer of a listener to these bytes, in pieces; it closes behind it."""
    framing = ServerFraming(PACKET_MAX, POLICY, site)
    edges = sorted({0, *(cut % len(wire) for cut in cuts or ()), len(wire)})
    for start, end in pairwise(edges):
        assert framing.feed(wire[start:end]) == []
    answer = framing.take_output()
    assert not answer or framing.closed or framing.error is not None
    return answer


def status_of(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


def test_a_page_byte_for_byte() -> None:
    assert answer_to(request("GET / HTTP/1.1")) == (
        b"HTTP/1.1 200 OK\r\n"
        b"Content-Type: text/html; charset=utf-8\r\n"
        b"Content-Length: 5\r\n"
        b"X-Content-Type-Options: nosniff\r\n"
        b"Connection: close\r\n"
        b"X-More: 1\r\n"
        b"\r\n"
        b"<p>hi"
    )


def test_head_has_the_same_head_and_no_body() -> None:
    got, head = answer_to(request("GET / HTTP/1.1")), answer_to(request("HEAD / HTTP/1.1"))
    assert got == head + b"<p>hi"


def test_a_query_is_no_part_of_the_path() -> None:
    assert status_of(answer_to(request("GET /?from=somewhere HTTP/1.1"))) == 200


@given(st.lists(st.integers(0, 500)))
def test_any_split_gives_the_same_answer(cuts: list[int]) -> None:
    wire = request("POST /form HTTP/1.1", "Content-Length: 5", body=b"hello")
    assert answer_to(wire, cuts) == answer_to(wire)
    assert answer_to(wire).endswith(b"\r\n\r\nHELLO")


def test_a_form_waits_for_its_whole_body() -> None:
    received.clear()
    wire = request("POST /form HTTP/1.1", "Content-Length: 5", body=b"hell")
    assert answer_to(wire) == b""
    assert received == []
    assert answer_to(wire + b"o, and more").endswith(b"HELLO")
    assert received == [b"hello"]


def test_a_form_may_say_no() -> None:
    wire = request("POST /form HTTP/1.1", "Content-Length: 3", body=b"bad")
    assert status_of(answer_to(wire)) == 403


@pytest.mark.parametrize(
    ("wire", "status"),
    [
        (request("GET /other HTTP/1.1"), 404),
        (request("GET /../etc/passwd HTTP/1.1"), 404),
        (request("PUT / HTTP/1.1"), 405),
        (request("GET /form HTTP/1.1"), 405),
        (request("GET / HTTP/1.1", host=""), 400),
        (request("GET / HTTP/1.1", "Host: other"), 400),
        (request("GET / HTTP/1.1", "no field"), 400),
        (request("GET / HTTP/1.1", " folded: x"), 400),
        (request("GET / HTTP/1.1", f"X: {'x' * HEAD_BYTES_MAX}"), 431),
        (request("POST /form HTTP/1.1", "Content-Length: -1"), 400),
        (request("POST /form HTTP/1.1", "Content-Length: 1", "Content-Length: 1"), 400),
        (request("POST /form HTTP/1.1", f"Content-Length: {FORM_BYTES_MAX + 1}"), 413),
        (request("POST /form HTTP/1.1", "Transfer-Encoding: chunked"), 411),
        (b"GET / HTTP/1.0\r\n\r\n", 400),
        (b"\x16\x03\x01 not HTTP at all\r\n\r\n", 400),
    ],
)
def test_a_head_that_is_not_served_is_refused_and_the_stream_ends(wire: bytes, status: int) -> None:
    answer = answer_to(wire)
    assert status_of(answer) == status
    assert b"passwd" not in answer and len(answer) < 400


def test_a_page_request_has_128_headers() -> None:
    many = [f"a{number}: b" for number in range(128)]
    assert status_of(answer_to(request("GET / HTTP/1.1", *many[1:]))) == 200
    assert status_of(answer_to(request("GET / HTTP/1.1", *many))) == 400


def test_what_was_answered_is_not_kept() -> None:
    """A client may read its answer late, and many may do so."""
    fields = ["a" * 60 + f"{number}: b" for number in range(100)]
    wire = request("GET / HTTP/1.1", *fields)
    answer_to(wire)  # what is cached for all
    tracemalloc.start()
    try:
        framing = ServerFraming(PACKET_MAX, POLICY, SITE)
        framing.feed(wire)
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert framing.closed and kept < 2**13


def test_a_refused_method_names_the_allowed_ones() -> None:
    assert b"\r\nAllow: GET, HEAD\r\n" in answer_to(request("POST / HTTP/1.1"))
    assert b"\r\nAllow: POST\r\n" in answer_to(request("GET /form HTTP/1.1"))


@pytest.mark.parametrize("host", ["127.0.0.1:7401", "[::1]:7401", "localhost", "pond.example"])
def test_pages_are_shown_at_addresses_and_names_that_were_allowed(host: str) -> None:
    assert status_of(answer_to(request("GET / HTTP/1.1", host=host))) == 200


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "pond.example.evil"])
def test_a_foreign_host_name_shows_no_pages(host: str) -> None:
    """DNS rebinding: the browser believes that the page is theirs."""
    assert status_of(answer_to(request("GET / HTTP/1.1", host=host))) == 421


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("http://127.0.0.1:7401", 200),
        ("https://pond.example", 200),
        ("http://127.0.0.1:7402", 403),
        ("https://evil.example", 403),
        ("null", 403),
    ],
)
def test_only_our_own_pages_send_forms(origin: str, status: int) -> None:
    received.clear()
    fields = ("Content-Length: 1", f"Origin: {origin}")
    assert status_of(answer_to(request("POST /form HTTP/1.1", *fields, body=b"x"))) == status
    assert received == ([b"x"] if status == 200 else [])


def test_nothing_is_answered_after_the_answer() -> None:
    framing = ServerFraming(PACKET_MAX, POLICY, SITE)
    framing.feed(request("GET / HTTP/1.1"))
    framing.take_output()
    assert framing.closed
    assert framing.feed(request("GET / HTTP/1.1")) == []
    assert framing.take_output() == b""


@pytest.mark.parametrize("site", [SITE, None])
def test_websockets_are_taken_as_before(site: Site | None) -> None:
    framing = ServerFraming(PACKET_MAX, POLICY, site)
    framing.feed(UPGRADE)
    assert framing.take_output().startswith(b"HTTP/1.1 101 ")
    assert framing.upgrade is not None and not framing.closed


def test_a_channel_is_no_page() -> None:
    framing = ServerFraming(PACKET_MAX, POLICY, SITE)
    framing.feed(request("GET /v1/channels/x HTTP/1.1"))
    assert isinstance(framing.error, UpgradeRefused)


def test_without_a_site_there_are_no_pages() -> None:
    assert status_of(answer_to(request("GET / HTTP/1.1"), site=None)) in (400, 404, 426)
