"""`POST /millpond/v1/tails`: the streams that a reader follows, with their tails.

A stream that is at rest is answered from the directory and the store's index; only others, and
those that nobody has used since the start, are asked through their cells.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import takewhile

import anyio.lowlevel
import msgspec

from millpond.actors.messages import Rights
from millpond.actors.streams import messages as m
from millpond.transports.http.cell_client import CellClient
from millpond.transports.http.paths import TAILS
from millpond.transports.http.rejections import Rejection
from millpond.transports.http.request import Request
from millpond.transports.http.response import Response, ResponseWriter, json_response
from millpond.transports.http.s2.app import S2Api
from millpond.transports.http.s2.authorization import RIGHTS
from millpond.transports.http.s2.auto_create import is_unknown, unlisted
from millpond.transports.http.s2.codecs.json import decode_json
from millpond.transports.http.s2.codecs.tokens import Operation
from millpond.transports.http.s2.context import S2Context, S2Target
from millpond.transports.http.s2.errors import NoSuchMethod, S2Error, invalid
from millpond.transports.http.s2.interface import S2NodeServices
from millpond.transports.http.s2.model import is_text
from millpond.transports.http.s2.usage import S2Usage

BODY_BYTES_MAX = 8 * 2**20
PAGE_MAX = 10_000
GROUP_MAX = 500
_NUMBER = re.compile(rb"0|[1-9]\d{0,2}")


class TailsQuery(msgspec.Struct, frozen=True):
    """The streams that are asked for, by exactly one of the first two fields.

    `topics`: streams of these names, or their partitions `name/0`, `name/1` ... where there is no
    such stream. `prefix`: all streams whose names begin with it. A page begins after `after`.
    `details`: also the first record and the size of each.
    """

    topics: list[str] | None = None
    prefix: str | None = None
    after: str = ""
    details: bool = False


class TailsPage(msgspec.Struct, frozen=True):
    """A page of streams: name, identity, tail; with details also the first sequence and the bytes
    that are kept. The next page, if there is one, begins after `next`."""

    streams: list[tuple[str, str, int] | tuple[str, str, int, int, int]]
    next: str | None = None


_query = msgspec.json.Decoder(TailsQuery).decode


class TailsApi:
    """Implements `millpond.transports.http.app.Api`; its refusals are those of S2."""

    name = "tails"

    def __init__(self, services: S2NodeServices) -> None:
        self._services = services
        self._usage = S2Usage(services.now, lambda name: services.basins.find(name) is not None)
        self._s2 = S2Api(services)

    async def __call__(self, request: Request, writer: ResponseWriter) -> Response:
        context = S2Context(self._services, request, self._usage, writer)
        try:
            if request.method != "POST" or len(request.segments) > len(TAILS):
                raise NoSuchMethod(request.method, ["POST"])
            query = decode_json(_query, await context.json_body(BODY_BYTES_MAX))
            if (query.topics is None) == (query.prefix is None):
                raise invalid("exactly one of topics and prefix")
            return json_response(200, await _page(context, query))
        except S2Error as error:
            return error.response

    def reject(self, reason: Rejection, delay_ms: int | None) -> Response | None:
        """A rejection by the application, with a code of S2."""
        return self._s2.reject(reason, delay_ms)


async def _page(context: S2Context, query: TailsQuery) -> TailsPage:
    basin, own, authorization = context.basin(), context.stream_prefix, context.authorization
    context.require(Operation.LIST_STREAMS, basin)
    context.require_basin(basin)
    context.require_names()
    topics = None if query.topics is None else {own + each.encode() for each in query.topics}
    prefix = own + (query.prefix or "").encode() if topics is None else _common_prefix(topics)
    begin = prefix if authorization is None else authorization.narrowed(prefix)
    if begin is None or topics == set():
        return TailsPage([])
    directory = context.services.basins.streams(basin)
    names = directory.names(begin, own + query.after.encode(), PAGE_MAX + 1)
    is_cut = len(names) > PAGE_MAX
    names = [each for each in names[:PAGE_MAX] if is_text(each)]
    hidden = len(own)  # of what comes before all names of this client
    rows: list[tuple[str, str, int] | tuple[str, str, int, int, int]] = []
    with context.cell_client() as cells:
        for group in _groups(names):
            await anyio.lowlevel.checkpoint()  # between those of a group the node has no turn
            wanted = group if topics is None else [each for each in group if _is_of(each, topics)]
            shown = list(_shown(context, basin, wanted))
            if query.details:
                positions: list[tuple[int, int] | None] = [None] * len(shown)
            else:
                positions = list(directory.positions(shown))
            targets = [
                context.target_in(basin, name)
                for name, position in zip(shown, positions, strict=True)
                if position is None
            ]
            found = await described(cells, targets) if targets else {}
            for name, position in zip(shown, positions, strict=True):
                if position is not None:
                    incarnation, tail = position
                    rows.append((name[hidden:].decode(), f"{incarnation:x}", tail))
                elif name in found:
                    rows.append(_row(name[hidden:].decode(), found[name], query))
    last = names[-1][len(own) :].decode() if is_cut and names else None
    return TailsPage(rows, last)


def _shown(context: S2Context, basin: bytes, names: Sequence[bytes]) -> Iterator[bytes]:
    """The streams that this client may list. Raises CodedError for one whose tail is denied."""
    needed = RIGHTS[Operation.CHECK_TAIL] or Rights.NONE
    last: Rights | None = None
    is_listed = may_see = False
    for name, rights in zip(names, context.rights_listed(basin, names), strict=True):
        if rights is not last:  # most streams have those of the one before
            last = rights
            is_listed = rights is not None and Rights.LIST in rights
            may_see = rights is not None and bool(rights & needed)
        if is_listed:
            if not may_see:
                context.check(Operation.CHECK_TAIL, context.target_in(basin, name))
            yield name


def _common_prefix(names: set[bytes]) -> bytes:
    """The bytes that all names begin with."""
    first, last = min(names, default=b""), max(names, default=b"")
    same = takewhile(lambda pair: pair[0] == pair[1], zip(first, last, strict=False))
    return bytes(byte for byte, _ in same)


def _is_of(name: bytes, topics: set[bytes]) -> bool:
    """Whether a stream is a topic, or the partition of one."""
    topic, _, partition = name.rpartition(b"/")
    return name in topics or (
        topic in topics and bool(topic) and _NUMBER.fullmatch(partition) is not None
    )


def _row(
    name: str, description: m.StreamDescription, query: TailsQuery
) -> tuple[str, str, int] | tuple[str, str, int, int, int]:
    info, identity = description.info, f"{description.incarnation:x}"
    if query.details:
        return name, identity, info.tail, info.trim_point, info.bytes_kept
    return name, identity, info.tail


async def described(
    cells: CellClient, targets: Sequence[S2Target]
) -> dict[bytes, m.StreamDescription]:
    """The descriptions of streams that still exist, by their names. Raises S2Error."""
    found: dict[bytes, m.StreamDescription] = {}
    numbers = []
    for target in targets:
        numbers.append(cells.next_number())
        await cells.submit(target.cell, (m.Describe(numbers[-1]),))
    for number, target in zip(numbers, targets, strict=True):
        reply = await cells.reply(number)
        if isinstance(reply, m.StreamDescription):
            found[target.stream] = reply
        elif not is_unknown(reply):
            raise unlisted(reply, target)
    return found


def _groups(names: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    """So many at a time that the node has turns for others."""
    for at in range(0, len(names), GROUP_MAX):
        yield names[at : at + GROUP_MAX]
