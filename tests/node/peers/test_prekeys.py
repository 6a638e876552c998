"""Our own prekeys, and the form in which they are given away (docs/internals/peers.md, P2P-31)."""

from __future__ import annotations

import math
import os
import stat
import sys
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from threading import Thread

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from millpond.node.peers.envelope import kid_of, open_envelope, seal
from millpond.node.peers.identity import Identity
from millpond.node.peers.prekeys import (
    MalformedPrekey,
    Prekeys,
    SignedPrekey,
    check,
    decode_prekey,
    encode_prekey,
    sign_prekey,
)

DAY = 86_400.0
START = 1_763_683_200.0
BOB = Identity.from_seed(sha256(b"bob").digest())
EVE = Identity.from_seed(sha256(b"eve").digest())
KEY = X25519PrivateKey.from_private_bytes(sha256(b"prekey").digest()).public_key()
SIGNED = sign_prekey(BOB, KEY.public_bytes_raw(), START, START + 8.5 * DAY, version=1)
SIGNED_V2 = sign_prekey(BOB, KEY.public_bytes_raw(), START, START + 8.5 * DAY)


class Hand:
    """A clock that is moved by hand."""

    def __init__(self, at: float = START) -> None:
        self.at = at

    def __call__(self) -> float:
        return self.at


def prekeys_in(folder: Path | None, clock: Callable[[], float], **settings: float) -> Prekeys:
    return Prekeys(folder, BOB, clock, os.urandom, **settings)


def fits(prekeys: Prekeys, prekey: SignedPrekey) -> bool:
    """Can what was sealed for it be opened?"""
    private = prekeys.private(prekey.kid)
    if private is None:
        return False
    public = X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()
    return public == prekey.public


def test_the_published_bytes() -> None:
    """Both ways; what the two signatures are of, as the text has it."""
    made, until = 1_763_683_200_000, 1_764_417_600_000
    form = {
        "key": KEY.public_bytes_raw(),
        "signature": BOB.sign(b"p2pbuf prekey v1\x00" + KEY.public_bytes_raw()),
        "made_at": made,
        "good_until": until,
        "proof": BOB.sign(
            b"p2pbuf prekey card v1\x00"
            + KEY.public_bytes_raw()
            + made.to_bytes(8, "big")
            + until.to_bytes(8, "big")
        ),
    }
    assert encode_prekey(SIGNED) == msgspec.msgpack.encode(form)
    assert decode_prekey(msgspec.msgpack.encode(form)) == SIGNED
    assert SIGNED.kid == sha256(KEY.public_bytes_raw()).digest()[:4]
    assert check(SIGNED, BOB.public)


def test_the_published_bytes_of_version_2() -> None:
    made, until = 1_763_683_200_000, 1_764_417_600_000
    public = KEY.public_bytes_raw()
    signed = b"millpond prekey v2\x00" + public + made.to_bytes(8, "big") + until.to_bytes(8, "big")
    form = {
        "key": public,
        "signature": BOB.sign(signed),
        "made_at": made,
        "good_until": until,
        "version": 2,
    }
    assert encode_prekey(SIGNED_V2) == msgspec.msgpack.encode(form)
    assert decode_prekey(msgspec.msgpack.encode(form)) == SIGNED_V2
    assert check(SIGNED_V2, BOB.public)


@pytest.mark.parametrize(
    "change",
    [{"proof": bytes(64)}, {"version": 1}, {"version": 3}, {"version": None}, {"key": bytes(31)}],
    ids=str,
)
def test_what_is_no_prekey_of_version_2(change: dict[str, object]) -> None:
    form = msgspec.msgpack.decode(encode_prekey(SIGNED_V2)) | change
    with pytest.raises(MalformedPrekey):
        decode_prekey(msgspec.msgpack.encode(form))


def test_the_forms_of_one_key_do_not_vouch_for_each_other() -> None:
    for prekey, version in ((SIGNED, 2), (SIGNED_V2, 1)):
        assert not check(msgspec.structs.replace(prekey, version=version), BOB.public)


def test_a_node_of_version_1_reads_the_other_form(tmp_path: Path) -> None:
    prekeys = prekeys_in(tmp_path / "prekeys", Hand())
    current = prekeys.current()
    old = prekeys.as_version_1(current)
    assert (current.version, old.version) == (2, 1)
    assert check(old, BOB.public) and (old.public, old.made_at) == (current.public, START)
    assert set(msgspec.msgpack.decode(encode_prekey(old))) == {
        "key",
        "signature",
        "made_at",
        "good_until",
        "proof",
    }


def test_a_key_that_a_wrong_clock_made_is_not_kept_for_years(tmp_path: Path) -> None:
    """The clock was ten years ahead for a while; the key goes when its time from now is over."""
    clock = Hand(START + 3650 * DAY)
    prekeys = prekeys_in(tmp_path / "prekeys", clock)
    future = prekeys.current()
    clock.at = START
    prekeys.current()
    for _ in range(12):
        clock.at += DAY
        prekeys.current()
        prekeys.sweep(clock.at)
    assert prekeys.private(future.kid) is None
    assert prekeys_in(tmp_path / "prekeys", clock).private(future.kid) is None


def test_keys_stay_while_the_clock_is_behind(tmp_path: Path) -> None:
    """A machine that starts in 1970 until it has asked somebody for the time."""
    clock = Hand()
    prekeys = prekeys_in(tmp_path / "prekeys", clock)
    genuine = prekeys.current()
    clock.at = 60.0
    prekeys.current()
    prekeys.sweep(clock.at + 3600)
    clock.at = START + DAY
    prekeys.sweep(clock.at)
    assert fits(prekeys, genuine)


def test_the_first_signature_stands_alone_as_the_wire_has_it() -> None:
    """A reader that knows only docs/internals/peers.md verifies it; verify raises otherwise."""
    owner = Ed25519PublicKey.from_public_bytes(BOB.public)
    owner.verify(SIGNED.signature, b"p2pbuf prekey v1\x00" + SIGNED.public)


@given(st.binary(max_size=300))
def test_any_bytes_are_a_prekey_or_a_typed_error(data: bytes) -> None:
    with pytest.raises(MalformedPrekey):
        decode_prekey(data)


@given(st.data())
def test_a_damaged_prekey_is_never_believed(data: st.DataObject) -> None:
    wire = bytearray(encode_prekey(SIGNED))
    wire[data.draw(st.integers(0, len(wire) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        prekey = decode_prekey(bytes(wire))
    except MalformedPrekey:
        return
    # MessagePack can spell one number in several ways; what it says is the same then.
    assert prekey == SIGNED or not check(prekey, BOB.public)


@pytest.mark.parametrize(
    "change",
    [
        {"key": bytes(31)},
        {"signature": bytes(63)},
        {"proof": bytes(65)},
        {"made_at": -1},
        {"made_at": 1.5},
        {"good_until": 2**63},
        {"good_until": "soon"},
        {"more": 1},
    ],
    ids=str,
)
def test_what_is_no_prekey(change: dict[str, object]) -> None:
    form = msgspec.msgpack.decode(encode_prekey(SIGNED)) | change
    with pytest.raises(MalformedPrekey):
        decode_prekey(msgspec.msgpack.encode(form))


@pytest.mark.parametrize("missing", ["key", "signature", "made_at", "good_until", "proof"])
def test_a_prekey_lacks_nothing(missing: str) -> None:
    form = msgspec.msgpack.decode(encode_prekey(SIGNED))
    del form[missing]
    with pytest.raises(MalformedPrekey):
        decode_prekey(msgspec.msgpack.encode(form))


@pytest.mark.parametrize("data", [b"\x91" * 1000, b"\x81\xa1x" * 300, bytes(2**20)])
def test_what_is_deep_or_long_is_refused_at_once(data: bytes) -> None:
    with pytest.raises(MalformedPrekey):
        decode_prekey(data)


def changed(**change: object) -> SignedPrekey:
    return msgspec.structs.replace(SIGNED, **change)


@pytest.mark.parametrize(
    "prekey",
    [
        changed(good_until=SIGNED.good_until + 0.001),
        changed(made_at=SIGNED.made_at + 0.001),
        changed(public=EVE.public),
        changed(signature=EVE.sign(b"p2pbuf prekey v1\x00" + SIGNED.public)),
        changed(signature=SIGNED.proof, proof=SIGNED.signature),
        changed(proof=b""),
        changed(public=b""),
        changed(made_at=-1.0),
        changed(made_at=math.nan),
        changed(good_until=math.inf),
        changed(good_until=2.0**60),
        sign_prekey(EVE, SIGNED.public, START, START + DAY),
        sign_prekey(BOB, SIGNED.public, START + DAY, START),
        sign_prekey(BOB, bytes(32), START, START + DAY),
    ],
)
def test_what_its_owner_did_not_say_is_not_believed(prekey: SignedPrekey) -> None:
    """A relay cannot prolong it, and nobody is asked to seal for a low-order point."""
    assert not check(prekey, BOB.public)


def test_a_new_one_each_day(tmp_path: Path) -> None:
    clock = Hand()
    prekeys = prekeys_in(tmp_path / "prekeys", clock)
    first = prekeys.current()
    assert check(first, BOB.public) and first.made_at == START
    clock.at += DAY - 1
    assert prekeys.current() == first
    clock.at += 1
    second = prekeys.current()
    assert second.public != first.public and second.made_at == START + DAY
    assert fits(prekeys, first) and fits(prekeys, second)


@pytest.mark.parametrize("where", ["disk", "memory"])
def test_an_old_one_is_destroyed_when_nothing_sealed_for_it_is_alive(
    where: str, tmp_path: Path
) -> None:
    """The longest life of a message, and a day, after the next one was made."""
    folder = tmp_path / "prekeys" if where == "disk" else None
    clock = Hand()
    prekeys = prekeys_in(folder, clock)
    first = prekeys.current()
    private = prekeys.private(first.kid)
    assert private is not None
    for _ in range(9):
        clock.at += DAY
        prekeys.current()
        prekeys.sweep(clock.at)
        assert fits(prekeys, first)
    prekeys.sweep(clock.at + 0.001)
    assert prekeys.private(first.kid) is None
    left = b"".join(path.read_bytes() for path in tmp_path.rglob("*.*"))
    assert private.hex().encode() not in left and private not in left


def test_it_can_be_opened_as_long_as_it_was_promised(tmp_path: Path) -> None:
    """Also by a node that was off all the time, and whose clock is 50 minutes ahead of the
    sender's. A message of the longest life can be sealed for the first day and more."""
    clock = Hand()
    prekey = prekeys_in(tmp_path, clock).current()
    assert prekey.good_until >= START + 8 * DAY
    envelope = seal(
        b"hi",
        sender=EVE,
        recipient=BOB.public,
        prekey=prekey.public,
        channel=b"chat",
        uuid=bytes(16),
        entropy=os.urandom,
    )
    clock.at = prekey.good_until + 3000
    late = prekeys_in(tmp_path, clock)
    found = open_envelope(envelope, recipient=BOB, prekey_of=late.private, channel=b"chat")
    assert (found.plaintext, found.sender) == (b"hi", EVE.public)


def test_a_shorter_life_of_messages_makes_a_shorter_life_of_keys(tmp_path: Path) -> None:
    clock = Hand()
    prekeys = prekeys_in(tmp_path, clock, ttl_s_max=3600.0)
    prekey = prekeys.current()
    clock.at += 2 * DAY + 3601
    prekeys.sweep(clock.at)
    assert not fits(prekeys, prekey)


def test_they_survive_a_restart(tmp_path: Path) -> None:
    clock = Hand()
    made = []
    for _ in range(4):
        prekeys = prekeys_in(tmp_path / "data" / "prekeys", clock)
        made.append(prekeys.current())
        clock.at += 0.75 * DAY
    assert len({each.public for each in made}) == 2
    assert made[0] == made[1] and made[2] == made[3]
    assert all(fits(prekeys_in(tmp_path / "data" / "prekeys", clock), each) for each in made)


def test_nobody_else_can_read_them(tmp_path: Path) -> None:
    prekeys_in(tmp_path / "prekeys", Hand()).current()
    (file,) = (tmp_path / "prekeys").iterdir()
    assert stat.S_IMODE((tmp_path / "prekeys").stat().st_mode) == 0o700
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_one_that_others_could_read_is_not_used_until_that_is_mended(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = prekeys_in(tmp_path, Hand()).current()
    (file,) = tmp_path.iterdir()
    file.chmod(0o640)
    prekeys = prekeys_in(tmp_path, Hand())
    assert not fits(prekeys, first) and "chmod 600" in caplog.text
    assert prekeys.current() != first
    file.chmod(0o600)
    assert fits(prekeys, first)


@pytest.mark.parametrize("at", range(0, 200, 13))
def test_a_damaged_one_is_told_of_and_left_where_it_is(
    at: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = prekeys_in(tmp_path, Hand()).current()
    (file,) = tmp_path.iterdir()
    data = bytearray(file.read_bytes())
    data[at] ^= 1
    file.write_bytes(data)
    prekeys = prekeys_in(tmp_path, Hand())
    assert not fits(prekeys, first)
    assert str(file) in caplog.text and file.exists()
    assert fits(prekeys, prekeys.current())


def test_one_under_the_name_of_another_is_damaged(tmp_path: Path) -> None:
    first = prekeys_in(tmp_path, Hand()).current()
    (file,) = tmp_path.iterdir()
    file.rename(tmp_path / "00000000.key")
    prekeys = prekeys_in(tmp_path, Hand())
    assert prekeys.private(bytes(4)) is None and not fits(prekeys, first)


def test_a_command_and_the_node_that_runs_find_what_the_other_has_made(tmp_path: Path) -> None:
    clock = Hand()
    node, command = prekeys_in(tmp_path, clock), prekeys_in(tmp_path, clock)
    first = command.current()
    assert fits(node, first)
    assert node.current() == first
    clock.at += DAY
    second = node.current()
    assert command.current() == second
    command.sweep(START + 9 * DAY + 1)
    assert list(tmp_path.glob("*.key")) == [tmp_path / f"{second.kid.hex()}.key"]


def test_threads_that_ask_at_once_get_the_same_one(tmp_path: Path) -> None:
    prekeys = prekeys_in(tmp_path, Hand())
    got: list[SignedPrekey] = []
    threads = [Thread(target=lambda: got.append(prekeys.current())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(got) == 8 and len({each.public for each in got}) == 1


def test_one_made_by_a_clock_that_was_ahead_is_not_current_for_years(tmp_path: Path) -> None:
    ahead = prekeys_in(tmp_path, Hand(START + 1000 * DAY)).current()
    clock = Hand()
    prekeys = prekeys_in(tmp_path, clock)
    assert prekeys.current().made_at == START
    assert fits(prekeys, ahead)
    clock.at -= 1800
    assert prekeys.current().made_at == START


def test_a_disk_that_fails_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Hand()
    prekeys = prekeys_in(tmp_path, clock)
    first = prekeys.current()
    clock.at += DAY
    for call in ("open", "fsync"):
        with monkeypatch.context() as patch:
            patch.setattr(os, call, _failing)
            with pytest.raises(OSError, match="no space"):
                prekeys.current()
        assert fits(prekeys, first)
    second = prekeys.current()
    assert second != first and fits(prekeys_in(tmp_path, clock), second)
    assert len(list(tmp_path.iterdir())) == 2


def _failing(*arguments: object, **options: object) -> int:
    raise OSError(28, "no space")


def test_nothing_is_published_before_the_disk_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder's sync is the last: while that fails nobody hears of the prekey, though its file
    is there; not in this process, and not in the next."""
    real = os.fsync

    def of_files_only(fd: int) -> None:
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            _failing()
        real(fd)

    prekeys = prekeys_in(tmp_path, Hand())
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", of_files_only)
        for _ in range(2):
            with pytest.raises(OSError, match="no space"):
                prekeys.current()
        assert len(list(tmp_path.glob("*.key"))) == 1
        with pytest.raises(OSError, match="no space"):
            prekeys_in(tmp_path, Hand())
    prekey = prekeys.current()
    assert fits(prekeys_in(tmp_path, Hand()), prekey)
    assert len(list(tmp_path.iterdir())) == 1


def test_killed_at_any_step_it_goes_on_with_all_that_was_published(tmp_path: Path) -> None:
    """A process dies at each of its calls to the file system; the next one has every prekey that
    was published and has not run out, makes new ones, and clears up."""
    steps = 0
    while True:
        folder = tmp_path / str(steps)
        published, done = _life(folder, steps)
        prekeys = prekeys_in(folder, Hand(START + 11.5 * DAY))
        assert all(fits(prekeys, each) for each in published if each.made_at >= START + 2.5 * DAY)
        current = prekeys.current()
        assert fits(prekeys, current)
        names = {path.name for path in folder.iterdir()}
        assert f"{current.kid.hex()}.key" in names
        assert not any(name.endswith(".new") for name in names)
        if done:
            assert steps > 20 and len(published) == 5
            return
        steps += 1


def _life(folder: Path, steps: int) -> tuple[list[SignedPrekey], bool]:
    """Days of a process that ends at its step number so and so; what it published until then."""
    reads, writes = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            _live(folder, steps, writes)
        finally:
            os._exit(1)
    os.close(writes)
    with os.fdopen(reads, "rb") as pipe:
        lines = pipe.read().splitlines()
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) in (0, 9)
    published = [decode_prekey(bytes.fromhex(line.decode())) for line in lines]
    return published, os.waitstatus_to_exitcode(status) == 0


def _live(folder: Path, steps: int, writes: int) -> None:
    left = steps

    def die_in_time(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal left
        if event in ("open", "os.mkdir", "os.rename", "os.remove", "os.scandir", "os.listdir"):
            if left == 0:
                os._exit(9)
            left -= 1

    sys.addaudithook(die_in_time)
    clock = Hand()
    prekeys = prekeys_in(folder, clock)
    for _ in range(5):
        line = encode_prekey(prekeys.current()).hex() + "\n"
        os.write(writes, line.encode())
        clock.at += 2.3 * DAY
        prekeys.sweep(clock.at)
    os._exit(0)


def test_no_secret_is_shown() -> None:
    prekeys = prekeys_in(None, Hand())
    private = prekeys.private(prekeys.current().kid)
    assert private is not None
    held = repr(vars(prekeys))
    assert kid_of(prekeys.current().public) and repr(private) not in held
    assert private.hex() not in held
