"""Helpers for tests of `millpond stream` and `topic`: a command's exit code and output."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from typing import Any, NamedTuple

from tests.node.processes import Serving, command, environment

OFF = ("--s3p", "off", "--rustlog", "off")


class Told(NamedTuple):
    code: int
    out: bytes
    err: str


Run = Callable[..., Told]


def objects(told: Told) -> list[dict[str, Any]]:
    assert told.code == 0, told.err
    return [json.loads(line) for line in told.out.splitlines()]


def bodies(run: Run, name: str, *words: str) -> list[bytes]:
    told = run("stream", "read", name, *words)
    assert told.code == 0, told.err
    return told.out.splitlines()


def fed(node: Serving, data: bytes, *words: str) -> subprocess.CompletedProcess[bytes]:
    return command(*words, input=data, env=environment(MILLPOND_CONNECT=node.urls["tcp"]))
