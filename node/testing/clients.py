"""The clients of S3P and RustLog, over a dialer instead of sockets."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from random import Random

from anyio.abc import TaskGroup

from actors.errors import RequestError
from node import rustlog_client, s3p_client
from node.backoff import Backoff
from node.caller import Caller
from node.rustlog_client import Rustlog
from node.s3p_client import S3p
from node.s3p_records import ends
from node.stream_errors import InvalidRequest
from node.testing.links import RUSTLOG_PORT, S3P_PORT, WorldDialer
from node.trunk import Dial, TrunkSettings, running
from transports import rustlog_messages as m
from transports.rustlog_client import ResponseDecoder
from transports.s3p_replies import Reply, ReplyDecoder
from transports.seam import Session


@asynccontextmanager
async def s3p_over(dialer: WorldDialer, host: str, rng: Random) -> AsyncIterator[S3p]:
    """See `node.s3p_client.connect_s3p`."""
    settings: TrunkSettings[Reply] = TrunkSettings(
        dial=_dial(dialer, host, S3P_PORT),
        replies=partial(ReplyDecoder, s3p_client.REPLY_LIMITS),
        ends=ends,
    )
    async with running(settings, Backoff(rng)) as trunk:
        yield S3p(Caller(trunk, s3p_client.CALLS_MAX, settings.answer_s))


@asynccontextmanager
async def rustlog_over(dialer: WorldDialer, host: str, rng: Random) -> AsyncIterator[Rustlog]:
    """See `node.rustlog_client.connect_rustlog`."""
    settings: TrunkSettings[m.Response] = TrunkSettings(
        dial=_dial(dialer, host, RUSTLOG_PORT),
        replies=ResponseDecoder,
        ends=_rustlog_ends,
    )
    async with running(settings, Backoff(rng)) as trunk:
        yield Rustlog(Caller(trunk, rustlog_client.CALLS_MAX, settings.answer_s))


def _rustlog_ends(response: m.Response, is_asked: bool) -> RequestError | None:
    """An Error that answers nothing says why the connection is closed."""
    if isinstance(response, m.Error) and not is_asked:
        kind = rustlog_client.REFUSALS.get(response.code, InvalidRequest)
        return kind(response.code, response.message, response.details)
    return None


def _dial(dialer: WorldDialer, host: str, port: int) -> Dial:
    async def dial(tasks: TaskGroup, session: Session) -> None:
        await dialer(tasks, host, port, session)

    return dial
