"""Tests and async fixtures that are interrupted by what fails in the worlds beside them."""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import ExitStack, aclosing, contextmanager
from functools import wraps
from typing import Any

from millpond.node.testing.failures import Failures, Guard


def guarded_test(living: Sequence[Failures], test: Callable[..., Any]) -> Callable[..., Any]:
    """The same test, if it is async."""
    if not inspect.iscoroutinefunction(test):
        return test

    @wraps(test)
    async def guarded(*args: Any, **kwargs: Any) -> Any:
        with _guards(living):
            return await test(*args, **kwargs)

    return guarded


def guarded_fixture(
    living: Sequence[Failures], func: Callable[..., Any], instance: object
) -> Callable[..., Any]:
    """The same async fixture; `instance` is the object whose test asks for it, if it has one."""
    if inspect.ismethod(func) and type(func.__self__) is type(instance):
        func = func.__func__.__get__(instance)
    if inspect.isasyncgenfunction(func):
        return _generator(living, func)
    return guarded_test(living, func)


def _generator(
    living: Sequence[Failures], func: Callable[..., AsyncGenerator[Any, None]]
) -> Callable[..., AsyncGenerator[Any, None]]:
    @wraps(func)
    async def guarded(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, None]:
        # One guard for all its life: scopes that it opens are within that.
        with _guards(living) as guards:
            async with aclosing(func(*args, **kwargs)) as values:
                async for value in values:
                    if any(guard.scope.cancel_called for guard in guards):
                        break
                    _set_active(guards, False)
                    yield value
                    _set_active(guards, True)

    return guarded


@contextmanager
def _guards(living: Sequence[Failures]) -> Iterator[list[Guard]]:
    with ExitStack() as stack:
        yield [stack.enter_context(failures.guard()) for failures in living]


def _set_active(guards: list[Guard], is_active: bool) -> None:
    for guard in guards:
        guard.is_active = is_active
