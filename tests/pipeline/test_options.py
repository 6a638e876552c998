"""Options are taken as Kafka's source has them, and mistakes are told by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from millpond.pipeline.errors import BadOption, DataLost, PipelineError, found_in, last_line
from millpond.pipeline.options import SourceOptions, sink_options, source_options
from millpond.pipeline.spark.offsets import EARLIEST, LATEST, TopicPartition


def batch(**given: str) -> SourceOptions:
    return source_options({"subscribe": "orders", **given}, is_streaming=False)


def streaming(**given: str) -> SourceOptions:
    return source_options({"subscribe": "orders", **given}, is_streaming=True)


def test_a_batch_reads_all_and_a_stream_what_comes() -> None:
    assert (batch().start.offset, batch().end.offset) == (EARLIEST, LATEST)
    assert streaming().start.offset == LATEST


def test_names_have_no_case() -> None:
    assert batch(MAXOFFSETSPERTRIGGER="5").rows_max == 5
    assert batch(failondataloss="FALSE").fail_on_data_loss is False


def test_offsets_partition_by_partition() -> None:
    found = batch(startingOffsets='{"orders":{"0":23,"1":-2}}').start
    assert found.offsets == {TopicPartition("orders", 0): 23, TopicPartition("orders", 1): EARLIEST}


def test_a_time_wins_over_offsets() -> None:
    found = batch(startingOffsets="earliest", startingTimestamp="1700000000000").start
    assert found.time_ms == 1_700_000_000_000


def test_what_is_assigned() -> None:
    found = source_options({"assign": '{"t":[1,0]}'}, is_streaming=False).subscription.assigned
    assert found == (TopicPartition("t", 0), TopicPartition("t", 1))


def test_a_token_comes_from_a_file_and_is_not_shown(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("s3cret\n")
    nodes = batch(tokenFile=str(file)).nodes
    assert nodes.token == "s3cret"
    assert "s3cret" not in repr(nodes)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"subscibe": "a"}, "subscribe?"),
        ({"assign": "{}"}, "exactly one"),
        ({"startingOffsets": "latest"}, "cannot begin at latest"),
        ({"endingOffsets": "earliest"}, "cannot end at earliest"),
        ({"endingOffsets": '{"orders":{"0":-2}}'}, "cannot end at earliest"),
        ({"startingOffsets": "soon"}, "not JSON"),
        ({"maxOffsetsPerTrigger": "0"}, "at least 1"),
        ({"failOnDataLoss": "maybe"}, "true or false"),
        ({"address": "ftp://x"}, "address"),
        ({"address": "http://user@x"}, "address"),
        ({"address": "http://a:1|ftp://b"}, "address"),
        ({"address": "a:1|http://a:1"}, "twice"),
        ({"address": "|".join(f"a:{port}" for port in range(1, 18))}, "at most 16"),
        ({"maxTriggerDelay": "soon"}, "15m"),
        ({"tokenFile": "/nowhere"}, "no token"),
        ({"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "8"}, "above"),
        ({"startingOffsetsByTimestampStrategy": "never"}, "error or latest"),
    ],
)
def test_mistakes_are_told(given: dict[str, str], told: str) -> None:
    with pytest.raises(BadOption, match=told.replace("?", r"\?")):
        batch(**given)


def test_exactly_one_way_to_subscribe() -> None:
    for given in ({}, {"subscribe": "a", "subscribePattern": "b"}, {"subscribePattern": "["}):
        with pytest.raises(BadOption):
            source_options(given, is_streaming=False)


def test_a_stream_has_no_end() -> None:
    with pytest.raises(BadOption, match="no end"):
        streaming(endingOffsets="latest")


def test_a_sink_writes_to_one_node() -> None:
    assert sink_options({"topic": "out"}).topic == "out"
    with pytest.raises(BadOption, match="one node"):
        sink_options({"address": "http://a:1,http://b:1"})


def test_a_node_may_have_several_addresses() -> None:
    assert sink_options({"address": "a:1 | https://b:2/"}).nodes.addresses == (
        "http://a:1|https://b:2",
    )
    given = {"address": "a:1|b:1,c:1", "subscribe": "t"}
    found = source_options(given, is_streaming=False).nodes.addresses
    assert found == ("http://a:1|http://b:1", "http://c:1")


def test_batches_have_numbers_and_somebody_who_writes_them() -> None:
    assert sink_options({"writerId": "w", "batchId": "0"}).batch == 0
    for given in ({"batchId": "1"}, {"batchId": "-1", "writerId": "w"}):
        with pytest.raises(BadOption, match="batchId"):
            sink_options(given)


def test_an_error_is_found_in_whatever_is_around_it() -> None:
    """Spark keeps the text of an exception, and nothing else of it."""
    error = DataLost("records 1 to 2 of 'a' 0 were trimmed")
    text = f"Traceback:\n  File x\npipeline.errors.DataLost: {error}\n\tat org.apache.spark.X\n"
    assert last_line(text) == str(error)
    assert last_line("nothing of ours") is None
    assert str(found_in(text)) == str(error)
    assert found_in(text).code == "data_lost"


def test_of_what_is_not_ours_the_cause_is_told() -> None:
    text = "[FAILED] Query\nTraceback (most recent call last):\n  x\nValueError: odd\n\n"
    told = str(found_in(f"{text}JVM stacktrace:\njava.lang.Exception: no"))
    assert told == "millpond[spark_failed]: ValueError: odd (--log-level error shows more)"
    assert "no master" in str(found_in("no master\nat x"))


def test_errors_travel_between_processes() -> None:
    import pickle

    for error in (PipelineError("a", "b", "c"), BadOption("b"), DataLost("b")):
        found = pickle.loads(pickle.dumps(error))
        assert str(found) == str(error)
        assert found.code == error.code
