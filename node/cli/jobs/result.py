"""`millpond jobs result`: the result of a job by its id, now or once there is one."""

from __future__ import annotations

import argparse
import json

from millpond.node.cli.exit_codes import ExitCode, Failure
from millpond.node.cli.jobs.options import jsonable, shown_time
from millpond.node.cli.output import print_json, print_line
from millpond.node.jobs.errors import JobCancelled, JobFailed
from millpond.node.jobs.queue import Queue
from millpond.node.jobs.records import JobProgress

RESULT_EPILOG = """\
examples:
  millpond jobs put mail --keep 1d '{"to": "alice"}'    have the result kept for a day
  millpond jobs result mail ID                          print it as JSON
  millpond jobs result mail ID --wait --timeout 60      wait for it

Exit code 1: the job failed or was cancelled; 3: there is no result yet; 4: none is kept.
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.add_argument("--wait", action="store_true", help="wait until the job has ended")


async def show_result(args: argparse.Namespace, queue: Queue) -> None:
    """Print the result. Raises Failure."""
    job: int = args.ids
    try:
        result = jsonable(await queue.result(job, None if args.wait else 0.5))
    except (JobFailed, JobCancelled) as exc:
        is_gone = isinstance(exc, JobFailed) and exc.reason == "gone"
        code = ExitCode.NOT_FOUND if is_gone else ExitCode.FAILURE
        raise Failure(f"job {job}: {exc}", code) from exc
    except TimeoutError as exc:
        state = (await queue.progress(job)).state or "over"
        text = f"job {job} has no result yet: it is {state}"
        raise Failure(text, ExitCode.TIMEOUT, "--wait waits for it") from exc
    if args.json:
        print_json({"id": str(job), "result": result})
    else:
        print_line(json.dumps(result, ensure_ascii=False))


def progress_fields(progress: JobProgress) -> dict[str, object]:
    """The JSON fields of the progress of a job; none where it reported nothing."""
    if not progress.at:
        return {}
    fields: dict[str, object] = {"progress": jsonable(progress.value), "text": progress.text}
    return fields | {"reported": shown_time(progress.at), "logs": progress.logs}
