"""Contexts: named settings of connections, in one file of the user.

current = "prod"

[contexts.prod]
connect = "tls://a.example:7400,tls://b.example:7400"
token-file = "/home/you/.config/millpond/prod.token"
"""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from millpond.node.cli.exit_codes import Failure

FIELDS: dict[str, type] = {
    "connect": str,
    "token_file": str,
    "identity": str,
    "peer": str,
    "ca": str,
    "pin": str,
    "cert": str,
    "cert_key": str,
    "allow_plain": bool,
}
"""The settings of a context, as the options of commands are called."""
PATHS = ("token_file", "identity", "ca", "cert", "cert_key")
"""Settings that are names of files: they are kept as absolute ones."""
CONTEXTS_MAX = 1000
BYTES_MAX = 2**20
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")

Settings = dict[str, Any]


@dataclass
class Contexts:
    """The contexts of a user, by name. `current`: the one in use; "" for none."""

    current: str = ""
    by_name: dict[str, Settings] = field(default_factory=dict)


def contexts_file(environ: Mapping[str, str] = os.environ) -> Path:
    """The file of contexts, in the user's folder of configurations."""
    folder = environ.get("XDG_CONFIG_HOME") or Path("~/.config").expanduser()
    return Path(folder) / "millpond" / "contexts.toml"


def read_contexts(path: Path) -> Contexts:
    """The contexts in a file; none where there is no file. Raises Failure for a file that cannot be
    read, that other users may read, or that is not one of contexts."""
    import tomllib  # late: most users have no contexts

    from millpond.node.atomic_files import UnsafeFile, read_private

    try:
        found = tomllib.loads(read_private(path, BYTES_MAX).decode())
    except (FileNotFoundError, NotADirectoryError):
        return Contexts()
    except UnsafeFile as exc:
        raise Failure(f"contexts: {exc}") from exc
    except OSError as exc:
        raise Failure(f"contexts: cannot read {path}: {exc.strerror}") from exc
    except ValueError as exc:  # of TOML, or of UTF-8
        raise Failure(f"contexts: {path}: {exc}") from exc
    return _checked(found, path)


@contextmanager
def changed_contexts(path: Path) -> Generator[Contexts]:
    """The contexts in a file, to change in the block; afterwards the file is replaced, with mode
    0600, and is whole at any moment. Others wait meanwhile. Raises Failure."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(
            path.with_name(".contexts.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600
        )
    except OSError as exc:
        raise Failure(f"contexts: cannot write {exc.filename}: {exc.strerror}") from exc
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        contexts = read_contexts(path)
        yield contexts
        _write(path, contexts)
    finally:
        os.close(lock)  # releases it


def _write(path: Path, contexts: Contexts) -> None:
    import tomli_w

    from millpond.node.atomic_files import replace

    tables = {
        name: {key.replace("_", "-"): value for key, value in settings.items()}
        for name, settings in sorted(contexts.by_name.items())
    }
    text = tomli_w.dumps({"current": contexts.current, "contexts": tables})
    if len(tables) > CONTEXTS_MAX or len(text.encode()) > BYTES_MAX:
        raise Failure(f"there may be {CONTEXTS_MAX} contexts at most, of {BYTES_MAX} bytes")
    try:
        replace(path, text.encode())
    except OSError as exc:
        raise Failure(f"contexts: cannot write {path}: {exc.strerror}") from exc


def _checked(found: dict[str, Any], path: Path) -> Contexts:
    current, tables = found.get("current", ""), found.get("contexts", {})
    if not (isinstance(current, str) and isinstance(tables, dict)):
        raise Failure(f"contexts: {path}: `current` is a name, `contexts` has a table for each")
    contexts = Contexts(current)
    for name, table in tables.items():
        if NAME.fullmatch(name) is None or not isinstance(table, dict):
            raise Failure(f"contexts: {path}: {name!r} is not a context")
        settings = {key.replace("-", "_"): value for key, value in table.items()}
        for key, value in settings.items():
            if not isinstance(value, FIELDS.get(key, ())):
                raise Failure(f"contexts: {path}: {name}: {key.replace('_', '-')} is not a setting")
        contexts.by_name[name] = settings
    return contexts
