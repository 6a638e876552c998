"""The prekeys that a node knows of others (docs/internals/peers.md): the newest few that they
signed."""

from __future__ import annotations

import os
from hashlib import sha256
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.node.peers.identity import Identity
from millpond.node.peers.prekey_cache import PrekeyCache
from millpond.node.peers.prekeys import SignedPrekey, sign_prekey

DAY = 86_400.0
START = 1_763_683_200.0
BOB = Identity.from_seed(sha256(b"bob").digest())
EVE = Identity.from_seed(sha256(b"eve").digest())


def prekey(day: int, owner: Identity = BOB, days: float = 9) -> SignedPrekey:
    made_at = START + day * DAY
    return sign_prekey(owner, sha256(b"%d" % day).digest(), made_at, made_at + days * DAY)


@pytest.fixture(params=["disk", "memory"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path | None:
    return tmp_path / "known" if request.param == "disk" else None


def test_the_newest_that_is_still_good_is_the_best(folder: Path | None) -> None:
    known = PrekeyCache(folder)
    assert known.best(BOB.public, 0.0) is None
    long, short = prekey(0, days=20), prekey(1, days=9)
    assert known.learn(BOB.public, long) and known.learn(BOB.public, short)
    assert known.best(BOB.public, START + 10 * DAY) == short
    assert known.best(BOB.public, START + 10 * DAY + 1) == long
    assert known.best(BOB.public, START + 20 * DAY) == long
    assert known.best(BOB.public, START + 20 * DAY + 1) is None
    assert known.best(EVE.public, START) is None


def test_an_old_one_that_is_sent_again_changes_nothing(folder: Path | None) -> None:
    """A relay that holds back the newest can at most make us use what we know."""
    known = PrekeyCache(folder)
    assert known.learn(BOB.public, prekey(5))
    for again in (prekey(4), prekey(5), sign_prekey(BOB, EVE.public, START, START + 99 * DAY)):
        assert not known.learn(BOB.public, again)
    assert known.best(BOB.public, START) == prekey(5)
    assert known.best(BOB.public, START + 20 * DAY) is None


def test_what_its_owner_did_not_sign_is_not_taken(folder: Path | None) -> None:
    known = PrekeyCache(folder)
    longer = msgspec.structs.replace(prekey(0), good_until=START + 99 * DAY)
    for forged in (prekey(0, EVE), longer, msgspec.structs.replace(prekey(0), signature=b"")):
        assert not known.learn(BOB.public, forged)
    assert not known.learn(b"", prekey(0))
    assert known.best(BOB.public, 0.0) is None


@given(st.lists(st.integers(0, 12), max_size=20))
def test_in_whatever_order_they_come_the_newest_four_news_are_kept(days: list[int]) -> None:
    known = PrekeyCache(None)
    news: list[int] = []
    for day in days:
        is_news = known.learn(BOB.public, prekey(day, days=30 - 2 * day))
        assert is_news == (not news or day > news[-1])
        if is_news:
            news.append(day)
    for needed in range(31):
        good = [day for day in news[-4:] if 30 - day >= needed]
        best = known.best(BOB.public, START + needed * DAY)
        expected = START + good[-1] * DAY if good else None
        assert (best.made_at if best else None) == expected


def test_they_survive_a_restart(tmp_path: Path) -> None:
    known = PrekeyCache(tmp_path)
    for day in range(6):
        known.learn(BOB.public, prekey(day, days=20 - 2 * day))
    known.learn(EVE.public, prekey(3, EVE))
    again = PrekeyCache(tmp_path)
    assert again.best(EVE.public, START) == prekey(3, EVE)
    assert again.best(BOB.public, START) == prekey(5, days=10)
    assert again.best(BOB.public, START + 18 * DAY) == prekey(2, days=16)
    assert again.best(BOB.public, START + 18 * DAY + 1) is None
    assert not again.learn(BOB.public, prekey(5, days=10))
    assert again.learn(BOB.public, prekey(6))
    assert PrekeyCache(tmp_path).best(BOB.public, START) == prekey(6)


def test_of_too_many_owners_the_one_silent_for_longest_is_forgotten(tmp_path: Path) -> None:
    owners = [Identity.from_seed(sha256(b"%d" % number).digest()) for number in range(5)]
    known = PrekeyCache(tmp_path, owners_max=3)
    for owner in owners[:3]:
        known.learn(owner.public, prekey(0, owner))
    known.learn(owners[0].public, prekey(1, owners[0]))
    known.learn(owners[3].public, prekey(0, owners[3]))
    assert _known_of(known, owners) == [True, False, True, True, False]
    for age, number in enumerate((3, 0, 2)):
        os.utime(tmp_path / owners[number].id, (START - age, START - age))
    again = PrekeyCache(tmp_path, owners_max=3)
    again.learn(owners[4].public, prekey(0, owners[4]))
    for each in (again, PrekeyCache(tmp_path, owners_max=3)):
        assert _known_of(each, owners) == [True, False, False, True, True]


def _known_of(known: PrekeyCache, owners: list[Identity]) -> list[bool]:
    return [known.best(owner.public, START) is not None for owner in owners]


@pytest.mark.parametrize("content", [b"", b"\x91", b"hello", b"\x91\x80", bytes(10_000)])
def test_a_file_that_cannot_be_read_is_told_of_and_written_again(
    content: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    PrekeyCache(tmp_path).learn(BOB.public, prekey(0))
    file = tmp_path / BOB.id
    file.write_bytes(content)
    known = PrekeyCache(tmp_path)
    assert known.best(BOB.public, START) is None
    assert str(file) in caplog.text
    assert known.learn(BOB.public, prekey(0))
    assert PrekeyCache(tmp_path).best(BOB.public, START) == prekey(0)


def test_what_somebody_put_into_a_file_is_not_believed(tmp_path: Path) -> None:
    known = PrekeyCache(tmp_path)
    known.learn(BOB.public, prekey(0))
    known.learn(EVE.public, prekey(1, EVE))
    (tmp_path / EVE.id).replace(tmp_path / BOB.id)
    assert PrekeyCache(tmp_path).best(BOB.public, START) is None


def test_other_files_in_the_folder_are_not_touched(tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("mine")
    PrekeyCache(tmp_path).learn(BOB.public, prekey(0))
    assert (tmp_path / "notes").read_text() == "mine"


def test_a_full_disk_keeps_nobody_from_writing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    known = PrekeyCache(tmp_path)
    known.learn(BOB.public, prekey(0))

    def full(*arguments: object) -> None:
        raise OSError(28, "no space")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        assert known.learn(BOB.public, prekey(1))
    assert known.best(BOB.public, START) == prekey(1)
    assert "no space" in caplog.text
    assert PrekeyCache(tmp_path).best(BOB.public, START) == prekey(0)
