"""A node on free ports of this machine, for tests of blocking clients and of other processes.

It runs on real time, in a thread of the test's process or in a process of its own. A thread starts
in a few milliseconds; a process may be killed as `kill -9` does, and shares nothing with the test.
Programs in other processes (a web server, a worker under `multiprocessing`) reach either of them by
`url`. Nodes in virtual time, with faults, are `millpond.testing.World`.
"""

from __future__ import annotations

import json
import pickle
import signal
import subprocess
import sys
import threading
from contextlib import ExitStack
from dataclasses import fields, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from anyio.from_thread import start_blocking_portal

from millpond.node.config import Config
from millpond.node.node import Node

START_S = 30.0
STOP_S = 30.0
PROGRAM = "millpond.node.testing.node_process"
LISTENERS = ("p2p", "ws", "s3p", "rustlog", "http")


class NotReady(Exception):
    """The node of a test did not start; the text is what it wrote."""


class _Running(Protocol):
    """A started node."""

    listeners: dict[str, str]

    def stop(self) -> None: ...

    def kill(self) -> None: ...


class RealNode:
    """A node on free ports; `with` starts and stops it. Ports stay the same over restarts."""

    def __init__(self, config: Config, *, process: bool = False) -> None:
        """`config`: listeners at the default address get a free port. `process`: not a thread."""
        self._config = replace(config, **_free_ports(config))
        self._process = process
        self._running: _Running | None = None

    def __repr__(self) -> str:
        return f"RealNode({self._config.p2p!r})"

    @property
    def listeners(self) -> dict[str, str]:
        """The addresses (host:port) by protocol: p2p, ws, s3p, rustlog and http."""
        if self._running is None:
            raise RuntimeError("the node is not running: call start()")
        return self._running.listeners

    @property
    def url(self) -> str:
        """The URL for `connect`, `Queue`, `Worker` and `--connect`."""
        return f"tcp://{self.listeners['p2p']}"

    @property
    def ws_url(self) -> str:
        """The same over WebSocket."""
        return f"ws://{self.listeners['ws']}"

    @property
    def http_url(self) -> str:
        """The URL of the HTTP listener, without a path."""
        return f"http://{self.listeners['http']}"

    def start(self) -> None:
        """Start it; it serves when this returns. Raises NotReady."""
        if self._running is not None:
            raise RuntimeError("the node runs already")
        self._running = (_InProcess if self._process else _InThread)(self._config)
        # The next start is at the same addresses.
        addresses: dict[str, Any] = dict(self._running.listeners)
        self._config = replace(self._config, **addresses)

    def stop(self) -> None:
        """Stop it as SIGTERM does; a node that does not run stays as it is."""
        running, self._running = self._running, None
        if running is not None:
            running.stop()

    def kill(self) -> None:
        """End it as `kill -9` does. Only a process can be killed."""
        if not self._process:
            raise ValueError("a thread cannot be killed: use process=True")
        running, self._running = self._running, None
        if running is not None:
            running.kill()

    def restart(self) -> None:
        """Stop it and start it at the same addresses, with what its disk has."""
        self.stop()
        self.start()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


class _InThread:
    """A node in an event loop of a thread."""

    def __init__(self, config: Config) -> None:
        async def made() -> Node:
            return Node(config)

        with ExitStack() as stack:
            portal = stack.enter_context(start_blocking_portal(name="millpond-node"))
            node = stack.enter_context(portal.wrap_async_context_manager(portal.call(made)))
            self.listeners = dict(node.listeners)
            self._stack = stack.pop_all()

    def stop(self) -> None:
        self._stack.close()

    def kill(self) -> None:
        raise NotImplementedError


class _InProcess:
    """A node in a process, which ends when its input does: no test leaves one behind."""

    def __init__(self, config: Config) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", PROGRAM],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        late = threading.Timer(START_S, self._process.kill)
        late.start()
        try:
            self.listeners: dict[str, str] = self._begin(config)
        finally:
            late.cancel()
        self._log = threading.Thread(target=self._drop_errors, daemon=True)
        self._log.start()

    def _begin(self, config: Config) -> dict[str, str]:
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        data = pickle.dumps(config)
        try:
            process.stdin.write(len(data).to_bytes(4, "big") + data)
            process.stdin.flush()
            ready = process.stdout.readline()
            listeners: dict[str, str] = json.loads(ready)
        except (OSError, ValueError):
            process.kill()
            _, errors = process.communicate()
            raise NotReady(errors.decode(errors="replace")) from None
        return listeners

    def _drop_errors(self) -> None:
        """Read what the node logs, so that it never waits for room in the pipe."""
        assert self._process.stderr is not None
        with self._process.stderr as log:
            for _ in log:
                pass

    def stop(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
        self._forget()

    def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._forget()

    def _forget(self) -> None:
        self._process.wait(STOP_S)
        self._log.join()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()


def run_node(
    *, process: bool = False, folder: Path | str | None = None, **settings: object
) -> RealNode:
    """A node for `with`: in memory, or with its data in `folder`.

    `process`: in a process of its own, in place of a thread. `settings` are those of
    `millpond.Config`; listeners that they do not name are at free ports of 127.0.0.1.
    """
    settings.setdefault("drain_timeout_s", 1.0)
    if folder is not None:
        settings["data"] = str(folder)
    config = Config(**settings)  # type: ignore[arg-type]  # as it is called
    return RealNode(config, process=process)


def _free_ports(config: Config) -> dict[str, Any]:
    """The listeners that nobody gave an address."""
    defaults = {field.name: field.default for field in fields(Config)}
    return {name: "127.0.0.1:0" for name in LISTENERS if getattr(config, name) == defaults[name]}
