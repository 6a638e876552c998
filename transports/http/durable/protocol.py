"""Names of headers, limits and values of Durable Streams (docs/reference/durable-streams.md)."""

from __future__ import annotations

from millpond.actors.streams.durable.messages import OCTET_STREAM, is_content_type, media_type
from millpond.actors.streams.messages import RecordFilter

JSON = b"application/json"

NEXT_OFFSET = b"stream-next-offset"
UP_TO_DATE = b"stream-up-to-date"
CLOSED = b"stream-closed"
CURSOR = b"stream-cursor"
TTL = b"stream-ttl"
EXPIRES_AT = b"stream-expires-at"
SEQ = b"stream-seq"
ENCODING = b"stream-sse-data-encoding"
FORKED_FROM = b"stream-forked-from"
FORK_OFFSET = b"stream-fork-offset"
FORK_SUB_OFFSET = b"stream-fork-sub-offset"
PRODUCER_ID = b"producer-id"
PRODUCER_EPOCH = b"producer-epoch"
PRODUCER_SEQ = b"producer-seq"
PRODUCER_EXPECTED = b"producer-expected-seq"
PRODUCER_RECEIVED = b"producer-received-seq"

ALLOWED_HEADERS = (
    *(b"content-type", b"authorization", b"if-none-match"),
    *(SEQ, TTL, EXPIRES_AT, CLOSED, FORKED_FROM, FORK_OFFSET, FORK_SUB_OFFSET),
    *(PRODUCER_ID, PRODUCER_EPOCH, PRODUCER_SEQ),
)
"""Headers that a page may send."""
EXPOSED_HEADERS = (
    *(NEXT_OFFSET, UP_TO_DATE, CLOSED, CURSOR, TTL, EXPIRES_AT, ENCODING),
    *(PRODUCER_EPOCH, PRODUCER_SEQ, PRODUCER_EXPECTED, PRODUCER_RECEIVED),
    *(b"etag", b"location"),
)
"""Headers that a page may read."""

TRUE = b"true"
NO_STORE = (b"cache-control", b"no-store")
SANDBOX = (b"content-security-policy", b"sandbox")
"""A stream of HTML that a browser shows is no page of the node: it runs no scripts, and has no
origin."""
NAME_BYTES_MAX = 512
TOKEN_BYTES_MAX = 256
"""The longest producer id, and the longest `Stream-Seq`."""
NUMBER_MAX = 2**53 - 1
"""The largest epoch, producer sequence, TTL and sub-offset."""

PAGE_BYTES = 4 * 2**20
PAGE_RECORDS = 100_000
"""The size of one response; at least one record is in it."""

VIEW = RecordFilter(empty=False, commands=False)


def is_json(content_type: bytes | None) -> bool:
    """True for streams of JSON messages."""
    return media_type(content_type) == JSON


def is_text(content_type: bytes | None) -> bool:
    """True for content that server-sent events carry as it is, without Base64."""
    kind = media_type(content_type)
    return kind == JSON or kind.startswith(b"text/")


def content_type_of(given: bytes | None) -> bytes | None:
    """The content type of a new stream, from its header; None: the header is missing."""
    if given is None or not given.strip():
        return None
    return shown_type(given.strip())


def shown_type(content_type: bytes | None) -> bytes:
    """The content type that responses name for a stream of this type."""
    return content_type if content_type and is_content_type(content_type) else OCTET_STREAM
