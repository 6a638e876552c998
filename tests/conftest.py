"""What every test may ask for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

CRASH = tuple(Path(__file__).parent / folder for folder in ("crash", "sim"))


@pytest.hookimpl(tryfirst=True)  # before -m chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What lies in these folders is the part `crash`."""
    for item in items:
        if item.path.parent in CRASH:
            item.add_marker(pytest.mark.crash)


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
