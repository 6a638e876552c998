"""docs/reference/peer-formats.md says what the code does: its vectors are read and made again."""

from __future__ import annotations

from pathlib import Path

from millpond.actors.positions import Position
from millpond.actors.store.changes import Chunk
from millpond.node.chat.groups.membership import Membership, new_group
from millpond.node.chat.groups.signed import Change, GroupMessage, message_hash, sign
from millpond.node.chat.history_cipher import LOGS, HistoryCipher, location
from millpond.node.peers.card import ContactCard, decode_card, encode_card
from millpond.node.peers.data_key import DataKey, FolderState, encode_data_key, read_data_key
from millpond.node.peers.delivery_proof import delivery_key, delivery_proof
from millpond.node.peers.file_format import leaf_of, open_chunk, root_of, seal_chunk
from millpond.node.peers.fingerprint import fingerprint, fingerprint_words
from millpond.node.peers.identity import Identity
from millpond.node.peers.safety_number import safety_number
from millpond.node.peers.succession import Succession, read_succession, sign_succession

PAGE = Path(__file__).resolve().parents[1] / "docs" / "reference" / "peer-formats.md"
ALICE, BOB, RITA = (Identity.from_seed(bytes([each]) * 32) for each in (1, 2, 3))
TOKEN, NONCE = bytes(range(16)), bytes(range(32))
TIME = 1_763_683_200.0


def vector(label: str) -> str:
    """The indented lines below a label, joined; or what follows it on its line."""
    lines = PAGE.read_text().splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith(f"    {label}"))
    rest = lines[at].strip().removeprefix(label).strip()
    rest = "" if label.startswith("version 2, with the delivery token") else rest
    found = [rest] if rest else []
    for line in lines[at + 1 :]:
        if rest or not line.startswith("        "):
            break
        found.append(line.strip())
    return "".join(found)


def test_the_names_of_keys() -> None:
    assert vector("id ") == ALICE.id
    assert vector("fingerprint ") == fingerprint(ALICE.public)
    assert vector("words ") == fingerprint_words(ALICE.public)
    assert vector("Alice, Bob") == safety_number(BOB.public, ALICE.public)


def test_the_card_with_a_delivery_token() -> None:
    card = ContactCard(ALICE.public, ("tcp://203.0.113.7:7400",), (), None, TIME, (), TOKEN)
    line = vector("version 2, with the delivery token")
    assert line == encode_card(card, ALICE) and decode_card(line) == card


def test_the_delivery_key_and_its_proof() -> None:
    key = delivery_key(TOKEN, ALICE.public, RITA.public)
    assert vector("delivery key of Alice for Rita") == key.hex()
    assert vector("delivery proof of Bob") == delivery_proof(key, BOB.public, NONCE).hex()


def test_the_statement_and_both_cards() -> None:
    statement = bytes.fromhex(vector("from Bob's key to Alice's"))
    assert statement == sign_succession(BOB, ALICE, TIME)
    assert read_succession(statement) == Succession(BOB.public, ALICE.public, TIME)
    for label, statements in (
        ("version 1", ()),
        ("version 2, with the succession below", (statement,)),
    ):
        card = ContactCard(
            ALICE.public, ("tcp://203.0.113.7:7400",), (), None, TIME, tuple(statements)
        )
        line = vector(label)
        assert line == encode_card(card, ALICE) and decode_card(line) == card


def test_what_is_sealed_in_an_encrypted_folder(tmp_path: Path) -> None:
    key, passphrase = DataKey(bytes([3]) * 32), b"correct horse battery staple"
    lines = (vector("data.key, line 3"), f"sealed {vector('data.key, line 4')}")
    text = "\n".join(("millpond data key 1", "state encrypted", *lines, "")).encode()
    assert text == encode_data_key(key, FolderState.ENCRYPTED, passphrase, bytes(range(16)))
    (tmp_path / "data.key").write_bytes(text)
    (tmp_path / "data.key").chmod(0o600)
    found, state = read_data_key(tmp_path, passphrase)
    assert (found.secret, state) == (key.secret, FolderState.ENCRYPTED)
    sealed = bytes.fromhex(vector("Alice's seed in identity.key"))
    assert sealed == key.seal(b"identity.key", ALICE.seed)
    ids, time = Position(int(TIME * 1000), 0), int(TIME * 1000)
    chunk = Chunk(7, 1, time, time, ids, ids, b"hi")
    assert location(LOGS + b"bob", chunk).hex() == vector("location of a chunk")
    stored = HistoryCipher(key).encrypted(LOGS + b"bob", chunk)
    assert stored.data.hex() == vector("its data `hi`")


def test_the_group_of_alice() -> None:
    now, text = int(TIME * 1000), b'{"kind":"text","line":"5f3a9c01","n":1,"at":1763683200000,'
    group, first = new_group(ALICE, "pond", now, bytes(range(16)))
    assert vector("id of the group `pond` of Alice") == group.hex()
    assert vector("its first record") == first.hex()
    membership = Membership(group)
    membership.add(first, TIME)
    added = membership.make(ALICE, Change.ADD, now, members=[(BOB.public, "bob")])
    membership.add(bytes.fromhex(vector("Alice adds Bob")), TIME)
    assert vector("Alice adds Bob") == added.hex()
    assert vector("Bob joins") == membership.make(BOB, Change.JOIN, now).hex()
    assert membership.state is not None
    head, body = membership.state.head, text + b'"text":"hi"}'
    said = GroupMessage(1, group, 1, head, BOB.public, bytes(range(16)), b"", (), body)
    assert vector("group message `hi` of Bob") == sign(said, BOB).hex()
    assert vector("hash of that message") == message_hash(said).hex()


def test_the_chunks_and_roots_of_files() -> None:
    key = bytes([7]) * 32
    files = {"first": b"hello", "second": bytes(65_536) + b"hello", "third": b""}
    for label, data in files.items():
        parts = [data[at : at + 65_536] for at in range(0, len(data), 65_536)] or [b""]
        last = len(parts) - 1
        sealed = [seal_chunk(key, at, each, is_last=at == last) for at, each in enumerate(parts)]
        leaves = [leaf_of(each) for each in sealed]
        assert vector(f"root of the {label} file") == root_of(len(data), leaves).hex()
        if label == "second":
            assert [vector(f"leaf {at} of the second file") for at in (0, 1)] == [
                each.hex() for each in leaves
            ]
        if label != "first":
            stated = bytes.fromhex(vector(f"chunk {last} of the {label} file"))
            assert stated == sealed[-1]
            assert open_chunk(key, last, stated, is_last=True) == parts[-1]
