"""Bytecodes and Python calls per operation of the rows of `inproc`, by function.

    python -m tests.bench.bytecodes ROW [--functions 30]

They are the same on a busy machine, where CPU time says little. The cost of C code is not in them:
a change that saves bytecodes there or here has to show in `inproc` as well.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from types import CodeType, FrameType
from typing import Any

import uvloop

from tests.bench import inproc

SLICES = 66
WARM = 36
"""Calls of the clock before anything is counted: caches fill, and the interpreter specializes."""
COUNTED = 32
"""Calls of the clock while bytecodes are counted, every second part between two of them."""


class BytecodeCounter:
    """Takes the place of the clock of `inproc`: what is timed there is counted here."""

    def __init__(self) -> None:
        self.bytecodes: Counter[CodeType] = Counter()
        self.calls: Counter[CodeType] = Counter()
        self._asked = 0

    def switch(self) -> int:
        """Counting begins or ends. Gives 0 before and 1 behind each part that is counted."""
        self._asked += 1
        is_counted = WARM < self._asked <= WARM + COUNTED
        is_begin = self._asked % 2 == 1
        sys.settrace(self._enter if is_counted and is_begin else None)
        return 0 if is_begin or not is_counted else 1

    def _enter(self, frame: FrameType, _event: str, _argument: object) -> Any:
        self.calls[frame.f_code] += 1
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self._step

    def _step(self, frame: FrameType, event: str, _argument: object) -> Any:
        if event == "opcode":
            self.bytecodes[frame.f_code] += 1
        return self._step

    def report(self, row: str, slices: list[int], operations: int) -> None:
        """`slices`: the parts of each that were counted; `operations` in a slice."""
        # A slice of several parts has its operations spread over them.
        parts = max(slices)
        count = operations * sum(slices) / parts
        bytecodes, calls = self.bytecodes.total() / count, self.calls.total() / count
        print(f"{row:12s} {bytecodes:8.0f} bytecodes {calls:8.1f} calls per operation")
        self._count = count

    def table(self, functions: int) -> str:
        """The functions with the most bytecodes."""
        lines = []
        for code, bytecodes in self.bytecodes.most_common(functions):
            file = "/".join(code.co_filename.split("/")[-3:])
            each, calls = bytecodes / self._count, self.calls[code] / self._count
            lines.append(f"{each:8.1f} {calls:7.2f}  {file}:{code.co_qualname}")
        return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("row", help="a row of inproc: put-p1, s3p-c50, ...")
    parser.add_argument("--functions", type=int, default=30, help="so many are listed: 30")
    chosen = parser.parse_args()
    counter = BytecodeCounter()
    inproc.cpu_ns, inproc.report = counter.switch, counter.report
    uvloop.run(inproc.run({chosen.row}, SLICES))
    print(counter.table(chosen.functions))


if __name__ == "__main__":
    main()
