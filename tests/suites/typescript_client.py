"""The TypeScript client, bundled for its tests, and what its exercise prints."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

from millpond.node.peers.identity import load_identity
from tests.suites.caches import HERE
from tests.suites.npm import installed

SOURCES = HERE.parents[1] / "clients" / "typescript"
NAME = "typescript-npm"
BUILD_S = 60.0

FIRST: dict[str, Any] = {
    "proved": "proved",
    "seedKey": [0xEA, 0x4A, 0x6C, 0x63],
    "wrongNode": "HandshakeRefused PEER_MISMATCH",
    "unproved": "HandshakeRefused PEER_MISMATCH",
    "plain": "HandshakeRefused TLS_REQUIRED",
    "job": {
        "task": "send",
        "payload": {
            "to": "älice",
            "sizes": [1, -5, 70_000, 2.5, 2**40],
            "raw": "bytes",
            "none": None,
        },
        "priority": 4,
        "headers": {},
        "keepS": 60,
    },
    "unique": [False, True, True],
    "early": ["leased", False],
    "done": [None, True, "result", {"sent": True}],
    "counts": [1, 0],
    "noJob": "RequestError NOT_FOUND",
    "notQueue": "RequestError NOT_A_QUEUE",
    "appended": ["0", 3],
    "read": [["1", "b"], ["2", "c"]],
    "late": ["late"],
    "followed": ["a", "b", "c", "600000", "late"],
    "names": ["orders/1"],
    "mismatch": "RequestError SEQUENCE_MISMATCH",
    "noStream": "RequestError UNKNOWN_STREAM",
    "exists": "RequestError STREAM_EXISTS",
    "ttls": [60, 60, 60],
    "durability": "disk",
    "seen": ["a", "b", "c"],
    "isSame": True,
    "attempt": 2,
    "mode": "pair",
    "data": "kept",
    "ids": 1,
    "reused": "RequestError KEY_REUSED",
    "missing": "RequestError NOT_FOUND",
    "empty": "RequestError EMPTY_DATA",
    "large": "RequestError DATA_TOO_LARGE",
    "text": "TypeError",
    "silent": "TimeoutError",
    "wrongMode": "HandshakeRefused MODE_MISMATCH",
    "nobody": "ConnectionLost",
    "kinds": [True, True, True],
}
SECOND = {
    "texts": ["kept", "while it was away"],
    "isLater": True,
    "appended": "5",
    "kinds": ["connected", "disconnected", "retrying"],
    "iterated": "ended",
    "closed": "ClientClosed",
    "isClosed": True,
}


def check_first(told: dict[str, Any]) -> None:
    """A token that the node does not know is not asked for without an access file."""
    assert told.pop("wrongToken") in ("none", "HandshakeRefused AUTHENTICATION_FAILED")
    assert told == FIRST


def node_key(folder: Path) -> str:
    """The public key of the node with this data folder, in hexadecimal."""
    return load_identity(folder / "identity.key").public.hex()


def bundled(entry: str, target: Path, *options: str) -> Path:
    """The program of an entry in one file, made by esbuild."""
    packages = installed(NAME, ())
    command = [str(packages / "node_modules" / ".bin" / "esbuild"), str(HERE / NAME / entry)]
    command += ["--bundle", "--target=es2022", f"--outfile={target}", *options]
    run(command, {"NODE_PATH": str(packages / "node_modules")})
    return target


def run(command: list[str], environment: dict[str, str]) -> None:
    done = subprocess.run(
        command,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=BUILD_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
