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
from millpond.transports.http.s2.codecs import protobuf as protobuf_form
from millpond.transports.http.s2.context import Call, Target
from millpond.transports.http.s2.errors import CodedError, ErrorCode, S2Error, error_of, invalid
from millpond.transports.http.s2.model import AppendInput, check_append
from millpond.transports.http.s2.read_query import unique
from millpond.transports.http.transactions.interface import TransactionCounters

PART_S = 86_400
DECIDED_S = 30 * 86_400
"""What was begun is to be ended, also by a node that was off for long."""
EMPTY_S = 60
_KEPT = m.Settings(age_s=PART_S, bytes_max=0, traits=m.StreamOptions(empty_s=EMPTY_S))


async def stage(call: Call, target: Target, part: StagedPart, counters: TransactionCounters) -> int:
    """Add the rows of the body to a part, once; how many it has then. Raises S2Error."""
    at = _at(call)
    given = protobuf_form.decode_input(await call.body(BODY_BYTES_MAX))
    size = check_append(given)
    if any(not name for pairs in given.headers or () for name, _ in pairs):
        raise invalid("a command record is no row of a batch")
    cell = staged_cell(part)
    with call.inquiry() as inquiry:
        if at == 0:
            await describe(call, inquiry, target)
            await inquiry.ask(cell, lambda number: m.Create(number, _KEPT))
        answer = await inquiry.ask(cell, lambda number: _append(number, given, at), size)
    match answer:
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
            raise conflict("the part is gone: it was dropped, published, or is a day old")
        case _:
            raise _failure(answer)


def _append(number: int, given: AppendInput, at: int) -> m.Append:
    return m.Append(number, given.bodies, None, given.headers, None, None, at)


async def extend_retention(inquiry: CellClient, part: StagedPart) -> None:
    """Keep a part that is there for longer: it is about to be decided for. Raises S2Error."""
    kept = m.Settings(age_s=DECIDED_S, bytes_max=0)
    answer = await inquiry.ask(staged_cell(part), lambda number: m.Configure(number, kept))
    if not isinstance(answer, m.Done):
        raise _failure(answer)


async def drop(inquiry: CellClient, part: StagedPart, unwanted: set[bytes]) -> None:
    """Remove a part, if it is there. Raises S2Error."""
    cell = staged_cell(part)
    unwanted.add(cell)
    try:
        answer = await inquiry.ask(cell, m.Delete)
    finally:
        unwanted.discard(cell)
    if not isinstance(answer, m.Done) and not _is_unknown(answer):
        raise _failure(answer)


def conflict(text: str) -> CodedError:
    """409."""
    return CodedError(ErrorCode.TRANSACTION_CONFLICT, text)


def _is_unknown(answer: object) -> bool:
    return isinstance(answer, m.StreamFailed) and answer.code is Code.UNKNOWN_STREAM


def _failure(answer: object) -> S2Error:
    if isinstance(answer, m.StreamFailed | Failed):
        return error_of(answer)
    raise AssertionError(f"{answer} answers no request about a part")


def _at(call: Call) -> int:
    text = unique(call.request.query).get("at", "")
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise CodedError(ErrorCode.BAD_QUERY, "at: how many rows the part has already")
    return int(text)
