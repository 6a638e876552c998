"""What goes wrong in the pipeline, as one line: a stable code, what happened, and what to do."""

from __future__ import annotations

import re
from collections.abc import Sequence

_THROWN = re.compile(r"^(?:[\w.]*\.)?(\w*(?:Error|Exception): .+)$", re.MULTILINE)
_LINE = re.compile(r"millpond\[(\w+)\]: (.*)")


class PipelineError(Exception):
    """It cannot go on. Its text survives Spark's wrapping, which keeps nothing but text."""

    def __init__(self, code: str, text: str, hint: str = "") -> None:
        line = f"millpond[{code}]: {text}" + (f" ({hint})" if hint else "")
        super().__init__(line)
        self._parts = (code, text, hint)

    def __reduce__(self) -> tuple[type[PipelineError], tuple[str, str, str]]:
        return type(self), self._parts

    @property
    def code(self) -> str:
        """What programs tell it by."""
        return self._parts[0]


class BadOption(PipelineError):
    """An option of the source or the sink cannot be."""

    def __init__(self, text: str, hint: str = "") -> None:
        super().__init__("bad_option", text, hint)

    def __reduce__(self) -> tuple[type[PipelineError], tuple[str, str, str]]:
        return PipelineError, self._parts


class DataLost(PipelineError):
    """Records that were to be read are not there any more."""

    def __init__(self, text: str) -> None:
        hint = "the option failOnDataLoss=false goes on with what there is"
        super().__init__("data_lost", text, hint)

    def __reduce__(self) -> tuple[type[PipelineError], tuple[str, str, str]]:
        return PipelineError, self._parts


def last_line(text: str) -> str | None:
    """The line of a PipelineError in whatever Spark made of it; the last one counts."""
    found: Sequence[re.Match[str]] = list(_LINE.finditer(text))
    return found[-1].group(0).rstrip() if found else None


def found_in(text: str) -> PipelineError:
    """The PipelineError in whatever Spark made of it, or one with what was thrown last."""
    line = last_line(text)
    told = None if line is None else _LINE.fullmatch(line)
    if told is not None:
        return PipelineError(told[1], told[2])
    thrown = _THROWN.findall(text.partition("JVM stacktrace:")[0])
    why = thrown[-1] if thrown else text.strip().partition("\n")[0]
    return PipelineError("spark_failed", why, "--log-level error tells more")
