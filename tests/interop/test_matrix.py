"""Published clients of every protocol, our own and bare HTTP over one stream: each reads what each
has written, byte for byte, in order and once, with headers and timestamps where there are any."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

pytest.importorskip("s2_sdk", reason="an extra, `dev`")
pytest.importorskip("durable_streams", reason="an extra, `dev`")
pytest.importorskip("pyspark", reason="an extra, `spark`")

from tests.interop.clients import CLIENTS, Client, Form, Node, Shown, TypeScript, close_all, create
from tests.interop.matrix import (
    ARGUMENTS,
    FORMS,
    Faults,
    differences,
    faults_of,
    page_table,
    records_of,
    run,
    table,
)
from tests.node.processes import environment, serving

pytestmark = pytest.mark.together("spark")  # two Javas at once would take all processors
FIRST, OTHER = CLIENTS[0], CLIENTS[-2]


@pytest.mark.parametrize("form", FORMS)
def test_what_is_not_the_same_is_a_fault(form: Form) -> None:
    """Lost, doubled, swapped and changed records; headers, timestamps, positions."""
    records = records_of(FIRST.name, form)
    shown = [Shown(*each, position) for position, each in enumerate(records)]

    def faults(rows: list[Shown], reader: Client = OTHER) -> int:
        return len(faults_of(FIRST, reader, form, records, rows))

    assert faults(shown) == 0
    other = records_of(OTHER.name, form)[0].body
    for rows in (
        shown[:-1],
        [*shown, shown[-1]],
        [shown[1], shown[0], *shown[2:]],
        [shown[0]._replace(body=other), *shown[1:]],
        [shown[0]._replace(headers=()), *shown[1:]],
        [shown[0]._replace(timestamp_ms=1), *shown[1:]],
        [shown[0]._replace(position=1), *shown[1:]],
    ):
        assert faults(rows) > 0
    bare = [Shown(each.body) for each in shown]
    assert faults(bare) == 0 and faults(bare[1:]) > 0
    assert differences("s", {"a": shown, "b": shown}) == []
    later = [each._replace(timestamp_ms=7) for each in shown]
    changed = [each._replace(body=each.body + b" ") for each in shown]
    assert len(differences("s", {"a": shown, "b": later})) == 1
    assert len(differences("s", {"a": shown, "b": changed})) == 1


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    for client in CLIENTS:
        if isinstance(client, TypeScript):
            client.install()
    with serving(*ARGUMENTS, env=environment()) as served:
        yield Node(served.ready["listeners"])
        close_all()


def test_each_reads_what_each_has_written(node: Node) -> None:
    faults: Faults = {}
    for form in FORMS:
        found, others = run(node, form)
        assert others == []
        for pair, texts in found.items():
            faults.setdefault(pair, []).extend(texts)
    assert {pair: texts for pair, texts in faults.items() if texts} == {}
    assert page_table() == table(faults), "run python -m tests.interop.matrix"


@pytest.mark.parametrize("form", FORMS)
def test_all_write_at_once_and_all_read_the_same(node: Node, form: Form) -> None:
    stream = f"at-once-{form}"
    create(node, stream, form)

    def write(client: Client) -> None:
        client.write(node, stream, form, records_of(client.name, form))

    with ThreadPoolExecutor(len(CLIENTS)) as threads:
        for done in [threads.submit(write, client) for client in CLIENTS]:
            done.result()
    found = {client.name: client.read(node, [stream], form)[0] for client in CLIENTS}
    assert differences(stream, found) == []
    records = [each.body for each in found["P2P, millpond.connect_streams"]]
    for client in CLIENTS:
        mine = [each.body for each in records_of(client.name, form)]
        if form == "json":
            assert len(found[client.name]) == len(records) == len(CLIENTS) * len(mine)
            rest = iter(found[client.name])
            assert all(any(each.body == body for each in rest) for body in mine), client.name
        elif client.joins:
            assert b"".join(each.body for each in found[client.name]) == b"".join(records)
        else:
            assert [each.body for each in found[client.name]] == records
        if form == "bytes":
            rest_of_all = iter(records)
            assert all(any(each == body for each in rest_of_all) for body in mine), client.name
