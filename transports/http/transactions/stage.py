"""Parts of a batch: rows that are kept, and that nobody sees yet.

A part is a stream of its own which no view can name. It goes by itself a day after its last row, or
much later once its batch is decided and takes more than one change.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from millpond.actors.errors import Code
from millpond.actors.messages import Failed, StreamRequest
from millpond.actors.streams import messages as m
from millpond.actors.streams.names import StagedPart, staged_cell
from millpond.transports.http.cell_client import CellClient, CellReply
from millpond.transports.http.s2.append import BODY_BYTES_MAX
from millpond.transports.http.s2.auto_create import describe
from millpond.transports.http.s2.codecs import protobuf as protobuf_codec
from millpond.transports.http.s2.context import S2Context, S2Target
from millpond.transports.http.s2.errors import (
    CodedError,
    ErrorCode,
    NotDeclared,
    S2Error,
    coded_error,
    error_of,
    invalid,
)
from millpond.transports.http.s2.model import AppendInput, check_append
from millpond.transports.http.s2.read_query import unique
from millpond.transports.http.transactions.interface import TransactionCounters

PART_S = 86_400
DECIDED_S = 30 * 86_400
"""The retention of a part of a batch that is decided, also while the node is off."""
EMPTY_S = 60
PARTS_AT_ONCE = 200
_KEPT = m.Settings(age_s=PART_S, bytes_max=0, options=m.StreamOptions(empty_s=EMPTY_S))


async def stage(
    context: S2Context, target: S2Target, part: StagedPart, counters: TransactionCounters
) -> int:
    """Add the rows of the body to a part, once; how many it has then. Raises S2Error."""
    at = _at(context)
    if not protobuf_codec.is_protobuf(context.header(b"content-type")):
        raise NotDeclared("application/protobuf")
    given = protobuf_codec.decode_input(await context.body(BODY_BYTES_MAX))
    size = check_append(given)
    if any(not name for pairs in given.headers or () for name, _ in pairs):
        raise invalid("a batch cannot contain command records")
    cell = staged_cell(part)
    with context.cell_client() as cells:
        if at == 0:
            found = await describe(context, cells, target)
            if found.options is not None and found.options.is_encrypted:
                raise coded_error(Code.ENCRYPTED)
            # Both become durable at once; if the part is not made, the rows are refused.
            made, number = cells.next_number(), cells.next_number()
            both = m.Create(made, _KEPT), _append(number, given, at)
            await cells.submit(cell, both, size)
            await cells.reply(made)
            reply = await cells.reply(number)
        else:
            reply = await cells.request(cell, lambda number: _append(number, given, at), size)
    match reply:
        case m.Appended(first=first, count=count):
            counters.staged_rows += count
            return first + count
        case m.StreamFailed(code=Code.SEQUENCE_MISMATCH, tail=tail) if tail == at + len(
            given.bodies
        ):
            return tail  # these rows came before, and their answer was lost
        case m.StreamFailed(code=Code.SEQUENCE_MISMATCH, tail=tail):
            raise conflict(f"the part has {tail} rows, not {at}")
        case m.StreamFailed(code=Code.UNKNOWN_STREAM):
            raise conflict("the part does not exist: it was dropped, published, or expired")
        case _:
            raise _failure(reply)


def _append(number: int, given: AppendInput, at: int) -> m.Append:
    return m.Append(number, given.bodies, None, given.headers, None, None, at)


async def extend_retention(cells: CellClient, parts: Sequence[StagedPart]) -> None:
    """Keep parts that are there for longer: they are about to be decided for. Raises S2Error."""
    kept = m.Settings(age_s=DECIDED_S, bytes_max=0)
    asked = list(map(staged_cell, parts))
    asking = replies(cells, asked, lambda number: m.Configure(number, kept, is_for_all=True))
    for reply in await asking:
        if not isinstance(reply, m.Done):
            raise _failure(reply)


async def drop(cells: CellClient, parts: Sequence[StagedPart], unwanted: set[bytes]) -> None:
    """Remove parts, as far as they are there. Raises S2Error."""
    asked = list(map(staged_cell, parts))
    unwanted.update(asked)
    try:
        for reply in await replies(cells, asked, m.Delete):
            if not isinstance(reply, m.Done) and not _is_unknown(reply):
                raise _failure(reply)
    finally:
        unwanted.difference_update(asked)


async def replies(
    cells: CellClient, asked: Sequence[bytes], make: Callable[[int], StreamRequest]
) -> list[CellReply]:
    """The replies of cells to one request each, in order. Many are asked at a time, so that what
    they store becomes durable together."""
    found: list[CellReply] = []
    for at in range(0, len(asked), PARTS_AT_ONCE):
        group = asked[at : at + PARTS_AT_ONCE]
        numbers = [cells.next_number() for _ in group]
        for number, cell in zip(numbers, group, strict=True):
            await cells.submit(cell, (make(number),))
        found += [await cells.reply(number) for number in numbers]
    return found


def conflict(text: str) -> CodedError:
    """409."""
    return CodedError(ErrorCode.TRANSACTION_CONFLICT, text)


def _is_unknown(reply: object) -> bool:
    return isinstance(reply, m.StreamFailed) and reply.code is Code.UNKNOWN_STREAM


def _failure(reply: object) -> S2Error:
    if isinstance(reply, m.StreamFailed | Failed):
        return error_of(reply)
    raise AssertionError(f"{reply} answers no request about a part")


def _at(context: S2Context) -> int:
    text = unique(context.request.query).get("at", "")
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise CodedError(
            ErrorCode.BAD_QUERY, "at: expected the number of rows that the part has already"
        )
    return int(text)
