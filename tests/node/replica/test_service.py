"""The replica of a running node, as its service ships it: limits of time, and what follows."""

from __future__ import annotations

from pathlib import Path
from threading import Event

import pytest

from millpond.node.config import Config
from millpond.node.node import Node
from millpond.node.replica import service
from millpond.node.replica.interface import SnapshotRequest, SnapshotState
from millpond.node.replica.object_store import FolderObjects
from millpond.node.replica.objects import SNAPSHOT
from tests.node.outbox.peer_nodes import until

pytestmark = pytest.mark.anyio

LIMIT_S = 60.0
CLOSED = dict.fromkeys(("p2p", "ws", "s3p", "rustlog", "http"), "off")


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class StuckFolder(FolderObjects):
    """A folder of another machine that does not answer: the system's call does not return."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.is_stuck = True
        self.answers = Event()
        self.requests = 0

    def put_file(self, name: str, path: Path) -> None:
        if self.is_stuck:
            self.requests += 1
            assert self.answers.wait(LIMIT_S)
        super().put_file(name, path)


async def test_an_upload_that_gets_nowhere_is_given_up_and_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Backups would wait for it, and no other snapshot would be made."""
    objects = StuckFolder(tmp_path / "replica")
    monkeypatch.setattr(service, "ANSWER_S", 0.05)
    monkeypatch.setattr(service, "SNAPSHOT_LOOK_S", 0.01)
    monkeypatch.setattr(service, "SNAPSHOT_RETRY_S", 0.01)
    monkeypatch.setattr(service, "open_object_store", lambda url: objects)
    config = Config(data=str(tmp_path / "data"), replica=f"file://{tmp_path}/replica", **CLOSED)
    async with Node(config):
        await until(lambda: objects.requests > 1, LIMIT_S)
        assert not objects.list(SNAPSHOT)
        objects.is_stuck = False
        objects.answers.set()
        await until(lambda: bool(objects.list(SNAPSHOT)), LIMIT_S)


async def test_requests_share_a_snapshot_that_has_not_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that has begun may lack what was acknowledged before the request."""
    objects = StuckFolder(tmp_path / "replica")
    monkeypatch.setattr(service, "SNAPSHOT_LOOK_S", 0.01)
    monkeypatch.setattr(service, "open_object_store", lambda url: objects)
    config = Config(data=str(tmp_path / "data"), replica=f"file://{tmp_path}/replica", **CLOSED)
    async with Node(config) as node:
        assert node.replica is not None
        answer = node.replica.answer
        await until(lambda: objects.requests == 1, LIMIT_S)
        first, second = answer(SnapshotRequest()), answer(SnapshotRequest())
        assert first == second and first.state is SnapshotState.WAITING
        objects.is_stuck = False
        objects.answers.set()
        asked = SnapshotRequest(first.number)
        await until(lambda: answer(asked).state is SnapshotState.MADE, LIMIT_S)
        later = answer(SnapshotRequest())
        assert later.number > first.number and later.state is SnapshotState.WAITING


async def test_a_request_does_not_wait_for_the_next_try(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a failure the next snapshot is due half a minute later."""
    config = Config(data=str(tmp_path / "data"), replica=f"file://{tmp_path}/replica", **CLOSED)
    monkeypatch.setattr(service, "SNAPSHOT_RETRY_S", 10 * LIMIT_S)
    monkeypatch.setattr(service, "SNAPSHOT_RETRY_S_MAX", 10 * LIMIT_S)
    folder = tmp_path / "replica" / "snapshot"
    async with Node(config) as node:
        assert node.replica is not None
        answer = node.replica.answer
        await until(folder.exists, LIMIT_S)
        asked = SnapshotRequest(answer(SnapshotRequest()).number)
        await until(lambda: answer(asked).state is SnapshotState.MADE, LIMIT_S)
        folder.rename(tmp_path / "aside")
        folder.write_bytes(b"")
        failed = SnapshotRequest(answer(SnapshotRequest()).number)
        await until(lambda: answer(failed).state is SnapshotState.FAILED, LIMIT_S)
        assert answer(failed).error
        folder.unlink()
        (tmp_path / "aside").rename(folder)
        last = SnapshotRequest(answer(SnapshotRequest()).number)
        await until(lambda: answer(last).state is SnapshotState.MADE, LIMIT_S)
