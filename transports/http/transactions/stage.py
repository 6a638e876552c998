"""Parts of a batch: rows that are kept, and that nobody sees yet.

A part is a stream of its own which no view can name. It goes by itself a day after its last row, or
much later once its batch is decided and takes more than one change.
"""

from __future__ import annotations

from millpond.actors.errors import Code
from millpond.actors.messages import Failed
from millpond.actors.streams import messages as m
from millpond.actors.streams.names import StagedPart, staged_cell
from millpond.transports.http.cell_client import CellClient
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
            await cells.request(cell, lambda number: m.Create(number, _KEPT))
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


async def extend_retention(cells: CellClient, part: StagedPart) -> None:
    """Keep a part that is there for longer: it is about to be decided for. Raises S2Error."""
    kept = m.Settings(age_s=DECIDED_S, bytes_max=0)
    reply = await cells.request(
        staged_cell(part), lambda number: m.Configure(number, kept, is_for_all=True)
    )
    if not isinstance(reply, m.Done):
        raise _failure(reply)


async def drop(cells: CellClient, part: StagedPart, unwanted: set[bytes]) -> None:
    """Remove a part, if it is there. Raises S2Error."""
    cell = staged_cell(part)
    unwanted.add(cell)
    try:
        reply = await cells.request(cell, m.Delete)
    finally:
        unwanted.discard(cell)
    if not isinstance(reply, m.Done) and not _is_unknown(reply):
        raise _failure(reply)


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
