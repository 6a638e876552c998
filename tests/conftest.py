"""Fixtures and markers of all tests."""

from __future__ import annotations

import faulthandler
import gc
import os
import time
from collections.abc import Generator, Iterator, Mapping
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# How long an example takes to make or to try is the machine's business.
settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("each run", parent=settings.get_profile("any machine"), max_examples=40)
settings.load_profile("any machine")

HERE = Path(__file__).parent
DAMAGED_FILES = (
    "absence",
    "disk_failures",
    "full_disk",
    "lost_catalogs",
    "lost_segments",
    "misplaced_pages",
    "repairs",
    "scrub",
)
PARTS = {
    HERE / "bench": "bench",
    **dict.fromkeys((HERE / "node").glob("test_bench*.py"), "bench"),
    HERE / "crash": "crash",
    HERE / "sim": "crash",
    HERE / "node" / "replica": "crash",
    **dict.fromkeys(
        (HERE / "actors" / "store" / f"test_{name}.py" for name in DAMAGED_FILES), "crash"
    ),
    HERE / "conformance": "wire",
    HERE / "node" / "outbox": "peers",
    HERE / "node" / "chat": "peers",
    HERE / "node" / "http" / "s2": "http",
    **dict.fromkeys(
        (
            HERE / "node" / "testing" / f"test_{name}.py"
            for name in ("plugin", "real_node", "same_trace")
        ),
        "package",
    ),
    HERE / "node" / "cli" / "test_worker_processes.py": "package",
    HERE / "test_workers.py": "package",
    HERE / "suites": "http",
    HERE / "interop": "http",
    HERE / "pipeline": "spark",
}


ON_BOTH_LIBRARIES = (HERE / "transports", HERE / "node" / "client")
"""The tests that run on asyncio and on trio in each run. Elsewhere the library makes no difference
that these do not show, and only the full run has trio as well."""
LONGEST_FIRST = (
    "crash",
    "spark",
    "readme",
    "http",
    "browser",
    "package",
    "peers",
    "wire",
    "bench",
)
"""Those of Spark second: the archive of its classes is made meanwhile."""


@pytest.hookimpl(tryfirst=True)  # before -m chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of these files and folders as parts of `scripts/test`, unless they name their
    part themselves; parts of long tests come first, so that no process runs the last of them alone.
    """
    for item in items:
        for place in (item.path, *item.path.parents):
            if place in PARTS and _rank(item) == len(LONGEST_FIRST):
                item.add_marker(PARTS[place])
        if _is_on_trio(item) and not any(place in ON_BOTH_LIBRARIES for place in item.path.parents):
            item.add_marker("full")
        elif _rank(item) == len(LONGEST_FIRST) and (_is_on_trio(item) or _has_properties(item)):
            item.add_marker("wire")
    items.sort(key=_rank)


def _has_properties(item: pytest.Item) -> bool:
    """Whether hypothesis draws the inputs, or the steps of a state machine."""
    return item.get_closest_marker("hypothesis") is not None or item.name == "runTest"


def _is_on_trio(item: pytest.Item) -> bool:
    """Whether a parameter is trio, or a wiring on it as in tests/conformance."""
    params: Mapping[str, object] = getattr(getattr(item, "callspec", None), "params", {})
    names = (value[0] if isinstance(value, tuple) and value else value for value in params.values())
    return any(isinstance(name, str) and name.endswith("trio") for name in names)


def _rank(item: pytest.Item) -> int:
    ranks = [
        LONGEST_FIRST.index(each.name) for each in item.iter_markers() if each.name in LONGEST_FIRST
    ]
    return min(ranks, default=len(LONGEST_FIRST))


HANGS_S = 600.0
REARMED_S = 60.0


class HangReports:
    """Tracebacks of all threads on stderr when a test has taken ten minutes, less one at most.

    `faulthandler_timeout` of pytest starts a thread for each test and waits for its end, which
    takes longer than most tests where processors are busy. Here one serves the tests of a minute.
    """

    def __init__(self, stderr: int) -> None:
        self._stderr = stderr
        self._armed_at = -REARMED_S

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self) -> Generator[None, object, object]:
        now = time.monotonic()
        if now - self._armed_at >= REARMED_S:
            self._armed_at = now
            faulthandler.dump_traceback_later(HANGS_S, file=self._stderr)
        return (yield)

    def pytest_unconfigure(self) -> None:
        faulthandler.cancel_dump_traceback_later()
        os.close(self._stderr)


def pytest_configure(config: pytest.Config) -> None:
    if "not full" in config.option.markexpr:  # `scripts/test full` tries 100 examples of each
        settings.load_profile("each run")
    with config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        config.pluginmanager.register(HangReports(os.dup(2)))


def pytest_collection_finish() -> None:
    """Take the collected tests out of the garbage collector, which would visit all each time."""
    gc.freeze()


def pytest_sessionfinish() -> None:
    """Give them back: hypothesis, if it is imported only now, looks for referrers of objects."""
    gc.unfreeze()


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


@pytest.fixture
def looks_rarely(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes look at their files each 15 s. Nodes that live for virtual days spend most of the CPU
    time on looking twice a second."""
    for looking in ("outbox.scheduling", "chat.chat", "chat.message_requests"):
        monkeypatch.setattr(f"millpond.node.{looking}.CHECK_S", 15.0)
    monkeypatch.setattr("millpond.node.access.revocation.LOOK_EVERY_S", 15.0)
