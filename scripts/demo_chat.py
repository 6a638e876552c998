"""The demonstration of the chat: three nodes, offline delivery, kill -9 (scripts/demo-chat).

It uses only the `millpond` command.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scripts.demo_processes import Failed, Processes, report, run_demo, wait_until

LOCAL = "--allow-local-addresses"
"""All nodes are on this machine."""


class Person:
    """A person: a data folder, an address, and a node that runs or is stopped."""

    def __init__(self, folder: Path, name: str, *options: str) -> None:
        self.name = name
        self.sent: dict[str, list[str]] = {}
        home = folder / name
        home.mkdir()
        self.processes = Processes(home, f"{name}'s ")
        self.run = self.processes.run
        self._options = options
        self.run("keys", "new")

    def card(self, *where: str) -> str:
        """The contact card."""
        return self.run("keys", "show", "--card", *where).strip()

    def start(self) -> None:
        """Start the node, and wait until it is ready."""
        self.processes.start_node(*self._options)

    def send(self, other: Person, texts: Sequence[str]) -> None:
        """Send messages; the node has accepted them when this returns."""
        self.run("chat", other.name, typed="".join(f"{text}\n" for text in texts))
        self.sent.setdefault(other.name, []).extend(texts)
        report(f"{self.name} sends {len(texts)} messages to {other.name}: {texts[0]!r} ...")

    def history(self, other: Person) -> list[dict[str, Any]]:
        """All records of the conversation."""
        lines = self.run("chat", other.name, "--json", "--history", "100000").splitlines()
        return [json.loads(line) for line in lines]

    def received(self, other: Person) -> list[str]:
        """The texts of the other's messages."""
        return [each["text"] for each in self.history(other) if each["kind"] == "in"]

    def states(self, other: Person) -> list[str]:
        """The state of each message to the other."""
        states: dict[str, str] = {}
        for each in self.history(other):
            if each["kind"] in ("out", "state") and (
                each["kind"] == "out" or each["uuid"] in states
            ):
                states[each["uuid"]] = each["state"]
        return list(states.values())


def main() -> int:
    """Run the demonstration; 0 if each message arrived once and in order."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=20, metavar="N", help="in each burst")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="leave the data folders there")
    args = parser.parse_args()
    return run_demo(lambda folder: run_chat(folder, max(1, args.messages)), args.keep)


def run_chat(folder: Path, count: int) -> str:
    """Run all steps. Raises Failed."""
    relay = Person(folder, "relay", "--relay")
    alice = Person(folder, "alice", "--via", "relay")
    bob = Person(folder, "bob", "--via", "relay")
    introduce(relay, alice, bob)
    try:
        exchange(relay, alice, bob, count)
    finally:
        for each in (relay, alice, bob):
            each.processes.close()
    return "every message arrived once and in order"


def introduce(relay: Person, alice: Person, bob: Person) -> None:
    """Exchange contact cards. Alice and Bob cannot be dialled: a relay stores their messages."""
    relays_card = relay.card("--address", f"tcp://{relay.processes.address}")
    for each in (alice, bob):
        each.run("peer", "relay", "relay", "--card", relays_card, LOCAL)
        relay.run("peer", "add", each.name, "--card", each.card())
    alice.run("peer", "add", "bob", "--card", bob.card("--relay", "relay"), LOCAL)
    bob.run("peer", "add", "alice", "--card", alice.card("--relay", "relay"), LOCAL)
    report("alice and bob know each other, and a relay")


def exchange(relay: Person, alice: Person, bob: Person, count: int) -> None:
    """Send messages both ways while nodes stop, start and are killed."""
    relay.start()
    alice.start()
    alice.send(bob, [f"bob, are you there? ({n})" for n in range(count)])
    wait_until("the relay has alice's messages", lambda: set(alice.states(bob)) == {"sent"})
    alice.processes.stop()
    relay.processes.stop(by_force=True)
    relay.start()
    bob.start()
    check_received(bob, alice)
    bob.send(alice, [f"yes, I was away ({n})" for n in range(count)])
    wait_until("the relay has bob's messages", lambda: set(bob.states(alice)) == {"sent"})
    bob.processes.stop()
    alice.start()
    check_received(alice, bob)
    wait_until("alice knows that bob read hers", lambda: set(alice.states(bob)) == {"read"})
    bob.start()
    for n in range(3):
        alice.send(bob, [f"how nice ({n}.{m})" for m in range(count)])
        bob.send(alice, [f"indeed ({n}.{m})" for m in range(count)])
    check_received(alice, bob)
    check_received(bob, alice)
    wait_until("both know that the other read all", lambda: all_read(alice, bob))
    check_received(alice, bob)
    check_received(bob, alice)


def check_received(one: Person, other: Person) -> None:
    """Wait for all messages of the other; they arrive once and in order."""
    sent = other.sent[one.name]
    wait_until(
        f"{one.name} has {len(sent)} messages of {other.name}",
        lambda: len(one.received(other)) >= len(sent),
    )
    received = one.received(other)
    if received != sent:
        raise Failed(f"{one.name} received\n{received}\nand {other.name} had sent\n{sent}")


def all_read(alice: Person, bob: Person) -> bool:
    """Both know that every message was read."""
    return set(alice.states(bob)) == set(bob.states(alice)) == {"read"}


if __name__ == "__main__":
    sys.exit(main())
