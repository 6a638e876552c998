"""Ends of pipelined connections: nothing waits for the garbage collector, which runs rarely."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from millpond.actors.errors import Code
from millpond.actors.messages import Failed
from millpond.transports.rustlog.connection import rustlog_connection
from millpond.transports.rustlog.settings import RustlogSettings
from millpond.transports.s3p.connection import S3pSettings, s3p_connection
from millpond.transports.server.pipelined import PipelinedConnection
from tests.conformance.rig import RecordedWire
from tests.transports.server.scripted_node import ScriptedNode

APPEND = b"*4\r\n$6\r\nAPPEND\r\n$1\r\ns\r\n*0\r\n*1\r\n$5\r\nhello\r\n"
PING = b'\0\0\0\x0f{"type":"Ping"}'
METRICS = b'\0\0\0\x17{"type":"MetricsFetch"}'


@pytest.fixture
def without_collector() -> Iterator[None]:
    gc.freeze()  # what is there already is neither collected nor counted
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _in_memory() -> int:
    return sum(isinstance(each, PipelinedConnection) for each in gc.get_objects())


def _s3p(node: ScriptedNode) -> PipelinedConnection[object]:
    return s3p_connection(1, node, S3pSettings())  # type: ignore[return-value]  # any protocol


def _rustlog(node: ScriptedNode) -> PipelinedConnection[object]:
    return rustlog_connection(1, node, RustlogSettings())  # type: ignore[return-value]  # the same


@pytest.mark.usefixtures("without_collector")
@pytest.mark.parametrize(
    ("connect", "data"),
    [
        pytest.param(_s3p, b"", id="s3p silent"),
        pytest.param(_s3p, APPEND, id="s3p unanswered"),
        pytest.param(_s3p, APPEND[:-8], id="s3p within a command"),
        pytest.param(_s3p, b"!", id="s3p malformed"),
        pytest.param(_rustlog, PING + METRICS, id="rustlog answered"),
        pytest.param(_rustlog, PING[:-2], id="rustlog within a frame"),
        pytest.param(_rustlog, b"\xff\xff\xff\xff", id="rustlog malformed"),
    ],
)
def test_a_connection_that_ended_is_freed_without_the_collector(connect, data: bytes) -> None:  # type: ignore[no-untyped-def]
    before, node = _in_memory(), ScriptedNode()
    connection = connect(node)
    connection.opened(RecordedWire())
    if data:
        connection.received(data)
    connection.ended()
    if node.asked:  # a late reply does nothing
        node.answer(*(Failed(request, Code.STORAGE_FAILED) for _, request in node.asked))
    vars(node).clear()  # it refers to itself, and to the connection
    del connection
    assert _in_memory() == before
