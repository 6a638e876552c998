"""The errors of the pipeline, each as one line: a stable code, the cause, and a hint."""

from __future__ import annotations

import re
from collections.abc import Sequence

_THROWN = re.compile(r"^(?:[\w.]*\.)?(\w*(?:Error|Exception): .+)$", re.MULTILINE)
_NO_WORKER = "Python worker failed to connect back"
NO_WORKER = "no_worker"
_LINE = re.compile(r"millpond\[(\w+)\]: (.*)")


class PipelineError(Exception):
    """An error of the pipeline. Its text survives Spark's wrapping, which keeps only text."""

    def __init__(self, code: str, text: str, hint: str = "") -> None:
        line = f"millpond[{code}]: {text}" + (f" ({hint})" if hint else "")
        super().__init__(line)
        self._parts = (code, text, hint)

    def __reduce__(self) -> tuple[type[PipelineError], tuple[str, str, str]]:
        return type(self), self._parts

    @property
    def code(self) -> str:
        """The stable code, for programs."""
        return self._parts[0]

    @property
    def text(self) -> str:
        """The cause."""
        return self._parts[1]


class BadOption(PipelineError):
    """An option of the source or the sink is unknown or has a wrong value."""

    def __init__(self, text: str, hint: str = "") -> None:
        super().__init__("bad_option", text, hint)

    def __reduce__(self) -> tuple[type[PipelineError], tuple[str, str, str]]:
        return PipelineError, self._parts


class DataLost(PipelineError):
    """Records were trimmed before they were read."""

    def __init__(self, text: str) -> None:
        hint = "the option failOnDataLoss=false skips lost records"
        super().__init__("data_lost", text, hint)

    def __reduce__(self) -> tuple[type[PipelineError], tuple[str, str, str]]:
        return PipelineError, self._parts


def last_line(text: str) -> str | None:
    """The last line of a PipelineError in an error text of Spark."""
    found: Sequence[re.Match[str]] = list(_LINE.finditer(text))
    return found[-1].group(0).rstrip() if found else None


def has_cause(text: str) -> bool:
    """Whether an error text of Spark names a cause that `found_in` knows."""
    return last_line(text) is not None or _NO_WORKER in text


def found_in(text: str) -> PipelineError:
    """The PipelineError in an error text of Spark, or one with the last exception in it."""
    line = last_line(text)
    parts = None if line is None else _LINE.fullmatch(line)
    if parts is not None:
        return PipelineError(parts[1], parts[2])
    if _NO_WORKER in text:
        cause = "a Python process of Spark did not connect to its Java"
        return PipelineError(NO_WORKER, cause, "the machine is busy, or 127.0.0.1 is blocked")
    thrown = _THROWN.findall(text.partition("JVM stacktrace:")[0])
    cause = thrown[-1] if thrown else text.strip().partition("\n")[0]
    return PipelineError("spark_failed", cause, "--log-level error shows more")
