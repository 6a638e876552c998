"""Counters of connections by protocol, and the requests that are timed."""

from __future__ import annotations

import pytest

from millpond.actors.streams.messages import Done
from millpond.transports.p2p.connection import first_sample
from millpond.transports.server.protocol_stats import SAMPLE_GAP_S, ProtocolStats
from tests.conformance import packets as p
from tests.conformance.rig import RecordedConnection as P2pLine
from tests.conformance.rig import Rig
from tests.transports.s3p.test_connection import (
    ScriptedConnection,
    append,
    appended,
    create,
    read,
    records,
)
from tests.transports.websocket.test_framing import request_of

pytestmark = pytest.mark.wire


def timed(traffic: ProtocolStats) -> tuple[int, float]:
    return traffic.latency.count, round(traffic.latency.total, 6)


class Held:
    """A rig whose cells answer late: a batch goes to its cell in `release`."""

    def __init__(self) -> None:
        self.rig = Rig()
        self.line: P2pLine = self.rig.logged_in()
        services = self.rig.node.services
        self.protocol_stats = services.protocol_stats["p2p"]
        self._waiting: list[tuple[bytes, object, float]] = []
        self._submit, services.submit = services.submit, self._hold  # type: ignore[method-assign]

    def _hold(self, *asked: object) -> bool:
        self._waiting.append(asked)  # type: ignore[arg-type]
        return True

    def release(self) -> None:
        waiting, self._waiting = self._waiting, []
        for cell, batch, _ in waiting:
            self._submit(cell, batch, self.rig.node.clock.now())  # type: ignore[arg-type]


def test_packets_and_bytes_count_for_the_protocol_they_came_by() -> None:
    rig = Rig()
    line = rig.connect()
    said = p.hello(b"chat/1"), p.put(1, b"a"), p.put(2, b"b")
    line.say(*said)
    web = rig.connect_websocket()
    web.feed(request_of(path="/chat"))
    traffic = rig.node.services.protocol_stats
    p2p, ws = traffic["p2p"], traffic["ws"]
    assert (p2p.connections, p2p.requests, p2p.bytes_in) == (1, 3, len(p.framed(*said)))
    assert (ws.connections, ws.requests) == (1, 0) and ws.bytes_in > 0
    assert not any(traffic[name].connections for name in ("s3p", "rustlog", "http"))


def test_a_put_is_timed_from_its_read_to_its_receipt() -> None:
    held = Held()
    held.line.say(p.put(1, b"a"), p.put(2, b"b"))
    held.rig.advance(0.25)
    assert timed(held.protocol_stats) == (0, 0)
    held.release()
    assert len(held.line.take_packets()) == 2 and timed(held.protocol_stats) == (1, 0.25)


@pytest.mark.parametrize("packet", [p.get(99), p.put(1, b"other")], ids=["get", "put"])
def test_a_refusal_is_an_answer(packet: bytes) -> None:
    held = Held()
    held.line.say(p.put(1, b"a"))
    held.release()
    held.rig.advance(1)
    held.line.take_packets()
    held.line.say(packet)
    held.rig.advance(2)
    held.release()
    assert held.line.take_packets()[0][:2] == bytes((0xFF, packet[0]))
    assert timed(held.protocol_stats) == (2, 2.0)


def test_jobs_and_appends_to_streams_are_timed_by_the_numbers_of_their_requests() -> None:
    ask = bytes.fromhex("96 00000007 01") + b"body"
    watched = first_sample([p.PING, ask], 1.0)
    assert watched is not None and watched.received_at == 1.0
    answers = [bytes.fromhex(each) for each in ("97 00000007 01", "ff 96 e0 00000007")]
    others = [bytes.fromhex(each) for each in ("97 00000008 01", "93 00000007 02", "ff 92 e0")]
    assert [watched.is_answered_in([each]) for each in answers + others] == [True] * 2 + [False] * 3
    append, read = (bytes((0x92, 0, 0, 0, 1, each)) + b"body" for each in (2, 3))
    assert first_sample([read], 1.0) is None, "it may wait for what is still to come"
    assert first_sample([append], 1.0) is not None


def test_pushes_and_answers_to_others_end_no_sample() -> None:
    held = Held()
    held.line.say(p.put(1, b"a"))
    held.release()
    held.rig.advance(1)
    held.line.take_packets()
    held.line.say(p.put(2, b"b"), p.PING)
    held.rig.advance(1)
    assert held.line.take_packets() == [p.PONG] and timed(held.protocol_stats) == (1, 0)
    held.release()
    assert timed(held.protocol_stats) == (2, 1.0)


def test_samples_keep_a_distance_so_that_many_requests_cost_no_more() -> None:
    rig = Rig()
    line, traffic = rig.logged_in(), rig.node.services.protocol_stats["p2p"]
    for key in range(100):
        line.ask(p.put(key, b"x"))
    assert traffic.latency.count == 1 and traffic.requests == 101
    for key in range(100, 110):
        rig.advance(SAMPLE_GAP_S * 1.01)
        line.ask(p.put(key, b"x"))
    assert traffic.latency.count == 11


def test_requests_without_an_answer_are_not_timed() -> None:
    rig = Rig()
    line, traffic = rig.logged_in(), rig.node.services.protocol_stats["p2p"]
    rig.advance(1)
    line.ask(p.ack(1), p.PING, p.list_())
    assert traffic.latency.count == 0


def test_commands_of_s3p_are_timed() -> None:
    line = ScriptedConnection()
    traffic = line.node.protocol_stats["s3p"]
    line.say(create(), append(b"1"))
    line.node.time += 0.5
    line.node.answer(appended(1))
    assert timed(traffic) == (0, 0), "it waits for the answer before it"
    line.node.time += 0.5
    line.node.answer(Done(0))
    assert timed(traffic) == (1, 1.0)


def test_a_read_that_waits_for_a_record_is_not_timed() -> None:
    line = ScriptedConnection()
    traffic = line.node.protocol_stats["s3p"]
    line.say(read(BLOCK=60_000))
    line.node.time += 30
    line.node.answer(records(0, b"new"))
    assert timed(traffic) == (0, 0)
    line.say(append(b"1"))
    line.node.answer(appended(1))
    assert timed(traffic) == (1, 0)
