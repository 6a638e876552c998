"""Tables of state and change feeds in an Iceberg catalog whose files are in an object store."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from millpond.pipeline.cli import main
from millpond.pipeline.state.formats import existing_feed, feed_of, table_in
from tests.pipeline.histories import add, change, event, numbered, state_of, straight
from tests.pipeline.object_store import object_store
from tests.pipeline.state.test_change_feed import check_feed

pytest.importorskip("pyiceberg")
pytest.importorskip("moto")

BODIES = [change("cart", f"k{i % 5}", "insert", i) for i in range(12)]
RUN = [(0, body) for body in BODIES[:9]] + [
    (1, BODIES[0]),
    (0, event(headers={"control": "reset"})),
    (0, change("cart", "k1", "delete", None)),
    (0, BODIES[2]),
]


@pytest.fixture(scope="module")
def store() -> Iterator[dict[str, str]]:
    with object_store("lake") as variables:
        yield variables


def test_a_table_and_its_feed_with_batches_that_run_again(
    store: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    settings = {
        "URI": f"sqlite:///{tmp_path / 'catalog.db'}",
        "WAREHOUSE": "s3://lake/warehouse",
        "S3__ENDPOINT": store["AWS_ENDPOINT_URL"],
        "S3__ACCESS_KEY_ID": store["AWS_ACCESS_KEY_ID"],
        "S3__SECRET_ACCESS_KEY": store["AWS_SECRET_ACCESS_KEY"],
        "S3__REGION": store["AWS_REGION"],
    }
    for name, value in settings.items():
        monkeypatch.setenv(f"PYICEBERG_CATALOG__LAKE__{name}", value)
    configuration = pytest.importorskip("pyiceberg.utils.config")
    # The package reads its environment once, when it is imported.
    monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", configuration.Config())
    place, changes = "iceberg://lake/users.state", "iceberg://lake/users.changes"
    assert main(["show", place]) == 4
    rows, bounds = numbered(RUN), [0, 4, 9, len(RUN)]
    table = table_in(place)
    feed = feed_of(table, changes, source={})
    for batch in range(3):
        for _ in range(2):
            feed.claim("q")
            add(table, batch, rows[bounds[batch] : bounds[batch + 1]], None, feed)
    assert state_of(table_in(place)) == straight(RUN)
    check_feed(existing_feed(changes), bounds, RUN)
    capsys.readouterr()
    assert main(["show", place, "--json"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    shown = {(row["partition"], row["type"], row["key"]): row["value"] for row in lines}
    assert shown == straight(RUN)
    assert main(["changes", changes, "--after", "1"]) == 0
    assert "delete" in capsys.readouterr().out
    assert main(["vacuum", place, "--keep", "1"]) == 0
    assert state_of(table_in(place)) == straight(RUN)
    monkeypatch.delenv("PYICEBERG_CATALOG__LAKE__URI")
    monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", configuration.Config())
    capsys.readouterr()
    assert main(["show", place]) == 1
    assert capsys.readouterr().err.count("\n") == 1
