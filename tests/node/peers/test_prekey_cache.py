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


def cache(folder: Path | None, **settings: float) -> PrekeyCache:
    """One for messages that live for up to 30 days."""
    return PrekeyCache(folder, lambda: START + 12 * DAY, ttl_s_max=30 * DAY, **settings)


def test_a_prekey_from_the_future_locks_nobody_out(folder: Path | None) -> None:
    """One that says that it was made in the year 36812, by a wrong clock or by malice."""
    known = PrekeyCache(folder, lambda: START)
    for ahead_s in (3601.0, 30 * DAY, 1.0e12):
        made_at = START + ahead_s
        poison = sign_prekey(BOB, sha256(b"x").digest(), made_at, made_at + DAY)
        assert not known.learn(BOB.public, poison)
    near = sign_prekey(BOB, sha256(b"near").digest(), START + 3599, START + 9 * DAY)
    assert known.learn(BOB.public, near)
    later = PrekeyCache(folder, lambda: START + DAY)
    assert later.learn(BOB.public, prekey(1))
    assert later.best(BOB.public, START) == prekey(1)


def test_a_poisoned_file_is_healed(tmp_path: Path) -> None:
    made_at = START + 10_000 * DAY
    poison = sign_prekey(BOB, sha256(b"x").digest(), made_at, made_at + DAY)
    assert PrekeyCache(tmp_path, lambda: made_at).learn(BOB.public, poison)
    known = PrekeyCache(tmp_path, lambda: START)
    assert known.best(BOB.public, START) is None
    assert known.learn(BOB.public, prekey(0))
    assert PrekeyCache(tmp_path, lambda: START).best(BOB.public, START) == prekey(0)


def test_none_is_used_for_longer_than_messages_live_and_two_days() -> None:
    known = PrekeyCache(None, lambda: START, ttl_s_max=7 * DAY)
    assert known.learn(BOB.public, prekey(0, days=4000))
    assert known.best(BOB.public, START + 9 * DAY) is not None
    assert known.best(BOB.public, START + 9 * DAY + 1) is None


def test_of_the_two_forms_of_a_key_that_of_version_2_counts(folder: Path | None) -> None:
    new = prekey(0)
    old = sign_prekey(BOB, new.public, new.made_at, new.good_until, version=1)
    for order in ((new, old), (old, new)):
        known = PrekeyCache(None if folder is None else folder / str(order[0].version))
        for each in order:
            known.learn(BOB.public, each)
        assert known.best(BOB.public, START) == new
    assert known.best(BOB.public, START, version_min=2) == new
    only_old = PrekeyCache(None)
    only_old.learn(BOB.public, old)
    assert only_old.best(BOB.public, START) == old
    assert only_old.best(BOB.public, START, version_min=2) is None


def prekey(day: int, owner: Identity = BOB, days: float = 9) -> SignedPrekey:
    made_at = START + day * DAY
    return sign_prekey(owner, sha256(b"%d" % day).digest(), made_at, made_at + days * DAY)


@pytest.fixture(params=["disk", "memory"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path | None:
    return tmp_path / "known" if request.param == "disk" else None


def test_the_newest_that_is_still_good_is_the_best(folder: Path | None) -> None:
    known = cache(folder)
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
    known = cache(folder)
    assert known.learn(BOB.public, prekey(5))
    for again in (prekey(4), prekey(5), sign_prekey(BOB, EVE.public, START, START + 99 * DAY)):
        assert not known.learn(BOB.public, again)
    assert known.best(BOB.public, START) == prekey(5)
    assert known.best(BOB.public, START + 20 * DAY) is None


def test_what_its_owner_did_not_sign_is_not_taken(folder: Path | None) -> None:
    known = cache(folder)
    longer = msgspec.structs.replace(prekey(0), good_until=START + 99 * DAY)
    for forged in (prekey(0, EVE), longer, msgspec.structs.replace(prekey(0), signature=b"")):
        assert not known.learn(BOB.public, forged)
    assert not known.learn(b"", prekey(0))
    assert known.best(BOB.public, 0.0) is None


@given(st.lists(st.integers(0, 12), max_size=20))
def test_in_whatever_order_they_come_the_newest_four_news_are_kept(days: list[int]) -> None:
    known = cache(None)
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
    known = cache(tmp_path)
    for day in range(6):
        known.learn(BOB.public, prekey(day, days=20 - 2 * day))
    known.learn(EVE.public, prekey(3, EVE))
    again = cache(tmp_path)
    assert again.best(EVE.public, START) == prekey(3, EVE)
    assert again.best(BOB.public, START) == prekey(5, days=10)
    assert again.best(BOB.public, START + 18 * DAY) == prekey(2, days=16)
    assert again.best(BOB.public, START + 18 * DAY + 1) is None
    assert not again.learn(BOB.public, prekey(5, days=10))
    assert again.learn(BOB.public, prekey(6))
    assert cache(tmp_path).best(BOB.public, START) == prekey(6)


def test_of_too_many_owners_the_one_silent_for_longest_is_forgotten(tmp_path: Path) -> None:
    owners = [Identity.from_seed(sha256(b"%d" % number).digest()) for number in range(5)]
    known = cache(tmp_path, owners_max=3)
    for owner in owners[:3]:
        known.learn(owner.public, prekey(0, owner))
    known.learn(owners[0].public, prekey(1, owners[0]))
    known.learn(owners[3].public, prekey(0, owners[3]))
    assert _known_of(known, owners) == [True, False, True, True, False]
    for age, number in enumerate((3, 0, 2)):
        os.utime(tmp_path / owners[number].id, (START - age, START - age))
    again = cache(tmp_path, owners_max=3)
    again.learn(owners[4].public, prekey(0, owners[4]))
    for each in (again, cache(tmp_path, owners_max=3)):
        assert _known_of(each, owners) == [True, False, False, True, True]


def _known_of(known: PrekeyCache, owners: list[Identity]) -> list[bool]:
    return [known.best(owner.public, START) is not None for owner in owners]


@pytest.mark.parametrize("content", [b"", b"\x91", b"hello", b"\x91\x80", bytes(10_000)])
def test_a_file_that_cannot_be_read_is_told_of_and_written_again(
    content: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cache(tmp_path).learn(BOB.public, prekey(0))
    file = tmp_path / BOB.id
    file.write_bytes(content)
    known = cache(tmp_path)
    assert known.best(BOB.public, START) is None
    assert str(file) in caplog.text
    assert known.learn(BOB.public, prekey(0))
    assert cache(tmp_path).best(BOB.public, START) == prekey(0)


def test_what_somebody_put_into_a_file_is_not_believed(tmp_path: Path) -> None:
    known = cache(tmp_path)
    known.learn(BOB.public, prekey(0))
    known.learn(EVE.public, prekey(1, EVE))
    (tmp_path / EVE.id).replace(tmp_path / BOB.id)
    assert cache(tmp_path).best(BOB.public, START) is None


def test_other_files_in_the_folder_are_not_touched(tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("mine")
    cache(tmp_path).learn(BOB.public, prekey(0))
    assert (tmp_path / "notes").read_text() == "mine"


def test_a_full_disk_keeps_nobody_from_writing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    known = cache(tmp_path)
    known.learn(BOB.public, prekey(0))

    def full(*arguments: object) -> None:
        raise OSError(28, "no space")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        assert known.learn(BOB.public, prekey(1))
    assert known.best(BOB.public, START) == prekey(1)
    assert "no space" in caplog.text
    assert cache(tmp_path).best(BOB.public, START) == prekey(0)
