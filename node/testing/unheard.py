"""What nobody awaits and the loop catches: callbacks that raise, tasks whose error nobody took."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any


@contextmanager
def capture_loop_errors(hear: Callable[[BaseException], None]) -> Generator[None]:
    """For the block, `hear` gets the errors of asyncio's loop; trio has none, it ends with them.

    What comes without an exception goes where it went.
    """
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        yield
        return
    before = loop.get_exception_handler()

    def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if isinstance(error, BaseException):
            hear(error)
        elif before is not None:
            before(loop, context)
        else:
            loop.default_exception_handler(context)

    loop.set_exception_handler(handle)
    try:
        yield
    finally:
        if loop.get_exception_handler() is handle:
            loop.set_exception_handler(before)
