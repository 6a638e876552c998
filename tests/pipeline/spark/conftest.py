"""One Spark session for all: it takes longer to start than all that is asked of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

collect_ignore_glob: list[str] = []
try:
    import pyspark  # noqa: F401
except ImportError:  # the extra `spark`; without it these tests are not there
    collect_ignore_glob = ["test_*.py"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All tests with that session run in the process that has it."""
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.together("spark"))


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    from millpond.pipeline.spark.session import build_session

    # Short runs are better off without the second compiler.
    options = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
    session = build_session("tests", conf=options)
    yield session
    session.stop()


@pytest.fixture(autouse=True)
def _no_query_is_left(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "spark" in request.fixturenames:
        for query in request.getfixturevalue("spark").streams.active:
            query.stop()
