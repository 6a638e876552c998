"""A kill loop of takeovers: two nodes and one replica, and an owner that is killed, paused, or
parted from the object store, again and again.

    python -m tests.node.replica.kill_loop --takeovers 50

Writers put numbers at both nodes all the time. After each end of the owner the standby takes its
place. An owner that was paused goes on then, one that was parted reaches the object store again:
both have to end by themselves. The earlier owner comes back as the standby. The judge wants every
acknowledged number once, none twice, and no acknowledgement of an owner after the first one of the
next.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from enum import StrEnum
from functools import partial
from itertools import count
from pathlib import Path
from random import Random
from statistics import median
from tempfile import TemporaryDirectory
from typing import NamedTuple

from millpond.errors import MillpondError
from millpond.node.cli.exit_codes import ExitCode
from millpond.sync import connect
from tests.node.processes import ROOT, command, environment
from tests.ports import free_port

CHANNEL = "jobs/mail"
LIMIT_S = 120.0
BOTH = 2
"""The writer that has both addresses."""
OFF = {f"MILLPOND_{name}": "off" for name in ("WS", "S3P", "RUSTLOG", "HTTP")}


class Ending(StrEnum):
    """The ways in which an owner is the owner no more: it is killed, paused until the other one has
    taken over, or cut off from the object store until then."""

    KILL = "kill"
    PAUSE = "pause"
    PART = "part"


ENDINGS = (Ending.KILL, Ending.KILL, Ending.PAUSE, Ending.KILL, Ending.PART)
"""One after the other, and from the first again."""


class Ack(NamedTuple):
    """An acknowledged number: when its put began and ended, and the node."""

    began: float
    ended: float
    node: int
    number: int


class Event(NamedTuple):
    """An owner ended at `at`."""

    at: float
    owner: int
    ending: Ending


class Mount:
    """The folder of objects as one node sees it."""

    def __init__(self, folder: Path, name: str, target: Path) -> None:
        self._target = target
        self._path = folder / name
        target.mkdir(exist_ok=True)
        self.part(is_parted=False)

    @property
    def url(self) -> str:
        return f"file://{self._path}"

    def part(self, *, is_parted: bool) -> None:
        """Let every request of the node to the object store fail, or go on."""
        new = self._path.with_name(f"{self._path.name}.new")
        new.symlink_to(self._path if is_parted else self._target)  # a link to itself
        new.replace(self._path)


class Peer:
    """One of the two nodes, in whatever run it is."""

    def __init__(self, folder: Path, number: int, url: str, takeover_s: float) -> None:
        self._folder = folder
        self._name = f"node-{number}"
        self._words = (
            *("serve", "--json", "--standby", "--takeover-s", str(takeover_s)),
            *("--replica", url, "--durability", "replicated", "--data", str(folder / self._name)),
            *("--channel", "jobs/*=queue"),
        )
        self.port = free_port()
        self._runs = 0
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"tcp://127.0.0.1:{self.port}"

    def start(self) -> None:
        self._runs += 1
        out, err = self._out.open("wb"), self._out.with_suffix(".log").open("wb")
        words = [sys.executable, "-m", "millpond", *self._words, "--p2p", f"127.0.0.1:{self.port}"]
        env = environment(**OFF)
        self.process = subprocess.Popen(words, cwd=ROOT, env=env, stdout=out, stderr=err)
        out.close()
        err.close()

    @property
    def _out(self) -> Path:
        return self._folder / f"{self._name}-{self._runs}.out"

    @property
    def log(self) -> str:
        return self._out.with_suffix(".log").read_text()

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def has_told(self, event: str) -> bool:
        lines = self._out.read_text().splitlines()
        return any(json.loads(each)["event"] == event for each in lines if each.endswith("}"))

    def end(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
            self.process.wait(LIMIT_S)


class Writer(threading.Thread):
    """Puts numbers at one node, or at whichever of both takes them."""

    def __init__(self, urls: str, node: int, *, reconnect: bool = False) -> None:
        super().__init__(daemon=True)
        self._reconnect = reconnect
        self._urls = urls
        self._node = node
        self._numbers = count(node * 10**8)
        self.acks: list[Ack] = []
        self.is_over = threading.Event()

    def run(self) -> None:
        while not self.is_over.is_set():
            try:
                with connect(
                    self._urls, channel=CHANNEL, role="producer", reconnect=self._reconnect
                ) as link:
                    while not self.is_over.is_set():
                        number, began = next(self._numbers), time.monotonic()
                        link.put(b"%d" % number, ttl=3600)
                        self.acks.append(Ack(began, time.monotonic(), self._node, number))
                        time.sleep(0.002)
            except (MillpondError, OSError):
                time.sleep(0.02)


class Report(NamedTuple):
    """The outcome: figures, and findings, of which there should be none."""

    takeovers: int
    acknowledged: int
    gaps: list[float]
    findings: list[str]


def run(
    folder: Path,
    takeovers: int,
    takeover_s: float,
    seed: int = 1,
    endings: Sequence[Ending] = ENDINGS,
) -> Report:
    """Run the loop in a folder. The third writer has both addresses, and goes on to the other node
    by itself, where it repeats what was not acknowledged."""
    rng = Random(seed)
    mounts = [Mount(folder, f"objects-{number}", folder / "replica") for number in range(2)]
    peers = [Peer(folder, number, each.url, takeover_s) for number, each in enumerate(mounts)]
    writers = [Writer(each.url, at) for at, each in enumerate(peers)]
    both = Writer(",".join(each.url for each in peers), BOTH, reconnect=True)
    writers.append(both)
    events: list[Event] = []
    findings: list[str] = []
    try:
        for each in peers:
            each.start()
        for writer in writers:
            writer.start()
        owner = _owner(writers[:BOTH])
        for number in range(takeovers):
            other = 1 - owner
            _wait(partial(peers[other].has_told, "standby"), "a standby", peers)
            since = events[-1].at if events else 0.0
            _wait(partial(_has_acks, writers[owner], since, 20), "acks", peers)
            time.sleep(rng.uniform(0.2, 1.0))
            ending = endings[number % len(endings)]
            events.append(Event(time.monotonic(), owner, ending))
            if ending is Ending.PART:
                mounts[owner].part(is_parted=True)
            else:
                sent = signal.SIGSTOP if ending is Ending.PAUSE else signal.SIGKILL
                os.kill(peers[owner].pid, sent)
            _wait(partial(_has_acks, writers[other], events[-1].at, 1), "a takeover", peers)
            if ending is not Ending.KILL:
                if ending is Ending.PAUSE:
                    os.kill(peers[owner].pid, signal.SIGCONT)
                else:
                    mounts[owner].part(is_parted=False)
                process = peers[owner].process
                assert process is not None
                if (code := process.wait(LIMIT_S)) != ExitCode.FENCED:
                    findings.append(f"an owner ended with code {code} after {ending}")
            peers[owner].end()
            peers[owner].start()
            owner = other
            print(f"{number + 1} of {takeovers}", file=sys.stderr, flush=True)
        for writer in writers:
            writer.is_over.set()
        for writer in writers:
            writer.join(LIMIT_S)
        found = _numbers(peers[owner].url)
    finally:
        for each in peers:
            each.end()
    acks = [ack for writer in writers for ack in writer.acks]
    findings += _judge(acks, events, found)
    gaps = [
        min(ack.ended for ack in acks if ack.node == 1 - each.owner and ack.ended > each.at)
        - each.at
        for each in events
    ]
    return Report(takeovers, len(acks), gaps, findings)


def _judge(acks: list[Ack], events: list[Event], found: list[int]) -> list[str]:
    findings = []
    if len(found) != len(set(found)):
        findings.append(f"doubled: {len(found) - len(set(found))}")
    if lost := {ack.number for ack in acks} - set(found):
        findings.append(f"lost: {len(lost)}, such as {min(lost)}")
    for each, later in zip(events, [*events[1:], None], strict=True):
        end = float("inf") if later is None else later.at
        taken_at = min(
            ack.ended for ack in acks if ack.node == 1 - each.owner and ack.ended > each.at
        )
        both = [a for a in acks if a.node == each.owner and taken_at <= a.began and a.ended < end]
        if both:
            findings.append(f"two owners acknowledged: {len(both)} after {each}")
    return findings


def _numbers(url: str) -> list[int]:
    shown = command("export", CHANNEL, "--connect", url, env=environment())
    assert shown.returncode == 0, shown.stderr
    return [int(json.loads(line)["data"]) for line in shown.stdout.splitlines()]


def _acks_since(writer: Writer, at: float) -> int:
    found = 0
    for ack in reversed(writer.acks):
        if ack.ended <= at:
            break
        found += 1
    return found


def _has_acks(writer: Writer, at: float, wanted: int) -> bool:
    return _acks_since(writer, at) >= wanted


def _owner(writers: list[Writer]) -> int:
    end = time.monotonic() + LIMIT_S
    while time.monotonic() < end:
        for number, writer in enumerate(writers):
            if _acks_since(writer, 0.0):
                return number
        time.sleep(0.02)
    raise AssertionError("no node serves")


def _wait(condition: Callable[[], bool], what: str, peers: list[Peer]) -> None:
    end = time.monotonic() + LIMIT_S
    while not condition():
        if time.monotonic() > end:
            logs = "\n".join(each.log[-2000:] for each in peers)
            raise AssertionError(f"never came: {what}\n{logs}")
        time.sleep(0.01)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--takeovers", type=int, default=50)
    parser.add_argument("--takeover-s", type=float, default=2.0)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    with TemporaryDirectory() as folder:
        report = run(Path(folder), args.takeovers, args.takeover_s, args.seed)
    gaps = sorted(report.gaps)
    print(f"{report.takeovers} takeovers, {report.acknowledged} acknowledged")
    print(f"kill to first acknowledgement: median {median(gaps):.2f} s, longest {gaps[-1]:.2f} s")
    print("\n".join(report.findings) or "0 lost, 0 doubled, never two owners")
    return 1 if report.findings else 0


if __name__ == "__main__":
    sys.exit(main())
