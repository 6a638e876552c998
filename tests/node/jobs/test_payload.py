"""The bytes of a job: read back, and foreign bytes are jobs as well."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.actors.jobs.options import options_of
from millpond.node.jobs.payload import JobMessage, ReplyTo, decode_job, encode_job

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)
BODIES = st.builds(
    JobMessage,
    VALUES,
    st.none() | st.text(),
    st.none() | st.builds(ReplyTo, st.binary(min_size=16, max_size=16), st.integers(0, 2**64 - 1)),
    st.none() | st.integers(1, 2**16 - 1),
    st.dictionaries(st.text(), st.text(), max_size=3),
    st.integers(0, 2**64 - 1),
)


@given(BODIES)
def test_an_encoded_job_is_decoded(body: JobMessage) -> None:
    assert decode_job(encode_job(body)) == body


def test_the_bytes_of_a_job() -> None:
    """docs/reference/wire-protocol.md, "The bytes of a job"."""
    body = JobMessage({"to": "alice"}, "send", enqueued_ms=1763683200000)
    told = "84a17601a17081a2746fa5616c696365a16ea473656e64a165cf0000019aa3b5ec00"
    assert encode_job(body).hex() == told


@given(st.binary())
def test_any_bytes_are_a_job(data: bytes) -> None:
    """Nothing that somebody puts into the queue stops a worker."""
    assert isinstance(decode_job(data), JobMessage)


@given(BODIES, st.data())
def test_a_damaged_job_is_a_job(body: JobMessage, data: st.DataObject) -> None:
    told = bytearray(encode_job(body))
    setup = data.draw(st.integers(0, len(told) - 1))
    told[setup] = data.draw(st.integers(0, 255))
    assert isinstance(decode_job(bytes(told)), JobMessage)


@pytest.mark.parametrize(
    ("data", "payload"),
    [
        (b'{"to": "alice"}', {"to": "alice"}),
        (b"17", 17),
        (b"hello", b"hello"),
        (b"\xff\xfe", b"\xff\xfe"),
        (b"[" * 5000, b"[" * 5000),
        (b"\x91" * 5000, b"\x91" * 5000),
        (msgspec.msgpack.encode({"v": 2, "p": 1}), msgspec.msgpack.encode({"v": 2, "p": 1})),
    ],
    ids=["object", "number", "text", "bytes", "deep JSON", "deep MessagePack", "another version"],
)
def test_foreign_bytes_are_the_payload(data: bytes, payload: Any) -> None:
    assert decode_job(data) == JobMessage(payload)


def test_a_payload_that_cannot_be_encoded_is_refused() -> None:
    with pytest.raises(TypeError):
        encode_job(JobMessage(object()))
    with pytest.raises(ValueError):
        encode_job(JobMessage(None, attempts=0))


def test_options_stand_in_front_of_the_payload_where_the_node_reads_them() -> None:
    body = JobMessage("x" * 300, priority=9, limit_key=b"k", start_by_ms=5)
    data = encode_job(body)
    assert data[:17] == b"\x85\xa1v\x01\xa1r\x09\xa1l\xc4\x01k\xa1s\x05\xa1p"[:17]
    assert decode_job(data) == body
    found = options_of(data)
    assert found is not None
    assert (found.priority, found.limit_key, found.start_by_ms) == (9, b"k", 5)
    assert options_of(encode_job(JobMessage("x"))) is None
    for wrong in ({"priority": 10}, {"priority": -1}, {"limit_key": b"k" * 65}):
        with pytest.raises(ValueError, match=r"priority|limit key"):
            encode_job(JobMessage("x", **wrong))  # type: ignore[arg-type]
