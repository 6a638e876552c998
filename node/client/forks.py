"""Forks of this process, and the end of its connections in each child.

A child of `fork` inherits the objects of its parent, but neither its event loops nor its threads,
and it shares the parent's sockets. So no connection of the parent is used there: each one that is
watched here is told, before the child runs anything else, that it is in a child. Async clients
raise ClientForked from then on; blocking clients connect anew when they are used
(`node.client.sync.portal`).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Protocol
from weakref import WeakSet

from millpond.node.client.errors import ClientForked


class Forkable(Protocol):
    """Something of a parent that a child must not use."""

    def end_in_child(self, error: ClientForked) -> None:
        """This is a child of `fork`: raise `error` instead of waiting. Wakes nobody: the tasks
        that wait are the parent's."""


_count = 0
_watched: WeakSet[Forkable] = WeakSet()
_after: list[Callable[[], None]] = []


def fork_count() -> int:
    """The number of forks between the first process of the program and this one.

    An object made at another count belongs to another process.
    """
    return _count


def watch(connection: Forkable) -> None:
    """End the connection in children, as long as it is referenced."""
    _watched.add(connection)


def after_fork(call: Callable[[], None]) -> None:
    """Call this in each child, once the connections are ended."""
    _after.append(call)


def client_forked() -> ClientForked:
    """The error of a client that belongs to a parent of this process."""
    return ClientForked("the client was opened before a fork(): open it again in this process")


def release_socket(fd: int) -> None:
    """Give up the child's copy of a socket: while there is one, the other end is not told that the
    parent ended.

    The number stays taken, by the null device: its owner in the child may still close it.
    """
    if fd < 0:
        return
    null = os.open(os.devnull, os.O_RDWR)
    try:
        os.dup2(null, fd, inheritable=False)
    finally:
        os.close(null)


def _in_child() -> None:
    global _count
    _count += 1
    error = client_forked()
    for each in list(_watched):
        each.end_in_child(error)
    _watched.clear()
    for call in _after:
        call()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
