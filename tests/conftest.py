"""What every test may ask for."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).parent
PARTS = {
    HERE / "crash": "crash",
    HERE / "sim": "crash",
    HERE / "node" / "s2": "http",
    HERE / "suites": "http",
    HERE / "pipeline" / "spark": "spark",
}


@pytest.hookimpl(tryfirst=True)  # before -m chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What lies in these folders is a part of its own (`scripts/test`)."""
    for item in items:
        part = PARTS.get(item.path.parent)
        if part is not None:
            item.add_marker(part)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """What a test logged goes from one process to another as UTF-8, which halves of surrogate pairs
    are not."""
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
def _data_is_not_at_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A node that is told no folder, in this process or another, keeps nothing in the user's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_DATA_HOME", str(tmp_path_factory.mktemp("data")))
        yield
