"""Pages: what one read finds of a stream, and what is said of it."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain

import msgspec

from millpond.actors.messages import Failed
from millpond.actors.positions import Seek, SeekBy
from millpond.actors.streams import messages as m
from millpond.transports.http.cell_client import CellClient, CellReply
from millpond.transports.http.durable import protocol
from millpond.transports.http.durable.context import DurableContext, DurableTarget
from millpond.transports.http.durable.errors import error_of, offset_gone, stream_not_found
from millpond.transports.http.durable.json_mode import array_of
from millpond.transports.http.durable.offsets import offset_of
from millpond.transports.http.durable.request_headers import Start


class Page(msgspec.Struct, frozen=True):
    """The records of a stream that one read found, from `start` on."""

    start: int
    described: m.StreamDescription
    records: m.Records

    @property
    def following(self) -> int:
        """The sequence to continue at. An empty page reaches to the tail: nothing before it is
        shown."""
        records = self.records
        return max(records.next if records.spans else records.tail, self.start)

    @property
    def is_at_tail(self) -> bool:
        return self.following >= self.records.tail

    @property
    def is_end(self) -> bool:
        """True if nothing can follow: the stream is closed, and this is its end."""
        return self.records.is_closed and self.is_at_tail

    @property
    def content(self) -> bytes:
        """The body of the response: bytes, or a JSON array of messages."""
        if protocol.is_json(self.described.settings.content_type):
            return array_of(self.records.slices)
        return b"".join(chain.from_iterable(span.bodies for span in self.records.spans))

    @property
    def tag(self) -> bytes:
        """Tells whether it is the same as before."""
        return b'"%x-%x-%x%b"' % (
            self.described.incarnation,
            self.start,
            self.following,
            b"c" if self.is_end else b"",
        )


async def first_page(
    context: DurableContext, cells: CellClient, target: DurableTarget, start: Start
) -> Page:
    """The page at `start`, without waiting. Raises DurableError: 404, 410 for a deleted stream."""
    described = await context.describe(cells, target)
    if described is None:
        raise stream_not_found()
    begin = page_begin(described, start)
    await context.request.hold_answer(page_memory(described, begin))
    records = await read_from(cells, target, described, begin)
    return Page(begin, described, records)


def page_begin(described: m.StreamDescription, start: Start) -> int:
    """The sequence at which a page begins. Raises DurableError (410) for one that is not kept."""
    info = described.info
    if start is None:
        return info.trim_point
    if start == "now":
        return info.tail
    if start < info.trim_point:
        raise offset_gone()
    return min(start, info.tail)


def page_memory(described: m.StreamDescription, sequence: int) -> int:
    """The bytes that the page from a sequence on may take in memory: its records, and once more
    what is written of them."""
    info = described.info
    return 2 * min(info.bytes_kept, protocol.PAGE_BYTES) if sequence < info.tail else 0


async def read_from(
    cells: CellClient,
    target: DurableTarget,
    described: m.StreamDescription,
    sequence: int,
    wait_until: float = 0.0,
) -> m.Records:
    """Records of this very stream from a sequence on; waits for one where there is none.

    Raises DurableError: 404 once it is gone, whatever has its name then.
    """
    make = read_request(described.incarnation, sequence, wait_until)
    return records_in(await cells.request(target.cell, make))


def records_in(reply: CellReply) -> m.Records:
    """The records in a reply. Raises DurableError."""
    match reply:
        case m.Records():
            return reply
        case m.StreamFailed() | Failed():
            raise error_of(reply)
        case _:
            raise AssertionError(f"{reply} answers no read")


def read_request(
    incarnation: int, sequence: int, wait_until: float, bytes_max: int = protocol.PAGE_BYTES
) -> Callable[[int], m.Read]:
    """The read of a page, for its number."""
    start = Seek(SeekBy.SEQUENCE, sequence)

    def make(number: int) -> m.Read:
        return m.Read(
            number,
            start,
            protocol.PAGE_RECORDS,
            bytes_max,
            wait_until,
            protocol.VIEW,
            incarnation=incarnation,
            ends_closed=True,
        )

    return make


def page_headers(page: Page) -> list[tuple[bytes, bytes]]:
    """Headers that say what a page is."""
    headers = [
        (b"content-type", protocol.shown_type(page.described.settings.content_type)),
        (protocol.NEXT_OFFSET, offset_of(page.following)),
        protocol.SANDBOX,
    ]
    if page.is_at_tail:
        headers.append((protocol.UP_TO_DATE, protocol.TRUE))
    if page.is_end:
        headers.append((protocol.CLOSED, protocol.TRUE))
    return headers
