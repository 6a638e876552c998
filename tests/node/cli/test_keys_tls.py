"""Lines between machines from the command line: `keys tls`, pins in cards, and warnings."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from millpond.node.cli.doctor.peers import peer_findings
from millpond.node.peers.card import decode_card
from tests.node.cli.test_keys import Person, alice, bob, run
from tests.node.processes import environment, serving
from tests.node.stream_commands import Run, objects

__all__ = ["alice", "bob", "run"]

THERE = "203.0.113.7:7400"


def pin_of(person: Person) -> str:
    [told] = objects(person("keys", "tls", "--json"))
    pin: str = told["key_pin"]
    return pin


def addresses(person: Person, *urls: str) -> tuple[str, ...]:
    """Those of a card that is made for these."""
    words = [word for url in urls for word in ("--address", url)]
    told = person("keys", "show", "--card", *words)
    assert told.code == 0, told.err
    return decode_card(told.out.decode().strip()).addresses


def test_key_and_certificate_are_made_shown_and_replaced(alice: Person) -> None:
    [told] = objects(alice("keys", "tls", "--json"))
    key = alice.folder / "own-tls.key"
    assert Path(told["certificate"]) == alice.folder / "own-tls.crt"
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    text = alice("keys", "tls").out.decode()
    assert told["key_pin"] in text and told["not_after"] in text
    assert pin_of(alice) == told["key_pin"]
    [new] = objects(alice("keys", "tls", "--new-key", "--json"))
    assert new["key_pin"] != told["key_pin"] and pin_of(alice) == new["key_pin"]


def test_a_damaged_key_is_told_and_left_alone(alice: Person) -> None:
    pin_of(alice)
    key = alice.folder / "own-tls.key"
    key.write_text("nothing")
    told = alice("keys", "tls")
    assert told.code == 1 and "own-tls.key" in told.err and "--new-key" in told.err
    assert key.read_text() == "nothing"
    assert alice("keys", "tls", "--new-key").code == 0


def test_cards_have_the_pin_of_the_key(alice: Person) -> None:
    pin = pin_of(alice)
    own, theirs = f"tls://{THERE}", f"tls://proxy.example#key-sha256:{'ab' * 32}"
    found = addresses(alice, own, "wss://mill.lan/", f"tcp://{THERE}", theirs)
    assert found == (f"{own}#{pin}", f"wss://mill.lan#{pin}", f"tcp://{THERE}", theirs)


def test_a_card_without_a_pin_says_so(alice: Person) -> None:
    """The node was not started yet, or shows a certificate of other files."""
    told = alice("keys", "show", "--card", "--address", f"tls://{THERE}")
    assert decode_card(told.out.decode().strip()).addresses == (f"tls://{THERE}",)
    assert "no pin" in told.err and "keys tls" in told.err
    told = alice("keys", "show", "--card", "--address", "tcp://127.0.0.1:7400")
    assert "no pin" not in told.err


def test_a_node_that_other_machines_reach_shows_its_own(alice: Person, run: Run) -> None:
    """`127.1` is a name, as any name of the machine is: and so the listener speaks TLS."""
    pin = pin_of(alice)
    words = ("--p2p", "127.1:0", "--ws", "off", "--insecure-public", "--data", str(alice.folder))
    address = f"tls://{THERE}"
    with serving(*words, "--address", address, env=environment()) as node:
        assert node.ready["tls"] == ["p2p"]
        where = node.ready["listeners"]["p2p"]
        assert run("ping", "--connect", f"tls://{where}#{pin}").code == 0
        assert run("ping", "--connect", f"tcp://{where}").code == 0
        told = run("ping", "--connect", f"tls://{where}#key-sha256:{'ab' * 32}")
        assert told.code == 1 and "key is not the pinned one" in told.err
        told = run("doctor", "tls", f"tls://{where}", "--pin", pin, "--json")
        assert pin in told.out.decode()


def levels(told: bytes, check: str) -> list[tuple[str, str]]:
    found = map(json.loads, told.decode().splitlines())
    return [(each["level"], each["text"]) for each in found if each["check"] == check]


@pytest.mark.parametrize(
    ("url", "is_told"),
    [
        (f"tcp://{THERE}", True),
        ("ws://mill.lan", True),
        (f"tls://{THERE}", False),
        ("tcp://127.0.0.1:7400", False),
        ("tcp://localhost:7400", False),
    ],
)
def test_addresses_without_tls_are_told(
    alice: Person, bob: Person, url: str, is_told: bool
) -> None:
    alice("peer", "add", "bob", "--key", bob.id, "--address", url)
    listed = alice("peer", "ls")
    assert listed.code == 0 and (f"bob: {url} does not say TLS" in listed.err) is is_told
    [finding] = peer_findings(alice.folder)
    assert finding.level == ("warn" if is_told else "ok") and (url in finding.text) is is_told
    alice("peer", "block", "bob")
    assert [each.level for each in peer_findings(alice.folder)] == ["ok"]


def test_doctor_warns_of_plain_peers(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    assert levels(run("doctor", "--json").out, "plain peers") == []
    monkeypatch.setenv("MILLPOND_ALLOW_PLAIN_PEERS", "1")
    [(level, text)] = levels(run("doctor", "--json").out, "plain peers")
    assert level == "warn" and "forge receipts" in text
