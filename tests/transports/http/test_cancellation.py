"""Scopes: what is in them ends from outside or in time, and nothing else does."""

from __future__ import annotations

import asyncio

import anyio
import pytest

from millpond.transports.http.cancellation import (
    AsyncioBlock,
    CancelBlock,
    cancel_scope,
    running_loop,
)
from millpond.transports.http.request import Request
from millpond.transports.http.response import Response, ResponseWriter
from tests.transports.http.client import Client
from tests.transports.http.running_app import running_app


async def test_what_takes_too_long_ends_without_an_error() -> None:
    ended = []
    with cancel_scope(0.01):
        try:
            await anyio.sleep_forever()
        finally:
            ended.append(True)
    assert ended == [True]
    await anyio.sleep(0.02)


async def test_what_is_done_in_time_is_not_disturbed() -> None:
    with cancel_scope(0.01):
        await anyio.lowlevel.checkpoint()
    await anyio.sleep(0.02)


async def test_it_is_ended_from_outside() -> None:
    block, reached = cancel_scope(), []
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_cancel_soon, block)
        with block:
            await anyio.sleep_forever()
        reached.append(True)
        await anyio.sleep(0.001)
    assert reached == [True]


async def test_one_that_was_ended_before_it_began_ends_at_its_first_wait() -> None:
    block, reached = cancel_scope(), []
    block.cancel()
    with block:
        reached.append("in")
        await anyio.sleep_forever()
    assert reached == ["in"]


async def test_who_ends_its_own_block_is_not_told_behind_it() -> None:
    block = cancel_scope()
    with block:
        block.cancel()
    await anyio.sleep(0.001)


async def test_the_inner_one_ends_alone_and_both_end_together() -> None:
    outer, reached = cancel_scope(), []
    with outer:
        with cancel_scope(0.005):
            await anyio.sleep_forever()
        reached.append("inner ended")
        await anyio.sleep(0.001)
        with cancel_scope(0.01):
            outer.cancel()
            await anyio.sleep_forever()
        reached.append("never")
    assert reached == ["inner ended"]


async def test_tasks_in_it_end_with_it() -> None:
    block, ended = cancel_scope(), []

    async def wait() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            ended.append(True)

    async with anyio.create_task_group() as outside:
        outside.start_soon(_cancel_soon, block)
        with block:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(wait)
                tasks.start_soon(wait)
            ended.append(False)
        await anyio.sleep(0.001)
    assert ended == [True, True]


async def test_an_error_in_it_is_raised() -> None:
    with pytest.raises(ValueError, match="so"), cancel_scope(1):
        raise ValueError("so")


async def test_who_cancels_the_task_means_more_than_the_block() -> None:
    reached = []
    with anyio.CancelScope() as outside:
        with cancel_scope() as block:
            block.cancel()
            outside.cancel()
            await anyio.sleep_forever()
        await anyio.lowlevel.checkpoint()
        reached.append(True)
    assert reached == [] and outside.cancelled_caught


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_task_of_asyncio_that_is_cancelled_ends() -> None:
    loop = running_loop()
    assert loop is not None
    begun = asyncio.Event()

    async def work() -> None:
        with AsyncioBlock(loop):
            begun.set()
            await asyncio.sleep(10)

    task = asyncio.ensure_future(work())
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_http_0_8_a_body_is_whole_with_the_last_byte_of_its_length() -> None:
    """Nobody has to say that nothing follows: what is said of more is not waited for."""

    async def echo(request: Request, writer: ResponseWriter) -> None:
        body = await request.body(10)
        assert request.is_complete
        await writer.respond(Response(200, (), body))

    async with running_app(echo) as application:
        client = Client(application)
        async with client.open("POST", "/do", [(b"content-length", b"4")]) as exchange:
            await exchange.say(b"ab")
            await exchange.say(b"cd")
            assert (await exchange.got()).body == b"abcd"
        async with client.open("POST", "/do", [(b"content-length", b"5")]) as exchange:
            await exchange.say(b"abcd")
            assert (await exchange.got()).status == 408


async def _cancel_soon(block: CancelBlock) -> None:
    await anyio.sleep(0.005)
    block.cancel()
