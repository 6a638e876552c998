"""The catalog of access tokens: kept, bounded, and what has ended is forgotten
(docs/reference/s2.md)."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from math import inf

from millpond.actors.errors import Code
from millpond.actors.messages import Batch, Reply, StreamRequest
from millpond.actors.store.changes import LogSnapshot, MetadataSet
from millpond.actors.streams import messages as m
from millpond.actors.streams.catalogs.access_tokens import (
    METADATA_BYTES_MAX,
    TOKENS_MAX,
    AccessTokenCatalog,
    AccessTokens,
)
from millpond.actors.streams.catalogs.catalog import CatalogCell
from tests.actors.recording_port import RecordingPort

NOW = 1_700_000_000.0
END_MS = int(NOW * 1000) + 5000


class Catalog:
    """The cell and its book. `reopen` builds it from what it had kept."""

    def __init__(self) -> None:
        self.now = NOW
        self._kept: dict[bytes, bytes] = {}
        self.reopen()

    def reopen(self) -> None:
        self.book = AccessTokens()
        self.cell = CatalogCell(
            AccessTokenCatalog(LogSnapshot(metadata=dict(self._kept)), self.book)
        )

    def ask(self, *requests: StreamRequest) -> Sequence[Reply]:
        effects = self.cell.handle(Batch(RecordingPort(1), list(requests)), self.now)
        self._keep(effects.changes)
        return effects.batch_replies

    def wake(self) -> None:
        self._keep(self.cell.wake(self.now).changes)

    def _keep(self, changes: Sequence[object]) -> None:
        for each in changes:
            assert isinstance(each, MetadataSet)
            if each.value is None:
                del self._kept[each.name]
            else:
                self._kept[each.name] = each.value

    @property
    def kept(self) -> int:
        return len(self._kept)

    def ids(self) -> list[bytes]:
        return [token_id for token_id, _ in self.book.all(self.now)]


def _issue(name: bytes, expires_ms: int | None = None, notes: bytes = b"notes") -> m.IssueToken:
    return m.IssueToken(1, name, sha256(b"token of " + name).digest(), expires_ms, notes)


def test_a_token_is_found_by_itself_and_by_its_id_until_it_is_revoked() -> None:
    catalog = Catalog()
    assert catalog.ask(_issue(b"a")) == [m.Done(1)]
    for _ in range(2):
        found = catalog.book.find(b"token of a", NOW)
        assert found is not None
        assert (found.metadata, found.expires_ms) == (b"notes", None)
        assert list(catalog.book.all(NOW)) == [(b"a", found)]
        assert catalog.book.find(found.digest, NOW) is None
        assert catalog.book.find(b"", NOW) is None
        assert catalog.cell.deadline == inf
        assert not catalog.cell.is_empty
        catalog.reopen()
    assert catalog.ask(m.RevokeToken(2, b"a")) == [m.Done(2)]
    for _ in range(2):
        assert catalog.book.find(b"token of a", NOW) is None
        assert catalog.ids() == []
        assert catalog.cell.is_empty
        catalog.reopen()
    assert catalog.ask(m.RevokeToken(3, b"a")) == [m.StreamFailed(3, Code.UNKNOWN_STREAM)]


def test_an_id_is_taken_once() -> None:
    catalog = Catalog()
    other = m.IssueToken(2, b"a", sha256(b"other").digest(), None, b"")
    answers = catalog.ask(_issue(b"a"), other)
    assert answers == [m.Done(1), m.StreamFailed(2, Code.STREAM_EXISTS)]
    assert catalog.book.find(b"other", NOW) is None
    assert catalog.kept == 1


def test_what_has_ended_is_gone_at_its_time_and_forgotten_after() -> None:
    catalog = Catalog()
    catalog.ask(_issue(b"a", END_MS), _issue(b"b", END_MS + 1000), _issue(b"c"))
    assert catalog.cell.deadline == END_MS / 1000
    catalog.now = END_MS / 1000 - 0.001
    assert catalog.ids() == [b"a", b"b", b"c"]
    catalog.now = END_MS / 1000
    assert catalog.ids() == [b"b", b"c"]
    assert catalog.book.find(b"token of a", catalog.now) is None
    assert catalog.ask(m.RevokeToken(2, b"a")) == [m.StreamFailed(2, Code.UNKNOWN_STREAM)]
    assert catalog.kept == 3
    catalog.wake()
    assert catalog.kept == 2
    assert catalog.cell.deadline == END_MS / 1000 + 1
    catalog.now += 1
    assert catalog.ask(_issue(b"b")) == [m.Done(1)]
    catalog.reopen()
    assert catalog.ids() == [b"b", b"c"]


def test_there_is_an_end_to_their_number_and_their_notes() -> None:
    catalog = Catalog()
    ids = [b"%d" % number for number in range(TOKENS_MAX)]
    answers = catalog.ask(*map(_issue, ids))
    assert answers == [m.Done(1)] * TOKENS_MAX
    assert catalog.ask(_issue(b"more")) == [m.StreamFailed(1, Code.BUFFER_FULL)]
    catalog.ask(m.RevokeToken(2, ids[0]))
    large = _issue(b"more", notes=bytes(METADATA_BYTES_MAX + 1))
    assert catalog.ask(large) == [m.StreamFailed(1, Code.DATA_TOO_LARGE)]
    assert catalog.ask(_issue(b"more")) == [m.Done(1)]


def test_a_revoked_token_ends_at_no_time() -> None:
    """Its deadline may pass: nothing is forgotten then but what has expired."""
    catalog = Catalog()
    catalog.ask(_issue(b"a", END_MS), _issue(b"b", END_MS + 1000), m.RevokeToken(2, b"a"))
    catalog.now = END_MS / 1000
    catalog.wake()
    assert catalog.ids() == [b"b"]
    assert catalog.cell.deadline == END_MS / 1000 + 1
    assert catalog.ask(_issue(b"a")) == [m.Done(1)]
    assert catalog.book.find(b"token of a", catalog.now) is not None
