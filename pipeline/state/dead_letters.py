"""Dead letters of a job: rejected records as lines of JSON, in a file for each batch.

A batch that runs again replaces its file. A folder belongs to one query, because other queries have
the same batch numbers.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Sequence
from pathlib import Path
from uuid import uuid4

import pyarrow as pa

from millpond.pipeline.errors import PipelineError
from millpond.pipeline.state.disk import sync

STAGED = ".staged-"
OWNER = "_query-"


def claim(folder: Path, query: str, what: str = "dead letters") -> None:
    """Mark a folder, with `what` of batches in it, as this query's. Raises PipelineError if it is
    another's."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(each.name != f"{OWNER}{query}" for each in folder.glob(f"{OWNER}*")):
            text = f"{folder} has the {what} of another query, with another checkpoint"
            raise PipelineError("other_query", text, "use a new folder")
        (folder / f"{OWNER}{query}").touch()
    except OSError as error:
        raise PipelineError("bad_option", f"{what} {folder}: {error.strerror}") from None


def stage_dead_letters(folder: Path, rows: pa.Table) -> str:
    """Write rejected records to a hidden file; its name."""
    folder.mkdir(parents=True, exist_ok=True)
    name = f"{STAGED}{uuid4().hex}"
    with (folder / name).open("w", encoding="utf-8") as file:
        for row in rows.to_pylist():
            dead_letter = {
                "topic": row["topic"],
                "partition": row["partition"],
                "offset": row["offset"],
                "timestamp": row["timestamp"].isoformat(),
                "reason": row["reason"],
                "value_base64": base64.b64encode(row["value"] or b"").decode(),
            }
            file.write(json.dumps(dead_letter, sort_keys=True) + "\n")
        file.flush()
        os.fsync(file.fileno())
    return name


def commit_dead_letters(folder: Path, batch: int, names: Sequence[str]) -> None:
    """Make a staged file the batch's file, and remove those of earlier attempts."""
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / f"batch-{batch:08}.jsonl"
    if names:
        (folder / names[0]).replace(target)
    else:
        target.unlink(missing_ok=True)
    sync(folder)
    for each in folder.glob(f"{STAGED}*"):
        each.unlink()
