"""The cost of a node besides its rate: start-up, commands as processes, memory, latency.

    python -m tests.bench.footprint [--tree LABEL[@COMMIT]=DIR]... [--rounds N] [--write]

Each tree is a checkout (default: this one); all run in the environment of this interpreter, in
turns. Prints a table, and with `--write` puts it into docs/internals/benchmarks.md and .json.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from millpond.actors.messages import Put, Role
from millpond.transports.p2p.framing import LengthPrefixed, frame_packets
from millpond.transports.p2p.handshake import Hello, encode_hello
from millpond.transports.p2p.packets import PUT_ACK, READY, encode
from tests.bench import report
from tests.bench.servers import ROOT

LISTENERS = ("p2p", "ws", "s3p", "rustlog", "http")
LIMITS = ("CHANNEL_MESSAGES", "CHANNEL_BYTES", "NODE_MESSAGES", "NODE_BYTES", "KEYS", "NODE_KEYS")
RAISED = {f"MILLPOND_{name}_MAX": "17179869184" for name in LIMITS}
WARM_MESSAGES, MESSAGES, MESSAGE_BYTES, BATCH = 10_000, 100_000, 100, 1000
LIMIT_S, LATENCY_S, LATENCY_WARM_S = 300.0, 2.0, 0.5
LATENCIES = {
    "PUT, 50 connections: p99, p99.9, ms": ("--memory", "-c 50 -K 50"),
    "PUT, 50 connections, P16: p99, p99.9, ms": ("--memory", "-c 50 -K 50 -P 16"),
    "durable PUT, 50 connections: p99, p99.9, ms": ("--data", "-c 50 -K 50 -D 2"),
}
MEMORY = {
    "memory-channel": "an idle channel, bytes",
    "memory-waiting": "a channel with one message, bytes",
    "memory-connection": "an idle connection, bytes",
}
MESSAGE = f"a message of {MESSAGE_BYTES} bytes in a channel of many, bytes"
READY_PROGRAM = """
import os, shutil, sys, tempfile, time
import millpond.node.cli.main as main
folder = tempfile.mkdtemp(dir="/var/tmp")
find = main.import_module
async def tell(node, as_json):
    print(time.process_time(), flush=True)
    shutil.rmtree(folder)
    os._exit(0)
def load(name):
    module = find(name)
    module._announce = tell
    return module
main.import_module = load
main.main(["serve", "--data", folder + "/data", *sys.argv[1:]])
"""
"""Tells the CPU seconds of `serve` at the moment of its ready line, and ends."""


class Tree(NamedTuple):
    """A checkout, and what to call it."""

    label: str
    commit: str
    folder: Path

    def start(self, *words: str, **settings: str) -> subprocess.Popen[bytes]:
        """A Python of this environment that imports the package of the tree."""
        environment = {**os.environ, **settings, "PYTHONPATH": str(self.folder)}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        return subprocess.Popen(
            [sys.executable, *words],
            cwd=self.folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )


class Node(NamedTuple):
    """A running node: its process id and the port of P2P."""

    pid: int
    port: int

    @property
    def rss_bytes(self) -> int:
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")


def addresses(*listeners: str) -> list[str]:
    """Options of `serve`: these listeners on any port, the others off."""
    given = {name: "127.0.0.1:0" if name in listeners else "off" for name in LISTENERS}
    return [word for name, address in given.items() for word in (f"--{name}", address)]


@contextmanager
def serving(tree: Tree, *words: str) -> Iterator[Node]:
    """A node with P2P alone and raised limits, for the block."""
    process = tree.start("-m", "millpond", "serve", "--json", *addresses("p2p"), *words, **RAISED)
    try:
        assert process.stdout is not None
        ready = json.loads(process.stdout.readline())
        yield Node(process.pid, int(ready["listeners"]["p2p"].rpartition(":")[2]))
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=LIMIT_S)


def cpu_until_ready(tree: Tree) -> float:
    """CPU seconds of `serve` with all listeners and a new folder, until its ready line."""
    process = tree.start("-c", READY_PROGRAM, *addresses(*LISTENERS))
    return float(process.communicate(timeout=LIMIT_S)[0])


def cpu_of_command(words: Sequence[str], tree: Tree) -> float:
    """CPU seconds of a command that succeeds, its interpreter included."""
    process = tree.start(*words)
    assert process.stdout is not None
    with process.stdout as out:
        out.read()
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{tree.label}: {' '.join(words)}: exit code {process.returncode}")
    return used.ru_utime + used.ru_stime


def measure_commands(trees: Sequence[Tree], rounds: int) -> dict[str, dict[str, Any]]:
    """Medians by tree and measure, the trees in turns. One round warms up, and writes bytecode."""
    found: dict[str, dict[str, list[float]]] = {tree.label: {} for tree in trees}
    with serving(trees[-1], "--memory") as node:
        where = ("--connect", f"tcp://127.0.0.1:{node.port}")
        commands: dict[str, Callable[[Tree], float]] = {
            "CPU until ready, s": cpu_until_ready,
            **{
                f"`{' '.join(words)}`, CPU s": partial(
                    cpu_of_command, ("-m", *words, *(where if words[-1] == "c" else ()))
                )
                for words in (("millpond", "list", "c"), ("millpond", "--help"))
            },
            "`millpond put c x`, CPU s": partial(
                cpu_of_command, ("-m", "millpond", "put", "c", "x", *where)
            ),
            "`import millpond`, CPU s": partial(cpu_of_command, ("-c", "import millpond")),
            "an interpreter alone, CPU s": partial(cpu_of_command, ("-c", "pass")),
        }
        for number in range(rounds + 1):
            for name, measure in commands.items():
                for tree in trees:
                    seconds = measure(tree)
                    if number:
                        found[tree.label].setdefault(name, []).append(seconds)
    return {
        label: {name: round(median(runs), 3) for name, runs in named.items()}
        for label, named in found.items()
    }


def measure_memory(tree: Tree) -> dict[str, Any]:
    """The rows of `millpond bench` about memory, and that of a message."""
    process = tree.start("-m", "millpond", "bench", "p2p", "--rows", "memory-*", "--json")
    out, _ = process.communicate(timeout=LIMIT_S)
    rows = [json.loads(line) for line in out.splitlines()]
    found = {
        MEMORY[row["row"]]: round(row["bytes_each"]) for row in rows if row.get("row") in MEMORY
    }
    with serving(tree, "--memory") as node:
        return found | {MESSAGE: round(bytes_of_message(node))}


def bytes_of_message(node: Node) -> float:
    """The growth of memory for each message; those before are for tables and pools."""
    with socket.create_connection(("127.0.0.1", node.port), timeout=LIMIT_S) as wire:
        hello = Hello(want_push=False, channel=b"footprint", role=Role.PRODUCER, window=0)
        framing = LengthPrefixed(2**24 - 1)
        wire.sendall(frame_packets([encode_hello(hello)]))
        _await(wire, framing, READY, 1)
        _put(wire, framing, range(WARM_MESSAGES))
        before = node.rss_bytes
        _put(wire, framing, range(WARM_MESSAGES, WARM_MESSAGES + MESSAGES))
        return (node.rss_bytes - before) / MESSAGES


def _put(wire: socket.socket, framing: LengthPrefixed, keys: range) -> None:
    for start in range(0, len(keys), BATCH):
        batch = keys[start : start + BATCH]
        wire.sendall(frame_packets([encode(Put(key, 0, bytes(MESSAGE_BYTES))) for key in batch]))
        _await(wire, framing, PUT_ACK, len(batch))


def _await(wire: socket.socket, framing: LengthPrefixed, packet_type: int, count: int) -> None:
    while count > 0:
        data = wire.recv(2**16)
        packets = framing.feed(data)
        if not data or any(packet[0] != packet_type for packet in packets):
            raise RuntimeError(f"unexpected answer: {packets[:1]!r}")
        count -= len(packets)


def measure_latency(tree: Tree) -> dict[str, Any]:
    """p99 and p99.9 while 50 connections send as fast as they get answers."""
    found = {}
    for name, (store, load) in LATENCIES.items():
        with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
            where = (store, f"{folder}/data") if store == "--data" else (store,)
            with serving(tree, *where) as node:
                command = [str(ROOT / "tests" / "bench" / "loadgen"), "-p", "p2p", "-o", "put"]
                times = ["-t", str(node.port), "-d", str(LATENCY_S), "-w", str(LATENCY_WARM_S)]
                told = subprocess.run(
                    [*command, *times, *load.split()], capture_output=True, text=True, check=True
                )
        run = json.loads(told.stdout)
        found[name] = ", ".join(f"{run[each] / 1e3:.1f}" for each in ("p99_us", "p999_us"))
    return found


def parse_tree(text: str) -> Tree:
    """`LABEL[@COMMIT]=DIR`; without a commit that of the checkout. Raises ValueError."""
    label, equals, folder = text.partition("=")
    if not equals or not label:
        raise ValueError(f"{text!r} is not LABEL[@COMMIT]=DIR")
    label, _, commit = label.partition("@")
    path = Path(folder).resolve()
    return Tree(label, commit or _commit(path), path)


def _commit(folder: Path) -> str:
    command = ["git", "-C", str(folder), "describe", "--always", "--dirty=, with changes"]
    return subprocess.run(command, capture_output=True, text=True).stdout.strip() or "unknown"


def write(docs: Path, figures: dict[str, Any]) -> None:
    """Put the figures into benchmarks.json, and their table into the page."""
    data, page = docs / "benchmarks.json", docs / "benchmarks.md"
    document = json.loads(data.read_text()) | {"footprint": figures}
    data.write_text(json.dumps(document, indent=1) + "\n")
    table = report.footprint_table(figures)
    page.write_text(report.with_blocks(page.read_text(), {"footprint": table}))


def main(argv: list[str]) -> int:
    """Measure, print, and write if that is wanted."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.footprint", description=__doc__)
    parser.add_argument("--tree", action="append", metavar="LABEL[@COMMIT]=DIR")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--start-only", action="store_true", help="neither memory nor latency")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args(argv)
    trees = [parse_tree(each) for each in options.tree or [f"now={ROOT}"]]
    source = ROOT / "tests" / "bench" / "loadgen.c"
    subprocess.run(["cc", "-O2", "-o", source.with_suffix(""), source], check=True)
    load = round(os.getloadavg()[0], 2)
    found = measure_commands(trees, options.rounds)
    for tree in () if options.start_only else trees:
        found[tree.label] |= measure_memory(tree) | measure_latency(tree)
    names = list(dict.fromkeys(name for each in found.values() for name in each))
    described = [
        {"label": tree.label, "commit": tree.commit, "figures": found[tree.label]} for tree in trees
    ]
    figures = {"load": load, "names": names, "trees": described}
    print(report.footprint_table(figures))
    if options.write:
        write(ROOT / "docs" / "internals", figures)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
