"""What SIGHUP means: that the terminal is gone, or that somebody asks to read files again."""

from __future__ import annotations

import os


def has_terminal() -> bool:
    """Does a terminal control this process? When one closes, it has none any more."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True
