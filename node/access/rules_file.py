"""Rule files: the access file, and the older token file (PA-39).

Both have mode 0600. One invalid line invalidates the whole file, as a rule that restricts something
must not be skipped.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from millpond.node.access.grants import (
    REVOKED_PREFIX,
    BadRule,
    Grant,
    Revoked,
    parse_line,
    parse_token_line,
)
from millpond.node.atomic_files import UnsafeFile, read_private, replace
from millpond.node.peers.address_book_file import AddressBookFile, BookBusy

FILE_NAME = "access.conf"
FILE_BYTES_MAX = 2**20
THIS_MACHINE = "address:127.0.0.0/8 all\naddress:::1/128 all\n"
"""The default rights of this machine, as rules."""
HEADER = """\
# Access rules; docs/guides/access.md. While this file exists, everything that no line of it allows
# is denied, on this machine too. Trusted peers keep their default rights.
# SUBJECT RIGHT[,RIGHT...] [PATTERN...] [until=2026-12-31T00:00Z]

"""


class AccessFileError(Exception):
    """A file that cannot be used; the text gives the line and the reason, never the token."""


class Rules(msgspec.Struct, frozen=True):
    """The rules of the files, in the order of their lines."""

    grants: tuple[Grant, ...] = ()
    revoked: frozenset[str] = frozenset()

    def __add__(self, other: Rules) -> Rules:
        return Rules(self.grants + other.grants, self.revoked | other.revoked)


def read_access_file(path: Path) -> Rules:
    """The rules of an access file. Raises AccessFileError, also if others may read the file."""
    found = [_parsed(words, source, path) for words, source in _lines(path)]
    return Rules(
        tuple(each for each in found if isinstance(each, Grant)),
        frozenset(each.token_id for each in found if isinstance(each, Revoked)),
    )


def read_token_file(path: Path) -> Rules:
    """The rules of a token file: `TOKEN RIGHT[,RIGHT...] [PATTERN...]`. Raises AccessFileError."""
    grants = []
    for words, source in _lines(path):
        try:
            grants.append(parse_token_line(words, source))
        except BadRule as exc:
            raise AccessFileError(f"{source}: {exc}") from None
    return Rules(tuple(grants))


def add_line(path: Path, line: str, note: str = "") -> bool:
    """Append a line, under a comment; True if the file was created.

    The file is complete at any moment. Raises AccessFileError, also for an invalid line in it.
    """
    with _locked(path):
        is_new = not path.exists()
        if not is_new:
            read_access_file(path)
        text = HEADER if is_new else _text(path)
        if text and not text.endswith("\n"):
            text += "\n"
        comment = f"# {note}\n" if note else ""
        _replace(path, f"{text}{comment}{line}\n")
    return is_new


def without_token(path: Path, token_id: str) -> bool:
    """Remove a random token's lines from the file; True if there were any. Raises AccessFileError.

    `token_id`: the beginning of the token's SHA-256, at least 12 digits.
    """
    if not path.exists():
        return False
    with _locked(path):
        lines = _text(path).splitlines()
        kept: list[str] = []
        for line in lines:
            if not line.lstrip().startswith(f"token:{token_id}"):
                kept.append(line)
            elif kept and kept[-1].startswith("#"):
                kept.pop()  # its note, which would be the next token's
        if len(kept) < len(lines):
            _replace(path, "".join(f"{line}\n" for line in kept))
    return len(kept) < len(lines)


def revoke_signed(path: Path, token_id: str) -> bool:
    """Revoke a signed token; True if the file was created. Raises AccessFileError.

    A new file keeps the default rights of this machine.
    """
    line = f"{REVOKED_PREFIX}{token_id}"
    if path.exists():
        if token_id not in read_access_file(path).revoked:
            add_line(path, line)
        return False
    return add_line(path, THIS_MACHINE + line)


def notes_of(path: Path) -> Iterator[tuple[str, list[str]]]:
    """The words of each line, with the comment above it. Raises AccessFileError."""
    note = ""
    for line in _text(path).splitlines():
        words = line.split()
        if words and not words[0].startswith("#"):
            yield note, words
            note = ""
        else:
            note = line.strip().lstrip("# ")


def _lines(path: Path) -> Iterable[tuple[list[str], str]]:
    """The words of each line that is not empty, and its location."""
    for number, line in enumerate(_text(path).splitlines(), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        source = f"{path}:{number}"
        if any(word.startswith("#") for word in words):
            # As a comment it would widen the line: without its pattern it holds everywhere.
            raise AccessFileError(f"{source}: a comment needs a line of its own")
        yield words, source


def _parsed(words: list[str], source: str, path: Path) -> Grant | Revoked:
    try:
        return parse_line(words, f"{path.name}:{source.rpartition(':')[2]}")
    except BadRule as exc:
        raise AccessFileError(f"{source}: {exc}") from None


def _text(path: Path) -> str:
    try:
        return read_private(path, FILE_BYTES_MAX).decode("utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        raise AccessFileError(f"{path}: {exc}") from exc
    except UnsafeFile as exc:
        raise AccessFileError(str(exc)) from exc


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """A lock against other writers. Raises AccessFileError."""
    try:
        with AddressBookFile(path).locked():
            yield
    except BookBusy as exc:
        raise AccessFileError(str(exc)) from exc


def _replace(path: Path, text: str) -> None:
    try:
        replace(path, text.encode("utf-8"))
    except OSError as exc:
        raise AccessFileError(f"{path}: {exc.strerror}") from exc
