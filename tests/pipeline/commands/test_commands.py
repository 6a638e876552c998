"""`millpond pipeline ...` as far as it goes without Spark: what is wrong is one line, with a code
and what to do."""

from __future__ import annotations

import argparse
import json
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from zipfile import ZipFile

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from millpond.pipeline.cli import add_commands, main
from millpond.pipeline.commands.run import options_of, with_cli_options
from millpond.pipeline.errors import DataLost
from millpond.pipeline.options import source_options
from millpond.pipeline.spark import java_home as javahome
from millpond.pipeline.state.delta_table import DeltaState
from millpond.pipeline.state.entities import STORED
from millpond.pipeline.state.files import LocalFiles
from millpond.pipeline.state.progress import QueryProgress
from millpond.pipeline.state.table import locked
from tests.pipeline.histories import add, change, numbered, state_of
from tests.pipeline.pipeline_nodes import NodeProcess
from tests.pipeline.state.test_change_feed import add_to_delta

pytest.importorskip("deltalake")

Told = Callable[..., tuple[int, str, str]]


@pytest.fixture
def told(capsys: pytest.CaptureFixture[str]) -> Told:
    def tell(*words: str) -> tuple[int, str, str]:
        code = main(words)
        out, err = capsys.readouterr()
        return code, out, err

    return tell


@pytest.fixture
def job(shared_node: NodeProcess, tmp_path: Path) -> list[str]:
    """The words of a job that could run."""
    shared_node.make("s")
    words = ["run", "--connect", shared_node.address, "--subscribe", "s", "--timeout", "0.5"]
    return [*words, "--table", str(tmp_path / "t"), "--checkpoint", str(tmp_path / "c")]


def nobody() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{probe.getsockname()[1]}"


def test_what_is_wrong_is_one_line(told: Told, job: list[str], tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "schemas.json").write_text('{"n": 3}')
    cases = {
        ("--subscribe", "nothing"): "[no_stream]: no stream nothing at http://",
        ("--connect", nobody()): "[node_away]: http://",
        ("--connect", "ftp://x"): "[bad_option]: address: 'ftp://x' (such as http://",
        ("--subscribe", " ,"): "[bad_option]: subscribe: no stream is named",
        ("--token-file", "/nowhere"): "[bad_option]: --token-file: no token in /nowhere",
        ("--conf", "memory"): "[bad_option]: --conf 'memory' (such as spark.",
        ("--keep", "0"): "[bad_option]: --keep: at least 1",
        ("--max-per-batch", "0"): "[bad_option]: --max-per-batch: at least 1",
        ("--every", "0"): "[bad_option]: --every: at least 0.1",
        ("--schemas", str(tmp_path / "schemas.json")): "[bad_option]: ",
        ("--report", "/nowhere/x.html"): "[bad_option]: --report: /nowhere/x.html cannot be",
        ("--table", str(tmp_path / "file")): "[bad_option]: table ",
    }
    for words, expected in cases.items():
        own = [words[1] if words[0] == "--connect" and each == job[2] else each for each in job]
        code, out, err = told(*own, *(words if words[0] != "--connect" else ()))
        assert err.count("\n") == 1 and err.startswith(f"millpond{expected}"), (words, err)
        assert code == (4 if "no_stream" in expected else 1) and not out


def test_hints_are_words_of_the_command_line(told: Told, job: list[str]) -> None:
    _, _, err = told(*job, "--connect", nobody())
    assert err.endswith("(see the option --timeout; a restart continues)\n")
    for words in (("--timeout", "nan"), ("--every", "inf"), ("--log-level", "loud")):
        with pytest.raises(SystemExit):
            told(*job, *words)
    assert with_cli_options(str(DataLost("a"))).endswith(
        "(the option --skip-lost skips lost records)"
    )
    asked = argparse.ArgumentParser()
    add_commands(asked)
    for words, strict in (((), True), (("--skip-lost",), False)):
        source = options_of(asked.parse_args([*job, *words])).source
        assert source_options(source, is_streaming=True).fail_on_data_loss is strict


def test_a_table_that_is_written_is_told_of(told: Told, job: list[str], tmp_path: Path) -> None:
    with locked(tmp_path / "t"):
        _, _, err = told(*job)
    assert (
        err
        == f"millpond[table_in_use]: another job writes to {tmp_path / 't'} (wait for its end)\n"
    )


def test_without_java_it_is_told_what_to_install(
    told: Told, job: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(javahome, "find_spec", lambda name: None)
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    monkeypatch.setenv("PATH", "/nowhere")
    code, _, err = told(*job)
    assert code == 1 and err.count("\n") == 1
    assert err.startswith("millpond[no_java]: Spark needs Java 17 or later: JAVA_HOME has none")
    assert "(pip install '.[spark]' brings one)" in err


def test_a_cache_that_cannot_be_written_is_told(
    told: Told, job: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    code, _, err = told(*job)
    assert code == 1 and err.count("\n") == 1
    assert err.startswith("millpond[no_session]: Spark did not start: [Errno 20] Not a directory")
    assert err.endswith("(set XDG_CACHE_HOME to a writable folder)\n")


def fill(folder: Path, batches: int) -> DeltaState:
    table = DeltaState(folder / "table")
    for batch in range(batches):
        rows = numbered([(0, change("cart", f"k{i}", "update", batch)) for i in range(8)])
        for row in rows:
            row["offset"] += batch * len(rows)
        add(table, batch, rows)
    return table


def test_a_table_is_shown_compacted_and_vacuumed(told: Told, tmp_path: Path) -> None:
    folder = str(fill(tmp_path, 5).folder)
    code, out, err = told("show", folder, "-n", "2")
    assert (code, err) == (0, "version 5, batch 4: 8 entities\n")
    assert len(out.splitlines()) == 2
    _, out, _ = told("show", folder, "--json")
    before = [json.loads(line) for line in out.splitlines()]
    assert {each["key"]: each["value"] for each in before} == {f"k{i}": 4 for i in range(8)}
    assert told("compact", folder)[1] == "0 files were merged into others\n"
    assert told("vacuum", folder, "--keep", "1")[1] == "4 files were removed\n"
    assert len(list((tmp_path / "table").glob("*.parquet"))) == 1
    _, out, err = told("show", folder, "--json")
    assert [json.loads(line) for line in out.splitlines()] == before


def test_what_a_producer_sends_stays_in_its_line(told: Told, tmp_path: Path) -> None:
    table = DeltaState(tmp_path / "table")
    body = change("cart", "a\n\x1b[31m", "update", 1).replace(b": 1", b":\n[1,\n2]")
    add(table, 0, numbered([(0, body)]))
    assert told("show", str(table.folder))[1] == "cart\ta\\x0a\\x1b[31m\t[1,\\x0a2]\n"


def test_no_table_and_nothing_to_keep(told: Told, tmp_path: Path) -> None:
    for words in (["show"], ["compact"], ["vacuum", "--keep", "2"], ["query"]):
        sql = ["SELECT 1"] if words == ["query"] else []
        code, _, err = told(words[0], str(tmp_path), *words[1:], *sql)
        assert code == 4 and err == f"millpond[no_table]: no table in {tmp_path}\n"
    code, _, err = told("vacuum", str(tmp_path), "--keep", "0")
    assert code == 1 and "at least 1" in err


def test_a_table_that_is_damaged_is_told_of(told: Told, tmp_path: Path) -> None:
    table = fill(tmp_path, 1)
    (data,) = (tmp_path / "table").glob("*.parquet")
    (entry,) = (tmp_path / "table" / "_delta_log").glob("*1.json")
    for damage, code in (
        (lambda: data.write_bytes(b"junk"), "bad_table"),
        (data.unlink, "bad_store"),
        (lambda: entry.write_bytes(b"\xff"), "bad_table"),
    ):
        damage()
        failed, _, err = told("show", str(table.folder))
        assert failed == 1 and err.count("\n") == 1, err
        assert err.startswith(f"millpond[{code}]: {table.folder}: ")


def test_the_packed_file_is_all_that_an_executor_needs_of_us(told: Told, tmp_path: Path) -> None:
    first, second = tmp_path / "one.zip", tmp_path / "two.zip"
    assert told("pack", str(first))[0] == told("pack", str(second))[0] == 0
    assert first.read_bytes() == second.read_bytes()
    assert {name.partition("/")[0] for name in ZipFile(first).namelist()} == {
        "millpond",
        "pyspark_millpond",
    }
    imported = (
        "import millpond.pipeline.spark.read_task, millpond.pipeline.spark.write_task;"
        "import millpond.pipeline.state.job as j; print(j.__file__)"
    )
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(first)!r}); {imported}"],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
    )
    assert done.stdout.startswith(str(first))
    code, _, err = told("pack", "/nowhere/x.zip")
    assert code == 1 and err.startswith("millpond[bad_option]: /nowhere/x.zip: No such file")


def test_how_much_is_left_is_what_the_node_has_behind_the_checkpoint(
    node: NodeProcess, tmp_path: Path
) -> None:
    node.make("a/0", "a/1")
    node.fill("a/0", [b"x"] * 10)
    node.trim("a/0", 4)
    source = node.given | {"subscribe": "a", "startingOffsets": "earliest"}

    def left(batch: int) -> int:
        with closing(QueryProgress(source)) as course:
            course.begin(LocalFiles(tmp_path))
            return course.left(batch)

    with closing(QueryProgress(source)) as course:
        course.begin(LocalFiles(tmp_path))
        assert (course.last(), course.done(-1), course.left(-1)) == (-1, 0, 7)
        (tmp_path / "offsets").mkdir()
        for batch, offset in enumerate((6, 11)):
            text = f'v1\n{{}}\n{{"a":{{"0":{offset},"1":0}}}}'
            (tmp_path / "offsets" / str(batch)).write_text(text)
        assert course.last() == 1
        assert (course.records(0), course.done(0), left(0)) == (2, 2, 5)
        node.fill("a/1", [b"y"] * 3)
        assert (course.records(1), course.done(1), left(1)) == (5, 7, 3)
        node.kill()
        assert course.left(0) == 5, "what it was told last"


def test_kept_versions_are_read_and_others_refused(told: Told, tmp_path: Path) -> None:
    folder = tmp_path / "all of 100%" / "table"
    for batch in range(3):
        bodies = [(0, change("cart", "a", "update", each)) for each in range(batch + 1)]
        add(DeltaState(folder), batch, numbered(bodies)[-1:])
    first = json.loads(told("show", str(folder), "--version", "2", "--json")[1])
    assert (first["value"], first["offset"]) == (1, 1)
    assert json.loads(told("show", str(folder), "--json")[1])["value"] == 2
    code, out, err = told("show", str(folder), "--version", "9")
    assert (code, out) == (4, "") and f"millpond[no_version]: {folder}" in err
    with pytest.raises(SystemExit):
        told("show", str(folder), "--version", "-1")
    told("compact", str(folder))
    told("vacuum", str(folder), "--keep", "1")
    assert told("show", str(folder), "--version", "2", "--json")[0] == 4


def test_the_version_of_a_time_is_read(told: Told, tmp_path: Path) -> None:
    folder = tmp_path / "table"
    times = [datetime.now(UTC)]
    for batch in range(2):
        rows = numbered([(0, change("cart", "a", "update", each)) for each in range(batch + 1)])
        add(DeltaState(folder), batch, rows[-1:])
        time.sleep(0.01)  # Delta's times are whole milliseconds
        times.append(datetime.now(UTC))
        time.sleep(0.01)

    def value_at(text: str) -> int:
        code, out, err = told("show", str(folder), "--timestamp", text, "--json")
        assert code == 0, err
        found: int = json.loads(out)["value"]
        return found

    assert [value_at(each.isoformat()) for each in times[1:]] == [0, 1]
    assert value_at(times[1].replace(tzinfo=None).isoformat()) == 0, "UTC without an offset"
    assert value_at(times[1].astimezone(timezone(timedelta(hours=5))).isoformat()) == 0
    code, out, err = told("show", str(folder), "--timestamp", times[0].isoformat())
    assert (code, out) == (4, "") and f"[no_version]: {folder} has no version as old as" in err
    for words in (["--timestamp", "noon"], ["--timestamp", "2026-01-01", "--version", "1"]):
        with pytest.raises(SystemExit):
            told("show", str(folder), *words)


def test_changes_are_shown(told: Told, tmp_path: Path) -> None:
    bodies = [change("cart", "a\x1b", "insert", {"n": 1}), change("cart", "a\x1b", "delete", None)]
    rows = numbered([(0, body) for body in bodies])
    for batch in range(2):
        add_to_delta(tmp_path, batch, rows[batch : batch + 1])
    feed = str(tmp_path / "changes")
    place = {"topic": "t", "partition": 0, "type": "cart", "key": "a\x1b"}
    fields = {**place, "timestamp": "1970-01-01T00:00:00+00:00"}
    lines = [json.loads(line) for line in told("changes", feed, "--json")[1].splitlines()]
    assert lines == [
        {"batch": 0, "operation": "insert", **fields, "offset": 0, "after": {"n": 1}},
        {"batch": 1, "operation": "delete", **fields, "offset": 1, "before": {"n": 1}},
    ]
    first, second = '0\tinsert\tcart\ta\\x1b\t\t{"n": 1}\n', '1\tdelete\tcart\ta\\x1b\t{"n": 1}\t\n'
    assert told("changes", feed)[1] == first + second
    assert told("changes", feed, "-n", "1")[1] == first
    assert told("changes", feed, "--after", "0")[1] == second
    assert told("changes", feed, "--after", "1")[1] == ""
    code, _, err = told("changes", str(tmp_path / "nothing"))
    assert code == 4 and err.startswith("millpond[no_table]: no change feed in ")


def old_table(folder: Path) -> None:
    """A table in the Parquet layout, of two buckets: a deletion, a reset, and a newer file."""

    def row(partition: int, key: str, value: bytes | None, offset: int) -> dict[str, object]:
        names = {"topic": "t", "partition": partition, "type": "cart", "key": key}
        return {**names, "value": value, "offset": offset, "timestamp": 0}

    files = {
        "0-a": [row(0, "a", b"1", 0), row(0, "b", b"1", 1)],
        "0-b": [row(0, "a", b"2", 2), row(0, "b", None, 3)],
        "1-a": [row(1, "c", b"1", 1), row(1, "d", b"1", 5)],
        "of no version": [row(1, "e", b"1", 6)],
    }
    for name in ("data", "_versions"):
        (folder / name).mkdir(parents=True)
    for name, rows in files.items():
        pq.write_table(pa.Table.from_pylist(rows, STORED), folder / "data" / name)
    version = {"query": "q", "batch": 6, "number": 9, "buckets": 2}
    version["files"] = {"0": ["0-a", "0-b"], "1": ["1-a"]}
    version["resets"] = [{"topic": "t", "partition": 1, "offset": 4}]
    (folder / "_versions" / "00000009.json").write_text(json.dumps(version))
    (folder / "_current").write_text("00000009.json")


def test_a_table_in_the_old_layout_is_converted_and_its_job_goes_on(
    told: Told, job: list[str], tmp_path: Path
) -> None:
    old_table(tmp_path / "t")
    old, new = str(tmp_path / "t"), str(tmp_path / "new")
    for words in (["show", old], job):
        code, _, err = told(*words)
        assert code == 1 and err.startswith(f"millpond[old_table]: {old} is a table in the Parquet")
        assert "millpond pipeline convert" in err
    assert told("convert", old, new)[1] == f"2 entities after batch 6 are in {new}\n"
    table = DeltaState(tmp_path / "new")
    assert state_of(table) == {(0, "cart", "a"): 2, (1, "cart", "d"): 1}
    assert not table.is_due("q", 6) and table.is_due("q", 7)
    for words, code, text in (
        ((old, new), 1, "has a table already"),
        ((new, old), 4, "no table in the Parquet layout"),
        ((old, old), 1, "old_table"),
    ):
        told_code, _, err = told("convert", *words)
        assert told_code == code and text in err
    (tmp_path / "feed" / "batch=00000001").mkdir(parents=True)
    assert "old_table" in told("changes", str(tmp_path / "feed"))[2]
