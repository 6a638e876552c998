"""The demonstration of job queues: kill -9 of a worker and of the node; see scripts/demo-jobs.

Everything is done with the `millpond` command, as people would.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from pathlib import Path

from scripts.demo_processes import NODE, Failed, Processes, perform, tell, until

LATER_S = 3
BAD = "nobody"
TASKS = f'''
import time
from pathlib import Path

def send(mail):
    time.sleep(0.02)
    if mail["to"] == "{BAD}" and not Path("found").exists():
        raise LookupError("no such user")
    with open("done", "a") as done:
        done.write(mail["to"] + "\\n")
'''


class Office(Processes):
    """A node with a queue `mail`, its workers, and the file in which they note what they did."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        (folder / "tasks.py").write_text(TASKS)

    def start_worker(self, name: str) -> None:
        """Start a worker of four jobs at once."""
        shape = ("--concurrency", "4", "--attempts", "3", "--backoff", "0.1", "--wait", "10")
        self.start(name, "work", "tasks:send", "--queue", "mail", "--name", name, *shape)

    def done(self) -> Counter[str]:
        """How often each job was done."""
        notes = self.folder / "done"
        return Counter(notes.read_text().split()) if notes.exists() else Counter()

    def counts(self) -> dict[str, int]:
        """How many jobs are in each state."""
        found: dict[str, int] = json.loads(self.do("jobs", "counts", "mail", "--json"))
        return found


def main() -> int:
    """Run it; 0 if every job was done."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=300, metavar="N", help="how many")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="leave the data folder there")
    args = parser.parse_args()
    return perform(lambda folder: play(folder, max(20, args.jobs)), args.keep)


def play(folder: Path, count: int) -> str:
    """The whole piece. Raises Failed."""
    office = Office(folder)
    try:
        office.start_node()
        twice = act(office, count)
    finally:
        office.close()
    return f"every job was done, {twice} twice or more: whoever was killed had begun them"


def act(office: Office, count: int) -> int:
    """What happens; how many jobs were done more than once."""
    expected = {f"user{number}" for number in range(count)} | {"later", "once"}
    lines = "".join(f'{{"to": "user{number}"}}\n' for number in range(count))
    office.do("jobs", "put", "mail", "--lines", typed=lines)
    office.do("jobs", "put", "mail", f'{{"to": "{BAD}"}}')
    due_at = time.monotonic() + LATER_S
    office.do("jobs", "put", "mail", "--due", str(LATER_S), '{"to": "later"}')
    first = office.do("jobs", "put", "mail", "--unique", "once", '{"to": "once"}')
    if office.do("jobs", "put", "mail", "--unique", "once", '{"to": "once"}') != first:
        raise Failed("two jobs of one `unique` are there")
    tell(f"{count} jobs are put; one that cannot succeed, one for later, one that was put twice")
    for name in ("ann", "ben"):
        office.start_worker(name)
    until("a third of them is done", lambda: len(office.done()) > count // 3)
    if office.done()["later"] and time.monotonic() < due_at:
        raise Failed("a job was done before it was due")
    office.stop("ann", by_force=True)
    office.start_worker("eve")
    until("two thirds are done", lambda: len(office.done()) > 2 * count // 3)
    office.stop(NODE, by_force=True)
    office.start_node()
    until("all are done but one", lambda: expected <= set(office.done()))
    return retry_the_dead(office, expected)


def retry_the_dead(office: Office, expected: set[str]) -> int:
    """What failed is a dead letter; its cause is mended, and it is put back."""
    until("that one is a dead letter", lambda: office.counts()["dead"] == 1)
    letter = json.loads(office.do("jobs", "dead", "ls", "mail", "--json"))
    tell(f"it died of: {letter['reason']}")
    (office.folder / "found").touch()
    office.do("jobs", "dead", "retry", "mail", "--all")
    until("it is put back, and done", lambda: office.done()[BAD] > 0)
    until("nothing is left", lambda: not any(office.counts()[each] for each in STATES))
    for name in ("ben", "eve"):
        office.stop(name)
    done = office.done()
    if set(done) != expected | {BAD}:
        raise Failed(f"done was {sorted(done)}")
    return sum(1 for times in done.values() if times > 1)


STATES = ("ready", "delayed", "leased", "dead")


if __name__ == "__main__":
    sys.exit(main())
