"""Tests of jobs run on trio's virtual clock, unless they say otherwise."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import trio.testing

from tests.node.jobs.job_setup import JobSetup, job_setup


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "trio", {"clock": trio.testing.MockClock(autojump_threshold=0)}


@pytest.fixture
async def setup(anyio_backend: Any) -> AsyncIterator[JobSetup]:
    async with job_setup() as found:
        yield found
