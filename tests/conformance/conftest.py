"""Every test of this directory runs over each wiring, unless it asks for one."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from tests.conformance.served import WIRINGS, Serve, backend, serve


@pytest.fixture(params=WIRINGS)
def wiring(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def anyio_backend(wiring: str) -> tuple[str, dict[str, Any]]:
    return backend(wiring)


@pytest.fixture(name="serve")
def _serve(wiring: str) -> Serve:
    return partial(serve, wiring)


@pytest.fixture(autouse=True)
def _nothing_crashed(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """A crash of a cell or of a connection is contained and logged: here it is a failure."""
    yield
    logged = [*caplog.get_records("setup"), *caplog.get_records("call")]
    assert [each.getMessage() for each in logged if each.levelno >= logging.ERROR] == []
