"""The Spark session of the pipeline, with little configuration and a quiet log."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from millpond.pipeline.errors import PipelineError, found_in, has_cause
from millpond.pipeline.spark.java_home import find_java
from millpond.pipeline.spark.packaging import cached
from millpond.pipeline.spark.worker_python import worker_python

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOCAL = "local[2,3]"
"""Two tasks at once, and three attempts of a task, which plain `local[2]` does not have."""

_CONF = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.default.parallelism": "2",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.driver.memory": "2g",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.execution.arrow.maxBytesPerBatch": str(64 * 2**20),
}
_JAVA = "spark.driver.extraJavaOptions"
_LOGGERS = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")
"""Loggers of PySpark that repeat the exception of a failed query."""
_LOOPBACK = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}


def build_session(
    app: str = "millpond",
    master: str = LOCAL,
    conf: Mapping[str, str] | None = None,
    *,
    log_level: str = "off",
) -> SparkSession:
    """A new session, or the existing one. Raises PipelineError: no_spark, no_java, no_session.

    Executors on other machines get the pipeline. `log_level`: level of Spark's log on stderr.
    """
    try:
        from py4j.protocol import Py4JJavaError
        from pyspark.errors import PySparkException
        from pyspark.sql import SparkSession
    except ImportError as error:
        text = f"Spark is not installed: {error}"
        raise PipelineError("no_spark", text, "pip install '.[spark]'") from None
    prepare_environment(master)
    silence(log_level == "off")
    builder = SparkSession.builder.appName(app).master(master)
    settings = {**_CONF, **(_LOOPBACK if is_local(master) else {}), **(conf or {})}
    settings[_JAVA] = f"{_java_options(log_level)} {settings.get(_JAVA, '')}".strip()
    for name, value in settings.items():
        builder = builder.config(name, value)
    try:
        session = builder.getOrCreate()
    except (PySparkException, Py4JJavaError) as error:
        question = "" if is_local(master) else f"is the master {master} running? "
        hint = f"{question}--log-level warn shows more"
        raise PipelineError("no_session", f"Spark did not start: {_cause(error)}", hint) from None
    if not is_local(master):
        with _cache_errors():
            file = cached(cache_dir(os.environ))
        session.sparkContext.addPyFile(str(file))
    _register(session)
    return session


def _register(session: SparkSession) -> None:
    """The short name `millpond`, also if Spark does not find `pyspark_millpond` by itself."""
    from millpond.pipeline.spark.source import MillpondSource  # needs pyarrow

    session.dataSource.register(MillpondSource)


@contextmanager
def spark_errors() -> Iterator[None]:
    """Raise PipelineError for errors of Spark in the block, also when its Java has ended."""
    from py4j.protocol import Py4JError, Py4JJavaError
    from pyspark.errors import PySparkException

    try:
        yield
    except PySparkException as error:
        raise found_in(str(error)) from None
    except Py4JJavaError as error:
        text = str(error)
        raise found_in(text if has_cause(text) else _cause(error)) from None
    except (Py4JError, ConnectionError) as error:  # py4j raises the latter, too
        text = f"Spark's Java is gone: {str(error).partition(chr(10))[0]}"
        raise PipelineError("spark_failed", text, "a restart continues") from None


def prepare_environment(master: str) -> None:
    """Set the environment of Spark's start script: Java, Python, and the address to listen on."""
    environ = os.environ
    python = Path(sys.executable)
    with _cache_errors():
        environ["JAVA_HOME"] = str(find_java(environ, cache_dir(environ)))
        if is_local(master) and "PYSPARK_PYTHON" not in environ:
            python = worker_python(python, cache_dir(environ))
    environ.setdefault("PYSPARK_PYTHON", str(python))
    if is_local(master):
        environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")


def is_local(master: str) -> bool:
    """The master is one process on this machine."""
    return master.partition("[")[0] == "local"


def cache_dir(environ: Mapping[str, str]) -> Path:
    """The cache folder."""
    root = environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "millpond"


@contextmanager
def _cache_errors() -> Iterator[None]:
    try:
        yield
    except (OSError, RuntimeError) as error:  # RuntimeError: no home folder
        hint = "set XDG_CACHE_HOME to a writable folder"
        raise PipelineError("no_session", f"Spark did not start: {error}", hint) from None


def silence(is_silent: bool) -> None:
    """Switch the log of Spark's Python side on stderr; errors reach the caller as exceptions."""
    from pyspark.logger import PySparkLogger

    for name in _LOGGERS:
        PySparkLogger.getLogger(name).disabled = is_silent
    root, bridge = logging.getLogger(), logging.getLogger("py4j")
    bridge.setLevel(logging.CRITICAL if is_silent else logging.NOTSET)
    change = root.addFilter if is_silent else root.removeFilter
    change(_is_no_page_of_py4j)


def _is_no_page_of_py4j(record: logging.LogRecord) -> bool:
    """A filter for records of py4j in the root logger, about an ended Java or a Ctrl-C."""
    return record.module != "java_gateway"


def _java_options(log_level: str) -> str:
    file = Path(__file__).with_name("log4j2.properties").as_uri()
    return f"-Dlog4j2.configurationFile={file} -Dmillpond.spark.log={log_level}"


def _cause(error: Exception) -> str:
    """The text of a Java exception's first cause, in one line."""
    thrown = getattr(error, "java_exception", None)
    while thrown is not None and thrown.getCause() is not None:
        thrown = thrown.getCause()
    text = str(error if thrown is None else thrown.getMessage() or thrown)
    return text.strip().partition("\n")[0]
