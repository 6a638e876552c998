"""Fixtures and markers of all tests."""

from __future__ import annotations

import gc
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).parent
PARTS = {
    HERE / "crash": "crash",
    HERE / "sim": "crash",
    HERE / "node" / "http" / "s2": "http",
    HERE / "suites": "http",
    HERE / "pipeline": "spark",
}


LONGEST_FIRST = ("spark", "readme", "crash", "http", "browser", "package", "wire")


@pytest.hookimpl(tryfirst=True)  # before -m chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests below these folders as parts of `scripts/test`; parts of long tests come
    first, so that no process runs the last of them alone."""
    for item in items:
        for folder in item.path.parents:
            if folder in PARTS:
                item.add_marker(PARTS[folder])
    items.sort(key=_rank)


def _rank(item: pytest.Item) -> int:
    ranks = [
        LONGEST_FIRST.index(each.name) for each in item.iter_markers() if each.name in LONGEST_FIRST
    ]
    return min(ranks, default=len(LONGEST_FIRST))


def pytest_collection_finish() -> None:
    """Take the collected tests out of the garbage collector, which would visit all each time."""
    gc.freeze()


def pytest_sessionfinish() -> None:
    """Give them back: hypothesis, if it is imported only now, looks for referrers of objects."""
    gc.unfreeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Escape halves of surrogate pairs in logs: reports travel between processes as UTF-8."""
    report = yield
    report.sections = [
        (name, text.encode("utf-8", "backslashreplace").decode()) for name, text in report.sections
    ]
    return report


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    """An async test runs on both libraries."""
    return str(request.param)


@pytest.fixture(scope="session", autouse=True)
def _data_outside_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep nodes without a data folder out of the user's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_DATA_HOME", str(tmp_path_factory.mktemp("data")))
        yield
