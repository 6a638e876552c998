"""The sender of webhooks, and a real node with a real receiver (DSS-23 to DSS-28, DSS-30)."""

from __future__ import annotations

import http.client
import json
import logging
from base64 import urlsafe_b64decode
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from anyio.abc import ByteStream, TaskGroup
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from millpond.actors.errors import Code
from millpond.actors.messages import CellMessage, StreamFailed
from millpond.actors.subscriptions.messages import (
    Delivery,
    DeliveryFinished,
    DeliveryOutcome,
    LinkView,
)
from millpond.node.config import Config
from millpond.node.node import Node
from millpond.node.webhooks.keys import webhook_key
from millpond.node.webhooks.sender import WebhookSender
from millpond.transports.http.webhooks.destination import WebhookPolicy
from tests.transports.http.webhooks.receiver import answering, receiving

pytestmark = pytest.mark.anyio
KEY = webhook_key(b"s" * 32, 1)
DONE = b'HTTP/1.1 200 OK\r\ncontent-length: 13\r\n\r\n{"done":true}'
GOING_ON = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"
OFF = dict.fromkeys(("p2p", "ws", "s3p", "rustlog"), "off")


def delivery(
    url: str, number: int = 1, timeout_s: float = 10.0, cell: bytes | None = None
) -> Delivery:
    """One with a stream that came later, and one that is done."""
    links = (LinkView(b"a", False, -1, 2, True), LinkView(b"b/c", True, 3, 3, False))
    return Delivery(
        number, cell or b"cell %d" % number, "sübscription 1".encode(), url, "http://node:1", "w_1",
        7, b"token", links, timeout_s,
    )  # fmt: skip


class Senders:
    """A sender, and what it tells the cells."""

    def __init__(self, at_once: int = 64, **options: Any) -> None:
        self.finished: list[DeliveryFinished] = []
        self.changed = anyio.Event()
        policy = options.pop("policy", WebhookPolicy(is_local=True))
        self.sender = WebhookSender(
            self._post, policy, at_once, lambda: "1.2", lambda: 1795347000.9, **options
        )

    def _post(self, cell: bytes, message: CellMessage) -> None:
        assert cell.startswith(b"cell") and isinstance(message, DeliveryFinished)
        self.finished.append(message)
        self.changed.set()

    def give(self, *deliveries: Delivery) -> None:
        self.sender.send(deliveries)
        self.sender.flush()

    async def outcomes(self, count: int) -> list[DeliveryOutcome]:
        with anyio.fail_after(60):
            while len(self.finished) < count:
                self.changed = anyio.Event()
                await self.changed.wait()
        return [each.outcome for each in self.finished]


async def test_the_request() -> None:
    senders = Senders()
    async with receiving(answering(DONE)) as receiver, sending() as tasks:
        senders.sender.open(tasks, lambda: KEY)
        senders.give(delivery(receiver.url, number=9))
        assert await senders.outcomes(1) == [DeliveryOutcome.DONE]
        assert senders.finished[0].number == 9
    head, _, body = receiver.requests[0].partition(b"\r\n\r\n")
    assert json.loads(body) == {
        "subscription_id": "sübscription 1",
        "wake_id": "w_1",
        "generation": 7,
        "streams": [
            {
                "path": "a",
                "link_type": "glob",
                "acked_offset": "-1",
                "tail_offset": "0000000000000002_0000000000000000",
                "has_pending": True,
            },
            {
                "path": "b/c",
                "link_type": "explicit",
                "acked_offset": "0000000000000003_0000000000000000",
                "tail_offset": "0000000000000003_0000000000000000",
                "has_pending": False,
            },
        ],
        "callback_url": "http://node:1/v1/stream/__ds/subscriptions/s%C3%BCbscription%201/callback",
        "callback_token": "token",
    }
    headers = dict(line.split(b": ", 1) for line in head.split(b"\r\n")[1:])
    assert headers[b"content-type"] == b"application/json"
    assert headers[b"user-agent"] == b"millpond/1.2"
    fields = dict(each.split("=", 1) for each in headers[b"webhook-signature"].decode().split(","))
    assert (fields["t"], fields["kid"]) == ("1795347000", KEY.kid)
    public = Ed25519PublicKey.from_public_bytes(urlsafe_b64decode(KEY.x + "="))
    public.verify(urlsafe_b64decode(fields["ed25519"] + "=="), b"1795347000." + body)


async def test_so_many_at_once() -> None:
    under_way = most = 0
    release, are_three = anyio.Event(), anyio.Event()

    async def hold(stream: ByteStream, body: bytes) -> None:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        if under_way == 3:
            are_three.set()
        await release.wait()
        under_way -= 1
        await stream.send(DONE)

    senders = Senders(at_once=11)  # a quarter for one receiver that is not known
    async with receiving(hold) as receiver, sending() as tasks:
        senders.give(*(delivery(receiver.url, number) for number in range(8)))
        senders.sender.open(tasks, lambda: KEY)
        with anyio.fail_after(60):
            await are_three.wait()
        assert senders.sender.waiting == 5
        release.set()
        assert await senders.outcomes(8) == [DeliveryOutcome.DONE] * 8
    assert most <= 3 and senders.sender.waiting == 0


async def test_silent_receivers_do_not_hold_up_one_that_answers() -> None:
    async def hold(stream: ByteStream, body: bytes) -> None:
        await anyio.sleep_forever()

    senders = Senders(at_once=4)
    async with (
        receiving(answering(DONE)) as good,
        receiving(hold) as one,
        receiving(hold) as two,
        sending() as tasks,
    ):
        senders.sender.open(tasks, lambda: KEY)
        senders.give(delivery(good.url, 1, cell=b"cell"))
        await senders.outcomes(1)
        senders.give(*(delivery((one, two)[number % 2].url, number) for number in range(10, 30)))
        for count in range(2, 5):
            senders.give(delivery(good.url, count, cell=b"cell"))
            assert (await senders.outcomes(count))[-1] is DeliveryOutcome.DONE
        assert one.connections + two.connections <= 2


async def test_of_one_subscription_only_the_latest_waits() -> None:
    senders = Senders()
    senders.sender.send(
        [delivery("http://127.0.0.1:1/", number, cell=b"cell") for number in (1, 2)]
    )
    assert senders.sender.waiting == 1
    async with receiving(answering(DONE)) as receiver, sending() as tasks:
        senders.give(delivery(receiver.url, 3, cell=b"cell"))
        senders.sender.open(tasks, lambda: KEY)
        assert await senders.outcomes(1) == [DeliveryOutcome.DONE]
    assert [each.number for each in senders.finished] == [3]


async def test_failures(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    async def public(host: str, port: int) -> Sequence[str]:
        return ["127.0.0.1"]

    senders = Senders(resolve_name=public)
    moved = b"HTTP/1.1 302 Found\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 0\r\n\r\n"
    async with receiving(answering(moved)) as receiver, sending() as tasks:
        senders.sender.open(tasks, lambda: KEY)
        for number, url in enumerate(
            (
                receiver.url,
                "https://worker.example/",  # its address is that of this machine
                "http://10.0.0.1/",  # allowed once, and not any more
                "nonsense",
            )
        ):
            senders.give(delivery(url, number))
            assert (await senders.outcomes(number + 1))[-1] is DeliveryOutcome.FAILED
        senders.give(delivery(receiver.url))
        senders.sender.send([StreamFailed(1, Code.STORAGE_FAILED)])
        senders.sender.flush()
        await senders.outcomes(5)
    assert "status=302" in caplog.text and "which is not called" in caplog.text
    assert "token" not in caplog.text


async def test_a_crash_is_a_failure(caplog: pytest.LogCaptureFixture) -> None:
    async def fail(host: str, port: int) -> Sequence[str]:
        raise RuntimeError("not foreseen")

    senders = Senders(resolve_name=fail)
    async with sending() as tasks:
        senders.sender.open(tasks, lambda: KEY)
        senders.give(delivery("http://localhost:1/"))
        assert await senders.outcomes(1) == [DeliveryOutcome.FAILED]
    assert "webhook crashed" in caplog.text


@asynccontextmanager
async def sending() -> AsyncIterator[TaskGroup]:
    """The tasks of a sender, which never ends by itself."""
    async with anyio.create_task_group() as tasks:
        yield tasks
        tasks.cancel_scope.cancel()


def ask(address: str, method: str, path: str, content: object = None, token: str = "") -> Any:
    """A request to a real listener."""
    connection = http.client.HTTPConnection(address, timeout=20)
    try:
        headers = {"content-type": "application/json", "authorization": f"Bearer {token}"}
        body = None if content is None else json.dumps(content)
        connection.request(method, f"/v1/stream/{path}", body, headers)
        response = connection.getresponse()
        text = response.read()
        assert response.status < 300, (response.status, text)
        return json.loads(text) if text else None
    finally:
        connection.close()


@pytest.mark.parametrize("is_stored", [False, True])
async def test_a_node_calls_a_worker_that_calls_back(tmp_path: Path, is_stored: bool) -> None:
    calls: list[dict[str, Any]] = []
    called = anyio.Event()

    async def work(stream: ByteStream, body: bytes) -> None:
        calls.append(json.loads(body))
        await stream.send(GOING_ON)
        called.set()

    data = str(tmp_path / "data") if is_stored else ""
    config = Config(http="127.0.0.1:0", drain_timeout_s=0.2, data=data, **OFF)
    async with receiving(work) as receiver, Node(config) as node:
        address = node.listeners["http"]

        async def talk(method: str, path: str, content: object = None, token: str = "") -> Any:
            return await anyio.to_thread.run_sync(ask, address, method, path, content, token)

        wanted = {"type": "webhook", "pattern": "e/*", "webhook": {"url": receiver.url}}
        made = await talk("PUT", "__ds/subscriptions/s", wanted)
        assert made["webhook"]["signing"]["jwks_url"].startswith(f"http://{address}/")
        await talk("PUT", "e/1", [1, 2])
        with anyio.fail_after(60):
            await called.wait()
        (call,) = calls
        prefix = f"http://{address}/v1/stream/"
        assert call["callback_url"] == f"{prefix}__ds/subscriptions/s/callback"
        ack = {
            "wake_id": call["wake_id"],
            "generation": 1,
            "acks": [{"stream": "e/1", "offset": call["streams"][0]["tail_offset"]}],
            "done": True,
        }
        path = call["callback_url"].removeprefix(prefix)
        settled = await talk("POST", path, ack, call["callback_token"])
        assert settled == {"ok": True, "next_wake": False}
        shown = await talk("GET", "__ds/subscriptions/s")
        assert shown["streams"][0]["acked_offset"].startswith("0000000000000002_")
        called = anyio.Event()
        await talk("POST", "e/1", [3])
        with anyio.fail_after(60):
            await called.wait()
        assert calls[1]["generation"] == 2
        await talk("DELETE", "__ds/subscriptions/s")
