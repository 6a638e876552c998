"""States over a node's HTTP: metrics, and the page with its files."""

from __future__ import annotations

import re

import pytest

from millpond.actors.streams import messages as m
from millpond.actors.streams.names import stream_cell
from millpond.transports.http.cell_client import CellClient
from millpond.transports.server.memory_budget import MemoryBudget, MemorySettings
from tests.node.http_services import http_services, samples
from tests.node.state.node_clients import put
from tests.transports.http.client import Client
from tests.transports.http.server.rig import Line, serving

EVENTS = "text/event-stream"
MIB = 2**20
HOST = ((b"host", b"127.0.0.1:7404"),)


async def test_metrics_tell_what_states_take() -> None:
    async with http_services() as (running, _, application):
        with CellClient(running.services) as cells:
            await cells.request(stream_cell(b"users"), m.Create)
            make = m.Append
            await cells.request(stream_cell(b"users"), lambda number: make(number, [put("a", 1)]))
        assert (await samples(application))["millpond_states", ()] == 0
        assert (await Client(application).request("GET", "/millpond/state/users")).status == 200
        told = await samples(application)
        assert told["millpond_states", ()] == 1 and told["millpond_state_bytes", ()] > 100
        assert told["millpond_limit_state_bytes", ()] == 2**28


@pytest.mark.parametrize(
    ("path", "accept"),
    [("users/user", "*/*"), ("users/user/a", "*/*"), ("users", "*/*"), ("users", EVENTS)],
)
async def test_an_answer_waits_for_memory_and_is_refused_without_it(path: str, accept: str) -> None:
    """A kind of a long name makes the description of its state as large as the others."""
    kind = "u" * 2**17
    value = "x" * 2**17
    async with http_services() as (running, _, application), serving(application) as rig:
        with CellClient(running.services) as cells:
            await cells.request(stream_cell(b"users"), m.Create)
            events = [put("a", value), put("b", value, kind)]
            await cells.request(stream_cell(b"users"), lambda number: m.Append(number, events))
        memory = rig.server.memory = MemoryBudget(MemorySettings(MIB, MIB, MIB, 0), rig.arm)
        get = f"GET /millpond/state/{path} HTTP/1.1\r\nhost: localhost\r\naccept: {accept}\r\n\r\n"
        line = Line(rig.server, "127.0.0.1")
        rig.lines.append(line)
        rest = MIB - memory.connections_bytes
        assert memory.promise(rest)
        begun = await line.ask(get.encode())
        assert len(begun) < 1000 and memory.waiting == 1
        if accept == EVENTS:  # its head was sent: it waits for as long as it has to
            await rig.pass_s(6)
            assert memory.waiting == 1
        else:
            await rig.pass_s(6)
            refused = await line.read()
            assert refused.startswith(b"HTTP/1.1 503 ") and b"retry-after" in refused
        memory.keep_promise(rest)
        if accept != EVENTS:
            line.say(get.encode())
        await rig.pass_s(1)
        assert len(await line.read()) > 2**17 and memory.waiting == 0


async def test_the_page_and_all_that_it_loads() -> None:
    async with http_services() as (_, _, application):
        client = Client(application)
        page = await client.request("GET", "/millpond/state/", HOST)
        assert page.status == 200 and page.headers[b"content-type"].startswith(b"text/html")
        assert b"default-src 'none'" in page.headers[b"content-security-policy"]
        files = re.findall(rb'(?:href|src)="(/[^"]+)"', page.body)
        assert len(files) == 3
        imported = b"/millpond/page/shared.js"
        for path in (*files, imported):
            got = await client.request("GET", path.decode(), HOST)
            assert got.status == 200 and got.headers[b"x-content-type-options"] == b"nosniff"


@pytest.mark.parametrize("path", ["nothing.js", "states.html", "..%2Fstates.html", ""])
async def test_files_that_are_none_of_the_page(path: str) -> None:
    async with http_services() as (_, _, application):
        got = await Client(application).request("GET", f"/millpond/page/{path}", HOST)
        assert got.status == 404


async def test_the_page_is_not_shown_under_a_name_of_somebody_else() -> None:
    async with http_services() as (_, _, application):
        headers = ((b"host", b"evil.example:7404"),)
        got = await Client(application).request("GET", "/millpond/state/", headers)
        assert (got.status, got.json()["code"]) == (421, "host_refused")


async def test_a_name_that_was_allowed_shows_the_page() -> None:
    async with http_services(origins=("https://pond.example",)) as (_, _, application):
        headers = ((b"host", b"pond.example"),)
        got = await Client(application).request("GET", "/millpond/state/", headers)
        assert got.status == 200
