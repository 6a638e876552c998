"""Failures of Spark as one line, without a running Spark."""

from __future__ import annotations

import logging
from queue import SimpleQueue
from types import SimpleNamespace

import pytest

pytest.importorskip("pyspark")

from py4j.protocol import Py4JJavaError, Py4JNetworkError
from pyspark.errors import AnalysisException

from millpond.pipeline.commands.run import STARTS_MAX, _run
from millpond.pipeline.errors import PipelineError
from millpond.pipeline.spark.session import silence, spark_errors


class Thrown:
    """An exception as Java has it."""

    def __init__(self, text: str, cause: Thrown | None = None) -> None:
        self._text, self._cause = text, cause

    def getCause(self) -> Thrown | None:
        return self._cause

    def getMessage(self) -> str:
        return self._text


class Calling(Py4JJavaError):
    """The exception that py4j raises, without a gateway."""

    def __init__(self, pages: str, thrown: Thrown) -> None:
        self._pages, self.java_exception = pages, thrown

    def __str__(self) -> str:
        return self._pages


OURS = "millpond[data_lost]: records 1 to 2 were trimmed"
PAGES = "An error occurred while calling o68.start.\n: java.lang.X: a\n\tat b\n"


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (Calling(PAGES, Thrown("a", Thrown("not a folder\nx"))), "[spark_failed]: not a folder ("),
        (Calling(f"{PAGES}{OURS}\n", Thrown("a")), OURS.removeprefix("millpond")),
        (
            Calling(f"{PAGES}Python worker failed to connect back.\n", Thrown("timed out")),
            "[no_worker]: a Python process of Spark did not connect",
        ),
        (AnalysisException("no table x\n  at y"), "[spark_failed]: no table x ("),
        (Py4JNetworkError("no answer"), "[spark_failed]: Spark's Java is gone: no"),
        (ConnectionRefusedError(111, "no"), "[spark_failed]: Spark's Java is gone: [E"),
    ],
)
def test_what_spark_fails_by_is_one_line(error: Exception, told: str) -> None:
    with pytest.raises(PipelineError) as found, spark_errors():
        raise error
    assert str(found.value).startswith(f"millpond{told}") and "\n" not in str(found.value)


def test_a_worker_that_does_not_connect_is_tried_again(
    capsys: pytest.CaptureFixture[str],
) -> None:
    class Session:
        """A session of Spark that has no process to plan a query with."""

        tries = 0

        @property
        def readStream(self) -> object:
            self.tries += 1
            raise AnalysisException("page\nPython worker failed to connect back.\nmore")

    session, batches = Session(), SimpleNamespace(reports=SimpleQueue())
    with pytest.raises(PipelineError, match="no_worker"), spark_errors():
        _run(session, None, batches, None)  # type: ignore[arg-type]
    assert session.tries == STARTS_MAX
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == STARTS_MAX - 1
    for line in lines:
        assert line.startswith("millpond[no_worker]: ") and line.endswith("; trying again")


def test_pages_of_pyspark_and_py4j_are_not_written() -> None:
    page = logging.LogRecord("root", logging.ERROR, "x/java_gateway.py", 1, "no", None, None)
    other = logging.LogRecord("root", logging.ERROR, "x/sink.py", 1, "no", None, None)
    try:
        silence(True)
        found = [bool(logging.getLogger().filter(each)) for each in (page, other)]
        names = ("SQLQueryContextLogger", "py4j.clientserver")
        found += [logging.getLogger(name).isEnabledFor(logging.ERROR) for name in names]
    finally:
        silence(False)
    assert found == [False, True, False, False]
    assert logging.getLogger().filter(page)
