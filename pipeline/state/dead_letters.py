"""Dead letters of a job: rejected records as lines of JSON, in a file for each batch.

A batch that runs again replaces its file. A folder belongs to one query, because other queries have
the same batch numbers.
"""

from __future__ import annotations

import base64
import json

import pyarrow as pa

from millpond.pipeline.errors import PipelineError
from millpond.pipeline.state.files import Files

OWNER = "_query-"


class DeadLetters:
    """The dead letters of a job, in a folder that may not exist yet."""

    def __init__(self, files: Files) -> None:
        self._files = files

    def claim(self, query: str) -> None:
        """Mark the folder as this query's. Raises PipelineError if it is another's."""
        own = f"{OWNER}{query}"
        owners = [each for each in self._files.names() if each.startswith(OWNER)]
        if any(each != own for each in owners):
            text = f"{self._files} has the dead letters of another query, with another checkpoint"
            raise PipelineError("other_query", text, "use a new folder")
        if not owners:
            self._files.write(own, b"")

    def write(self, batch: int, rejects: pa.Table) -> None:
        """Make rejected records the file of a batch, or remove that of an earlier attempt."""
        name = f"batch-{batch:08}.jsonl"
        if rejects.num_rows:
            self._files.write(name, "".join(map(_line, rejects.to_pylist())).encode())
        else:
            self._files.remove(name)


def _line(row: dict[str, object]) -> str:
    time, value = row["timestamp"], row["value"]
    dead_letter = {
        "topic": row["topic"],
        "partition": row["partition"],
        "offset": row["offset"],
        "timestamp": time.isoformat(),  # type: ignore[attr-defined]
        "reason": row["reason"],
        "value_base64": base64.b64encode(value or b"").decode(),  # type: ignore[arg-type]
    }
    return json.dumps(dead_letter, sort_keys=True) + "\n"
