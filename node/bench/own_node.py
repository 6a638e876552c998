"""Servers and folders of the benchmark's own: a node in a child process, a scratch folder."""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

import millpond

READY_S, END_S = 20.0, 10.0
SERVE = ("serve", "--p2p", "127.0.0.1:0", "--log-level", "error", "--json")
LISTENERS = ("ws", "s3p", "rustlog", "http")
IN_MEMORY = ("--memory",)


class NodeNotReady(Exception):
    """The node did not start; stderr has the reason."""


class OwnNode(msgspec.Struct, frozen=True):
    """A running node and its CPU time in seconds (None: unknown).

    `listeners`: addresses by name; `pid` of its process, 0 for a node that is not our own.
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
    """A new node with default settings but these, and one listener besides P2P.

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
    ready, _, _ = select.select([process.stdout], [], [], READY_S)
    line = process.stdout.readline() if ready else b""
    if not line:
        raise NodeNotReady(f"the node was not ready within {READY_S:g} s, or ended")
    listeners: dict[str, str] = json.loads(line)["listeners"]
    return listeners


def cpu_of(pid: int) -> Callable[[], float] | None:
    """The CPU time of a process in seconds, read from Linux; None on other systems."""
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
    """Terminate a process, and kill it if it does not end."""
    process.terminate()
    try:
        process.wait(END_S)
    except subprocess.TimeoutExpired:
        process.kill()


STOP_SIGNALS = (signal.SIGTERM, signal.SIGHUP)
NODE_FILES = ("catalogue.sqlite3", "journal", "partitions")
MEMORY_FILE_SYSTEMS = ("tmpfs", "ramfs")


class FolderHoldsNode(Exception):
    """The folder is a node's data folder, and cannot be used."""


@contextmanager
def scratch_folder(below: Path) -> Iterator[Path]:
    """A new folder below another, gone at the end. Raises HoldsNode, and OSError."""
    found = [name for name in NODE_FILES if (below / name).exists()]
    if found:
        raise FolderHoldsNode(f"{below} holds a node's data ({', '.join(found)})")
    with ending_like_ctrl_c():
        folder = Path(tempfile.mkdtemp(prefix="millpond-bench-", dir=below))
        try:
            yield folder
        finally:
            shutil.rmtree(folder)


def default_folder() -> Path:
    """A folder on the disk that `serve` uses by default."""
    home = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    place = Path(home).absolute()
    while not place.is_dir():
        place = place.parent
    return place


def file_system(folder: Path) -> str | None:
    """The type of the file system of a folder, read from Linux; None on other systems."""
    mounts = Path("/proc/self/mounts")
    if not mounts.exists():
        return None
    folder, kind, depth = folder.resolve(), None, 0
    for line in mounts.read_text("utf-8", "surrogateescape").splitlines():
        _, place, found, *_ = line.split(" ")
        at = Path(place.replace("\\040", " "))
        if folder.is_relative_to(at) and len(at.parts) >= depth:
            kind, depth = found, len(at.parts)
    return kind


@contextmanager
def ending_like_ctrl_c() -> Iterator[None]:
    """Have SIGTERM and SIGHUP act like Ctrl-C, so that processes and folders are removed."""
    before = [
        (number, signal.signal(number, lambda *_: signal.raise_signal(signal.SIGINT)))
        for number in STOP_SIGNALS
    ]
    try:
        yield
    finally:
        for number, handler in before:
            signal.signal(number, handler)
