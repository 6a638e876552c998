"""The two forms of RustLog as a client writes and reads them: JSON, and the binary one.

The client has one set of responses, those of the JSON form. The binary form has less to tell: a
record has no timestamp, a partition no start and no segments; these are 0.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Literal, Protocol

from millpond.node.client.requests.pipeline import ReplyDecoder
from millpond.transports.rustlog import messages as m
from millpond.transports.rustlog.binary_codec import BinaryResponseDecoder
from millpond.transports.rustlog.binary_codec import encode_request as encode_binary
from millpond.transports.rustlog.binary_messages import (
    BinaryError,
    BinaryResponse,
    ErrorCode,
    MetricsText,
    PartitionWatermark,
    RecordRun,
    TopicCreated,
    TopicWatermarks,
)
from millpond.transports.rustlog.client_codec import ResponseDecoder
from millpond.transports.rustlog.client_codec import encode_request as encode_json

FormName = Literal["json", "binary"]
Wire = m.Response | BinaryResponse
"""A response as it comes, in either form."""

_FIRST_KEPT = re.compile(r"below the first one kept, (\d{1,20})$")
_NUMBER = re.compile(r"^([a-z_0-9]+) (\d+)$", re.MULTILINE)


class Form(Protocol):
    """One of them."""

    @property
    def decoder(self) -> Callable[[], ReplyDecoder[Wire]]:
        """Makes the decoder of a connection."""

    def encode(self, request: m.Request) -> bytes:
        """The request as a frame. Raises ValueError for what its fields cannot hold."""

    def read(self, request: m.Request | None, response: Wire) -> m.Response:
        """The response to a request; None: to none that is known, or its fields do not matter."""


class JsonForm:
    """Frames of JSON."""

    decoder: Callable[[], ReplyDecoder[Wire]] = ResponseDecoder
    encode = staticmethod(encode_json)

    def read(self, request: m.Request | None, response: Wire) -> m.Response:
        """See `Form`."""
        assert isinstance(response, m.Response), "the decoder gives no other"
        return response


class BinaryForm:
    """Frames of numbers and bytes."""

    decoder: Callable[[], ReplyDecoder[Wire]] = BinaryResponseDecoder

    def encode(self, request: m.Request) -> bytes:
        """See `Form`. A Fetch has no group: with one it would begin at the group's offset."""
        if isinstance(request, m.Fetch):
            request = m.Fetch(
                request.topic, request.partition, request.offset, request.max_bytes, ""
            )
        return encode_binary(request)

    def read(self, request: m.Request | None, response: Wire) -> m.Response:
        """See `Form`."""
        match response:
            case RecordRun(records=records, next_offset=end):
                start = request.offset if isinstance(request, m.Fetch) else end - len(records)
                rows = [m.FetchedRecord(start + at, 0, body) for at, body in enumerate(records)]
                return m.FetchResponse(rows, end)
            case TopicCreated(success=success):
                count = request.partition_count if isinstance(request, m.CreateTopic) else 0
                return m.CreateTopicResponse(success, count if success else 0)
            case TopicWatermarks(topic=topic, watermarks=watermarks):
                partitions = [m.PartitionRow(*each, 0, 0) for each in watermarks]
                return m.DescribeTopicResponse(topic, partitions)
            case PartitionWatermark(topic=topic, partition=partition, high_watermark=end):
                return m.DescribePartitionResponse(topic, partition, end, 0, 0)
            case MetricsText(text=text):
                numbers = {name: int(value) for name, value in _NUMBER.findall(text)}
                return m.MetricsFetchResponse(numbers, text)
            case BinaryError(code=ErrorCode.TOPIC_EXISTS) if isinstance(request, m.CreateTopic):
                return m.CreateTopicResponse(False, 0)
            case BinaryError(code=code, message=message):
                return m.Error(code, message, _details(message))
            case _:
                return response


def _details(message: str) -> dict[str, object] | None:
    """The `details` of an error in the JSON form, taken from its message (RB-21); None: it has
    none."""
    found = _FIRST_KEPT.search(message)
    return None if found is None else {"valid_range": {"start": int(found[1])}}


JSON: Form = JsonForm()
BINARY: Form = BinaryForm()
FORMS: dict[str, Form] = {"json": JSON, "binary": BINARY}
