"""Nodes of two machines that find each other by mDNS: two network namespaces with a cable (veth)
between them, and a node as a process of its own in each. Connections between them are TLS."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest

from tests.node.processes import ROOT, environment

PATIENCE_S = 60.0
PORT = 7400
FoundT = TypeVar("FoundT")


def ip(*words: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["ip", *words], capture_output=True, timeout=PATIENCE_S, check=False)


def why_not() -> str:
    """The reason why there are no network namespaces here."""
    if sys.platform != "linux" or shutil.which("ip") is None:
        return "needs the command ip of Linux"
    if os.geteuid():
        return "needs root, for network namespaces"
    name = f"mill{os.getpid()}t"
    made = ip("netns", "add", name)
    if made.returncode:
        return f"no network namespaces: {made.stderr.decode().strip()}"
    ip("netns", "del", name)
    return ""


class Machine:
    """A namespace with one network interface, and the node of a person in it."""

    def __init__(self, name: str, folder: Path, address: str) -> None:
        self.name = name
        self.address = address
        self.env = environment(
            MILLPOND_DATA=str(folder), MILLPOND_CONNECT=f"tcp://{self.loopback}:{PORT}"
        )

    @property
    def host(self) -> str:
        return f"[{self.address}]" if ":" in self.address else self.address

    @property
    def loopback(self) -> str:
        return "[::1]" if ":" in self.address else "127.0.0.1"

    def words(self, *words: str) -> list[str]:
        return ["ip", "netns", "exec", self.name, sys.executable, "-m", "millpond", *words]

    def do(self, *words: str, typed: str = "") -> str:
        done = subprocess.run(
            self.words(*words),
            input=typed.encode(),
            capture_output=True,
            env=self.env,
            cwd=ROOT,
            timeout=PATIENCE_S,
            check=False,
        )
        assert done.returncode == 0, (words, done.stdout, done.stderr)
        return done.stdout.decode()

    def lines(self, *words: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.do(*words, "--json").splitlines()]

    @contextmanager
    def serving(self) -> Iterator[None]:
        listener = f"[::]:{PORT}" if ":" in self.address else f"0.0.0.0:{PORT}"
        words = self.words("serve", "--p2p", listener, "--ws", "off", "--discover", "--json")
        with subprocess.Popen(
            words, env=self.env, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        ) as process:
            try:
                assert process.stdout is not None and process.stdout.readline()
                yield
            finally:
                process.terminate()
                try:
                    process.wait(10)
                except subprocess.TimeoutExpired:
                    process.kill()


@pytest.fixture(params=["10.77.1.", "fd77::"], ids=["IPv4", "IPv6"])
def machines(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Machine, Machine]]:
    reason = why_not()
    if reason:
        pytest.skip(reason)
    names = [f"mill{os.getpid()}{side}" for side in "ab"]
    found = []
    with ExitStack() as stack:
        for each in names:
            assert not ip("netns", "add", each).returncode
            stack.callback(ip, "netns", "del", each)
        first, second = names
        words = ("link", "add", "eth0", "netns", first, "type", "veth", "peer", "name", "eth0")
        assert not ip(*words, "netns", second).returncode
        for number, each in enumerate(names, 1):
            address = f"{request.param}{number}"
            is_6 = ":" in address
            options = ("/64", "nodad") if is_6 else ("/24",)
            ip("-n", each, "addr", "add", f"{address}{options[0]}", "dev", "eth0", *options[1:])
            for interface in ("lo", "eth0"):
                assert not ip("-n", each, "link", "set", interface, "up").returncode
            found.append(Machine(each, tmp_path / str(number), address))
        yield found[0], found[1]


def eventually(look: Callable[[], FoundT]) -> FoundT:
    ends = time.monotonic() + PATIENCE_S
    while True:
        found = look()
        if found:
            return found
        assert time.monotonic() < ends, "it did not come"
        time.sleep(0.2)


def texts(machine: Machine, peer: str, kind: str) -> list[str]:
    records = machine.lines("chat", peer, "--history", "100")
    return [each["text"] for each in records if each["kind"] == kind]


@pytest.mark.full
def test_two_machines_find_each_other_and_talk_over_tls(
    machines: tuple[Machine, Machine],
) -> None:
    alice, bob = machines
    with alice.serving(), bob.serving():
        for me, other in ((alice, bob), (bob, alice)):
            (found,) = eventually(lambda me=me: me.lines("peer", "discovered"))
            assert found["address"] == f"{other.host}:{PORT}"
            assert found["name"] is None
        alice.do("peer", "discovered", "--add", "1", "bob")
        (added,) = alice.lines("peer", "list")
        assert added["addresses"][0].startswith(f"tls://{bob.host}:{PORT}#key-sha256:")
        alice.do("chat", "bob", typed="hello from next door\n")
        (request,) = eventually(lambda: bob.lines("chat", "requests"))
        bob.do("chat", "requests", "accept", request["id"], "alice")
        assert eventually(lambda: texts(bob, "alice", "in")) == ["hello from next door"]
        bob.do("chat", "alice", "--wait", "30", typed="hello alice\n")
        assert texts(alice, "bob", "in") == ["hello alice"]
