"""The clients of S3P and RustLog, over a dialer instead of sockets."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from random import Random

from anyio.abc import TaskGroup

from millpond.actors.errors import RequestError
from millpond.node.client.requests.calls import RequestLimiter
from millpond.node.client.requests.errors import InvalidRequest
from millpond.node.client.requests.reconnecting import Dial, ReconnectSettings, running
from millpond.node.client.retry import ReconnectBackoff
from millpond.node.client.rustlog import client as rustlog_client
from millpond.node.client.rustlog.client import Rustlog
from millpond.node.client.s3p import client as s3p_client
from millpond.node.client.s3p.client import S3p
from millpond.node.client.s3p.records import ends
from millpond.node.testing.network import RUSTLOG_PORT, S3P_PORT, WorldDialer
from millpond.transports.io.interface import Session
from millpond.transports.rustlog import messages as m
from millpond.transports.rustlog.client_codec import ResponseDecoder
from millpond.transports.s3p.client_codec import Reply, ReplyDecoder


@asynccontextmanager
async def s3p_over(dialer: WorldDialer, host: str, rng: Random) -> AsyncIterator[S3p]:
    """See `millpond.node.client.s3p.client.connect_s3p`."""
    settings: ReconnectSettings[Reply] = ReconnectSettings(
        dial=_dial(dialer, host, S3P_PORT),
        replies=partial(ReplyDecoder, s3p_client.REPLY_LIMITS),
        ends=ends,
    )
    async with running(settings, ReconnectBackoff(rng)) as trunk:
        yield S3p(RequestLimiter(trunk, s3p_client.CALLS_MAX, settings.answer_s))


@asynccontextmanager
async def rustlog_over(dialer: WorldDialer, host: str, rng: Random) -> AsyncIterator[Rustlog]:
    """See `millpond.node.client.rustlog.client.connect_rustlog`."""
    settings: ReconnectSettings[m.Response] = ReconnectSettings(
        dial=_dial(dialer, host, RUSTLOG_PORT),
        replies=ResponseDecoder,
        ends=_rustlog_ends,
    )
    async with running(settings, ReconnectBackoff(rng)) as trunk:
        yield Rustlog(RequestLimiter(trunk, rustlog_client.CALLS_MAX, settings.answer_s))


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
