"""The files of streams in the newest snapshot of the replica, for direct readers."""

from __future__ import annotations

import json
from typing import Any

from millpond.transports.http.tails.interface import ReplicaSnapshot
from tests.node.http_services import http_services
from tests.transports.http.client import Client

JSON = (b"content-type", b"application/json")


async def test_files_are_told_of_streams_that_exist_and_are_not_encrypted() -> None:
    async with http_services() as (running, _, application):
        client = Client(application)

        async def asked(method: str, path: str, body: Any, basin: bytes = b"millpond") -> Any:
            headers = [(b"s2-basin", basin), JSON]
            answer = await client.request(method, path, headers, json.dumps(body).encode())
            assert answer.status < 300, answer.body
            return answer.json()

        async def files(*names: str, basin: bytes = b"millpond") -> Any:
            path = "/millpond/v1/replica-files"
            return await asked("POST", path, {"streams": list(names)}, basin)

        for name in ("a", "b"):
            await asked("PUT", f"/v1/streams/{name}", {})
        records = {"records": [{"body": "x"}, {"body": "y"}]}
        await asked("POST", "/v1/streams/b/records", records)
        assert await files("a") == {"replica": None, "manifest": "", "streams": []}

        running.node.services.replica_snapshot = lambda: ReplicaSnapshot("s3://pond/r", "")
        assert await files("a") == {"replica": "s3://pond/r", "manifest": "", "streams": []}

        running.node.services.replica_snapshot = lambda: ReplicaSnapshot("s3://pond/r", "m")
        found = await files("a", "none", "b")
        assert (found["replica"], found["manifest"]) == ("s3://pond/r", "m")
        assert [(name, first) for name, _, first, _ in found["streams"]] == [("a", 0), ("b", 0)]
        paths = {path for *_, path in found["streams"]}
        assert len(paths) == 2 and all(each.startswith("partitions/") for each in paths)
        tails = await asked("POST", "/millpond/v1/tails", {"prefix": ""})
        assert [row[1] for row in found["streams"]] == [row[1] for row in tails["streams"]]

        sealed = {"config": {"stream_cipher": "aes-256-gcm"}}
        await asked("PUT", "/v1/basins/sealed-basin", sealed)
        await asked("PUT", "/v1/streams/a", {}, b"sealed-basin")
        assert (await files("a", basin=b"sealed-basin"))["streams"] == []

        many = json.dumps({"streams": ["a"] * 10_001}).encode()
        headers = [(b"s2-basin", b"millpond"), JSON]
        refused = await client.request("POST", "/millpond/v1/replica-files", headers, many)
        assert refused.status == 422
