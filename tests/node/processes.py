"""Real nodes and commands as processes of their own: bounded waits, ended by process id."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Timer
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 60.0
SERVING_LIMIT_S = 300.0
"""A node serves all tests of a module, which take their time on a busy machine."""
ANY_PORT = tuple(
    word for name in ("p2p", "ws", "s3p", "rustlog") for word in (f"--{name}", "127.0.0.1:0")
)
QUIET = {"MILLPOND_S3P": "off", "MILLPOND_RUSTLOG": "off", "MILLPOND_HTTP": "off"}
"""Nodes of tests share a machine: what they need not is off unless asked for."""


def environment(**variables: str) -> dict[str, str]:
    """This process's environment without settings of ours, plus QUIET and `variables`."""
    plain = {name: value for name, value in os.environ.items() if "MILLPOND" not in name}
    return plain | QUIET | variables


def command(*words: str, **options: Any) -> subprocess.CompletedProcess[bytes]:
    """Run `millpond` with these words to its end."""
    options.setdefault("env", environment())
    return subprocess.run(
        [sys.executable, "-m", "millpond", *words],
        cwd=ROOT,
        capture_output=True,
        timeout=LIMIT_S,
        check=False,
        **options,
    )


@contextmanager
def started(
    *words: str, limit_s: float = LIMIT_S, **options: Any
) -> Iterator[subprocess.Popen[bytes]]:
    """Run `millpond` with these words beside the test; killed if it is still there at the end."""
    options.setdefault("env", environment())
    with subprocess.Popen(
        [sys.executable, "-m", "millpond", *words],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
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
