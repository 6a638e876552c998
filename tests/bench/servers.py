"""Starts one server for one measurement and stops it by its process id, whatever happens."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from millpond.node.bench.own_node import MEMORY_FILE_SYSTEMS, file_system

ROOT = Path(__file__).resolve().parents[2]
START_LIMIT_S = 60.0
STOP_LIMIT_S = 10.0
POLL_S = 0.02
HOW_TO_GET = {"s2": " (cargo install s2-cli builds it, in half an hour)"}


class NotRun(Exception):
    """A measurement that could not be made, and why; never counted as passed."""


@dataclass(frozen=True)
class ServerSpec:
    """A kind of server, as `[server.NAME]` of rows*.toml describes it."""

    name: str
    command: tuple[str, ...]
    ready: str
    version: tuple[str, ...]
    config: str
    env: dict[str, str] = field(default_factory=dict)
    durable: bool = False
    promises: str = ""
    setup: tuple[str, ...] = ()


@dataclass(frozen=True)
class Running:
    """A server that answers: its process and the port of each listener."""

    pid: int
    ports: dict[str, int]

    def port(self, listener: str) -> int:
        """The port of a listener; a node that lacks it raises `NotRun`."""
        if listener not in self.ports:
            raise NotRun(f"the server has no listener {listener!r}")
        return self.ports[listener]


def version_of(spec: ServerSpec, python: str) -> str:
    """The version that the server reports, or the reason why it does not."""
    try:
        told = subprocess.run(
            _filled(spec.version, python), cwd=ROOT, capture_output=True, text=True, timeout=20
        )
    except OSError as exc:
        return f"unknown ({exc.strerror})"
    return told.stdout.strip() or "unknown"


@contextmanager
def running(spec: ServerSpec, python: str, core: int, disk: Path) -> Iterator[Running]:
    """A fresh server pinned to `core`, its data in a folder of its own below `disk`.

    Raises `NotRun` when it does not come up, or is to be durable where nothing is.
    """
    if spec.durable and file_system(disk) in MEMORY_FILE_SYSTEMS:
        raise NotRun(f"{disk} is in memory: durable rows need a disk (--disk DIR)")
    with tempfile.TemporaryDirectory(prefix="bench-", dir=disk) as folder:
        port, data = _free_port(), Path(folder, "data")
        data.mkdir()
        command = _filled(spec.command, python, port, str(data))
        for program in ("taskset", command[0]):
            if shutil.which(program) is None:
                raise NotRun(f"no {program}{HOW_TO_GET.get(program, '')}")
        environment = {name: value.replace("{port}", str(port)) for name, value in spec.env.items()}
        out, err = Path(folder, "stdout"), Path(folder, "stderr")
        with out.open("wb") as out_file, err.open("wb") as err_file:
            process = subprocess.Popen(
                ["taskset", "-c", str(core), *command],
                cwd=ROOT,
                env={**os.environ, **environment},
                stdin=subprocess.DEVNULL,
                stdout=out_file,
                stderr=err_file,
            )
        try:
            ports = _wait_ready(spec, process, port, out, err)
            _set_up(_filled(spec.setup, python, port, str(data)), environment)
            yield Running(process.pid, ports)
        finally:
            _stop(process)


def _filled(command: tuple[str, ...], python: str, port: int = 0, folder: str = "") -> list[str]:
    fills = {"{python}": python, "{port}": str(port), "{dir}": folder, "{s2}": s2_program()}
    return [fills.get(word, word) for word in command]


def s2_program() -> str:
    """The path of S2's command line; `s2` where there is none."""
    return shutil.which("s2") or shutil.which(Path.home() / ".cargo" / "bin" / "s2") or "s2"


def _set_up(command: list[str], environment: dict[str, str]) -> None:
    """Run the command that a fresh server needs, if there is one. Raises `NotRun`."""
    if not command:
        return
    env = {**os.environ, **environment}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=STOP_LIMIT_S)
    if done.returncode:
        raise NotRun(f"{' '.join(command)}: {done.stderr.strip()[-200:]}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _wait_ready(
    spec: ServerSpec, process: subprocess.Popen[bytes], port: int, out: Path, err: Path
) -> dict[str, int]:
    end = time.monotonic() + START_LIMIT_S
    while time.monotonic() < end and process.poll() is None:
        ports = _asked(spec, port, out)
        if ports:
            return ports
        time.sleep(POLL_S)
    said = err.read_text(errors="replace").strip().splitlines()
    state = "hung at start" if process.poll() is None else f"exited with {process.returncode}"
    raise NotRun(f"{spec.name} {state}{': ' + said[-1] if said else ''}")


def _asked(spec: ServerSpec, port: int, out: Path) -> dict[str, int]:
    """The ports of a server that is ready; nothing yet: empty."""
    match spec.ready:
        case "json-line":
            return _ready_line(out, spec.promises)
        case "redis-ping":
            return _answers(port, b"*1\r\n$4\r\nPING\r\n", b"+PONG\r\n")
        case "nats-info":
            return _answers(port, b"", b"INFO ")
        case "http":
            return _answers(port, b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n", b"HTTP/1.1 ")
        case _:
            raise ValueError(f"server {spec.name}: unknown ready {spec.ready!r}")


def _ready_line(out: Path, promises: str) -> dict[str, int]:
    line, newline, _ = out.read_text(errors="replace").partition("\n")
    if not newline:
        return {}
    try:
        ready = json.loads(line)
        listeners, durability = ready["listeners"], ready["durability"]
    except (ValueError, KeyError, TypeError) as exc:
        raise NotRun(f"not a ready line: {line[:80]}") from exc
    if promises and durability != promises:
        raise NotRun(f"the node promises durability {durability}, not {promises}")
    return {name: int(address.rpartition(":")[2]) for name, address in listeners.items()}


def _answers(port: int, question: bytes, beginning: bytes) -> dict[str, int]:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1) as probe:
            probe.sendall(question)
            return {"tcp": port} if probe.recv(64).startswith(beginning) else {}
    except OSError:
        return {}


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(STOP_LIMIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
