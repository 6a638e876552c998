"""What every test may ask for."""

from __future__ import annotations

import pytest


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    """An async test runs on both libraries."""
    return str(request.param)
