"""`/millpond/v1/transactions/{stream}/{writer}/{batch}[/{part}]`: stage, publish, drop."""

from __future__ import annotations

import logging
import re

import msgspec

from millpond.actors.streams.names import StagedPart, staged_part_of
from millpond.transports.http.cell_client import CellClient
from millpond.transports.http.paths import TRANSACTIONS
from millpond.transports.http.rejections import Rejection
from millpond.transports.http.request import Request
from millpond.transports.http.response import Response, ResponseWriter, json_response
from millpond.transports.http.s2.app import S2Api
from millpond.transports.http.s2.codecs.json import decode_json
from millpond.transports.http.s2.codecs.tokens import Operation
from millpond.transports.http.s2.context import S2Context, S2Target
from millpond.transports.http.s2.errors import CodedError, ErrorCode, NoSuchMethod, S2Error, invalid
from millpond.transports.http.s2.usage import S2Usage
from millpond.transports.http.transactions.interface import TransactionNodeServices
from millpond.transports.http.transactions.publish import PARTS_MAX, Plan, Publisher
from millpond.transports.http.transactions.stage import conflict, drop, stage

log = logging.getLogger(__name__)

PLAN_BYTES_MAX = 2**20
BATCH_MAX = 2**63 - 1
_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
_plan = msgspec.json.Decoder(Plan).decode


class TransactionsApi:
    """Implements `millpond.transports.http.app.Api`; its refusals are those of S2."""

    name = "transactions"

    def __init__(self, services: TransactionNodeServices) -> None:
        self._services = services
        self._usage = S2Usage(services.now, lambda name: services.basins.find(name) is not None)
        self._s2 = S2Api(services)

    async def __call__(self, request: Request, writer: ResponseWriter) -> Response:
        try:
            context = S2Context(self._services, request, self._usage, writer)
            return await _route(self._services, context)
        except S2Error as error:
            return error.response

    def reject(self, reason: Rejection, delay_ms: int | None) -> Response | None:
        """A rejection by the application, with a code of S2."""
        return self._s2.reject(reason, delay_ms)


async def _route(services: TransactionNodeServices, context: S2Context) -> Response:
    match context.request.segments[len(TRANSACTIONS) :]:
        case (stream, writer, batch):
            target = _target(context, stream)
            named = _checked_name(writer, "writer"), _batch_number(batch)
            if context.request.method == "GET":
                return await _outcome(services, context, target, *named)
            return await _publish(services, context, target, *named)
        case (stream, writer, batch, part):
            target = _target(context, stream)
            names = (
                _checked_name(writer, "writer"),
                _batch_number(batch),
                _checked_name(part, "part"),
            )
            return await _part(services, context, target, StagedPart(target.cell, *names))
        case _:
            raise CodedError(
                ErrorCode.BAD_PATH, "expected a path of stream, writer, batch and an optional part"
            )


def _target(context: S2Context, stream: bytes) -> S2Target:
    target = context.target(stream)
    context.require(Operation.APPEND, target)
    context.require_basin(target.basin)
    return target


async def _publish(
    services: TransactionNodeServices,
    context: S2Context,
    target: S2Target,
    writer: bytes,
    batch: int,
) -> Response:
    _require_method(context, "GET", "POST")
    plan = decode_json(_plan, await context.json_body(PLAN_BYTES_MAX))
    if len(plan.parts) > PARTS_MAX:
        raise invalid(f"a batch has at most {PARTS_MAX} parts")
    for each in plan.parts:
        _checked_name(each.id.encode(), "part")
        if each.rows < 1:
            raise invalid("a part has at least one row")
    if len({each.id for each in plan.parts}) < len(plan.parts):
        raise invalid("a part is named twice")
    async with services.writer_locks.hold(target.cell, writer):
        with context.cell_client() as cells:
            is_new = await Publisher(services, cells, target.cell, writer).publish(batch, plan)
    outcome = "published" if is_new else "duplicate"
    return json_response(200, {"outcome": outcome, "rows": plan.rows if is_new else 0})


async def _outcome(
    services: TransactionNodeServices,
    context: S2Context,
    target: S2Target,
    writer: bytes,
    batch: int,
) -> Response:
    """The outcome of a batch, for a writer whose publication had no answer."""
    is_held = services.writer_locks.is_held(target.cell, writer)
    with context.cell_client() as cells:
        status = await Publisher(services, cells, target.cell, writer).writer_status()
    last = status.batch if status.batch >= 0 else None
    if status.batch > batch or (status.batch == batch and status.is_done):
        return json_response(200, {"outcome": "published", "rows": 0, "last": last})
    is_decided = status.batch == batch
    outcome = "publishing" if is_decided or is_held else "none"
    rows = status.rows if is_decided else 0
    return json_response(200, {"outcome": outcome, "rows": rows, "last": last})


async def _part(
    services: TransactionNodeServices, context: S2Context, target: S2Target, part: StagedPart
) -> Response:
    if context.request.method == "DELETE":
        await _drop(services, context, part)
        return Response(204)
    _require_method(context, "POST", "DELETE")
    return json_response(200, {"rows": await stage(context, target, part, services.transactions)})


async def _drop(services: TransactionNodeServices, context: S2Context, part: StagedPart) -> None:
    """Drop a part, unless its batch is decided: that one will be published with the part."""
    locks = services.writer_locks
    if locks.is_held(part.target, part.writer):
        raise conflict("batches of the writer are being published")
    async with locks.hold(part.target, part.writer):
        with context.cell_client() as cells:
            publisher = Publisher(services, cells, part.target, part.writer)
            if await publisher.needs(part):
                raise conflict("the batch is decided, and will be published")
            await drop(cells, [part], services.stages.unwanted)


def _require_method(context: S2Context, *methods: str) -> None:
    if context.request.method not in methods:
        raise NoSuchMethod(context.request.method, methods)


def _checked_name(data: bytes, what: str) -> bytes:
    if _NAME.fullmatch(data.decode("utf-8", "replace")) is None:
        raise invalid(f"{what}: 1 to 64 of A-Z, a-z, 0-9, '.', '_' and '-'")
    return data


def _batch_number(data: bytes) -> int:
    if not (data.isdigit() and len(data) < 20 and int(data) <= BATCH_MAX):
        raise invalid("batch: expected a number, 0 to 2^63 - 1")
    return int(data)


async def finish_all(services: TransactionNodeServices) -> None:
    """After a start: publish what is left of batches that were begun before the stop."""
    cells = list(services.stages.names(b"", b"", PARTS_MAX * 100))
    parts = [part for cell in cells if (part := staged_part_of(cell)) is not None]
    for target, writer in sorted({(part.target, part.writer) for part in parts}):
        with CellClient(services) as client:
            try:
                async with services.writer_locks.hold(target, writer):
                    await Publisher(services, client, target, writer).finish()
            except S2Error as error:
                log.error("batch not finished: cell=%r writer=%r error=%s", target, writer, error)
