"""A node that speaks TLS, asks for certificates, and lets in by token: source and sink get in, and
where they do not they say why."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest

from millpond.pipeline.errors import PipelineError
from millpond.pipeline.options import sink_options, source_options
from millpond.pipeline.spark.planning import batch_ranges
from millpond.pipeline.spark.read_task import read_range
from millpond.pipeline.spark.write_task import Stager, publish
from tests.node.tls.certificate_files import authority, files_of, signed_by
from tests.pipeline.pipeline_nodes import ROOT, NodeProcess


@dataclass
class Secured:
    """The node, options that reach it, and files with tokens that may less."""

    process: NodeProcess
    given: dict[str, str]
    reader: Path
    writer: Path


def new_token(folder: Path, name: str, *words: str) -> Path:
    command = [sys.executable, "-m", "millpond", "token", "new", "--data", str(folder / "data")]
    done = subprocess.run(
        [*command, *words],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        check=True,
        text=True,
    )
    file = folder / name
    file.touch(0o600)
    file.write_text(done.stdout)
    return file


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder = tmp_path_factory.mktemp("secured")
    own = files_of(folder)
    signer = authority()
    ours = files_of(folder, signed_by(signer, "spark"), "spark")
    (folder / "signer.crt").write_bytes(signer.certificate)
    everything = new_token(folder, "all", "--rights", "all")
    reader = new_token(folder, "reader", "--rights", "get,list", "--stream", "in*")
    writer = new_token(folder, "writer", "--rights", "put,list", "--stream", "out*")
    words = ["--tls-cert", own.cert, "--tls-client-ca", str(folder / "signer.crt")]
    client_options = {"tokenFile": str(everything), "tlsCa": own.cert, "tlsCert": ours.cert}
    client_options["tlsKey"] = ours.key
    with NodeProcess(folder / "data", *words, client_options=client_options) as process:
        process.make("in", "out", "other")
        process.fill("in", [b"a", b"b"])
        yield Secured(process, process.given | {"timeoutMs": "3000"}, reader, writer)


def read(given: dict[str, str], stream: str = "in") -> list[bytes]:
    ranges = batch_ranges(source_options({**given, "subscribe": stream}, is_streaming=False))
    found = [batch.column("value").to_pylist() for each in ranges for batch in read_range(each)]
    return [value for each in found for value in each]


def write(given: dict[str, str], stream: str, batch: int) -> dict[str, str]:
    options = sink_options({**given, "topic": stream})
    rows = pa.RecordBatch.from_pydict({"value": pa.array([b"x"], pa.binary())})
    return publish(options, Stager(options, "w", batch).stage([rows]), once=False)


def test_tokens_that_may_no_more_than_they_need_are_enough(secured: Secured) -> None:
    as_reader = secured.given | {"tokenFile": str(secured.reader)}
    as_writer = secured.given | {"tokenFile": str(secured.writer)}
    assert read(as_reader) == [b"a", b"b"]
    assert write(as_writer, "out", 0) == {"out": "published"}
    assert read(secured.given, "out") == [b"x"]
    for refused in (lambda: write(as_reader, "in", 0), lambda: read(as_writer, "out")):
        with pytest.raises(PipelineError, match=r"answered 403: .*tokenFile"):
            refused()


def test_what_a_token_does_not_show_is_not_there(secured: Secured) -> None:
    with pytest.raises(PipelineError, match="no_stream"):
        read(secured.given | {"tokenFile": str(secured.reader)}, "other")


def test_without_a_token_or_with_a_wrong_one_nobody_gets_in(secured: Secured) -> None:
    without = {name: text for name, text in secured.given.items() if name != "tokenFile"}
    for given in (without, without | {"token": "bm9uZQ"}):
        with pytest.raises(PipelineError, match=r"answered 40[13]: .*\(see the options token"):
            read(given)


def test_a_certificate_that_nobody_vouches_for_is_refused_at_once(secured: Secured) -> None:
    given = {name: text for name, text in secured.given.items() if name != "tlsCa"}
    with pytest.raises(PipelineError, match=r"tls_refused.*self-signed.*\(see the option tlsCa\)"):
        read(given)


def test_who_shows_no_certificate_is_told_at_once(secured: Secured) -> None:
    own = ("tlsCert", "tlsKey")
    given = {name: text for name, text in secured.given.items() if name not in own}
    with pytest.raises(PipelineError, match=r"tls_refused.*certificate required.*tlsCert"):
        read(given)


def test_tls_to_a_node_without_it_is_told_at_once(shared_node: NodeProcess) -> None:
    with pytest.raises(PipelineError, match=r"tls_refused.*https\?"):
        read({"address": shared_node.address.replace("http", "https")})


def test_files_that_are_none_are_told_by_name(secured: Secured) -> None:
    for name in ("tlsCa", "tlsCert", "tokenFile"):
        with pytest.raises(PipelineError, match=rf"bad_option.*{name}"):
            read(secured.given | {name: "/nowhere"})
