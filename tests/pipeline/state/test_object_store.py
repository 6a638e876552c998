"""Tables of state and change feeds in an object store: the format alone keeps batches apart."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from millpond.pipeline.cli import main
from millpond.pipeline.errors import BadOption, PipelineError
from millpond.pipeline.state.batch import batch_of
from millpond.pipeline.state.delta_table import DeltaState
from millpond.pipeline.state.formats import existing_feed, table_in
from millpond.pipeline.state.location import location_of
from tests.pipeline.histories import change, event, numbered, reduced, state_of, straight
from tests.pipeline.object_store import object_store
from tests.pipeline.state.test_change_feed import add_to_delta, check_feed

pytest.importorskip("deltalake")
pytest.importorskip("moto")

BODIES = [change("cart", f"k{i % 5}", "insert", i) for i in range(12)]
RUN = [(0, body) for body in BODIES[:9]] + [
    (1, BODIES[0]),
    (0, event(headers={"control": "reset"})),
]
RUN += [(0, change("cart", "k1", "delete", None)), (0, BODIES[2])]


@pytest.fixture(scope="module")
def store() -> Iterator[dict[str, str]]:
    with object_store("bucket") as variables:
        yield variables


@pytest.fixture(autouse=True)
def _reached(store: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in store.items():
        monkeypatch.setenv(name, value)


def test_a_table_and_its_feed_with_batches_that_run_again(
    capsys: pytest.CaptureFixture[str],
) -> None:
    place = "s3://bucket/first"
    rows, bounds = numbered(RUN), [0, 4, 9, len(RUN)]
    for batch in range(3):
        for _ in range(2):
            add_to_delta(place, batch, rows[bounds[batch] : bounds[batch + 1]])
    assert state_of(table_in(f"{place}/table")) == straight(RUN)
    check_feed(existing_feed(f"{place}/changes"), bounds, RUN)
    assert main(["show", f"{place}/table", "--json"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    shown = {(row["partition"], row["type"], row["key"]): row["value"] for row in lines}
    assert shown == straight(RUN)
    assert main(["changes", f"{place}/changes", "--after", "1"]) == 0
    assert "delete" in capsys.readouterr().out
    assert main(["compact", f"{place}/table"]) == 0
    assert main(["vacuum", f"{place}/table", "--keep", "1"]) == 0
    assert state_of(table_in(f"{place}/table")) == straight(RUN)


def test_of_two_jobs_with_one_batch_the_second_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both have found that the table lacks the batch: a folder has a lock against this."""
    place, rows = "s3://bucket/second", numbered(RUN)
    add_to_delta(place, 0, rows[:4])
    late = DeltaState(f"{place}/table")
    opened = late._open()
    add_to_delta(place, 1, rows[4:9])
    monkeypatch.setattr(late, "_open", lambda: opened)
    found = batch_of("q", 1, reduced(rows[4:9], 2, 1))
    with pytest.raises(PipelineError, match=r"table_in_use.*another job wrote to s3://"):
        late.commit(found)
    assert state_of(table_in(f"{place}/table")) == straight(RUN[:9])


def test_what_is_wrong_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    def told(*words: str) -> tuple[int, str]:
        return main(words), capsys.readouterr().err

    assert told("show", "s3://bucket/nothing") == (
        4,
        "millpond[no_table]: no table in s3://bucket/nothing\n",
    )
    code, err = told("show", "s3://nowhere/table")
    assert code == 1 and err.count("\n") == 1
    assert err.startswith("millpond[bad_store]: s3://nowhere/table: Generic S3 error")
    with pytest.raises(SystemExit):
        told("show", "ftp://host/table")
    with pytest.raises(BadOption, match="no store ftp"):
        location_of("ftp://host/table")


def test_a_table_of_another_query_is_refused() -> None:
    place: Any = "s3://bucket/third"
    add_to_delta(place, 0, numbered(RUN)[:2])
    with pytest.raises(PipelineError, match="other_query"):
        DeltaState(f"{place}/table").is_due("another", 1)
