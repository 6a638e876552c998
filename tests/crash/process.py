"""The victim: a node in a process of its own, with its start, its kill and the cause of its end."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import anyio
from anyio.abc import Process

from tests.crash.kill_points import DIED
from tests.crash.plan import Death
from tests.node.processes import ROOT, environment

START_S = 30.0
STOP_S = 20.0
OUTSIDE = "outside"
RECOVERY = re.compile(r"store opened: .*seconds=([0-9.]+)")
COMPLAINTS = ("ERROR:", "CRITICAL:", "Traceback ")


class Crashed(Exception):
    """A victim that ended by itself, and not at its kill point; the text is what it wrote last."""


@dataclass(frozen=True)
class Addresses:
    """The addresses of a node's listeners."""

    p2p: str
    s3p: str

    @property
    def url(self) -> str:
        """For the node's own API."""
        return f"tcp://{self.p2p}"


@dataclass
class Victim:
    """One life. `to` is None if it died before it listened."""

    process: Process
    log: Path
    to: Addresses | None
    start_s: float

    async def kill(self) -> None:
        """From outside, at once; nothing happens if it is dead."""
        if self.process.returncode is None:
            self.process.kill()
        await self.process.wait()

    async def freeze(self) -> None:
        """Let it do nothing from now on; only `kill` may follow."""
        if self.process.returncode is None:
            self.process.send_signal(signal.SIGSTOP)
            while _is_running(self.process.pid):  # noqa: ASYNC110  # the kernel wakes nobody for it
                await anyio.sleep(0.001)

    async def stop(self) -> None:
        """SIGTERM, and the end that must come of it. Raises Crashed."""
        self.process.send_signal(signal.SIGTERM)
        with anyio.fail_after(STOP_S):
            code = await self.process.wait()
        if code != 0:
            raise Crashed(f"SIGTERM ended with {code}: {self._last_words()}")

    def cause(self) -> str:
        """The cause of the process's death, once it is dead. Raises Crashed."""
        text = self.log.read_text(errors="replace")
        if self.process.returncode != -signal.SIGKILL:
            raise Crashed(f"exit {self.process.returncode}: {self._last_words()}")
        return text.rpartition(DIED)[2].splitlines()[0] if DIED in text else OUTSIDE

    def has_lost_its_store(self) -> bool:
        """True: it ended by itself, with 1, because Redis was started anew."""
        text = self.log.read_text(errors="replace")
        return self.process.returncode == 1 and "StoreLost: Redis was started anew" in text

    def complaints(self) -> list[str]:
        """Lines of its log that say that something is wrong, which nothing here should cause."""
        lines = self.log.read_text(errors="replace").splitlines()
        return [each for each in lines if each.startswith(COMPLAINTS)]

    def recovery_s(self) -> float:
        """The time that opening the store took, from the log."""
        found = RECOVERY.search(self.log.read_text(errors="replace"))
        assert found is not None, self._last_words()
        return float(found[1])

    def _last_words(self) -> str:
        return self.log.read_text(errors="replace")[-4000:]


async def start(folder: Path, log: Path, death: Death | None, loop: str, store: str = "") -> Victim:
    """Start a life and wait until it is ready, or dead."""
    words = ["-m", "tests.crash.victim", "--data", str(folder), "--loop", loop]
    if store:
        words += ["--store", store]
    if death is not None:
        words += ["--die", str(death)]
    began = time.perf_counter()
    with log.open("wb") as errors:
        process = await anyio.open_process(
            [sys.executable, *words],
            cwd=ROOT,
            env=environment(),
            stdin=subprocess.DEVNULL,
            stderr=errors,
        )
    try:
        line = await _line(process)
    except BaseException:
        process.kill()
        raise
    to = Addresses(**json.loads(line)) if line else None
    if to is None:
        await process.wait()
    return Victim(process, log, to, time.perf_counter() - began)


def _is_running(pid: int) -> bool:
    """Whether a thread of it may still act: one in a call of the disk stops when that returns."""
    states = (
        each.read_text().rpartition(")")[2] for each in Path(f"/proc/{pid}/task").glob("*/stat")
    )
    return any(each.split()[0] in "RS" for each in states)


async def _line(process: Process) -> bytes:
    assert process.stdout is not None
    text = b""
    with anyio.fail_after(START_S):
        while not text.endswith(b"\n"):
            try:
                text += await process.stdout.receive()
            except anyio.EndOfStream:
                return b""
    return text
