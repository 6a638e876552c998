"""The token of a command: the first word of a file that other users cannot read."""

from __future__ import annotations

import stat

from millpond.node.cli.exit_codes import usage_error


def read_token(file: str | None) -> str | None:
    """The token in the file of `--token-file`, outside of comments; None: no file is given. Raises
    Failure."""
    if not file:
        return None
    from pathlib import Path  # it takes time, and few commands need it

    try:
        mode = Path(file).stat().st_mode
        lines = Path(file).read_text("utf-8").splitlines()
    except OSError as exc:
        raise usage_error(f"--token-file: {file}: {exc.strerror}") from exc
    except UnicodeDecodeError as exc:
        raise usage_error(f"--token-file: {file}: {exc}") from exc
    if mode & (stat.S_IRGRP | stat.S_IROTH):
        raise usage_error("--token-file: other users can read it", f"run `chmod 600 {file}`")
    for line in lines:
        words = line.split()
        if words and not words[0].startswith("#"):
            return words[0]
    raise usage_error(f"--token-file: there is no token in {file}")
