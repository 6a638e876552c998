"""`s2 bench`, the generator of S2's command line: it writes records over HTTP/2 and reads them at
the tail meanwhile; then it reads all again.

The program is `s2` on PATH or in ~/.cargo/bin (`cargo install s2-cli`); it is a server as well
(`s2 lite`).
"""

from __future__ import annotations

import os
import re
import resource
import shutil
import subprocess
import time
from collections.abc import Callable, Iterable
from threading import Timer
from typing import Any, NamedTuple

from tests.bench.servers import HOW_TO_GET, NotRun, s2_program

BASIN = "bench-basin"
LIMIT_S = 120.0
SETUP_S = 20.0
UNITS_US = {"ns": 1e-3, "us": 1.0, "ms": 1e3, "s": 1e6}
_PHASE = re.compile(r"(Write|Read|Catchup).*: .*\((\d+) bytes, (\d+) records in ([\d.]+)s\)")
_ACKS = re.compile(r"Ack Latency Statistics \(n=\d+\)")
_LATENCY = re.compile(r"(p50|p99|max) *: +([\d.]+)(ns|us|ms|s)\b")


class Phase(NamedTuple):
    """A phase of the run, and the server's CPU seconds at the moment when it was told."""

    records: int
    seconds: float
    cpu_s: float


class Outcome(NamedTuple):
    """The phases by name (`Write`, `Read`, `Catchup`) and the latencies of acks in microseconds."""

    phases: dict[str, Phase]
    acks_us: dict[str, float]


def read_output(lines: Iterable[str], cpu_s: Callable[[], float]) -> Outcome:
    """The output of the program on stderr, read as it comes."""
    phases: dict[str, Phase] = {}
    acks_us: dict[str, float] = {}
    is_acks = False
    for line in lines:
        if found := _PHASE.search(line):
            phases[found[1]] = Phase(int(found[3]), float(found[4]), cpu_s())
        # Acks stand to the left of the other latencies, or above them.
        is_acks = bool(_ACKS.search(line)) or is_acks
        if is_acks and (latency := _LATENCY.search(line)):
            acks_us.setdefault(latency[1], float(latency[2]) * UNITS_US[latency[3]])
    return Outcome(phases, acks_us)


def measure(
    port: int, core: int, args: list[str], phase: str, cpu_s: Callable[[], float]
) -> dict[str, Any]:
    """One run against the server at a port: its figures as the load generator tells them.

    `phase` is `write` or `catchup`; `cpu_s` gives the CPU seconds of the server. Raises NotRun.
    """
    s2 = shutil.which(s2_program())
    if s2 is None:
        raise NotRun(f"no s2{HOW_TO_GET['s2']}")
    url = f"http://127.0.0.1:{port}"
    environment = {
        **os.environ,
        "S2_ACCESS_TOKEN": "ignored",
        "S2_ACCOUNT_ENDPOINT": url,
        "S2_BASIN_ENDPOINT": url,
        "NO_COLOR": "1",
    }
    made = subprocess.run(
        [s2, "create-basin", BASIN],
        env=environment,
        capture_output=True,
        text=True,
        timeout=SETUP_S,
    )
    if made.returncode:
        raise NotRun(f"s2 create-basin: {_last_line(made.stderr)}")
    began_cpu_s, before = cpu_s(), _children_s()
    began = time.monotonic()
    with subprocess.Popen(
        ["taskset", "-c", str(core), s2, "bench", BASIN, *args],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        timer = Timer(LIMIT_S, process.kill)
        timer.start()
        told: list[str] = []
        outcome = read_output(_kept(process.stderr, told), cpu_s)
        code = process.wait()
        timer.cancel()
    if code or not {"Write", "Catchup"} <= set(outcome.phases):
        raise NotRun(f"s2 bench ended with {code}: {_last_line(''.join(told))}")
    cpu = (_children_s() - before) / (time.monotonic() - began)
    return figures(outcome, phase, began_cpu_s, cpu)


def figures(outcome: Outcome, phase: str, began_cpu_s: float, cpu: float) -> dict[str, Any]:
    """The figures of one phase, in the fields of the load generator's JSON."""
    write, catchup = outcome.phases["Write"], outcome.phases["Catchup"]
    live_end = outcome.phases.get("Read", write)
    if phase == "write":
        part, server_s = write, live_end.cpu_s - began_cpu_s
    else:
        part, server_s = catchup, catchup.cpu_s - live_end.cpu_s
    acks = outcome.acks_us if phase == "write" else {}
    rate = part.records / part.seconds if part.seconds else 0.0
    return {
        "rps": rate,
        "recs": rate,
        "p50_us": acks.get("p50", 0.0),
        "p99_us": acks.get("p99", 0.0),
        "p999_us": 0.0,
        "max_us": acks.get("max", 0.0),
        "cpu": round(cpu, 3),
        "server_cpu": round(server_s / part.seconds, 3) if part.seconds else 0.0,
        "server_us": server_s * 1e6 / part.records if part.records else 0.0,
        "errs": 0,
    }


def _kept(lines: Iterable[str], told: list[str]) -> Iterable[str]:
    for line in lines:
        told.append(line)
        yield line


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1].strip() if lines else "nothing was told"


def _children_s() -> float:
    """The CPU seconds of the processes that ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
