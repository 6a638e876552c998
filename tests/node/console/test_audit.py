"""Changes by the console are events of the node, with their outcomes."""

from __future__ import annotations

import msgspec
import pytest

from millpond import Config, Node, connect
from millpond.actors.errors import ChannelExists
from millpond.actors.messages import Role
from millpond.node.client.probe import PROBE
from millpond.node.config import LISTENERS
from millpond.node.console.audit import AGENT, EVENT, AuditedFraming
from millpond.transports.browser_policy import BrowserPolicy
from millpond.transports.p2p import packets as p
from millpond.transports.p2p.handshake import Hello, encode_hello
from millpond.transports.websocket.framing import ClientFraming

CREATE, PURGE, LIST = 7, 9, 6
OFF = {**dict.fromkeys(LISTENERS, "off"), "http": "127.0.0.1:0", "drain_timeout_s": 0.2}


class Console:
    """A console at the framing of a node, and the events that it makes."""

    def __init__(self, agent: bytes = AGENT) -> None:
        self.events: list[dict[str, object]] = []
        self._client = ClientFraming("localhost", b"jobs/mail", True, None, 2**20)
        self._server = AuditedFraming(2**20, BrowserPolicy(), 7, self._record)
        self._server.feed(self._client.take_output())
        self._client.feed(self._server.take_output())
        hello = Hello(channel=b"jobs/mail", role=Role.CONSUMER, token=b"secret", user_agent=agent)
        self.says(encode_hello(hello))

    def _record(self, event: str, fields: dict[str, object]) -> None:
        assert event == EVENT
        self.events.append(fields)

    def says(self, packet: bytes) -> None:
        assert self._server.feed(self._client.frame([packet])) == [packet]

    def hears(self, packet: bytes) -> None:
        assert self._client.feed(self._server.frame([packet])) == [packet]


def request(kind: int, number: int, operation: int, body: bytes) -> bytes:
    return bytes([kind]) + number.to_bytes(4, "big") + bytes([operation]) + body


def test_a_change_is_told_once_it_is_answered_without_data_and_token() -> None:
    console = Console()
    console.says(request(p.JOBS, 3, 5, b"\x81\xa2id\xcd\x01\x00"))
    console.says(request(p.JOBS, 4, 8, b"\x80"))  # counts change nothing
    assert console.events == []
    console.hears(request(p.JOBS + 1, 4, 8, b"\x80"))
    console.hears(request(p.JOBS + 1, 3, 5, b"\x80"))
    console.hears(request(p.JOBS + 1, 3, 5, b"\x80"))
    (told,) = console.events
    assert told["change"] == "cancel job" and told["id"] == 256 and told["outcome"] == "done"
    assert told["queue"] == "jobs/mail" and told["connection"] == 7
    assert str(told["by"]).startswith("token ") and "secret" not in str(told)


def test_a_refused_change_is_told_as_such_and_other_clients_not_at_all() -> None:
    for agent, count in ((AGENT, 1), (b"somebody else", 0)):
        console = Console(agent)
        console.says(request(p.STREAM, 9, 6, b"\x81\xa6stream\xc4\x01s"))
        console.hears(bytes([p.NACK, p.STREAM, 0x41, 0, 0, 0, 9]))
        assert len(console.events) == count
    console = Console()
    console.says(request(p.STREAM, 9, 6, b"\x81\xa6stream\xc4\x02\xffs"))
    console.says(request(p.STREAM, 10, 2, b"no map"))
    console.hears(bytes([p.NACK, p.STREAM, 0x41, 0, 0, 0, 9]))
    console.hears(request(p.STREAM + 1, 10, 2 | 0x80, b""))
    console.hears(request(p.STREAM + 1, 10, 2, b""))
    first, second = console.events
    assert (first["stream"], first["outcome"]) == ("\\xffs", "refused (code 41)")
    assert (second["change"], second["outcome"]) == ("append record", "done")


@pytest.mark.parametrize(
    ("operation", "change"), [(23, "take job"), (39, "retry flow"), (40, "cancel flow")]
)
def test_what_the_console_does_with_jobs_and_flows_is_told(operation: int, change: str) -> None:
    console = Console()
    console.says(request(p.JOBS, 3, operation, b"\x81\xa2id\x07"))
    console.hears(request(p.JOBS + 1, 3, operation, b"\x80"))
    (told,) = console.events
    assert (told["change"], told["id"]) == (change, 7)


def test_limits_that_are_set_are_told() -> None:
    console = Console()
    body = msgspec.msgpack.encode({"concurrency": 3, "rate": {"count": 5, "period": 1000}})
    console.says(request(p.JOBS, 3, 21, body))
    console.hears(request(p.JOBS + 1, 3, 21, b"\x80"))
    (told,) = console.events
    assert (told["concurrency"], told["rate"]) == (3, "{'count': 5, 'period': 1000}")


async def test_clients_at_the_http_port_that_are_no_console_make_no_such_events() -> None:
    async with Node(Config(**OFF)) as node:  # type: ignore[arg-type]
        url = f"ws://{node.listeners['http']}"
        async with connect(url, PROBE, window=0) as probe:
            await probe.channels.create("a", "queue")
            with pytest.raises(ChannelExists):
                await probe.channels.create("a", "pair")
        assert all(each.event != EVENT for each in node.events.after(0).events)
