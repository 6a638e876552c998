"""A node of the benchmark's own: a child process on a free port, ended by its process id."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

import millpond
from millpond.node.bench.scratch import ending_like_ctrl_c

READY_S, END_S = 20.0, 10.0
SERVE = ("serve", "--p2p", "127.0.0.1:0", "--log-level", "error", "--json")
LISTENERS = ("ws", "s3p", "rustlog", "http")
IN_MEMORY = ("--memory",)


class NodeNotReady(Exception):
    """The node did not come up; it said why on stderr."""


class OwnNode(msgspec.Struct, frozen=True):
    """Where a node is, and how many seconds it has worked, if that can be seen.

    `listeners`: the addresses by name; `pid` of its process, 0 for a node of someone else.
    """

    url: str
    cpu: Callable[[], float] | None
    listeners: dict[str, str] = {}
    pid: int = 0


def on_disk(folder: Path, durability: str) -> tuple[str, ...]:
    """The options of a node that keeps its data in a folder."""
    return ("--data", str(folder), "--durability", durability)


@contextmanager
def own_node(*store: str, listener: str = "", **settings: str) -> Iterator[OwnNode]:
    """A fresh node with its default settings, but these; besides P2P it has this listener.

    Raises NodeNotReady.
    """
    environment = {name: value for name, value in os.environ.items() if "MILLPOND" not in name}
    environment |= {f"MILLPOND_{name.upper()}": value for name, value in settings.items()}
    # In a session of its own: Ctrl-C ends the benchmark, which then ends the node.
    with (
        ending_like_ctrl_c(),
        subprocess.Popen(
            [
                sys.executable,
                "-m",
                "millpond",
                *SERVE,
                *_listeners(listener),
                *(store or IN_MEMORY),
            ],
            cwd=Path(millpond.__file__).parents[1],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            start_new_session=True,
        ) as process,
    ):
        try:
            listeners = _ready(process)
            url = f"tcp://{listeners['p2p']}"
            yield OwnNode(url, cpu_of(process.pid), listeners, process.pid)
        finally:
            end(process)


def _listeners(wanted: str) -> list[str]:
    addresses = {name: "127.0.0.1:0" if name == wanted else "off" for name in LISTENERS}
    return [word for name, address in addresses.items() for word in (f"--{name}", address)]


def _ready(process: subprocess.Popen[bytes]) -> dict[str, str]:
    assert process.stdout is not None
    told, _, _ = select.select([process.stdout], [], [], READY_S)
    line = process.stdout.readline() if told else b""
    if not line:
        raise NodeNotReady(f"the node was not ready within {READY_S:g} s, or ended")
    listeners: dict[str, str] = json.loads(line)["listeners"]
    return listeners


def cpu_of(pid: int) -> Callable[[], float] | None:
    """Seconds of processor time so far, by Linux's account; None elsewhere."""
    stat = Path(f"/proc/{pid}/stat")
    if not stat.exists():
        return None
    ticks_per_s = os.sysconf("SC_CLK_TCK")

    def cpu() -> float:
        # The second field, the name, may hold spaces; user and system time are the 14th and 15th.
        fields = stat.read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / ticks_per_s

    return cpu


def end(process: subprocess.Popen[bytes]) -> None:
    """Terminate, and kill what does not end."""
    process.terminate()
    try:
        process.wait(END_S)
    except subprocess.TimeoutExpired:
        process.kill()
