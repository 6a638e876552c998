"""Several addresses of one node: the client moves on when a connection is refused or lost."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest

from millpond.pipeline.client.http_client import NodeClient
from millpond.pipeline.errors import PipelineError
from millpond.pipeline.options import sink_options
from tests.pipeline.pipeline_nodes import NodeProcess
from tests.pipeline.test_read_task import rows
from tests.ports import free_port

LIMIT_S = 20.0
BUSY = b'{"code":"unavailable","message":"busy"}'
STOPPING = b'{"code":"server_draining","message":"the node is stopping"}'


@contextmanager
def answering(*answers: bytes) -> Iterator[tuple[str, list[bytes]]]:
    """A server that gives each connection one answer, and its requests. Then it is closed."""
    requests: list[bytes] = []
    listener = socket.create_server(("127.0.0.1", 0))
    listener.settimeout(LIMIT_S)

    def serve() -> None:
        for answer in answers:
            try:
                accepted, _ = listener.accept()
            except OSError:
                break
            with accepted:
                accepted.settimeout(LIMIT_S)
                requests.append(accepted.recv(65536))
                accepted.sendall(answer)
        listener.close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", requests
    finally:
        try:
            listener.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # it is closed
        thread.join(LIMIT_S)
        listener.close()


def answer(body: bytes) -> bytes:
    lines = ("HTTP/1.1 503 Unavailable", f"content-length: {len(body)}", "connection: close")
    return "".join(f"{line}\r\n" for line in (*lines, "")).encode() + body


def client(*addresses: str, timeout_ms: int = 10_000) -> closing[NodeClient]:
    given = {"address": "|".join(addresses), "timeoutMs": str(timeout_ms)}
    return closing(NodeClient(sink_options(given).nodes, 0))


def dead() -> str:
    return f"http://127.0.0.1:{free_port()}"


def test_an_address_without_a_listener_is_passed_over(shared_node: NodeProcess) -> None:
    shared_node.make("passed")
    shared_node.fill("passed", [b"a", b"b"])
    both = f"{dead()} | {shared_node.address}"
    found = rows(shared_node.options(address=both, subscribe="passed"))
    assert found == [("passed", 0, 0, b"a"), ("passed", 0, 1, b"b")]


def test_a_request_whose_answer_was_lost_is_repeated_at_the_next(shared_node: NodeProcess) -> None:
    with answering(b"") as (first, requests), client(first, shared_node.address) as node:
        assert isinstance(node.names(), list)
        assert node.address == shared_node.address
        assert [each.split()[0] for each in requests] == [b"GET"]


def test_a_read_goes_on_at_the_next_address(shared_node: NodeProcess) -> None:
    """A session that is cut in the middle continues where it was."""
    shared_node.make("cut")
    shared_node.fill("cut", [b"0", b"1", b"2"])
    cut = b"HTTP/1.1 200 OK\r\ncontent-type: s2s/proto\r\ncontent-length: 999\r\n\r\n\x00\x00"
    with answering(cut) as (first, _), client(first, shared_node.address) as node:
        found = [int(each) for columns in node.read("cut", 0, 3) for each in columns.sequences]
    assert found == [0, 1, 2]


def test_a_node_that_stops_is_left_and_a_busy_one_is_not(shared_node: NodeProcess) -> None:
    given = (answer(BUSY), answer(STOPPING))
    with answering(*given) as (first, requests), client(first, shared_node.address) as node:
        assert isinstance(node.names(), list)
        assert node.address == shared_node.address
    assert len(requests) == 2


def test_all_addresses_are_named_when_none_answers() -> None:
    first, second = dead(), dead()
    with client(first, second, timeout_ms=300) as node, pytest.raises(PipelineError) as told:
        node.names()
    assert told.value.code == "node_away"
    assert f"{first}, {second} did not answer" in str(told.value)
