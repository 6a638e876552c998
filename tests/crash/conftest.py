"""A folder on a disk: the other tests of a run may keep their files in memory."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp

import pytest

HAS_FAILED = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Note what has failed, for `tmp_path`."""
    report = yield
    if report.failed:
        item.stash[HAS_FAILED] = True
    return report


@pytest.fixture
def tmp_path(request: pytest.FixtureRequest) -> Iterator[Path]:
    """An empty folder of this test, on the disk that `scripts/test` names. That of a test that
    failed stays, to be looked at."""
    disk = os.environ.get("MILLPOND_TEST_DISK")
    folder = Path(mkdtemp(prefix="millpond-crash-", dir=disk))
    yield folder
    if HAS_FAILED not in request.node.stash:
        rmtree(folder)
