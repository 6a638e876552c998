"""`/millpond/v1/transactions/{stream}/{writer}/{batch}[/{part}]`: stage, publish, drop."""

from __future__ import annotations

import logging
import re

import msgspec

from millpond.actors.streams.names import StagedPart, staged_part_of
from millpond.transports.http import rejections as http
from millpond.transports.http.cell_client import CellClient
from millpond.transports.http.request import Request
from millpond.transports.http.response import Response, ResponseWriter, json_response
from millpond.transports.http.s2.app import S2Api
from millpond.transports.http.s2.codecs.json import decode_json
from millpond.transports.http.s2.codecs.tokens import Operation
from millpond.transports.http.s2.context import Call, Target
from millpond.transports.http.s2.errors import CodedError, ErrorCode, NoSuchMethod, S2Error, invalid
from millpond.transports.http.s2.usage import S2Usage
from millpond.transports.http.transactions.interface import TransactionNodeServices
from millpond.transports.http.transactions.publish import PARTS_MAX, Plan, Publisher
from millpond.transports.http.transactions.stage import drop, stage

log = logging.getLogger(__name__)

PREFIX = (b"millpond", b"v1", b"transactions")
PLAN_BYTES_MAX = 2**20
BATCH_MAX = 2**63 - 1
_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
_plan = msgspec.json.Decoder(Plan).decode


class TransactionsApi:
    """Implements `millpond.transports.http.app.Api`; its refusals are those of S2."""

    name = "transactions"

    def __init__(self, host: TransactionNodeServices) -> None:
        self._host = host
        self._figures = S2Usage(host.now(), lambda name: host.basins.find(name) is not None)
        self._s2 = S2Api(host)

    async def __call__(self, request: Request, answer: ResponseWriter) -> None:
        call = Call(self._host, request, answer, self._figures)
        try:
            await call.say(await _route(self._host, call, request.segments[len(PREFIX) :]))
        except S2Error as error:
            await answer.whole(Response(error.status, error.headers, error.body))

    def refuse(self, why: http.Rejection, delay_ms: int | None) -> Response | None:
        return self._s2.refuse(why, delay_ms)


async def _route(
    host: TransactionNodeServices, call: Call, segments: tuple[bytes, ...]
) -> Response:
    match segments:
        case (stream, writer, batch):
            target = _target(call, stream)
            return await _publish(host, call, target, _name(writer, "writer"), _number(batch))
        case (stream, writer, batch, part):
            target = _target(call, stream)
            names = _name(writer, "writer"), _number(batch), _name(part, "part")
            return await _of_part(host, call, target, StagedPart(target.cell, *names))
        case _:
            raise CodedError(ErrorCode.BAD_PATH, "stream, writer, batch, and perhaps part")


def _target(call: Call, stream: bytes) -> Target:
    target = call.target(stream)
    call.require(Operation.APPEND, target)
    call.require_basin(target.basin)
    return target


async def _publish(
    host: TransactionNodeServices, call: Call, target: Target, writer: bytes, batch: int
) -> Response:
    _require_method(call, "POST")
    plan = decode_json(_plan, await call.body(PLAN_BYTES_MAX))
    if len(plan.parts) > PARTS_MAX:
        raise invalid(f"a batch has at most {PARTS_MAX} parts")
    for each in plan.parts:
        _name(each.id.encode(), "part")
        if each.rows < 1:
            raise invalid("a part has at least one row")
    if len({each.id for each in plan.parts}) < len(plan.parts):
        raise invalid("a part is named twice")
    with call.inquiry() as inquiry:
        is_new = await Publisher(host, inquiry, target.cell, writer).publish(batch, plan)
    outcome = "published" if is_new else "duplicate"
    return json_response(200, {"outcome": outcome, "rows": plan.rows if is_new else 0})


async def _of_part(
    host: TransactionNodeServices, call: Call, target: Target, part: StagedPart
) -> Response:
    if call.request.method == "DELETE":
        with call.inquiry() as inquiry:
            await drop(inquiry, part, host.stages.unwanted)
        return Response(204)
    _require_method(call, "POST", "DELETE")
    return json_response(200, {"rows": await stage(call, target, part, host.transactions)})


def _require_method(call: Call, *methods: str) -> None:
    if call.request.method not in methods:
        raise NoSuchMethod(call.request.method, methods)


def _name(data: bytes, what: str) -> bytes:
    if _NAME.fullmatch(data.decode("utf-8", "replace")) is None:
        raise invalid(f"{what}: 1 to 64 of A-Z, a-z, 0-9, '.', '_' and '-'")
    return data


def _number(data: bytes) -> int:
    if not (data.isdigit() and len(data) < 20 and int(data) <= BATCH_MAX):
        raise invalid("batch: a number, 0 to 2^63 - 1")
    return int(data)


async def finish_all(host: TransactionNodeServices) -> None:
    """After a start: publish what is left of batches that were begun before the stop."""
    cells = list(host.stages.names(b"", b"", PARTS_MAX * 100))
    parts = [part for cell in cells if (part := staged_part_of(cell)) is not None]
    for target, writer in sorted({(part.target, part.writer) for part in parts}):
        with CellClient(host) as inquiry:
            try:
                await Publisher(host, inquiry, target, writer).finish()
            except S2Error as error:
                log.error("batch not finished: cell=%r writer=%r error=%s", target, writer, error)
