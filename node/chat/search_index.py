"""The full-text index of chat histories: SQLite's FTS5, in memory alone.

It is made of the histories when somebody searches, so nothing of it is on the disk, and a folder
with a passphrase has no text in clear. Edited messages are found by their new text, deleted ones
not at all.
"""

from __future__ import annotations

import re
import sqlite3
import unicodedata
from collections.abc import Iterable, Sequence

import msgspec

from millpond.node.chat.actions import Action, ChangeOrder, action_of, is_shown_alone
from millpond.node.chat.records import Kind, Record

CHANGES_MAX = 100_000
"""The most changes of messages that are not in the index."""
EXCERPT_CHARS, EXCERPT_BEFORE = 200, 60

_SCHEMA = """
CREATE TABLE texts (
    id INTEGER PRIMARY KEY, conversation BLOB NOT NULL, kind TEXT NOT NULL, author TEXT NOT NULL,
    uuid TEXT NOT NULL, sequence INTEGER NOT NULL, at INTEGER NOT NULL, text TEXT NOT NULL,
    is_deleted INTEGER NOT NULL, line TEXT, n INTEGER, edited INTEGER);
CREATE UNIQUE INDEX by_uuid ON texts (conversation, kind, author, uuid);
CREATE INDEX by_time ON texts (at);
CREATE VIRTUAL TABLE words USING fts5(
    text, content='', tokenize='unicode61 remove_diacritics 2', prefix='2 3');
"""
_FOUND = """
SELECT conversation, kind, author, uuid, sequence, at, text FROM texts
WHERE {condition} AND (? IS NULL OR conversation = ?)
ORDER BY at DESC, id DESC LIMIT ? OFFSET ?
"""
_IDEOGRAM = re.compile(
    "[\u1100-\u11ff\u2e80-\u303f\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff"
    "\U00020000-\U0003ffff]"
)
"""Letters of scripts without spaces between words: each is a word of its own."""
_WORD = re.compile(r"\w+")
_MARK = re.compile("[\u0300-\u0331]")


class FoundMessage(msgspec.Struct, frozen=True):
    """A message that was found: record `sequence` of a conversation, with its text. `author`: the
    peer id of the member that wrote it, in a group."""

    conversation: bytes
    kind: Kind
    author: str
    uuid: str
    sequence: int
    at: int
    text: str


class _Change(msgspec.Struct, frozen=True):
    """A change of a message: a new text, or None if it is deleted."""

    text: str | None
    order: ChangeOrder

    def is_later(self, than: _Change | None) -> bool:
        """True if this one counts; nothing comes after a deletion."""
        if than is None or than.text is None:
            return than is None
        return self.text is None or self.order.is_later(than.order)


class SearchIndex:
    """An index. Records may come in any order; the same record again changes nothing. Its methods
    block, and are called by one thread at a time."""

    def __init__(self) -> None:
        """Raises sqlite3.OperationalError if this SQLite has no FTS5."""
        self.text_bytes = 0
        """The bytes of texts, also of changes of messages that are not here."""
        self._changes: dict[tuple[bytes, Kind, str, str], _Change] = {}
        self._db = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        self._db.executescript(_SCHEMA)

    def close(self) -> None:
        """Give the memory back."""
        self._db.close()

    def add(self, conversation: bytes, records: Iterable[tuple[int, Record]]) -> None:
        """Add records with their sequences."""
        self._db.execute("BEGIN")
        for sequence, record in records:
            if record.kind not in (Kind.IN, Kind.OUT):
                continue
            if is_shown_alone(record):
                self._add(conversation, sequence, record)
            else:
                self._change(conversation, sequence, record)
        self._db.execute("COMMIT")

    def find(
        self, query: str, conversation: bytes | None, limit: int, offset: int = 0
    ) -> list[FoundMessage]:
        """The messages with all words of a query, or words that begin so, the newest first. A query
        without any word, such as an emoji, is found as it is."""
        match = _match(query)
        if match:
            condition, value = "id IN (SELECT rowid FROM words WHERE words MATCH ?)", match
        else:
            condition, value = "instr(text, ?)", query.strip()
        rows = self._db.execute(
            _FOUND.format(condition=condition), (value, conversation, conversation, limit, offset)
        )
        return [FoundMessage(row[0], Kind(row[1]), *row[2:]) for row in rows]

    def _add(self, conversation: bytes, sequence: int, record: Record) -> None:
        change = self._changes.pop((conversation, record.kind, record.by, record.uuid), None)
        text: str | None = record.text
        if change is not None:
            text = change.text
            self.text_bytes -= _size(text)
        if text is None:
            return
        order = (None, None, None) if change is None else tuple(change.order)
        name = (conversation, record.kind.value, record.by, record.uuid)
        row = (*name, sequence, record.at, text, 0, *order)
        insert = "INSERT OR IGNORE INTO texts VALUES (NULL, ?,?,?,?,?,?,?,?,?,?,?)"
        done = self._db.execute(insert, row)
        if done.rowcount:
            words = (done.lastrowid, _spaced(text))
            self._db.execute("INSERT INTO words (rowid, text) VALUES (?, ?)", words)
            self.text_bytes += _size(text)

    def _change(self, conversation: bytes, sequence: int, record: Record) -> None:
        action = action_of(record)
        if action not in (Action.EDIT, Action.DELETE):
            return
        text = record.text if action is Action.EDIT else None
        change = _Change(text, ChangeOrder.of(record, sequence))
        found = self._db.execute(
            "SELECT id, text, is_deleted, line, n, edited FROM texts"
            " WHERE conversation = ? AND kind = ? AND author = ? AND uuid = ?",
            (conversation, record.kind.value, record.by, record.about),
        ).fetchone()
        if found is not None:
            row, before, is_deleted, line, n, edited = found
            is_changed = is_deleted or edited is not None
            last = _Change(None if is_deleted else before, ChangeOrder(line, n, edited))
            if change.is_later(last if is_changed else None):
                self._replace(row, before, change)
            return
        key = (conversation, record.kind, record.by, record.about)
        known = self._changes.get(key)
        if change.is_later(known) and len(self._changes) < CHANGES_MAX:
            self._changes[key] = change
            self.text_bytes += _size(text) - _size(None if known is None else known.text)

    def _replace(self, row: int, before: str, change: _Change) -> None:
        """A deleted message stays as a row without a text, which nothing brings back."""
        words = "INSERT INTO words (words, rowid, text) VALUES ('delete', ?, ?)"
        self._db.execute(words, (row, _spaced(before)))
        text = change.text or ""
        self.text_bytes += _size(text) - _size(before)
        update = (
            "UPDATE texts SET text = ?, is_deleted = ?, line = ?, n = ?, edited = ? WHERE id = ?"
        )
        self._db.execute(update, (text, change.text is None, *change.order, row))
        self._db.execute("INSERT INTO words (rowid, text) VALUES (?, ?)", (row, _spaced(text)))


def excerpt(text: str, query: str) -> str:
    """The part of a text around the first word of the query, on one line."""
    line = " ".join(text.split())
    lowered = line.casefold()
    places = [lowered.find(word.casefold()) for word in _words(query)]
    first = min((place for place in places if place >= 0), default=0)
    start = max(0, first - EXCERPT_BEFORE)
    part = line[start : start + EXCERPT_CHARS]
    return ("..." if start else "") + part + ("..." if start + EXCERPT_CHARS < len(line) else "")


def _size(text: str | None) -> int:
    return 0 if text is None else len(text.encode("utf-8", "replace"))


def _words(query: str) -> Sequence[str]:
    return _WORD.findall(query) or query.split()


def _match(query: str) -> str:
    """The query in the language of FTS5: phrases, of which the last word may go on."""
    phrases = []
    # The index has letters without their marks, also those that are written by themselves.
    plain = _MARK.sub("", unicodedata.normalize("NFC", query))
    for token in plain.split():
        words = _WORD.findall(_spaced(token).replace("_", " "))
        if words:
            end = "" if _IDEOGRAM.fullmatch(words[-1]) else "*"
            phrases.append(f'"{" ".join(words)}"{end}')
    return " ".join(phrases)


def _spaced(text: str) -> str:
    return _IDEOGRAM.sub(r" \g<0> ", unicodedata.normalize("NFC", text))
