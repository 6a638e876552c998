"""Files between peers: nothing of a file can be changed, moved, left out or added, and a name is
harmless in any folder."""

from __future__ import annotations

from hashlib import sha256

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millpond.node.peers.file_format import (
    CHUNK_BYTES,
    FILE_BYTES_MAX,
    NAME_BYTES_MAX,
    BadFile,
    File,
    check_chunk,
    chunk_count,
    clean_name,
    leaf_of,
    open_chunk,
    root_of,
    seal_chunk,
    sealed_chunk_size,
    sealed_size,
    split_leaves,
)

KEY = bytes(range(32))


def sealed_file(size: int) -> tuple[list[bytes], list[bytes]]:
    data, count = bytes(size), chunk_count(size)
    chunks = [
        seal_chunk(
            KEY, at, data[at * CHUNK_BYTES : (at + 1) * CHUNK_BYTES], is_last=at == count - 1
        )
        for at in range(count)
    ]
    return chunks, [leaf_of(each) for each in chunks]


def tree(leaves: list[bytes]) -> bytes:
    """The tree as RFC 6962 defines it."""
    if len(leaves) == 1:
        return leaves[0]
    left = 1
    while left * 2 < len(leaves):
        left *= 2
    return sha256(b"\1" + tree(leaves[:left]) + tree(leaves[left:])).digest()


@given(st.integers(1, 200))
def test_the_root_is_that_of_the_tree_of_rfc_6962(count: int) -> None:
    leaves = [at.to_bytes(32, "big") for at in range(count)]
    size = count * CHUNK_BYTES
    top = tree(leaves)
    assert (
        root_of(size, leaves)
        == sha256(b"millpond file v1\0" + size.to_bytes(8, "big") + top).digest()
    )


@pytest.mark.parametrize("size", [0, 1, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1])
def test_a_file_is_read_as_it_was_sealed(size: int) -> None:
    chunks, leaves = sealed_file(size)
    assert sum(map(len, chunks)) == sealed_size(size)
    assert [len(each) for each in chunks] == [
        sealed_chunk_size(size, at) for at in range(len(chunks))
    ]
    assert split_leaves(b"".join(leaves), size, root_of(size, leaves)) == leaves
    opened = b""
    for at, each in enumerate(chunks):
        check_chunk(each, at, size, leaves)
        opened += open_chunk(KEY, at, each, is_last=at == len(chunks) - 1)
    assert opened == bytes(size)


@settings(max_examples=50)
@given(st.data())
def test_a_changed_chunk_is_refused(data: st.DataObject) -> None:
    size = CHUNK_BYTES + 100
    chunks, leaves = sealed_file(size)
    index = data.draw(st.integers(0, 1))
    changed = bytearray(chunks[index])
    changed[data.draw(st.integers(0, len(changed) - 1))] ^= data.draw(st.integers(1, 255))
    with pytest.raises(BadFile):
        check_chunk(bytes(changed), index, size, leaves)
    with pytest.raises(BadFile):
        open_chunk(KEY, index, bytes(changed), is_last=index == 1)


def test_a_moved_a_missing_and_a_further_chunk_are_refused() -> None:
    size = 3 * CHUNK_BYTES
    chunks, leaves = sealed_file(size)
    for index in (-1, 1, 3):
        with pytest.raises(BadFile):
            check_chunk(chunks[0], index, size, leaves)
    for index, is_last in ((1, False), (0, True)):
        with pytest.raises(BadFile):
            open_chunk(KEY, index, chunks[0], is_last=is_last)
    with pytest.raises(BadFile):  # the file is cut behind its second chunk
        open_chunk(KEY, 1, chunks[1], is_last=True)


def test_leaves_that_are_not_those_of_the_root_are_refused() -> None:
    size = 3 * CHUNK_BYTES
    _, leaves = sealed_file(size)
    root, row = root_of(size, leaves), b"".join(leaves)
    for bad, of in (
        (row[:-32], size),
        (row + row[:32], size),
        (row[:-1], size),
        (b"", size),
        (row[32:64] + row[:32] + row[64:], size),
        (row, size - 1),  # a size that lies
        (row, size + 1),
        (row, 2**70),
        (row, -1),
    ):
        with pytest.raises(BadFile):
            split_leaves(bad, of, root)


@given(st.text(max_size=400))
def test_a_name_is_harmless_in_any_folder(name: str) -> None:
    clean = clean_name(name)
    assert clean and len(clean.encode()) <= NAME_BYTES_MAX
    assert not set(clean) & set('/\\:*?"<>|\0\n\r\x1b\x7f\u202e\u200b')
    assert clean[0] not in " ." and clean[-1] not in " ."
    assert clean_name(clean) == clean


@pytest.mark.parametrize(
    ("name", "clean"),
    [
        ("holiday.jpg", "holiday.jpg"),
        ("../../etc/passwd", "_.._etc_passwd"),
        ("C:\\Windows\\system.ini", "C__Windows_system.ini"),
        ("\x1b[31mred\x07.txt", "[31mred.txt"),
        ("photo\u202egnp.exe", "photognp.exe"),
        (".bashrc", "bashrc"),
        ("NUL.txt", "_NUL.txt"),
        ("a" * 300 + ".tar.gz", "a" * 197 + ".gz"),
        ("\ud800.txt", "_.txt"),
        (" . ", "file"),
        ("", "file"),
    ],
)
def test_names(name: str, clean: str) -> None:
    assert clean_name(name) == clean


def described(**fields: object) -> bytes:
    values = {"root": "00" * 32, "key": "11" * 32, "size": 5, "name": "a.txt"}
    return msgspec.json.encode(values | fields)


def test_a_description_is_read_and_shows_no_key() -> None:
    file = msgspec.json.decode(described(type="image/png", later=1), type=File)
    assert (file.chunks, file.type, file.chunk) == (1, "image/png", CHUNK_BYTES)
    assert "11" not in repr(file)
    assert msgspec.json.decode(msgspec.json.encode(file), type=File) == file


@pytest.mark.parametrize(
    "fields",
    [
        {"root": "00"},
        {"key": "XX" * 32},
        {"size": -1},
        {"size": FILE_BYTES_MAX + 1},
        {"size": 1.5},
        {"name": ""},
        {"name": "n" * 201},
        {"type": "text/html; charset=utf-8"},
        {"chunk": 1},
        {"until": -1},
    ],
)
def test_a_description_that_is_none_is_refused(fields: dict[str, object]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(described(**fields), type=File)
