"""Key succession: who follows a new key, and statements that nobody follows."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.node.peers.data_key import DataKey
from millpond.node.peers.identity import (
    FILE_NAME as IDENTITY_FILE,
)
from millpond.node.peers.identity import Identity, IdentityError, create_identity, load_identity
from millpond.node.peers.succession import (
    FILE_NAME,
    STATEMENT_BYTES,
    SUCCESSIONS_MAX,
    BadSuccession,
    Succession,
    predecessors,
    read_succession,
    read_successions,
    rotate_identity,
    sign_succession,
)

NOON = 1_763_683_200.0
FIRST, SECOND, THIRD, MALLORY = (Identity.from_seed(bytes([each]) * 32) for each in range(1, 5))
ONE = sign_succession(FIRST, SECOND, NOON + 0.25)
TWO = sign_succession(SECOND, THIRD, NOON)


def test_the_bytes_of_a_statement() -> None:
    signed = FIRST.public + SECOND.public + round(NOON * 1000 + 250).to_bytes(8, "big")
    labelled = b"millpond succession v1\0" + signed
    assert ONE == signed + FIRST.sign(labelled) + SECOND.sign(labelled)
    assert read_succession(ONE) == Succession(FIRST.public, SECOND.public, NOON + 0.25)


@given(st.integers(0, STATEMENT_BYTES - 1), st.integers(0, 7))
def test_a_changed_statement_is_none(place: int, bit: int) -> None:
    changed = ONE[:place] + bytes([ONE[place] ^ 1 << bit]) + ONE[place + 1 :]
    with pytest.raises(BadSuccession):
        read_succession(changed)


@pytest.mark.parametrize("length", [0, 1, STATEMENT_BYTES - 1, STATEMENT_BYTES + 1])
def test_a_statement_has_one_length(length: int) -> None:
    with pytest.raises(BadSuccession):
        read_succession((ONE + b"\0")[:length])


def test_both_keys_have_to_sign() -> None:
    """Neither gives somebody else's key as his successor, nor himself as somebody's."""
    signed, by_first, by_second = ONE[:72], ONE[72:136], ONE[136:]
    stranger = MALLORY.sign(b"millpond succession v1\0" + signed)
    for statement in (
        signed + stranger + by_second,
        signed + by_first + stranger,
        signed + by_second + by_first,
        sign_succession(FIRST, FIRST, NOON),
    ):
        with pytest.raises(BadSuccession):
            read_succession(statement)


def test_statements_lead_from_key_to_key() -> None:
    assert predecessors([], FIRST.public) == []
    assert predecessors([ONE, TWO], THIRD.public) == [SECOND.public, FIRST.public]
    for statements, public in (
        ([TWO, ONE], THIRD.public),
        ([ONE, TWO], SECOND.public),
        ([ONE, sign_succession(MALLORY, THIRD, NOON)], THIRD.public),
    ):
        with pytest.raises(BadSuccession):
            predecessors(statements, public)


def test_a_node_keeps_its_latest_statements(tmp_path: Path) -> None:
    path = tmp_path / IDENTITY_FILE
    keys = [create_identity(path, os.urandom).public]
    assert read_successions(tmp_path, keys[0]) == ()
    for number in range(SUCCESSIONS_MAX + 1):
        keys.append(rotate_identity(tmp_path, NOON + number, os.urandom).public)
        assert load_identity(path).public == keys[-1]
    found = predecessors(read_successions(tmp_path, keys[-1]), keys[-1])
    assert found == keys[-2 : -2 - SUCCESSIONS_MAX : -1]


def test_a_rotation_that_was_interrupted_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The statement is on disk, and the key is not."""
    path = tmp_path / IDENTITY_FILE
    old = create_identity(path, os.urandom)
    with monkeypatch.context() as broken:
        broken.setattr("millpond.node.peers.succession.replace_identity", _fail)
        with pytest.raises(OSError, match="no space"):
            rotate_identity(tmp_path, NOON, os.urandom)
    assert load_identity(path).public == old.public
    assert read_successions(tmp_path, old.public) == ()
    new = rotate_identity(tmp_path, NOON, os.urandom)
    assert predecessors(read_successions(tmp_path, new.public), new.public) == [old.public]


def _fail(path: Path, identity: Identity, key: DataKey | None) -> None:
    raise OSError("no space")


def test_a_damaged_file_is_said_to_be_so(tmp_path: Path) -> None:
    path = tmp_path / FILE_NAME
    for text in ("nonsense\n", "\u00e9"):
        path.write_text(text)
        path.chmod(0o600)
        with pytest.raises(IdentityError, match="damaged"):
            read_successions(tmp_path, FIRST.public)
