"""The demonstration of the chat: three nodes, offline delivery, kill -9; see scripts/demo-chat.

Everything is done with the `millpond` command, as people would.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
MILLPOND = (sys.executable, "-m", "node")
PATIENCE_S = 60.0
COMMAND_S = 30.0
LOOK_S = 0.2


class Failed(Exception):
    """Something is not as it has to be."""


class Person:
    """A data folder, an address, and a node that runs or does not."""

    def __init__(self, folder: Path, name: str, *options: str) -> None:
        self.name = name
        self.folder = folder / name
        self.address = f"127.0.0.1:{free_port()}"
        self.said: dict[str, list[str]] = {}
        self._options = options
        self._node: subprocess.Popen[bytes] | None = None
        self._log = folder / f"{name}.log"
        plain = {key: value for key, value in os.environ.items() if "MILLPOND" not in key}
        self._environment = plain | {
            "PYTHONPATH": str(ROOT),
            "MILLPOND_CONNECT": f"tcp://{self.address}",
            "MILLPOND_DATA": str(self.folder),
        }
        self.do("keys", "new")

    def do(self, *words: str, typed: str = "") -> str:
        """A command of theirs, as they would type it; what it prints."""
        done = subprocess.run(
            [*MILLPOND, *words],
            input=typed.encode(),
            capture_output=True,
            env=self._environment,
            timeout=COMMAND_S,
            check=False,
        )
        if done.returncode:
            raise Failed(f"{self.name}$ millpond {' '.join(words)}\n{done.stderr.decode()}")
        return done.stdout.decode()

    def card(self, *where: str) -> str:
        """What they give to others."""
        return self.do("keys", "show", "--card", *where).strip()

    def start(self) -> None:
        """Start the node, and wait until it is ready."""
        tell(f"{self.name}'s node starts")
        words = ["serve", "--p2p", self.address, "--ws", "off", "--s3p", "off", "--rustlog", "off"]
        with self._log.open("ab") as log:
            self._node = subprocess.Popen(
                [*MILLPOND, *words, *self._options],
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
            )
        assert self._node.stdout is not None
        if not self._node.stdout.readline():
            raise Failed(f"{self.name}'s node does not start:\n{self._log.read_text()}")

    def stop(self, *, by_force: bool = False) -> None:
        """Stop the node, as Ctrl-C or as a power cut does."""
        if self._node is None:
            return
        tell(f"{self.name}'s node {'is killed (kill -9)' if by_force else 'stops'}")
        if by_force:
            self._node.kill()
        else:
            self._node.terminate()
        assert self._node.stdout is not None
        self._node.wait(COMMAND_S)
        self._node.stdout.close()
        self._node = None

    def say(self, other: Person, texts: Sequence[str]) -> None:
        """Say something; it is accepted when this returns."""
        self.do("chat", other.name, typed="".join(f"{text}\n" for text in texts))
        self.said.setdefault(other.name, []).extend(texts)
        tell(f"{self.name} says {len(texts)} messages to {other.name}: {texts[0]!r} ...")

    def history(self, other: Person) -> list[dict[str, Any]]:
        """All records of the conversation."""
        lines = self.do("chat", other.name, "--json", "--history", "100000").splitlines()
        return [json.loads(line) for line in lines]

    def heard(self, other: Person) -> list[str]:
        """What the other's messages were."""
        return [each["text"] for each in self.history(other) if each["kind"] == "in"]

    def fates(self, other: Person) -> list[str]:
        """What became of each message to the other."""
        fates: dict[str, str] = {}
        for each in self.history(other):
            if each["kind"] in ("out", "state") and (
                each["kind"] == "out" or each["uuid"] in fates
            ):
                fates[each["uuid"]] = each["state"]
        return list(fates.values())


def main() -> int:
    """Run it; 0 if each message came once and in order."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=20, metavar="N", help="in each burst")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="leave the data folders there")
    args = parser.parse_args()
    began_at = time.monotonic()
    try:
        if args.keep is not None:
            args.keep.mkdir(parents=True)
            play(args.keep, max(1, args.messages))
        else:
            with TemporaryDirectory(prefix="millpond-demo-") as folder:
                play(Path(folder), max(1, args.messages))
    except (Failed, OSError, subprocess.TimeoutExpired) as error:
        print(f"FAILED: {error}", file=sys.stderr)
        return 1
    print(f"ok: every message arrived once and in order ({time.monotonic() - began_at:.0f} s)")
    return 0


def play(folder: Path, count: int) -> None:
    """The whole piece. Raises Failed."""
    relay = Person(folder, "relay", "--relay")
    alice = Person(folder, "alice", "--via", "relay")
    bob = Person(folder, "bob", "--via", "relay")
    introduce(relay, alice, bob)
    people = (relay, alice, bob)
    try:
        act(relay, alice, bob, count)
    finally:
        for each in people:
            each.stop()


def introduce(relay: Person, alice: Person, bob: Person) -> None:
    """Cards change hands. Nobody can dial Alice or Bob: both have the relay keep their mail."""
    relays_card = relay.card("--address", f"tcp://{relay.address}")
    for each in (alice, bob):
        each.do("peer", "add", "relay", "--card", relays_card)
        relay.do("peer", "add", each.name, "--card", each.card())
    alice.do("peer", "add", "bob", "--card", bob.card("--relay", "relay"))
    bob.do("peer", "add", "alice", "--card", alice.card("--relay", "relay"))
    tell("alice and bob know each other, and a relay")


def act(relay: Person, alice: Person, bob: Person, count: int) -> None:
    """What happens."""
    relay.start()
    alice.start()
    alice.say(bob, [f"bob, are you there? ({n})" for n in range(count)])
    until("the relay has alice's messages", lambda: set(alice.fates(bob)) == {"sent"})
    alice.stop()
    relay.stop(by_force=True)
    relay.start()
    bob.start()
    hears(bob, alice)
    bob.say(alice, [f"yes, I was away ({n})" for n in range(count)])
    until("the relay has bob's messages", lambda: set(bob.fates(alice)) == {"sent"})
    bob.stop()
    alice.start()
    hears(alice, bob)
    until("alice knows that bob read hers", lambda: set(alice.fates(bob)) == {"read"})
    bob.start()
    for n in range(3):
        alice.say(bob, [f"how nice ({n}.{m})" for m in range(count)])
        bob.say(alice, [f"indeed ({n}.{m})" for m in range(count)])
    hears(alice, bob)
    hears(bob, alice)
    until("both know that the other read all", lambda: all_read(alice, bob))
    hears(alice, bob)
    hears(bob, alice)


def hears(one: Person, other: Person) -> None:
    """All that the other said comes, once and in order."""
    said = other.said[one.name]
    until(
        f"{one.name} has {len(said)} messages of {other.name}",
        lambda: len(one.heard(other)) >= len(said),
    )
    heard = one.heard(other)
    if heard != said:
        raise Failed(f"{one.name} heard\n{heard}\nand {other.name} had said\n{said}")


def all_read(alice: Person, bob: Person) -> bool:
    """Has everything been seen?"""
    return set(alice.fates(bob)) == set(bob.fates(alice)) == {"read"}


def until(what: str, is_so: Callable[[], bool]) -> None:
    """Wait for it. Raises Failed."""
    give_up_at = time.monotonic() + PATIENCE_S
    while not is_so():
        if time.monotonic() > give_up_at:
            raise Failed(f"not within {PATIENCE_S:g} s: {what}")
        time.sleep(LOOK_S)
    tell(what)


def tell(text: str) -> None:
    """Say what happens."""
    print(f"  {text}", flush=True)


def free_port() -> int:
    """A port that nobody listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


if __name__ == "__main__":
    sys.exit(main())
