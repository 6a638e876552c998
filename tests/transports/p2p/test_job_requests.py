"""Packets 96 and 97, byte by byte: requests to a channel about its jobs, and its answers."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.actors.errors import Code
from millpond.actors.jobs import messages as m
from millpond.actors.messages import Failed, JobReply, JobRequest, Rights
from millpond.actors.queue_settings import QueueSettings, QueueShown, Rate
from millpond.transports.p2p import packets as p
from millpond.transports.p2p.jobs.bodies import IDS_MAX, RIGHTS, JobOperation
from millpond.transports.p2p.jobs.requests import (
    PAGE_BYTES_MAX,
    READS_MAX,
    REQUESTS_MAX,
    JobRequests,
)
from millpond.transports.p2p.nacks import correlation_number, decode_refused, encode_slow_down

PACKET_MAX = 2**20
ID = 0x1BA3CA3A0FC05007
ID_BYTES = "cf1ba3ca3a0fc05007"


def job_requests(rights: Rights = Rights.CHANNEL, packet_max: int = PACKET_MAX) -> JobRequests:
    return JobRequests(rights, packet_max)


def jobs(number: int, operation: int, body: bytes | dict[str, object]) -> p.Jobs:
    data = body if isinstance(body, bytes) else msgspec.msgpack.encode(body)
    packet = p.decode(p.encode(p.Jobs(number, operation, data)))
    assert isinstance(packet, p.Jobs)
    return packet


def refusal(number: int, code: int) -> bytes:
    return bytes((0xFF, 0x96, code)) + number.to_bytes(4, "big")


@pytest.mark.parametrize(
    ("operation", "body", "request_"),
    [
        (1, "82a36b6579cd0102a464617461c4026869", m.PutJob(7, 0x102, 0, b"hi")),
        (
            1,
            "85a36b657901a464617461c40178a374746c3ca3647565cd05dda6756e69717565c40161",
            m.PutJob(7, 1, 60, b"x", 1.501, b"a"),
        ),
        (2, "80", m.ListJobs(7, None, 0, 100, PAGE_BYTES_MAX)),
        (
            2,
            f"83a57374617465a464656164a56166746572{ID_BYTES}a56c696d697405",
            m.ListJobs(7, m.JobState.DEAD, ID, 5, PAGE_BYTES_MAX),
        ),
        (2, "81a57374617465c0", m.ListJobs(7, None, 0, 100, PAGE_BYTES_MAX)),
        (3, f"81a26964{ID_BYTES}", m.GetJob(7, ID, PACKET_MAX - 6)),
        (4, f"81a26964{ID_BYTES}", m.RetryJob(7, ID)),
        (5, f"81a26964{ID_BYTES}", m.CancelJob(7, ID)),
        (6, f"81a36964739201{ID_BYTES}", m.RetryDeadLetters(7, (1, ID))),
        (6, "81a3616c6cc3", m.RetryDeadLetters(7, None)),
        (7, "81a36964739101", m.PurgeDeadLetters(7, (1,))),
        (8, "80", m.CountJobs(7)),
        (8, "81a473746f70c3", m.CountJobs(7, stop=True)),
        (9, "82a2696405a6726561736f6ea26e6f", m.RejectJob(7, 5, "no")),
    ],
)
def test_each_request_has_its_bytes(operation: int, body: str, request_: JobRequest) -> None:
    assert job_requests().take(jobs(7, operation, bytes.fromhex(body))) == request_


ROW = m.JobRow(ID, m.JobState.DEAD, 3, 1.5, 2.25, 3.0, 2, b"hi", 9, "no")


@pytest.mark.parametrize(
    ("operation", "body", "reply"),
    [
        (1, {"id": ID, "ttl": 60, "existing": True}, m.JobStored(7, ID, 60, existing=True)),
        (
            2,
            {
                "jobs": [
                    {
                        "id": ID, "state": "dead", "attempt": 3, "due": 1500, "leased_until": 2250,
                        "expires": 3000, "size": 2, "data": b"hi", "origin": 9, "reason": "no",
                    }
                ],
                "more": True,
            },
            m.JobPage(7, (ROW,), more=True),
        ),
        (
            3,
            {
                "id": 5, "state": "ready", "attempt": 0, "due": 0, "leased_until": 0, "expires": 0,
                "size": 2, "data": None,
            },
            m.JobFound(7, m.JobRow(5, m.JobState.READY, 0, 0.0, 0.0, 0.0, 2, None)),
        ),
        (4, {"state": "delayed"}, m.JobDone(7, m.JobState.DELAYED)),
        (5, {"state": "leased"}, m.JobDone(7, m.JobState.LEASED)),
        (6, {"count": 3, "more": False}, m.DeadLettersDone(7, 3, more=False)),
        (
            8,
            {
                "ready": 1, "delayed": 2, "leased": 3, "dead": 6, "workers": 4, "oldest": 1001,
                "paused": False, "limited": 0,
            },
            m.JobCounts(7, 1, 2, 3, 4, 1.001, 6),
        ),
        (
            22,
            {
                "workers": [
                    {
                        "connection": 3, "identity": None, "window": 8, "takes": True, "held": 1,
                        "jobs": [
                            {
                                "id": ID, "attempt": 2, "since": 1500, "until": 2500,
                                "begun": False, "data": b"hi",
                            }
                        ],
                        "name": b"me",
                    }
                ],
                "more": True,
            },
            m.WorkerPage(
                7,
                (
                    m.WorkerRow(
                        3, None, 8, True, 1, (m.WorkerJobRow(ID, 2, 1.5, 2.5, False, b"hi"),), b"me"
                    ),
                ),
                True,
            ),
        ),
        (
            20,
            {
                "paused": False, "concurrency": 0, "rate": None, "key_concurrency": 0,
                "key_rate": None, "ageing": 60_000,
            },
            QueueShown(7, QueueSettings()),
        ),
        (
            21,
            {
                "paused": True, "concurrency": 3, "rate": {"count": 5, "period": 60_000},
                "key_concurrency": 1, "key_rate": {"count": 1, "period": 1000, "burst": 2},
                "ageing": 0,
            },
            QueueShown(
                7,
                QueueSettings(True, 3, Rate(5, 60_000), 1, Rate(1, 1000, 2), 0),
            ),
        ),
    ],
)  # fmt: skip
def test_each_answer_has_its_bytes(operation: int, body: object, reply: JobReply) -> None:
    asked = job_requests()
    needed = {1: {"key": 1, "data": b"x"}, 2: {}, 6: {"all": True}, 8: {}, 20: {}, 21: {}, 22: {}}
    assert not isinstance(asked.take(jobs(7, operation, needed.get(operation, {"id": 1}))), bytes)
    packet = asked.answered(reply)
    assert packet == bytes((0x97, 0, 0, 0, 7, operation)) + msgspec.msgpack.encode(body)
    assert asked.is_idle and asked.answered(reply) is None


@pytest.mark.parametrize(
    ("operation", "body"),
    [
        (0, {}),
        (0x7F, {}),
        (10, {}),
        (10, {"name": b"", "data": b"x", "cron": "* * * * *"}),
        (10, {"name": b"a", "data": b"x", "every": -1}),
        (10, {"name": b"a", "data": b"x", "missed": "perhaps"}),
        (12, {"name": b"a", "paused": 1}),
        (13, {"name": b"a"}),
        (13, {"name": b"a", "key": 1}),
        (14, {"limit": 501}),
        (1, {}),
        (1, {"key": 2**32, "data": b"x"}),
        (1, {"key": -1, "data": b"x"}),
        (1, {"key": 1, "data": "text"}),
        (1, {"key": 1, "data": b"x", "unique": bytes(65)}),
        (1, {"key": 1, "data": b"x", "due": 2**60}),
        (2, {"limit": 0}),
        (2, {"limit": 501}),
        (2, {"state": "lost"}),
        (3, {}),
        (5, {"id": -1}),
        (6, {}),
        (6, {"ids": []}),
        (6, {"ids": [1], "all": True}),
        (7, {"ids": [1] * (IDS_MAX + 1)}),
        (9, {"id": 1, "reason": "x" * 201}),
        (2, b"\x81\xa5state\xa4dea\x8b"),
        (9, b"\x82\xa2id\x01\xa6reason\xa1\x8b"),
        (8, b"\xc1"),
        (8, b""),
        (2, b"\x91" * 100_000),
    ],
)
def test_malformed_input_is_refused(operation: int, body: bytes | dict[str, object]) -> None:
    asked = job_requests()
    assert asked.take(jobs(9, operation, body)) == refusal(9, 0xF0)
    assert asked.is_idle


@given(st.integers(0, 255), st.binary(max_size=60))
def test_any_bytes_are_a_request_or_a_refusal(operation: int, body: bytes) -> None:
    found = job_requests().take(jobs(1, operation, body))
    assert isinstance(found, JobRequest) or found == refusal(1, 0xF0)


@pytest.mark.parametrize("operation", list(JobOperation))
def test_each_operation_needs_its_right(operation: JobOperation) -> None:
    body = {"key": 1, "at": 1, "data": b"x", "id": 1, "name": b"a"}
    fields: dict[str, object] = {"ids": [1]} if "DEAD" in operation.name else body
    if operation is JobOperation.PUT_MANY:
        fields = {"key": 1, "jobs": [b"x"]}
    if operation is JobOperation.PUT_FLOW:
        fields = {"key": 1, "steps": [{"data": b"x"}]}
    without = Rights.ALL & ~RIGHTS[operation]
    assert job_requests(without).take(jobs(1, operation, fields)) == refusal(1, 0xF6)
    assert isinstance(job_requests(RIGHTS[operation]).take(jobs(1, operation, fields)), JobRequest)


def test_a_flow_needs_the_right_to_put_into_each_queue() -> None:
    rights = {b"jobs/b": Rights.PUT, b"jobs/c": Rights.GET}
    asked = JobRequests(Rights.PUT, 2**20, b"jobs/a", rights.get)
    steps = [{"data": b"x"}, {"data": b"y", "channel": b"jobs/b", "after": [0]}]
    taken = asked.take(jobs(1, JobOperation.PUT_FLOW, {"key": 1, "steps": steps}))
    assert isinstance(taken, m.PutFlow)
    assert [each.channel for each in taken.steps] == [b"jobs/a", b"jobs/b"]
    for name, code in ((b"jobs/c", 0xF6), (b"jobs/d", 0xF6), (b"jobs/b!dead", 0xF0), (b"x", 0xF0)):
        steps[1]["channel"] = name
        body: dict[str, object] = {"key": 1, "steps": steps}
        assert asked.take(jobs(2, JobOperation.PUT_FLOW, body)) == refusal(2, code)


def test_so_many_requests_wait_and_no_more() -> None:
    asked = job_requests()
    for number in range(READS_MAX):
        assert isinstance(asked.take(jobs(number, 3, {"id": 1})), m.GetJob)
    assert asked.take(jobs(5000, 2, {})) == refusal(5000, 0x26)
    for number in range(READS_MAX, REQUESTS_MAX):
        assert isinstance(asked.take(jobs(number, 8, {})), m.CountJobs)
    assert asked.take(jobs(5000, 8, {})) == refusal(5000, 0x26)
    assert asked.take(jobs(3, 8, {})) == refusal(3, 0xF0), "the number is in use"
    assert asked.answered(Failed(m.GetJob(0, 1, 1), Code.NOT_FOUND)) == refusal(0, 0x02)
    assert isinstance(asked.take(jobs(5000, 2, {})), m.ListJobs)


def test_pages_fit_into_the_packets_of_the_other_end() -> None:
    asked = job_requests(packet_max=1024)
    assert asked.take(jobs(1, 2, {})) == m.ListJobs(1, None, 0, 100, 1018)
    page = m.JobPage(
        1, (m.JobRow(1, m.JobState.READY, 0, 0.0, 0.0, 0.0, 1000, bytes(1000)),), False
    )
    assert asked.answered(page) == refusal(1, 0x27)


@pytest.mark.parametrize(
    ("code", "byte"),
    [(Code.NOT_A_QUEUE, 0x29), (Code.LEASE_LOST, 0x28), (Code.STORAGE_FAILED, 0xE1)],
)
def test_a_refusal_of_the_channel_names_the_request(code: Code, byte: int) -> None:
    asked = job_requests()
    request = asked.take(jobs(7, 9, {"id": 1}))
    assert isinstance(request, JobRequest)
    assert asked.answered(Failed(request, code)) == refusal(7, byte)


def test_requests_above_the_rate_get_a_delay() -> None:
    told = encode_slow_down(p.Jobs(7, 1, b""), 250)
    assert told == refusal(7, 0xA0) + (250).to_bytes(4, "big")
    packet = p.decode(told)
    assert isinstance(packet, p.Refused) and correlation_number(packet) == 7
    assert decode_refused(packet).delay_ms == 250


def test_requests_count_as_held_until_they_are_answered() -> None:
    requests = job_requests()
    requests.take(jobs(1, JobOperation.PUT, {"key": 1, "data": bytes(5000)}))
    requests.take(jobs(2, JobOperation.PUT, {"key": 2, "data": bytes(7000)}))
    assert 12_000 < requests.held_bytes < 12_100
    requests.answered(m.JobStored(1, ID, 60))
    assert 7_000 < requests.held_bytes < 7_100
    requests.answered(Failed(JobRequest(2), Code.BUFFER_FULL))
    assert requests.held_bytes == 0
