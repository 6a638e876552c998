"""The access file (P2P-24, PA-39, PS-08, PS-14): subjects, patterns, ends, peers, reloading."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.actors.messages import Rights
from millpond.node.access.default_policy import KnownPeers
from millpond.node.access.policy import AccessPolicy, GrantOutcome, RuleFiles, load_access
from millpond.node.access.rules_file import AccessFileError
from millpond.node.access.tokens import new_signed
from millpond.node.peers.address_book import AddressBook, Peer, Trust
from millpond.node.peers.identity import Identity
from millpond.transports.server.interface import Principal

NEAR, FAR = "127.0.0.1", "192.0.2.7"
NOW = 1_800_000_000.0
US, ALICE, BOB, EVE = (Identity.from_seed(bytes([each]) * 32) for each in range(1, 5))
READ = Rights.GET | Rights.LIST
MAIL = f"mail/{US.id}".encode()


def book(**trust: tuple[Identity, Trust]) -> AddressBook:
    made = AddressBook(None, lambda: NOW)
    for name, (who, how) in trust.items():
        made.add(Peer(name, who.public, how, (), (), NOW))
    return made


RITA = Identity.from_seed(bytes([6]) * 32)
KNOWN = {
    "alice": (ALICE, Trust.ADDED),
    "bob": (BOB, Trust.PINNED),
    "eve": (EVE, Trust.BLOCKED),
    "rita": (RITA, Trust.RELAY),
}


class Gate:
    """An access file that can be written again, and a clock that stands still."""

    def __init__(self, path: Path, text: str | None = None, *, is_relay: bool = False) -> None:
        self.path = path
        self.now = NOW
        if text is not None:
            self.write(text)
        sources = RuleFiles(path, must_exist=False)
        self.access = AccessPolicy(sources, now=lambda: self.now)
        self.book = book(**KNOWN)
        self.access.admit_peers(KnownPeers(US.public, self.book, is_relay))

    def write(self, text: str) -> None:
        self.path.write_text(text)
        self.path.chmod(0o600)

    def may(
        self, name: str | bytes, who: Identity | None = None, *, stream: bool = False, **known: str
    ) -> Rights | None:
        token = known.get("token")
        principal = Principal(
            None if token is None else token.encode(),
            None if who is None else who.public,
            known.get("address", FAR),
            known.get("listener", "p2p"),
            bytes.fromhex(known["certificate"]) if "certificate" in known else None,
        )
        judge = self.access.authorize_stream if stream else self.access.authorize
        return judge(principal, name.encode() if isinstance(name, str) else name)


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "access.conf"


def digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()


def test_each_kind_of_subject_is_known_by_what_it_is(path: Path) -> None:
    """P2P-24."""
    gate = Gate(
        path,
        f"""\
key:{BOB.id} put a
key:alice get a
token:{digest("secret")} push a
cert:{digest("certificate")} ack a
listener:ws list a
address:10.1.0.0/16 admin a
address:2001:db8::/32 admin a
anyone get public
""",
    )
    assert gate.may("a") is None and gate.may("public") == Rights.GET
    assert gate.may("a", BOB) == Rights.PUT
    assert gate.may("a", ALICE) == Rights.GET
    assert gate.may("a", token="secret") == Rights.PUSH
    assert gate.may("a", certificate=digest("certificate")) == Rights.ACK
    assert gate.may("a", listener="ws") == Rights.LIST
    for address in ("10.1.2.3", "2001:db8::1", "::ffff:10.1.0.1"):
        assert gate.may("a", address=address) == Rights.ADMIN
    for address in ("10.2.0.1", "2001:db9::1", "somewhere", ""):
        assert gate.may("a", address=address) is None
    for token in ("Secret", "", digest("secret"), "secret "):
        assert gate.may("a", token=token) is None
    assert gate.may("a", ALICE, token="secret") == Rights.GET | Rights.PUSH


def test_from_the_file_on_nothing_else_holds_on_this_machine_either(path: Path) -> None:
    gate = Gate(path)
    assert gate.may("a", address=NEAR) == Rights.ALL and gate.may("a") is None
    gate.write("anyone get a\n")
    assert gate.access.reload()
    assert gate.access.is_controlled
    assert gate.may("a", address=NEAR) == Rights.GET and gate.may("b", address=NEAR) is None


def test_a_pattern_of_nothing_is_no_pattern_for_everything(path: Path) -> None:
    """`stream: logs/*` is a slip of the pen, and opens no stream to anybody."""
    path.write_text("listener:s3p all stream: logs/*\n")
    path.chmod(0o600)
    with pytest.raises(AccessFileError, match=":1: stream: needs a pattern right behind it"):
        load_access(str(path), "", "")


def test_a_name_is_as_good_as_the_trust_of_its_key_and_a_revoked_key_is_nobody(path: Path) -> None:
    gate = Gate(path, f"key:bob all\nkey:eve all\nkey:{EVE.id} all\nanyone get\n")
    assert gate.may("a", BOB) == Rights.GET
    assert gate.may("a", EVE) is None
    assert gate.may("a", None) == Rights.GET
    assert Gate(path.with_name("none")).may("a", EVE, address=NEAR) is None


def test_patterns_of_channels_and_streams_do_not_mix_and_id_is_ones_own(path: Path) -> None:
    gate = Gate(
        path,
        "anyone put jobs/*\nanyone get stream:logs/*\n"
        "anyone list home/{id} stream:home/{id}/*\nlistener:s3p all\n",
    )
    assert gate.may("jobs/1") == Rights.PUT and gate.may("jobs/1", stream=True) is None
    assert gate.may("logs/1", stream=True) == Rights.GET and gate.may("logs/1") is None
    assert gate.may(f"home/{BOB.id}", BOB) == Rights.LIST
    assert gate.may(f"home/{BOB.id}/x", BOB, stream=True) == Rights.LIST
    assert gate.may(f"home/{BOB.id}", ALICE) is None
    assert gate.may(f"home/{BOB.id}") is None and gate.may("home/") is None
    for stream in (True, False):
        assert gate.may("x", stream=stream, listener="s3p") == Rights.ALL


def test_a_line_ends_when_it_says_so(path: Path) -> None:
    gate = Gate(
        path, "anyone get a until=2027-01-15T08:00Z\nanyone put until=2027-01-15T09:00+01:00\n"
    )
    assert gate.now == NOW  # which is that very moment
    assert gate.may("a") is None
    gate.now = NOW - 0.001
    assert gate.may("a") == Rights.GET | Rights.PUT


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("secret all", "a line begins with one of"),
        ("keys:bob all", "a line begins with one of"),
        ("anyone: all", "a line begins with one of"),
        ("anyone", "rights are missing"),
        ("anyone get,fly", "unknown right 'fly'"),
        ("key:a/b all", "a name has printable"),
        ("key: all", "a name has 1 to 64"),
        ("token:abc all", "64 digits"),
        (f"token:{'A' * 64} all", "64 digits"),
        (f"cert:{'0' * 63} all", "64 digits"),
        ("listener:smtp all", "unknown listener 'smtp'"),
        ("address:10.0.0.1/8 all", "host bits"),
        ("address:example.org all", "address:NETWORK"),
        ("anyone all a until=tomorrow", "no time like"),
        ("anyone all until=2026-12-31", "has no time zone"),
        ("revoked:xyz", "want revoked:ID"),
        ("revoked:0123456789abcdef all", "want revoked:ID"),
        ("anyone get a # but not b", "a comment needs a line of its own"),
    ],
)
def test_a_line_that_is_not_understood_refuses_the_whole_file(
    path: Path, line: str, complaint: str
) -> None:
    with pytest.raises(AccessFileError, match=complaint) as refused:
        Gate(path, f"# first\nanyone get a\n{line}\n")
    assert f"{path}:3: " in str(refused.value) and "secret" not in str(refused.value)


@given(st.text(max_size=200))
def test_whatever_a_file_says_it_is_rules_or_an_error_of_its_own(text: str) -> None:
    from millpond.node.access.grants import BadRule, parse_line

    for line in text.splitlines():
        words = line.split()
        if words:
            try:
                parse_line(words, "here:1")
            except BadRule:
                pass


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o660, 0o602])
def test_a_file_that_others_can_use_is_refused(path: Path, mode: int) -> None:
    path.write_text("anyone all\n")
    path.chmod(mode)
    with pytest.raises(AccessFileError, match="chmod 600"):
        load_access(str(path), "", "")


def test_a_reload_that_fails_changes_nothing_and_says_so(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    gate = Gate(path, "anyone get a\n")
    for spoil in (lambda: gate.write("anyone get,fly a\n"), lambda: path.chmod(0o644), path.unlink):
        spoil()
        caplog.clear()
        assert not gate.access.reload()
        assert gate.may("a") == Rights.GET
        (line,) = caplog.messages
        assert line.startswith("access rules not reloaded") and str(path) in line
    gate.write("anyone put a\n")
    assert gate.access.reload() and gate.may("a") == Rights.PUT


def test_the_folders_file_counts_if_it_is_there_and_a_named_one_has_to_be(tmp_path: Path) -> None:
    assert not load_access("", "", str(tmp_path)).is_controlled
    with pytest.raises(AccessFileError, match="nowhere"):
        load_access(str(tmp_path / "nowhere"), "", str(tmp_path))
    Gate(tmp_path / "access.conf", "anyone get\n")
    assert load_access("", "", str(tmp_path)).is_controlled
    tokens = tmp_path / "tokens"
    tokens.write_text("old put\n")
    tokens.chmod(0o600)
    both = load_access("", str(tokens), str(tmp_path))
    assert both.authorize(Principal(b"old", address=FAR), b"a") == Rights.PUT | Rights.GET


def test_a_relay_delivers_mail_and_has_no_right_of_a_contact(path: Path) -> None:
    """P11."""
    for text in (None, ""):
        gate = Gate(path, text)
        assert gate.may(MAIL, RITA) == Rights.PUT
        for name in (f"mail/{RITA.id}", f"{MAIL.decode()}!keys", f"mail/{ALICE.id}", "chat/x"):
            assert gate.may(name, RITA) is None
        forwarding = Gate(path, text, is_relay=True)
        assert forwarding.may(f"mail/{ALICE.id}", RITA) == Rights.PUT
        assert forwarding.may(f"mail/{BOB.id}", RITA) is None
        assert forwarding.may(f"mail/{RITA.id}", ALICE) is None
        for name in (f"mail/{RITA.id}", f"mail/{RITA.id}!keys", f"mail/{ALICE.id}!keys"):
            assert forwarding.may(name, RITA) is None
    assert Gate(path, "key:rita put notes\n").may("notes", RITA) == Rights.PUT


def test_a_contact_may_what_the_page_says_and_nothing_else(path: Path) -> None:
    """docs/internals/peers.md, "What a peer may do"; docs/internals/peers.md."""
    own, others = f"mail/{ALICE.id}", f"mail/{BOB.id}"
    for text in (None, ""):
        gate = Gate(path, text)
        assert gate.may(MAIL, ALICE) == Rights.PUT
        assert gate.may(own, ALICE) == READ | Rights.PUSH | Rights.ACK
        assert gate.may(MAIL + b"!keys", ALICE) == READ
        for name in (others, f"{own}!keys", f"{own}!dead", f"{others}!keys", "chat/x", "mail/"):
            assert gate.may(name, ALICE) is None
        for who in (BOB, EVE, Identity.from_seed(bytes([9]) * 32), None):
            assert gate.may(MAIL, who) is None and gate.may(own, who) is None
        assert gate.may("anything", ALICE, stream=True) is None


def test_a_relay_takes_mail_between_those_whom_it_trusts(path: Path) -> None:
    """docs/internals/peers.md."""
    carol = Identity.from_seed(bytes([7]) * 32)
    gate = Gate(path, "", is_relay=True)
    gate.book.add(Peer("carol", carol.public, Trust.ADDED, (), (), NOW))
    assert gate.may(f"mail/{carol.id}", ALICE) == Rights.PUT
    assert gate.may(f"mail/{carol.id}!keys", ALICE) == READ
    assert gate.may(f"mail/{ALICE.id}!keys", ALICE) == READ | Rights.PUT | Rights.ACK
    for stranger in (BOB, EVE, Identity.from_seed(bytes([9]) * 32)):
        assert gate.may(f"mail/{stranger.id}", ALICE) is None
    assert gate.may(f"mail/{carol.id}", BOB) is None
    assert gate.may("mail/nobody", ALICE) is None


def test_ps_14_only_its_owner_puts_into_a_channel_of_the_node(path: Path) -> None:
    gate = Gate(path, "anyone put,get\nanyone put,get mail/*\n")
    for name in ("jobs!dead", f"mail/{BOB.id}!keys", "!"):
        assert gate.may(name) == Rights.GET
    assert gate.may(f"mail/{BOB.id}!keys", BOB) == Rights.PUT | Rights.GET
    assert gate.may(f"mail/{BOB.id}!dead", BOB) == Rights.GET


def test_who_may_only_put_is_refused_at_the_door_of_a_channel_of_the_node(path: Path) -> None:
    """PS-14, docs/guides/access.md: nothing is left there that it might do. Where commands knock it
    is let in: what it may do with streams goes by that connection."""
    gate = Gate(path, "anyone put\nanyone put mail/*\n")
    assert gate.may("jobs") == Rights.PUT and gate.may("s", stream=True) == Rights.PUT
    for name in ("jobs!dead", f"mail/{BOB.id}!keys", "!"):
        assert gate.may(name) is None
    assert gate.may(f"mail/{BOB.id}!keys", BOB) == Rights.PUT
    assert gate.may("millpond!probe") == Rights(0)


def signed(rights: Rights, *patterns: str, until: float | None = None, by: Identity = US) -> str:
    return new_signed(by, rights, patterns, until, lambda count: bytes(count))[0]


def test_a_signed_token_holds_until_it_ends_or_is_revoked(path: Path) -> None:
    gate = Gate(path)
    token = signed(READ, "news/*", "stream:logs", until=NOW + 60)
    for _ in ("without a file", "with one"):
        assert gate.may("news/1", token=token) == READ
        assert gate.may("logs", stream=True, token=token) == READ
        assert gate.may("other", token=token) is None
        assert gate.may("news/1", token=signed(READ, by=BOB)) is None
        gate.write("")
        gate.access.reload()
    gate.now += 60
    assert gate.may("news/1", token=token) is None
    gate.now = NOW
    gate.write(f"revoked:{'00' * 8}\n")
    gate.access.reload()
    assert gate.may("news/1", token=token) is None


def test_what_is_changed_in_a_signed_token_makes_it_worth_nothing(path: Path) -> None:
    gate = Gate(path)
    token = signed(Rights.GET, "a")
    assert gate.may("a", token=token) == Rights.GET
    for place in range(len(token)):
        other = "A" if token[place] != "A" else "B"
        assert gate.may("a", token=token[:place] + other + token[place + 1 :]) is None
        assert gate.may("a", token=token[:place]) is None
    assert gate.may("a", token=token + "=") is None


def test_the_rights_and_their_explanation_are_of_one_mind(path: Path) -> None:
    gate = Gate(
        path, "anyone get a until=2020-01-01T00:00Z\nkey:alice put a\nlistener:p2p list b\n"
    )
    told = gate.access.explain(Principal(None, ALICE.public, FAR), b"a")
    assert told.rights == Rights.PUT
    outcomes = [(each.grant.source, each.outcome) for each in told.reasons]
    assert outcomes[:3] == [
        ("access.conf:1", GrantOutcome.EXPIRED),
        ("access.conf:3", GrantOutcome.ELSEWHERE),
        ("access.conf:2", GrantOutcome.GIVES),
    ]
    assert {outcome for _, outcome in outcomes[3:]} == {GrantOutcome.ELSEWHERE}
    pinned = gate.access.explain(Principal(None, BOB.public, FAR), b"a")
    assert pinned.rights is None and any("pinned" in note for note in pinned.notes)
    blocked = gate.access.explain(Principal(None, EVE.public, FAR), b"a")
    assert blocked.reasons == [] and any("blocked" in note for note in blocked.notes)


def test_no_token_is_in_the_words_for_an_asker() -> None:
    principal = Principal(b"s3cret", ALICE.public, FAR)
    assert "s3cret" not in repr(principal) and "s3cret" not in str(principal)
    assert msgspec.structs.asdict(principal)["token"] == b"s3cret"
