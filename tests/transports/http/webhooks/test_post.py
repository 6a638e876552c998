"""Outgoing requests over real sockets, to receivers that are slow, endless or hostile (DSS-27,
DSS-30)."""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.abc import ByteStream

from millpond.actors.subscriptions.messages import DeliveryOutcome
from millpond.transports.http.webhooks.destination import WebhookPolicy, destination_of, hosts_of
from millpond.transports.http.webhooks.notification import outcome_of
from millpond.transports.http.webhooks.post import (
    ANSWER_BYTES_MAX,
    Answer,
    DeliveryFailed,
    post,
)
from tests.node.tls.certificate_files import files_of
from tests.transports.http.webhooks.receiver import answering, receiving

pytestmark = pytest.mark.anyio
LOCAL = WebhookPolicy(is_local=True, hosts=hosts_of(["worker.example"]))
PUBLIC = WebhookPolicy()
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 13\r\n\r\n"


def no_tls() -> ssl.SSLContext:
    raise AssertionError("no request needs it")


async def ask(
    url: str, *, timeout_s: float = 10.0, policy: WebhookPolicy = LOCAL, **more: Any
) -> Answer:
    destination = destination_of(url, policy)
    headers = ((b"content-type", b"application/json"),)
    tls = more.pop("tls", no_tls)
    return await post(destination, headers, b'{"a":1}', timeout_s=timeout_s, tls=tls, **more)


def names(*addresses: str) -> Callable[[str, int], Awaitable[Sequence[str]]]:
    """A look-up with this result; it may be made once."""
    left = [list(addresses)]

    async def resolve(host: str, port: int) -> Sequence[str]:
        return left.pop()

    return resolve


async def test_a_request_and_its_answer() -> None:
    async with receiving(answering(OK, b'{"done":true}')) as receiver:
        answer = await ask(receiver.url + "?x=1")
    assert answer == Answer(200, b'{"done":true}')
    assert receiver.requests == [
        b"POST /hook?x=1 HTTP/1.1\r\nhost: 127.0.0.1:%d\r\ncontent-type: application/json\r\n"
        b'content-length: 7\r\nconnection: close\r\n\r\n{"a":1}' % receiver.port
    ]


@pytest.mark.parametrize(
    ("pieces", "answer"),
    [
        ((b"HTTP/1.1 204 No Content\r\n\r\n",), Answer(204, b"")),
        (
            (
                b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n",
                b"3\r\n{}\n\r\n",
                b"0\r\n\r\n",
            ),
            Answer(200, b"{}\n"),
        ),
        ((b"HTTP/1.0 200 OK\r\n\r\n", b"until the ", b"end"), Answer(200, b"until the end")),
        (
            (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Hints\r\nlink: x\r\n\r\n", OK + b"x" * 13),
            Answer(200, b"x" * 13),
        ),
        ((b"HTTP/1.1 500 No\r\ncontent-length: 0\r\n\r\n",), Answer(500, b"")),
        ((OK, b'{"do'), Answer(200, b'{"do')),
        ((OK, b"x" * 13, b"more that nobody asked for"), Answer(200, b"x" * 13)),
    ],
)
async def test_the_forms_of_answers(pieces: tuple[bytes, ...], answer: Answer) -> None:
    async with receiving(answering(*pieces)) as receiver:
        assert await ask(receiver.url) == answer


@pytest.mark.parametrize(
    "piece",
    [
        b"",
        b"HTTP/1.1 200 OK\r\nx",
        b"SSH-2.0-OpenSSH\r\n",
        b"\x16\x03\x01",
        b"HTTP/1.1 200 OK\r\ncontent-length: x\r\n\r\n",
        b"HTTP/1.1 101 Switching\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n",
    ],
)
async def test_what_is_no_answer(piece: bytes) -> None:
    async with receiving(answering(piece)) as receiver:
        with pytest.raises(DeliveryFailed):
            await ask(receiver.url)


async def test_redirects_are_not_followed() -> None:
    async with receiving(answering(OK, b"x" * 13)) as inner:
        moved = b"HTTP/1.1 307 Moved\r\nlocation: %b\r\ncontent-length: 0\r\n\r\n"
        async with receiving(answering(moved % inner.url.encode())) as outer:
            answer = await ask(outer.url)
        assert answer.status == 307
        assert inner.connections == 0
    assert outcome_of(answer) is DeliveryOutcome.FAILED


async def test_a_receiver_that_is_silent() -> None:
    async def wait(stream: ByteStream, body: bytes) -> None:
        await anyio.sleep(60)

    async with receiving(wait) as receiver:
        with pytest.raises(DeliveryFailed, match=r"no answer within 0\.2 s"):
            await ask(receiver.url, timeout_s=0.2)


async def test_a_receiver_that_sends_a_byte_now_and_then() -> None:
    async def drip(stream: ByteStream, body: bytes) -> None:
        for byte in OK * 1000:
            await stream.send(bytes([byte]))
            await anyio.sleep(0.05)

    async with receiving(drip) as receiver:
        with pytest.raises(DeliveryFailed, match="no answer within"):
            await ask(receiver.url, timeout_s=0.3)


@pytest.mark.parametrize(
    ("head", "is_answer"),
    [
        (b"HTTP/1.1 200 OK\r\n\r\n", True),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n", True),
        (b"HTTP/1.1 200 OK\r\nx: ", False),
    ],
)
async def test_an_endless_answer_is_cut(head: bytes, is_answer: bool) -> None:
    sent = 0

    async def flood(stream: ByteStream, body: bytes) -> None:
        nonlocal sent
        await stream.send(head)
        piece = b"400\r\n" + b"x" * 1024 + b"\r\n" if b"chunked" in head else b"x" * 1024
        while True:
            await stream.send(piece)
            sent += len(piece)

    async with receiving(flood) as receiver:
        if is_answer:
            answer = await ask(receiver.url)
            assert answer.status == 200 and len(answer.body) <= ANSWER_BYTES_MAX
            assert outcome_of(answer) is DeliveryOutcome.ACCEPTED
        else:
            with pytest.raises(DeliveryFailed):
                await ask(receiver.url)
    assert sent < 2**26, "what the sockets hold, and no more"


async def test_nobody_there() -> None:
    async with receiving(answering(OK)) as receiver:
        url = receiver.url
    with pytest.raises(DeliveryFailed):
        await ask(url)


async def test_every_address_is_checked_before_one_is_called() -> None:
    async with receiving(answering(OK)) as receiver:
        url = f"https://worker.test:{receiver.port}/"
        for addresses in (("127.0.0.1",), ("8.8.8.8", "127.0.0.1"), ("::1",), ("10.0.0.1",)):
            with pytest.raises(DeliveryFailed, match="which is not called"):
                await ask(url, policy=PUBLIC, resolve_name=names(*addresses))
        assert receiver.connections == 0


async def test_a_name_is_looked_up_once_and_pinned() -> None:
    """A name whose next look-up would give another address (DNS rebinding)."""
    async with receiving(answering(OK, b"x" * 13)) as receiver:
        url = f"http://worker.example:{receiver.port}/"
        answer = await ask(url, resolve_name=names("127.0.0.1"))
        assert answer.status == 200 and receiver.connections == 1
        assert b"host: worker.example:%d\r\n" % receiver.port in receiver.requests[0]


async def test_another_address_if_the_first_is_not_there() -> None:
    async with receiving(answering(OK, b"x" * 13)) as receiver:
        url = f"http://worker.example:{receiver.port}/"
        answer = await ask(url, resolve_name=names("127.0.0.2", "127.0.0.1"))
        assert answer.status == 200


async def test_tls_is_for_the_name_and_not_for_the_address(tmp_path: Path) -> None:
    files = files_of(tmp_path)
    async with receiving(answering(OK, b"x" * 13), tls=files.server()) as receiver:
        policy = WebhookPolicy(hosts=hosts_of(["mill", "other"]))
        for host, tls, is_answered in (
            ("mill", files.client, True),
            ("other", files.client, False),  # the certificate has another name
            ("mill", ssl.create_default_context, False),  # nobody knows the authority
        ):
            url = f"https://{host}:{receiver.port}/"
            asked = ask(url, policy=policy, tls=tls, resolve_name=names("127.0.0.1"))
            if is_answered:
                assert (await asked).status == 200
            else:
                with pytest.raises(DeliveryFailed):
                    await asked
    assert len(receiver.requests) == 1


async def test_a_name_without_addresses() -> None:
    with pytest.raises(DeliveryFailed):
        await ask("http://worker.example:9/", resolve_name=names())

    async def fail(host: str, port: int) -> Sequence[str]:
        raise OSError("Name or service not known")

    with pytest.raises(DeliveryFailed, match="not known"):
        await ask("http://worker.example:9/", resolve_name=fail)


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        (Answer(200, b'{"done":true}'), DeliveryOutcome.DONE),
        (Answer(202, b' {"done": true, "x": [1]} '), DeliveryOutcome.DONE),
        (Answer(200, b'{"done":1}'), DeliveryOutcome.ACCEPTED),
        (Answer(200, b'{"done":"true"}'), DeliveryOutcome.ACCEPTED),
        (Answer(200, b"{}"), DeliveryOutcome.ACCEPTED),
        (Answer(204, b""), DeliveryOutcome.ACCEPTED),
        (Answer(200, b"<html>"), DeliveryOutcome.ACCEPTED),
        (Answer(200, b"[" * 60_000), DeliveryOutcome.ACCEPTED),
        (Answer(200, b"\xff"), DeliveryOutcome.ACCEPTED),
        (Answer(301, b'{"done":true}'), DeliveryOutcome.FAILED),
        (Answer(404, b'{"done":true}'), DeliveryOutcome.FAILED),
        (Answer(500, b""), DeliveryOutcome.FAILED),
    ],
)
def test_what_an_answer_means(answer: Answer, outcome: DeliveryOutcome) -> None:
    assert outcome_of(answer) is outcome
