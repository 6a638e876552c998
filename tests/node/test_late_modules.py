"""A node is ready without the modules of protocols that nobody speaks yet."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from pathlib import Path

import pytest

from millpond.node import late_modules

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


def test_a_module_that_cannot_be_loaded_is_logged_and_the_others_are_loaded(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    (tmp_path / "half_replaced.py").write_text("from os import no_such_name\n")
    (tmp_path / "loaded_behind_it.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(late_modules, "OF_NODE", ("half_replaced", "loaded_behind_it"))
    late_modules.load_late_modules(())
    assert "loaded_behind_it" in sys.modules
    (record,) = caplog.records
    assert (record.levelno, record.getMessage()) == (
        logging.ERROR,
        "module not loaded: name=half_replaced",
    )
