"""The location of a table: a folder of this machine, a URL of an object store, or a name in an
Iceberg catalog; that of a change feed can be a stream of the node as well.

Access to a store is by environment variables, such as AWS_ENDPOINT_URL and AWS_ACCESS_KEY_ID.
"""

from __future__ import annotations

import re
from pathlib import Path

from millpond.pipeline.errors import BadOption, PipelineError

Location = Path | str
SCHEMES = ("s3", "s3a", "gs", "az", "abfs", "abfss", "hdfs")
ICEBERG = "iceberg://"
STREAM = "stream://"
_IN_CATALOG = re.compile(r"iceberg://[^/]+/[^/.]+(\.[^/.]+)+")
_COLOURS = re.compile(r"\x1b\[[0-9;]*m|[\u21b3|]")


def location_of(text: str) -> Location:
    """The location that a text names. Raises BadOption."""
    scheme, colon, _ = text.partition("://")
    if not colon:
        return Path(text).absolute()
    if text.startswith(STREAM) and text != STREAM:
        return text
    if text.startswith(ICEBERG):
        if _IN_CATALOG.fullmatch(text) is None:
            raise BadOption(f"{text}: not {ICEBERG}CATALOG/NAMESPACE.TABLE")
        return text
    if scheme not in SCHEMES:
        raise BadOption(f"{text}: no store {scheme}://", f"a folder, iceberg, {', '.join(SCHEMES)}")
    return text.rstrip("/")


def store_error(location: Location, error: Exception) -> PipelineError:
    """The error of a store that does not answer, or refuses. Its texts are trees of many lines."""
    lines = [_COLOURS.sub("", line).strip() for line in str(error).splitlines()]
    text = " ".join(line for line in lines if line)
    return PipelineError("bad_store", f"{location}: {text[:400]}", "see its environment variables")
