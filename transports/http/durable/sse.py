"""Server-sent events: what was read, and where it ends (B.4 24 to 28)."""

from __future__ import annotations

import re
from base64 import b64encode

from millpond.transports.http.durable.offsets import offset_of

MEDIA_TYPE = b"text/event-stream"
HEARTBEAT = b":\n\n"
"""A comment, which readers pass over."""

_LINE_ENDS = re.compile(rb"\r\n|\r|\n")


def data_event(content: bytes, *, is_text: bool) -> bytes:
    """An event with data. Each line of the data begins with `data:`, so that nobody forges an
    event."""
    if not is_text:
        return b"event: data\ndata:%b\n\n" % b64encode(content)
    if b"\n" not in content and b"\r" not in content:
        return b"event: data\n%b\n\n" % _line(content)
    lines = b"\n".join(map(_line, _LINE_ENDS.split(content)))
    return b"event: data\n%b\n\n" % lines


def _line(content: bytes) -> bytes:
    # Readers take one space away behind the colon.
    return b"data: %b" % content if content[:1] == b" " else b"data:%b" % content


def control_event(following: int, cursor: bytes, *, is_at_tail: bool) -> bytes:
    """An event with the offset to continue at."""
    up_to_date = b',"upToDate":true' if is_at_tail else b""
    return b'event: control\ndata:{"streamNextOffset":"%b","streamCursor":"%b"%b}\n\n' % (
        offset_of(following),
        cursor,
        up_to_date,
    )


def closed_event(following: int) -> bytes:
    """The last event: the stream is closed."""
    return b'event: control\ndata:{"streamNextOffset":"%b","streamClosed":true}\n\n' % offset_of(
        following
    )
