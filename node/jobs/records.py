"""Records of jobs: results and progress as the node keeps them, by the ids of the jobs.

The bytes are a MessagePack map (docs/reference/wire-protocol.md, "The bytes of a job").
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from millpond.node.jobs.errors import JobCancelled, JobFailed
from millpond.node.jobs.payload import UNREADABLE
from millpond.node.jobs.requests import JobState, job_info

KEEP_S_MAX = 30 * 86_400
RECORD_BYTES_MAX = 256 * 1024
LOG_LINES_MAX = 100
LOG_CHARS_MAX = 500
TEXT_CHARS_MAX = 500
PROGRESS_BYTES_MAX = 16 * 1024


class JobRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """A record. `kind` `progress`: the job runs. `value`: the result, or a map of `reason` and
    `error`. `progress`, `text` and `logs` are what the handler of this attempt told."""

    kind: Literal["progress", "result", "failed"] = msgspec.field(name="k")
    value: Any = msgspec.field(name="v", default=None)
    progress: Any = msgspec.field(name="p", default=None)
    text: str = msgspec.field(name="t", default="")
    logs: list[str] = msgspec.field(name="l", default_factory=list)
    attempt: int = msgspec.field(name="a", default=0)
    at: int = msgspec.field(name="e", default=0)


class JobProgress(msgspec.Struct, frozen=True):
    """The progress of a job: the latest `value` and `text` that its handler reported, and the last
    lines that it logged.

    `state` of the job, None: it is not in the queue. `attempt` reported it, at `at` in ms since
    1970; both 0: nothing was reported.
    """

    state: JobState | None
    value: object = None
    text: str = ""
    logs: list[str] = []
    attempt: int = 0
    at: int = 0


class FoundRecord(msgspec.Struct, frozen=True):
    """The answer to a question for a record. `dead` is the reason of a dead letter."""

    state: JobState | None
    record: JobRecord | None
    is_final: bool
    dead: str | None = None

    @property
    def progress(self) -> JobProgress:
        """The known progress of the job."""
        found = self.record
        if found is None:
            return JobProgress(self.state)
        return JobProgress(
            self.state, found.progress, found.text, found.logs, found.attempt, found.at
        )

    def result(self) -> object:
        """The result. Raises JobFailed and JobCancelled; LookupError where there is none yet."""
        if self.dead is not None:
            reason, _, error = self.dead.partition(": ")
            raise JobFailed(reason or "dead", error)
        if not self.is_final:
            raise LookupError("the job has not ended")
        if self.record is None:
            raise JobCancelled("the job was cancelled")
        if self.record.kind == "failed":
            value = self.record.value if isinstance(self.record.value, dict) else {}
            raise JobFailed(str(value.get("reason", "unknown")), str(value.get("error", "")))
        return self.record.value


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(JobRecord)


def encode_record(record: JobRecord) -> bytes:
    """The bytes. Raises what `UNREADABLE` has for values that MessagePack cannot encode."""
    return _encoder.encode(record)


def decode_record(data: bytes) -> JobRecord | None:
    """None: there is none, or the bytes are something else."""
    try:
        return _decoder.decode(data) if data else None
    except UNREADABLE:
        return None


def found_record(answer: dict[str, Any]) -> FoundRecord:
    """The record of an answer, or the dead letter that came in its place."""
    if "final" not in answer:
        info = job_info(answer)
        return FoundRecord(info.state, None, False, info.reason)
    record = decode_record(answer["data"] or b"")
    return FoundRecord(answer["state"], record, bool(answer["final"]))


def flow_results(records: list[Any]) -> list[object]:
    """The results that a job of a flow has of others; errors stand for those that failed."""
    results: list[object] = []
    for each in records:
        try:
            record = msgspec.convert(each, JobRecord)
            results.append(FoundRecord(None, record, is_final=True).result())
        except JobFailed as error:
            results.append(error)
        except msgspec.ValidationError:
            results.append(JobFailed("unknown"))
    return results


def kept_seconds(keep: int) -> int:
    """The time for which a result is kept, in whole seconds. Raises ValueError."""
    if not 0 <= keep <= KEEP_S_MAX:
        raise ValueError(f"a result is kept for 0 to {KEEP_S_MAX} seconds, not {keep}")
    return int(keep)
