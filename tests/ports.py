"""TCP ports for programs that must have the same address when they start again.

They are below the ports that the system gives to connections. A port that the system chose
(`bind` to 0) may be the source of some other test's connection a moment later.
"""

from __future__ import annotations

import errno
import os
import socket
import time
from contextlib import suppress
from pathlib import Path
from random import SystemRandom

_LOWEST, _SYSTEM_LOWEST = 20_000, 32_768
_SYSTEM_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_TRIES = 1_000
_TAKEN = Path(f"/tmp/millpond-ports-{os.getuid()}")
"""A file for each port that a process of tests was given: it listens there later, if at all."""
_TAKEN_S = 3600.0
_random = SystemRandom()
_given: set[int] = set()


def free_port() -> int:
    """A port of 127.0.0.1 without a listener, which this process was not given before."""
    highest = _first_system_port() - 1
    for _ in range(_TRIES):
        port = _random.randint(min(_LOWEST, highest), highest)
        if port not in _given and _is_free(port) and _take(port):
            _given.add(port)
            return port
    raise OSError(errno.EADDRINUSE, "no free port")


def _take(port: int) -> bool:
    """True: no other process of tests was given this port within the last hour."""
    _TAKEN.mkdir(mode=0o1777, exist_ok=True)
    path = _TAKEN / str(port)
    with suppress(OSError):  # of another user, or removed meanwhile
        if path.stat().st_mtime < time.time() - _TAKEN_S:
            path.unlink()
    try:
        path.touch(exist_ok=False)
    except OSError:
        return False
    return True


def _first_system_port() -> int:
    try:
        return int(_SYSTEM_RANGE.read_text().split()[0])
    except (OSError, ValueError):
        return _SYSTEM_LOWEST


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
