"""The demonstration of the chat: three nodes, offline delivery, kill -9; see scripts/demo-chat.

Everything is done with the `millpond` command, as people would.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scripts.demo_processes import Failed, Processes, perform, tell, until


class Person:
    """Somebody with a data folder, an address, and a node that runs or does not."""

    def __init__(self, folder: Path, name: str, *options: str) -> None:
        self.name = name
        self.said: dict[str, list[str]] = {}
        home = folder / name
        home.mkdir()
        self.own = Processes(home, f"{name}'s ")
        self.do = self.own.do
        self._options = options
        self.do("keys", "new")

    def card(self, *where: str) -> str:
        """What they give to others."""
        return self.do("keys", "show", "--card", *where).strip()

    def start(self) -> None:
        """Start the node, and wait until it is ready."""
        self.own.start_node(*self._options)

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
    return perform(lambda folder: play(folder, max(1, args.messages)), args.keep)


def play(folder: Path, count: int) -> str:
    """The whole piece. Raises Failed."""
    relay = Person(folder, "relay", "--relay")
    alice = Person(folder, "alice", "--via", "relay")
    bob = Person(folder, "bob", "--via", "relay")
    introduce(relay, alice, bob)
    try:
        act(relay, alice, bob, count)
    finally:
        for each in (relay, alice, bob):
            each.own.close()
    return "every message arrived once and in order"


def introduce(relay: Person, alice: Person, bob: Person) -> None:
    """Cards change hands. Nobody can dial Alice or Bob: both have the relay keep their mail."""
    relays_card = relay.card("--address", f"tcp://{relay.own.address}")
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
    alice.own.stop()
    relay.own.stop(by_force=True)
    relay.start()
    bob.start()
    hears(bob, alice)
    bob.say(alice, [f"yes, I was away ({n})" for n in range(count)])
    until("the relay has bob's messages", lambda: set(bob.fates(alice)) == {"sent"})
    bob.own.stop()
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


if __name__ == "__main__":
    sys.exit(main())
