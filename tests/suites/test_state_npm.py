"""The published MaterializedState on the vectors, and StreamDB on a node
(docs/reference/state.md)."""

from __future__ import annotations

import json
import subprocess
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest

from millpond.sync import connect_s3p
from tests.node.processes import serving
from tests.state.vectors import FILE, VECTORS, name_of
from tests.suites import npm

CHECKS_S = 30.0
UNDEFINED = {"$undefined": True}


@pytest.fixture(scope="session")
def installed() -> Path:
    """A folder with the packages and the scripts."""
    return npm.installed("state-npm", ("checks.mjs", "streamdb.mjs"))


@pytest.fixture(scope="session")
def told(installed: Path) -> dict[str, dict[str, Any]]:
    """The final state of the class, by the names of the vectors."""
    words = ("node", "checks.mjs", str(FILE))
    ran = subprocess.run(words, cwd=installed, capture_output=True, timeout=CHECKS_S, check=False)
    lines: list[dict[str, Any]] = [json.loads(each) for each in ran.stdout.splitlines()]
    assert lines and lines[-1] == {"done": len(VECTORS)}, ran.stderr.decode()
    return {each["name"]: each for each in lines[:-1]}


@pytest.mark.parametrize("vector", VECTORS, ids=name_of)
def test_the_published_class_has_the_same_or_differs_as_the_vector_says(
    vector: dict[str, Any], told: dict[str, dict[str, Any]]
) -> None:
    """E1 to T2; `npm` of a vector says where it differs, and why (C.1)."""
    result, differs = told[vector["name"]], vector.get("npm", {})
    if "refused" in vector:
        assert result["refused"] is vector["refused"]
        return
    assert result["state"] == differs.get("state", vector["state"])
    assert result["throws"] == differs.get("throws", 0)
    types = differs.get("types", vector.get("types"))
    if types is not None:
        assert result["types"] == types and result["count"] == len(types)
    wanted = [each[2] if len(each) > 2 else UNDEFINED for each in vector.get("get", ())]
    assert result["get"] == wanted
    assert result["sizes"] == [len(each) for each in vector.get("get_type", {}).values()]
    if vector.get("clear"):
        assert result["left"] == 0


@pytest.mark.parametrize("vector", [each for each in VECTORS if "npm" in each], ids=name_of)
def test_what_is_said_to_differ_does(
    vector: dict[str, Any], told: dict[str, dict[str, Any]]
) -> None:
    result = told[vector["name"]]
    has = result["state"], result["throws"], result["types"]
    assert has != (vector["state"], 0, vector.get("types", list(vector["state"])))


def written(key: str, value: Any, operation: str) -> bytes:
    event = {"type": "user", "key": key, "value": value, "headers": {"operation": operation}}
    return json.dumps(event).encode()


@pytest.mark.parametrize("live", ["sse", "long-poll", "true"])
def test_the_published_streamdb_shares_a_state_with_a_node(installed: Path, live: str) -> None:
    """Records from before, from S3P, and of its own (C.1.11)."""
    pytest.importorskip("millpond.transports.http.durable.app", reason="no /v1/stream here")
    quiet = ("--ws", "off", "--rustlog", "off", "--http", "127.0.0.1:0")
    with serving(*quiet, limit_s=CHECKS_S) as node, ExitStack() as stack:
        url = f"http://{node.ready['listeners']['http']}"
        headers = {"content-type": "application/json"}
        made = Request(f"{url}/millpond/state/users", method="PUT", headers=headers)
        assert urlopen(made, timeout=5).status == 201
        log = stack.enter_context(connect_s3p(node.ready["listeners"]["s3p"]))
        ann, bob = {"id": "ann", "name": "Ann"}, {"id": "bob", "name": "Bob"}
        log.append("users", [written("ann", ann | {"name": "A"}, "insert")])
        log.append("users", [written("ann", ann, "update")])
        words = ("node", "streamdb.mjs", f"{url}/v1/stream/users", live)
        process = stack.enter_context(
            subprocess.Popen(words, cwd=installed, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        )
        stack.callback(process.kill)
        assert process.stdout is not None and process.stderr is not None
        steps = []
        for line in process.stdout:
            steps.append(json.loads(line))
            if steps[-1]["step"] == "preloaded":
                log.append("users", [written("bob", bob, "insert"), written("ann", None, "delete")])
        assert [each["users"] for each in steps] == [
            {"ann": "Ann"},
            {"bob": "Bob"},
            {"bob": "Bob", "eve": "Eve"},
        ], process.stderr.read().decode()
        told = json.load(urlopen(f"{url}/millpond/state/users/user", timeout=5))
        assert told["values"] == {"bob": bob, "eve": {"id": "eve", "name": "Eve"}}
