"""The demonstration of job queues: a schedule, a flow, a rate limit, and kill -9 of a worker and of
the node (scripts/demo-jobs).

It uses the `millpond` command, and a blocking client that puts the flow.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from pathlib import Path

from millpond.jobs import Step, join
from millpond.sync import Queue
from scripts.demo_processes import NODE, Failed, Processes, report, run_demo, wait_until

LATER_S = 3
BAD = "nobody"
TICK = "tick"
PARTS = 6
CALLS = 12
CALLS_A_SECOND = 2
TASKS = f'''
import time
from pathlib import Path
from millpond.jobs import Backoff, task

@task(queue="mail", attempts=3, backoff=Backoff(0.1))
def send(mail):
    time.sleep(0.02)
    if mail["to"] == "{BAD}" and not Path("found").exists():
        raise LookupError("no such user")
    with open("done", "a") as done:
        done.write(mail["to"] + "\\n")

@task(queue="album")
def resize(width):
    time.sleep(0.3)
    return width // 2

@task(queue="album")
def bind(widths):
    return sum(widths)

@task(queue="calls")
def call(number):
    with open("called", "a") as called:
        called.write(f"{{number}} {{time.monotonic()}}\\n")
'''


class JobProcesses(Processes):
    """A node with a queue `mail`, its workers, and the file in which they list finished jobs."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        (folder / "tasks.py").write_text(TASKS)

    def start_worker(self, name: str) -> None:
        """Start a worker of four jobs at once."""
        self.start(name, "work", "tasks", "--name", name, "--concurrency", "4", "--wait", "10")

    def done(self) -> Counter[str]:
        """The number of times that each job was done."""
        notes = self.folder / "done"
        return Counter(notes.read_text().split()) if notes.exists() else Counter()

    def called(self) -> dict[int, float]:
        """When each call was made; the last time, where it was made again."""
        notes = self.folder / "called"
        lines = [each.split() for each in notes.read_text().splitlines()] if notes.exists() else []
        return {int(number): float(at) for number, at in lines}

    def put_flow(self) -> int:
        """Put a flow: parts beside each other, and a last step that gets their results."""
        parts = [Step("resize", 2 * number) for number in range(PARTS)]
        with Queue(f"tcp://{self.address}", "album") as queue:
            return queue.put_flow(join(Step("bind"), parts))

    def counts(self) -> dict[str, int]:
        """The number of jobs in each state."""
        found: dict[str, int] = json.loads(self.run("jobs", "counts", "mail", "--json"))
        return found


def main() -> int:
    """Run the demonstration; 0 if every job was done."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=300, metavar="N", help="how many")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="leave the data folder there")
    args = parser.parse_args()
    return run_demo(lambda folder: run_jobs(folder, max(20, args.jobs)), args.keep)


def run_jobs(folder: Path, count: int) -> str:
    """Run all steps. Raises Failed."""
    processes = JobProcesses(folder)
    try:
        processes.start_node()
        repeated = put_and_work(processes, count)
    finally:
        processes.close()
    return f"every job was done, {repeated} more than once, because their worker was killed"


def put_and_work(processes: JobProcesses, count: int) -> int:
    """Put jobs, kill a worker and the node, and return how many jobs were done more than once."""
    expected = {f"user{number}" for number in range(count)} | {"later", "once"}
    lines = "".join(f'{{"to": "user{number}"}}\n' for number in range(count))
    processes.run("jobs", "put", "mail", "--lines", typed=lines)
    processes.run("jobs", "put", "mail", f'{{"to": "{BAD}"}}')
    due_at = time.monotonic() + LATER_S
    processes.run("jobs", "put", "mail", "--due", str(LATER_S), '{"to": "later"}')
    first = processes.run("jobs", "put", "mail", "--unique", "once", '{"to": "once"}')
    if processes.run("jobs", "put", "mail", "--unique", "once", '{"to": "once"}') != first:
        raise Failed("two jobs have one unique key")
    processes.run("jobs", "schedule", "add", "mail", TICK, "--every", "1s", f'{{"to": "{TICK}"}}')
    report(f"a schedule puts a job every second: {TICK}")
    flow = processes.put_flow()
    report(f"a flow is put: {PARTS} jobs, and one that gets their results")
    processes.run("jobs", "limits", "calls", "--rate", f"{CALLS_A_SECOND}/s", "--burst", "1")
    called_at = time.monotonic()
    calls = "".join(f"{number}\n" for number in range(CALLS))
    processes.run("jobs", "put", "calls", "--lines", typed=calls)
    report(f"{CALLS} calls are put, of which {CALLS_A_SECOND} start in a second")
    report(f"{count} jobs are put; one that fails, one for later, one with a unique key put twice")
    for name in ("ann", "ben"):
        processes.start_worker(name)
    wait_until("a third of them is done", lambda: len(processes.done()) > count // 3)
    if processes.done()["later"] and time.monotonic() < due_at:
        raise Failed("a job was done before it was due")
    processes.stop("ann", by_force=True)
    processes.start_worker("eve")
    wait_until("two thirds are done", lambda: len(processes.done()) > 2 * count // 3)
    processes.stop(NODE, by_force=True)
    processes.start_node()
    wait_until("all are done but one", lambda: expected <= set(processes.done()))
    check_flow(processes, flow)
    check_calls(processes, called_at)
    return retry_the_dead(processes, expected)


def check_flow(processes: JobProcesses, flow: int) -> None:
    """The flow has run, over the kills: its result is that of all its parts."""
    result = processes.run("jobs", "flow", "result", "album", str(flow)).strip()
    if result != str(sum(range(PARTS))):
        raise Failed(f"the result of the flow is {result}")
    report(f"the flow has its result: {result}")


def check_calls(processes: JobProcesses, since: float) -> None:
    """All calls are made, and not faster than the limit lets them, with one for the restart."""
    wait_until("all calls are made", lambda: len(processes.called()) == CALLS)
    took_s = max(processes.called().values()) - since
    if took_s < (CALLS - 2) / CALLS_A_SECOND:
        raise Failed(f"{CALLS} calls were made in {took_s:.1f} s")
    report(f"{CALLS} calls took {took_s:.1f} s")


def retry_the_dead(processes: JobProcesses, expected: set[str]) -> int:
    """The failed job becomes a dead letter; its cause is removed, and it is retried."""
    wait_until("the failing job is a dead letter", lambda: processes.counts()["dead"] == 1)
    letter = json.loads(processes.run("jobs", "dead", "ls", "mail", "--json"))
    report(f"its reason: {letter['reason']}")
    (processes.folder / "found").touch()
    processes.run("jobs", "dead", "retry", "mail", "--all")
    wait_until("the schedule has put two jobs", lambda: processes.done()[TICK] > 1)
    processes.run("jobs", "schedule", "rm", "mail", TICK, "--yes")
    wait_until("the retried job is done", lambda: processes.done()[BAD] > 0)
    wait_until("the queue is empty", lambda: not any(processes.counts()[each] for each in STATES))
    for name in ("ben", "eve"):
        processes.stop(name)
    done = processes.done()
    if set(done) != expected | {BAD, TICK}:
        raise Failed(f"done was {sorted(done)}")
    return sum(1 for who, times in done.items() if times > 1 and who != TICK)


STATES = ("ready", "delayed", "leased", "dead")


if __name__ == "__main__":
    sys.exit(main())
