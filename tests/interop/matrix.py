"""The cross matrix: what each client writes into a stream, each other one reads.

`python -m tests.interop.matrix` runs it and writes its table into docs/reference/compatibility.md.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.interop.clients import (
    CLIENTS,
    Client,
    Form,
    Node,
    Shown,
    Written,
    canonical,
    close_all,
    create,
)
from tests.node.processes import environment, serving

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "compatibility.md"
BEGIN = "<!-- written by python -m tests.interop.matrix -->"
END = "<!-- end of what is written -->"
FORMS: tuple[Form, ...] = ("json", "bytes")
FIRST_MS = 1_700_000_000_000
"""The timestamp of a writer's first record, where it gives any."""
LISTENERS = tuple(
    word for name in ("p2p", "s3p", "rustlog", "http") for word in (f"--{name}", "127.0.0.1:0")
)
ARGUMENTS = (*LISTENERS, "--ws", "off")

Faults = dict[tuple[str, str], list[str]]
"""By writer and reader, what is not as it should be."""


def records_of(writer: str, form: Form) -> list[Written]:
    """The records of a writer: short and long ones, of every byte where the form allows it."""
    if form == "json":
        texts = ("", "h\u00e9llo \U0001f600", 'quote " \\ \n', "x" * 70_000)
        bodies = [
            *(
                canonical({"writer": writer, "n": at, "text": text})
                for at, text in enumerate(texts)
            ),
            *(
                canonical({"writer": writer, "n": at, "list": [at, None, True]})
                for at in range(4, 8)
            ),
        ]
    else:
        first = writer.encode()
        every = bytes(range(256))
        bodies = [first + b"\0", every, b"\n", b"\r\n\r\n", b"{", b"\xff" * 70_000, first, b"0"]
    return [
        Written(body, ((b"n", b"%d" % at), (b"\xff\0", b"")), FIRST_MS + 1000 * at)
        for at, body in enumerate(bodies)
    ]


def faults_of(
    writer: Client, reader: Client, form: Form, records: Sequence[Written], shown: Sequence[Shown]
) -> list[str]:
    """Differences between the written and the shown records."""
    found = []
    bodies, wanted = [each.body for each in shown], [each.body for each in records]
    if form == "json":
        bodies = [canonical(json.loads(each)) for each in bodies]
    elif reader.joins:
        bodies, wanted = [b"".join(bodies)], [b"".join(wanted)]
    if bodies != wanted:
        found.append(f"{form}: bodies {[len(each) for each in bodies]} of {len(wanted)}")
    positions = [each.position for each in shown]
    if None not in positions and positions != list(range(len(wanted))):
        found.append(f"{form}: positions {positions}")
    for each, record in zip(shown, records, strict=False):
        headers = record.headers if writer.has_headers else ()
        if each.headers is not None and each.headers != headers:
            found.append(f"{form}: headers {each.headers}")
        if each.timestamp_ms is not None and writer.has_headers:
            if each.timestamp_ms != record.timestamp_ms:
                found.append(f"{form}: timestamp {each.timestamp_ms}")
    return found


def differences(name: str, shown: dict[str, Sequence[Shown]]) -> list[str]:
    """Timestamps and bytes that readers of the same stream show differently."""
    found = []
    stamps = {
        reader: [each.timestamp_ms for each in rows]
        for reader, rows in shown.items()
        if rows and rows[0].timestamp_ms is not None
    }
    if len({tuple(each) for each in stamps.values()}) > 1:
        found.append(f"{name}: timestamps {stamps}")
    bodies = {
        reader: [each.body for each in rows]
        for reader, rows in shown.items()
        if rows and rows[0].position is not None
    }
    if len({tuple(each) for each in bodies.values()}) > 1:
        found.append(f"{name}: bytes differ between {list(bodies)}")
    return found


def run(node: Node, form: Form, clients: Sequence[Client] = CLIENTS) -> tuple[Faults, list[str]]:
    """Write a stream by each client, and read each by all."""
    streams = [f"{form}-{at}" for at in range(len(clients))]
    records = [records_of(writer.name, form) for writer in clients]
    for writer, stream, rows in zip(clients, streams, records, strict=True):
        create(node, stream, form)
        writer.write(node, stream, form, rows)
    faults: Faults = {}
    shown: dict[str, dict[str, Sequence[Shown]]] = {stream: {} for stream in streams}
    for reader in clients:
        for at, found in enumerate(reader.read(node, streams, form)):
            pair = (clients[at].name, reader.name)
            faults[pair] = faults_of(clients[at], reader, form, records[at], found)
            shown[streams[at]][reader.name] = found
    return faults, [each for name in streams for each in differences(name, shown[name])]


def table(faults: Faults, clients: Sequence[Client] = CLIENTS) -> str:
    """The table of the page: writers in rows, readers in columns of their numbers."""
    numbers = range(1, len(clients) + 1)
    lines = [
        f"| written by | {' | '.join(map(str, numbers))} |",
        f"| --- |{' --- |' * len(clients)}",
    ]
    for number, writer in zip(numbers, clients, strict=True):
        cells = ["no" if faults[writer.name, reader.name] else "yes" for reader in clients]
        lines.append(f"| {number}: {writer.name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def page_table() -> str:
    """The table as the page has it."""
    text = PAGE.read_text("utf-8")
    return text.partition(BEGIN)[2].partition(END)[0].strip()


def main() -> int:
    """Run the matrix, and write the table."""
    faults: Faults = {}
    with serving(*ARGUMENTS, limit_s=900.0, env=environment()) as served:
        node = Node(served.ready["listeners"])
        for form in FORMS:
            found, others = run(node, form)
            for pair, texts in found.items():
                faults.setdefault(pair, []).extend(texts)
                for text in texts:
                    print(*pair, text, sep=" | ")
            print(*others, sep="\n")
        close_all()
    text = PAGE.read_text("utf-8")
    before, _, rest = text.partition(BEGIN)
    after = rest.partition(END)[2]
    PAGE.write_text(f"{before}{BEGIN}\n\n{table(faults)}\n\n{END}{after}", "utf-8")
    return int(any(faults.values()))


if __name__ == "__main__":
    sys.exit(main())
