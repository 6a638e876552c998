"""Errors of task groups, without the group where there is only one."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def single_errors() -> Generator[None]:
    """A block whose error group is raised as its only error, if it has only one."""
    try:
        yield
    except BaseExceptionGroup as group:
        error: BaseException = group
        while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
            error = error.exceptions[0]
        raise error from error.__cause__
