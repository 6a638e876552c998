"""A fork server: `python -m millpond` as processes forked from one that has imported all of it.

A new interpreter imports for 0.2 s before a command begins, a fork for none. `ForkedCommand` is a
`subprocess.Popen` for such processes: they have their own standard streams, environment, folder,
arguments, modules' path and exit code, and are children of the test's process. Options that a fork
cannot have (`preexec_fn`, another session, other settings of the interpreter) and systems without
Linux's subreapers get a new interpreter.
"""

from __future__ import annotations

import ctypes
import functools
import gc
import json
import os
import pkgutil
import runpy
import socket
import subprocess
import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from threading import Lock
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
COMMAND = (sys.executable, "-m", "millpond")
ROOMS = ("actors", "transports", "node")
REQUEST_BYTES_MAX = 2**18
PR_SET_CHILD_SUBREAPER = 36
PLAIN = (True, None, None, None, -1, False, -1)
"""Of `_execute_child`: restore_signals, gid, gids, uid, umask, start_new_session, process_group."""
OF_THE_INTERPRETER = ("PYTHON", "LC_", "LANG", "MALLOC_", "LD_")
_FORKING = Lock()


class ForkedCommand(subprocess.Popen[Any]):
    """`millpond` with `words`, beside the caller. Options are those of `subprocess.Popen`."""

    def __init__(self, *words: str, **options: Any) -> None:
        super().__init__([*COMMAND, *words], **options)

    def _execute_child(self, *given: Any) -> None:
        """Popen's place for the fork. Its arguments are Popen's own, of no documented interface:
        where they are not as here, its own way is taken."""
        can_fork = len(given) == 16 + len(PLAIN) and _can_fork(given)
        server = _server(os.getpid()) if can_fork else None
        if server is None:
            return super()._execute_child(*given)  # type: ignore[misc]
        words, cwd, env, pipes = given[0], given[5], given[6], given[10:16]
        streams = [
            pipe if pipe != -1 else fd for fd, pipe in enumerate((pipes[0], pipes[3], pipes[5]))
        ]
        try:
            self.pid = server.fork(words[3:], cwd or Path.cwd(), env, streams)
        finally:
            self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]
        self._child_created = True
        return None


def _can_fork(given: tuple[Any, ...]) -> bool:
    preexec_fn, pass_fds, env, shell = given[2], given[4], given[6], given[9]
    return (
        sys.platform == "linux"
        and not (preexec_fn or pass_fds or shell)
        and given[16:] == PLAIN
        and _settings(os.environ if env is None else env) == _settings(os.environ)
    )


def _settings(env: Mapping[str, str]) -> dict[str, str]:
    """The variables that an interpreter and its libraries read at their start."""
    return {
        name: value
        for name, value in env.items()
        if name.startswith(OF_THE_INTERPRETER) and name != "PYTHONPATH"
    }


class _Server:
    """The process that forks, as those see it that ask it to. It ends with the one who started it.

    Each fork is made by a short-lived one, so that the forks are orphans. Their parent is then this
    process, since it is the subreaper of its descendants for that moment: no longer, as it would
    never wait for the orphans of others.
    """

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(theirs.fileno())],
                cwd=ROOT,
                pass_fds=[theirs.fileno()],
            )

    def fork(
        self, words: list[str], cwd: Path, env: Mapping[str, str] | None, streams: list[int]
    ) -> int:
        """The id of a new process."""
        request = [words, str(cwd), dict(os.environ if env is None else env)]
        with _FORKING:
            _set_subreaper(True)
            try:
                socket.send_fds(self._socket, [json.dumps(request).encode()], streams)
                return int(self._socket.recv(20))
            finally:
                _set_subreaper(False)


def _set_subreaper(is_one: bool) -> bool:
    """True if the system knows of them."""
    return ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, int(is_one), 0, 0, 0) == 0


@functools.cache
def _server(of_process: int) -> _Server | None:
    """One for each process: workers of a test run are forks themselves. None: there is none."""
    return _Server() if _set_subreaper(False) else None


def serve(requests: socket.socket) -> int:
    """Fork until nobody is left who asks. In each fork: returns the exit code of its command."""
    for room in ROOMS:
        package = import_module(f"millpond.{room}")
        for each in pkgutil.walk_packages(package.__path__, f"millpond.{room}."):
            if not each.name.endswith("__main__"):
                import_module(each.name)
    gc.collect()
    gc.freeze()
    while True:
        request, fds, _, _ = socket.recv_fds(requests, REQUEST_BYTES_MAX, 3)
        if not request:
            return 0
        reader, writer = os.pipe()
        if first := os.fork():
            for each in (writer, *fds):
                os.close(each)
            os.waitpid(first, 0)
            requests.send(os.read(reader, 20))
            os.close(reader)
            continue
        if second := os.fork():
            os.write(writer, b"%d" % second)
            os._exit(0)
        for fd in (requests.detach(), reader, writer):
            os.close(fd)
        return _run(*json.loads(request), fds)


def _run(words: list[str], cwd: str, env: dict[str, str], fds: list[int]) -> int:
    """The command, in a process that looks like a new one."""
    for fd, given in enumerate(fds):
        os.dup2(given, fd)
        os.close(given)
    sys.stdin, sys.stdout, sys.stderr = map(_reopened, (sys.stdin, sys.stdout, sys.stderr))
    os.chdir(cwd)
    # As `python -m` has it.
    sys.path[:1] = [cwd, *filter(None, env.get("PYTHONPATH", "").split(os.pathsep))]
    os.environ.clear()
    os.environ.update(env)
    sys.argv = ["millpond", *words]
    runpy.run_module("millpond", run_name="__main__", alter_sys=True)
    return 0


def _reopened(stream: Any) -> Any:
    """A standard stream of what its file descriptor is now."""
    fd = stream.fileno()
    return open(
        fd,
        stream.mode,
        buffering=1 if fd == 2 or os.isatty(fd) else -1,
        encoding=stream.encoding,
        errors=stream.errors,
        closefd=False,
    )


if __name__ == "__main__":
    sys.exit(serve(socket.socket(fileno=int(sys.argv[1]))))
