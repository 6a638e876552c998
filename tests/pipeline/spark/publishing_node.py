"""A node that may kill itself inside a publication, with the words of `millpond`:

    python -m tests.pipeline.spark.publishing_node serve ...

MILLPOND_TEST_KILL_AT=N: kill -9 at the N-th step of publications, before it if N is odd, else after
it. Publications have many steps, as a slice has few rows.
"""

from __future__ import annotations

import itertools
import os
import signal
import sys
from typing import Any

from millpond.node.cli.main import main
from millpond.transports.http.transactions import publish

SLICE_ROWS = 100
STEPS = ("_check_whole", "_hold", "_add", "_drop")
KILL_AT = "MILLPOND_TEST_KILL_AT"


def kill_at(last: int) -> None:
    """Count the steps of publications, and end this process in one."""
    numbers = itertools.count(1)

    def counted(step: Any) -> Any:
        async def run(*args: Any) -> Any:
            number = next(numbers)
            if number == last and number % 2:
                os.kill(os.getpid(), signal.SIGKILL)
            result = await step(*args)
            if number == last:
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        return run

    for name in STEPS:
        setattr(publish.Publisher, name, counted(getattr(publish.Publisher, name)))


if __name__ == "__main__":
    publish.SLICE_ROWS = publish.READ_ROWS = SLICE_ROWS
    if KILL_AT in os.environ:
        kill_at(int(os.environ.pop(KILL_AT)))
    sys.exit(main())
