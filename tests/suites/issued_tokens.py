"""A node that knows tokens, and one that its S2 API issued, which permits everything (S2X-27)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

from tests.node.processes import serving

QUIET = ("--p2p", "off", "--ws", "off", "--http", "127.0.0.1:0")
KEEPER = "known-to-the-node"
EVERY = {"read": True, "write": True}
ALL = {"prefix": ""}
SCOPE = {
    **dict.fromkeys(("basins", "streams", "access_tokens"), ALL),
    "op_groups": dict.fromkeys(("account", "basin", "stream"), EVERY),
}


@contextmanager
def guarded_node(folder: Path, *words: str, limit_s: float) -> Iterator[tuple[str, str]]:
    """The URL of a node that refuses unknown tokens, and an issued one."""
    rules = folder / "access.conf"
    rules.write_text(f"token:{sha256(KEEPER.encode()).hexdigest()} all\n")
    rules.chmod(0o600)
    with serving(*QUIET, *words, "--access", str(rules), limit_s=limit_s) as node:
        url = f"http://{node.ready['listeners']['http']}"
        yield url, _issued(url)


def _issued(url: str) -> str:
    body = json.dumps({"id": "suites", "scope": SCOPE}).encode()
    headers = {"authorization": f"Bearer {KEEPER}", "content-type": "application/json"}
    with urlopen(Request(f"{url}/v1/access-tokens", body, headers)) as answer:
        issued: dict[str, Any] = json.load(answer)
    return str(issued["access_token"])
