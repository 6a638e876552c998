"""`millpond` on a disk whose system call never returns, once the file of $HANG is there, and
$HANG_AFTER more calls did return:

HANG=FILE python -m tests.node.hung_disk fdatasync serve --data FOLDER
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from millpond.node.cli.main import main


def hanging(call: Callable[..., Any], flag: Path) -> Callable[..., Any]:
    left = int(os.environ.get("HANG_AFTER", "0"))

    def run(*arguments: Any) -> Any:
        nonlocal left
        if flag.exists():
            left -= 1
            while left < 0 and flag.exists():
                time.sleep(0.05)
        return call(*arguments)

    return run


if __name__ == "__main__":
    name = sys.argv[1]
    setattr(os, name, hanging(getattr(os, name), Path(os.environ["HANG"])))
    sys.exit(main(sys.argv[2:]))
