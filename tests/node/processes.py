"""Real nodes and commands as processes of their own: bounded waits, ended by process id."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Thread, Timer
from typing import Any
from unittest.mock import patch

from tests.fork_server import ForkedCommand

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 300.0
SERVING_LIMIT_S = 1800.0
"""A node serves all tests of a module, which take their time on a busy machine."""
ANY_PORT = tuple(
    word for name in ("p2p", "ws", "s3p", "rustlog") for word in (f"--{name}", "127.0.0.1:0")
)
LOG_BYTES_MAX = 2**20
"""A node may log so much before a test reads it; then it waits for the reader."""
QUIET = {"MILLPOND_S3P": "off", "MILLPOND_RUSTLOG": "off", "MILLPOND_HTTP": "off"}
"""Nodes of tests share a machine: what they need not is off unless asked for."""
NO_CONTEXTS = {"XDG_CONFIG_HOME": os.devnull}
"""The contexts of the person who runs the tests are not for them."""

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def environment(**variables: str) -> dict[str, str]:
    """This process's environment without settings of ours, plus QUIET and `variables`."""
    plain = {name: value for name, value in os.environ.items() if "MILLPOND" not in name}
    return plain | QUIET | NO_CONTEXTS | variables


def command(*words: str, **options: Any) -> subprocess.CompletedProcess[bytes]:
    """Run `millpond` with these words to its end."""
    options.setdefault("env", environment())
    given: bytes | None = options.pop("input", None)
    if given is not None:
        options["stdin"] = subprocess.PIPE
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with ForkedCommand(*words, cwd=ROOT, **pipes, **options) as process:
        try:
            out, err = process.communicate(given, LIMIT_S)
        finally:
            process.kill()
    return subprocess.CompletedProcess(words, process.returncode, out, err)


def command_here(
    *words: str, input: bytes = b"", stdin: int | None = None, env: Mapping[str, str]
) -> subprocess.CompletedProcess[bytes]:
    """Run `millpond` in this process, which takes a tenth of the CPU time of another one.

    It has pipes as standard streams. `input` is at most what a pipe holds, 64 KiB; `stdin`, a file
    descriptor, takes its place.
    """
    from millpond.node.cli.main import main

    outputs: list[bytes] = [b"", b""]

    def drain(number: int, fd: int) -> None:
        with open(fd, "rb") as pipe:
            outputs[number] = pipe.read()

    ins, outs, errs = os.pipe(), os.pipe(), os.pipe()
    os.write(ins[1], input)
    os.close(ins[1])
    readers = [Thread(target=drain, args=each) for each in ((0, outs[0]), (1, errs[0]))]
    saved_fds = [os.dup(fd) for fd in range(3)]
    saved_streams = sys.stdin, sys.stdout, sys.stderr
    handlers = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    for fd, pipe in enumerate((ins[0], outs[1], errs[1])):
        os.dup2(pipe, fd)
        os.close(pipe)
    if stdin is not None:
        os.dup2(stdin, 0)
    with patch.dict(os.environ, env, clear=True):
        sys.stdin, sys.stdout, sys.stderr = (
            open(fd, mode, closefd=False) for fd, mode in enumerate(("r", "w", "w"))
        )
        for reader in readers:
            reader.start()
        try:
            code = main(words)
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            sys.stdin, sys.stdout, sys.stderr = saved_streams
            for fd, saved in enumerate(saved_fds):
                os.dup2(saved, fd)
                os.close(saved)
            for reader in readers:
                reader.join()
            for number, handler in handlers.items():
                signal.signal(number, handler)
    return subprocess.CompletedProcess(words, code, *outputs)


@contextmanager
def started(
    *words: str, limit_s: float = LIMIT_S, **options: Any
) -> Iterator[subprocess.Popen[bytes]]:
    """Run `millpond` with these words beside the test; killed if it is still there at the end."""
    options.setdefault("env", environment())
    with ForkedCommand(
        *words,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        pipesize=LOG_BYTES_MAX,
        **options,
    ) as process:
        timer = Timer(limit_s, process.kill)
        timer.start()
        try:
            yield process
        finally:
            timer.cancel()
            timer.join()
            if process.poll() is None:
                process.kill()


@dataclass(frozen=True)
class Serving:
    """A node that is ready, and the object that its ready line was."""

    process: subprocess.Popen[bytes]
    ready: dict[str, Any]

    @property
    def urls(self) -> dict[str, str]:
        schemes = {"p2p": "tcp", "ws": "ws"}
        return {
            schemes[name]: f"{schemes[name]}://{where}"
            for name, where in self.listeners
            if name in schemes
        }

    @property
    def listeners(self) -> list[tuple[str, str]]:
        return list(self.ready["listeners"].items())

    def port(self, name: str) -> int:
        return int(self.ready["listeners"][name].rpartition(":")[2])


@contextmanager
def serving(*words: str, **options: Any) -> Iterator[Serving]:
    """A node in memory and on any free ports, unless `words` say otherwise."""
    store = () if {"--data", "--memory"} & set(words) else ("--memory",)
    options.setdefault("limit_s", SERVING_LIMIT_S)
    with started("serve", *ANY_PORT, *store, *words, "--json", **options) as process:
        assert process.stdout is not None and process.stderr is not None
        line = process.stdout.readline()
        assert line, process.stderr.read().decode()
        yield Serving(process, json.loads(line))
