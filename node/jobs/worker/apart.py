"""A coroutine in a context of its own, without a task of its own."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from contextvars import copy_context
from functools import partial
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Apart(Generic[T]):
    """Await it: context variables that are set in there are seen there alone."""

    __slots__ = ("_inner",)

    def __init__(self, inner: Coroutine[Any, Any, T]) -> None:
        self._inner = inner

    def __await__(self) -> Generator[Any, Any, T]:
        run = copy_context().run
        inner = self._inner
        step: Callable[[], Any] = partial(inner.send, None)
        while True:
            try:
                asked = run(step)
            except StopIteration as end:
                value: T = end.value
                return value
            try:
                answer = yield asked
            except BaseException as exc:  # whatever it is, it is for the one in there
                step = partial(inner.throw, exc)
            else:
                step = partial(inner.send, answer)
