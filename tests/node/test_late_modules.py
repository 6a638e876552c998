"""A node is ready without the modules of protocols that nobody speaks yet."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
NOT_TO_BE_READY = {
    *(
        "google.protobuf",
        "h2",
        "hpack",
        "httptools",
        "importlib.metadata",
        "jsonschema",
        "tomllib",
        "trio",
    ),
    *("millpond.node.stream_listeners", "millpond.node.web.pages", "prometheus_client"),
    *("millpond.transports.http.durable.app", "millpond.transports.http.s2.app"),
    *("millpond.transports.http.state.app", "millpond.transports.http.transactions.app"),
    *("millpond.transports.rustlog.codec", "millpond.transports.s3p.decoder", "websockets"),
    *("millpond.actors.jobs.flows", "millpond.actors.state.cell", "zoneinfo"),
    *("millpond.actors.jobs.schedules", "millpond.actors.subscriptions.subscription"),
    *("millpond.node.admin", "millpond.node.chat.search_index", "millpond.node.client.connect"),
    *("millpond.node.http.app", "millpond.transports.p2p.connection"),
    "millpond.actors.store.repair.salvage",
}


def test_a_node_is_ready_without_them_and_loads_no_more_once_they_are_loaded() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.node.late_modules"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert "millpond.node.http.listener" in told["ready"]
    assert not set(told["ready"]) & NOT_TO_BE_READY
    assert told["later"] == []
