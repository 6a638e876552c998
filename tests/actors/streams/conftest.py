"""Fixtures of the tests of streams."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from tests.actors.streams.harness import SlowMemory, StreamHarness, streams_in


@pytest.fixture
def slow(caplog: pytest.LogCaptureFixture) -> Iterator[StreamHarness]:
    """Commits are done when the test says so."""
    caplog.set_level(logging.CRITICAL)
    store = SlowMemory()
    with streams_in(None, store=store) as opened:
        opened.create()
        store.is_slow = True
        yield opened
