"""People with a node each, and nothing but commands: real nodes on loopback
(docs/internals/peers.md)."""

from __future__ import annotations

import json
import time
from base64 import b64decode
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from millpond.node.cli.exit_codes import ExitCode
from millpond.node.cli.main import main
from tests.node.processes import Serving, command, serving
from tests.ports import free_port

pytestmark = pytest.mark.crash

TIMEOUT = ("--timeout", "15")


class Person:
    """A data folder, and an address at which its node listens whenever it runs."""

    def __init__(self, folder: Path, name: str, capture: pytest.CaptureFixture[bytes]) -> None:
        self.name = name
        self.data = ("--data", str(folder / name))
        self.address = f"127.0.0.1:{free_port()}"
        self.url = f"tcp://{self.address}"
        self._capture = capture
        self.says("keys", "new")

    def says(self, *words: str) -> str:
        """Run a command about the data folder."""
        return self._run(*words, *self.data)[0]

    def asks(self, *words: str, code: int = 0) -> tuple[str, str]:
        """Run a command at the node; gives its output, and its errors."""
        return self._run(*words, "--connect", self.url, code=code)

    def _run(self, *words: str, code: int = 0) -> tuple[str, str]:
        ended = main(words)
        out, err = (each.decode() for each in self._capture.readouterr())
        assert ended == code, err
        return out, err

    def puts(self, data: bytes, *words: str) -> list[str]:
        """Run `put` with this as its input; gives the lines that it printed."""
        done = command("put", *words, "--connect", self.url, input=data)
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout.decode().splitlines()

    def adds(self, other: Person, *card_options: str, action: str = "add") -> None:
        card = other.says("keys", "show", "--card", *card_options).strip()
        self.says("peer", action, other.name, "--card", card, "--allow-local-addresses")

    def starts(self, *words: str) -> AbstractContextManager[Serving]:
        channels = ("--peer-channel", "notes")
        return serving(*self.data, "--p2p", self.address, "--ws", "off", *channels, *words)


@pytest.fixture
def alice(tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> Person:
    return Person(tmp_path, "alice", capfdbinary)


@pytest.fixture
def bob(tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> Person:
    return Person(tmp_path, "bob", capfdbinary)


def test_what_was_put_while_the_peer_was_away_is_printed_there(alice: Person, bob: Person) -> None:
    alice.adds(bob, "--address", bob.url)
    bob.adds(alice)
    with alice.starts():
        kept, _ = alice.asks("put", "--to", "bob", "notes", "hello bob")
        assert kept.strip().isdigit()
        kept, _ = alice.asks("put", "--to", "bob", "--ttl", "600", "--json", "notes", "again")
        message = json.loads(kept)
        assert message["ttl"] in (600, 601) and message["to"] == "bob"
        with bob.starts():
            assert bob.asks("recv", "notes", *TIMEOUT)[0] == "hello bob\n"
            shown = json.loads(bob.asks("recv", "notes", "--json", *TIMEOUT)[0])
    assert (shown["data"], shown["name"], shown["uuid"]) == ("again", "alice", message["uuid"])
    assert shown["sender"] == json.loads(alice.says("keys", "show", "--json"))["id"]


def test_what_is_sealed_is_opened_only_where_it_was_sealed_for(alice: Person, bob: Person) -> None:
    """`--sealed` shows it as it is stored; in another channel nobody takes it for alice's words."""
    alice.adds(bob, "--address", bob.url)
    bob.adds(alice)
    with alice.starts(), bob.starts():
        alice.asks("put", "--to", "bob", "notes", "secret words")
        shown, _ = bob.asks("recv", "notes", "--sealed", "--json", *TIMEOUT)
        envelope = b64decode(json.loads(shown)["data_base64"])
        assert envelope.startswith(b"\xe2\x03") and b"secret" not in envelope
        bob.puts(envelope, "elsewhere")
        shown, error = bob.asks("recv", "elsewhere", "--timeout", "1", code=ExitCode.TIMEOUT)
    assert shown == "" and "altered, or sealed for another recipient or channel" in error


def test_nothing_is_sealed_for_whom_nobody_knows(alice: Person, bob: Person) -> None:
    key = json.loads(bob.says("keys", "show", "--json"))["id"]
    alice.says("peer", "add", "bob", "--key", key)
    with alice.starts():
        _, error = alice.asks("put", "--to", "carol", "notes", "x", code=ExitCode.NOT_FOUND)
        assert "no contact 'carol'" in error
        _, error = alice.asks("put", "--to", "bob", "notes", "x", code=ExitCode.FAILURE)
        assert "there is no prekey of 'bob' yet" in error
        _, error = alice.asks("put", "--to", "bob", "mail/x", "x", code=ExitCode.REFUSED)
        alice.asks("put", "--to", "bob", "--key", "1", "notes", "x", code=ExitCode.USAGE)


def test_by_way_of_a_relay_when_the_two_are_never_up_together(
    alice: Person, bob: Person, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """Nobody can dial either of them."""
    rita = Person(tmp_path, "rita", capfdbinary)
    for person in (alice, bob):
        person.adds(rita, "--address", rita.url, action="relay")
        rita.adds(person)
    alice.adds(bob, "--relay", "rita")
    bob.adds(alice)
    with rita.starts("--relay"):
        with alice.starts():
            alice.asks("put", "--to", "bob", "notes", "left with rita")
            _until(lambda: _queued(rita) == 1)
        with bob.starts("--via", "rita"):
            assert bob.asks("recv", "notes", *TIMEOUT)[0] == "left with rita\n"
            _until(lambda: _queued(rita) == 0)


def _queued(who: Person) -> int:
    """Letters in all mailboxes of the node."""
    page = json.loads(who.asks("info", "--json")[0])["page"]
    return sum(
        each["messages"]
        for each in page
        if each["name"].startswith("mail/") and "!" not in each["name"]
    )


def _until(condition: Callable[[], bool]) -> None:
    give_up_at = time.monotonic() + 15
    while not condition():
        assert time.monotonic() < give_up_at
        time.sleep(0.05)


def test_kills_of_either_node_lose_nothing_and_repeat_nothing(alice: Person, bob: Person) -> None:
    """SIGKILL as soon as the messages are kept, and while they are forwarded."""
    alice.adds(bob, "--address", bob.url)
    bob.adds(alice)
    texts = [str(number) for number in range(200)]
    with alice.starts() as here:
        kept = alice.puts("\n".join(texts).encode(), "--to", "bob", "--lines", "notes")
        assert len(kept) == len(texts)
        here.process.kill()
    shown: dict[str, str] = {}

    def read(count: int) -> None:
        # A message acknowledged right before a kill may come again (PS-13), by the same name.
        for line in bob.asks("recv", "notes", "-n", str(count), "--json", *TIMEOUT)[0].splitlines():
            message = json.loads(line)
            shown[message["uuid"]] = message["data"]

    with alice.starts() as here:
        for _ in range(2):
            with bob.starts() as there:
                read(20)
                there.process.kill()
        here.process.kill()
    with alice.starts(), bob.starts():
        while len(shown) < len(texts):
            read(len(texts) - len(shown))
        bob.asks("recv", "notes", "--timeout", "0.5", code=ExitCode.TIMEOUT)
    assert sorted(shown.values(), key=int) == texts
