"""What every test may ask for."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


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
