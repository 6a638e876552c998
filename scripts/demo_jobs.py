"""The demonstration of job queues: kill -9 of a worker and of the node; see scripts/demo-jobs.

Everything is done with the `millpond` command, as people would.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parents[1]
MILLPOND = (sys.executable, "-m", "node")
PATIENCE_S = 60.0
COMMAND_S = 30.0
LOOK_S = 0.1
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


class Failed(Exception):
    """Something is not as it has to be."""


class Office:
    """A node with a queue `mail`, its workers, and the file in which they note what they did."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._address = f"127.0.0.1:{free_port()}"
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        plain = {key: value for key, value in os.environ.items() if "MILLPOND" not in key}
        self._environment = plain | {
            "PYTHONPATH": str(ROOT),
            "MILLPOND_CONNECT": f"tcp://{self._address}",
        }
        (folder / "tasks.py").write_text(TASKS)

    def do(self, *words: str, typed: str = "") -> str:
        """A command; what it prints."""
        done = subprocess.run(
            [*MILLPOND, *words],
            input=typed.encode(),
            capture_output=True,
            env=self._environment,
            cwd=self.folder,
            timeout=COMMAND_S,
            check=False,
        )
        if done.returncode:
            raise Failed(f"$ millpond {' '.join(words)}\n{done.stderr.decode()}")
        return done.stdout.decode()

    def start_node(self) -> None:
        """Start the node, and wait until it is ready."""
        tell("the node starts")
        others = ("--ws", "off", "--s3p", "off", "--rustlog", "off")
        node = self._start("node", "serve", "--p2p", self._address, *others, "--data", "pond")
        assert node.stdout is not None
        if not node.stdout.readline():
            raise Failed(f"the node does not start:\n{(self.folder / 'node.log').read_text()}")

    def start_worker(self, name: str) -> None:
        """Start a worker of four jobs at once."""
        tell(f"worker {name} starts")
        shape = ("--concurrency", "4", "--attempts", "3", "--backoff", "0.1", "--wait", "10")
        self._start(name, "work", "tasks:send", "--queue", "mail", "--name", name, *shape)

    def stop(self, name: str, *, by_force: bool = False) -> None:
        """Stop a process, as Ctrl-C or as a power cut does."""
        process = self._processes.pop(name)
        tell(f"{name} {'is killed (kill -9)' if by_force else 'stops'}")
        if by_force:
            process.kill()
        else:
            process.terminate()
        assert process.stdout is not None
        code = process.wait(COMMAND_S)
        process.stdout.close()
        if code and not by_force:
            raise Failed(f"{name} ended with {code}\n{(self.folder / f'{name}.log').read_text()}")

    def close(self) -> None:
        """Stop whatever runs; the node last."""
        for name in sorted(self._processes, key=lambda each: each == "node"):
            self.stop(name)

    def done(self) -> Counter[str]:
        """How often each job was done."""
        notes = self.folder / "done"
        return Counter(notes.read_text().split()) if notes.exists() else Counter()

    def counts(self) -> dict[str, int]:
        """How many jobs are in each state."""
        found: dict[str, int] = json.loads(self.do("jobs", "counts", "mail", "--json"))
        return found

    def _start(self, name: str, *words: str) -> subprocess.Popen[bytes]:
        with (self.folder / f"{name}.log").open("ab") as log:
            process = self._processes[name] = subprocess.Popen(
                [*MILLPOND, *words],
                env=self._environment,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
            )
        return process


def main() -> int:
    """Run it; 0 if every job was done."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=300, metavar="N", help="how many")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="leave the data folder there")
    args = parser.parse_args()
    began_at = time.monotonic()
    try:
        if args.keep is not None:
            args.keep.mkdir(parents=True)
            twice = play(args.keep, max(20, args.jobs))
        else:
            with TemporaryDirectory(prefix="millpond-demo-") as folder:
                twice = play(Path(folder), max(20, args.jobs))
    except (Failed, OSError, subprocess.TimeoutExpired) as error:
        print(f"FAILED: {error}", file=sys.stderr)
        return 1
    again = f"{twice} twice or more: whoever was killed had begun them"
    print(f"ok: every job was done, {again} ({time.monotonic() - began_at:.0f} s)")
    return 0


def play(folder: Path, count: int) -> int:
    """The whole piece; how many jobs were done more than once. Raises Failed."""
    office = Office(folder)
    try:
        office.start_node()
        return act(office, count)
    finally:
        office.close()


def act(office: Office, count: int) -> int:
    """What happens."""
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
    office.stop("node", by_force=True)
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


def until(what: str, is_so: Callable[[], bool]) -> None:
    """Wait for it. Raises Failed."""
    give_up_at = time.monotonic() + PATIENCE_S
    while not is_so():
        if time.monotonic() > give_up_at:
            raise Failed(f"not within {PATIENCE_S:g} s: {what}")
        time.sleep(LOOK_S)
    tell(what)


def tell(text: str) -> None:
    """Say what happens."""
    print(f"  {text}", flush=True)


def free_port() -> int:
    """A port that nobody listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


if __name__ == "__main__":
    sys.exit(main())
