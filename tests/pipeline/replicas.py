"""A node whose replica has settled chunks of its streams: a small journal, and a snapshot."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.node.processes import command, environment
from tests.pipeline.pipeline_nodes import NodeProcess

PATIENCE_S = 60.0
SMALL = {"MILLPOND_SEGMENT_BYTES": "65536", "MILLPOND_JOURNAL_BYTES_MAX": "131072"}
"""A journal that is soon compacted into the files of partitions, which a snapshot has."""


def replicated_node(
    folder: Path, url: str, settings: Mapping[str, str] | None = None, *words: str
) -> NodeProcess:
    """A node with a replica and a small journal."""
    return NodeProcess(folder, "--replica", url, *words, settings={**SMALL, **(settings or {})})


def settle(node: NodeProcess) -> str:
    """Have what the node's streams have so far in the files of a snapshot, by filling the journal
    with records of another stream; gives the snapshot's name."""
    node.make("ballast")
    for _ in range(6):
        node.fill("ballast", [b"x" * 60_000])
    time.sleep(0.3)  # compaction goes on by itself, and a snapshot has what is done
    return snapshot(node)


def snapshot(node: NodeProcess) -> str:
    """Make a snapshot; gives its name."""
    words = ("replica", "snapshot", "--json", "--connect", f"tcp://{node.p2p}")
    until = time.monotonic() + PATIENCE_S
    while True:
        made = command(*words, env=environment())
        if made.returncode == 0:
            found: dict[str, Any] = json.loads(made.stdout)
            return str(found["snapshot"])
        assert time.monotonic() < until, made.stderr
        time.sleep(0.1)
