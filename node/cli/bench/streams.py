"""`millpond bench s3p`, `rustlog`, `rustlog-binary` and `s2`: benchmarks of streams."""

from __future__ import annotations

import argparse
import secrets
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import anyio
import msgspec

from millpond.node.bench.load import Clocks
from millpond.node.bench.own_node import NodeNotReady
from millpond.node.bench.payload import SIZE_MIN
from millpond.node.bench.scenarios import BATCH, StreamKind, StreamLoad, s2_rows, stream_rows
from millpond.node.bench.servers import (
    DRIVERS,
    PEERS,
    MeasuredServer,
    ServerMissing,
    own_stream_node,
    peer_servers,
)
from millpond.node.bench.stream_load import StreamResult, StreamTarget, measure_streams
from millpond.node.cli.bench.addresses import first_reached, parse_endpoints
from millpond.node.cli.bench.store import describe_folder, temporary_folder
from millpond.node.cli.commands.serve import raise_descriptor_limit
from millpond.node.cli.exit_codes import ExitCode, Failure, usage_error
from millpond.node.cli.options.node import positive
from millpond.node.cli.options.units import seconds
from millpond.node.cli.output import print_json, print_line
from millpond.node.client.errors import ConnectionLost
from millpond.transports.io.address import format_address, parse_address

PIPELINE_MAX, SIZE_MAX = 1024, 65_536
BUSY = 0.9
TITLES = {
    "s3p": "S3P",
    "rustlog": "RustLog",
    "rustlog-binary": "RustLog's binary form",
    "s2": "S2",
}
HEADER = (
    f"{'row':27}{'server':>7}{'records':>13}{'p50':>12}{'p99':>12}{'max':>12}{'CPU':>10}"
    f"{'memory':>9}{'disk':>8}{'generator':>11}{'ratio':>7}"
)

EPILOG = """\
examples:
  millpond bench {protocol}                                 all rows, each on a new node
  millpond bench {protocol} --peer redis --peer nats        also on Redis and NATS, if installed
  millpond bench {protocol} --rows 'tail-*' --seconds 5     some rows, for longer
  millpond bench {protocol} --rows 'append-*' --connections 200 --size 500
  millpond bench {protocol} --durability disk --peer redis  each append waits for the disk
  millpond bench {protocol} --connect 127.0.0.1:{port}        a running server

{rows}
`records` are per second, latencies per request. `CPU` is the processor time of the server per
record; `memory` and `disk` are the bytes per record. They are known for the benchmark's own
servers, and not meaningful for few records: the journal reserves 16 MiB. `ratio` is the rate of the
node divided by that of the peer.

All replies are verified: positions ascend, reads return the appended records, followers get each
record once and in order, and the records are read back (of many the first and the last ones). Any
fault of the node: exit code 1.

Redis has the same durability as the node (appendfsync always, everysec, or no file). NATS stores
data in memory or in files, and never waits for the disk. Neither appends many records at once:
{batch} are pipelined. NATS runs append rows only.

The load generator is written in Python and shares the machine: near 100 % it is the limit, and
ratios are not meaningful. docs/internals/benchmarks.md has ratios with a faster generator.

--json prints an object for each row and server: row, kind, server, connections, pipeline, batch
(records per request), size, seconds, count (records), rate, p50_us, p99_us, max_us, generator
(share of a core), server_us, memory_each, disk_each (null if unknown), checked (records that were
read back or followed), faults (an object with the count of each fault), first_fault (text) and ok.
For a peer that cannot be measured the object has row, kind, server and not_run (the reason).
"""

ROWS = """\
rows: KIND-cCONNECTIONS-pPIPELINE-SIZE; PIPELINE is the number of requests in flight per
connection; each connection has its own stream
  append  one record per request
  batch   {batch} records a request
  read    {batch} records a request, of those that were appended before
  tail    pairs of connections: one appends records, the other follows the stream{polls};
          latency from the append to the delivery
"""

S2_ROWS = """\
rows: KIND-cCONNECTIONS-pPIPELINE-SIZE, with xRECORDS before SIZE for requests of several records;
each connection uses HTTP/1.1 and its own stream
  append   one record per request
  batch    {batch} records a request
  read     {batch} records a request, of those that were appended before
  session  an append session with PIPELINE appends in flight, each an HTTP chunk
  catchup  sessions that read records from a position on, one after the other
  tail     pairs of sessions: one appends records, the other follows the stream;
           latency from the append to the delivery
"""

PORTS = {"s3p": 7402, "rustlog": 7403, "rustlog-binary": 7403, "s2": 7404}


def add_parsers(subparsers: Any) -> None:
    """Add all protocols of streams to what `bench` can measure."""
    for protocol in PORTS:
        _add_parser(subparsers, protocol)


def _add_parser(subparsers: Any, protocol: str) -> None:
    parser = subparsers.add_parser(
        protocol,
        help=f"appends, reads and followers of streams in {TITLES[protocol]}",
        description=f"Measure streams in {TITLES[protocol]}, and check every answer.",
        epilog=EPILOG.format(
            protocol=protocol, port=PORTS[protocol], batch=BATCH, rows=_rows(protocol)
        ),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seconds", type=seconds, default=2.0, metavar="S", help="default 2")
    parser.add_argument(
        "--rows", default="*", metavar="GLOB", help="run only the rows with these names"
    )
    count_option = {"type": positive, "metavar": "N"}
    parser.add_argument(
        "--connections", **count_option, help="connections (default: several numbers)"
    )
    parser.add_argument(
        "--pipeline", **count_option, help="requests in flight (default: several numbers)"
    )
    parser.add_argument("--size", **count_option, help="bytes of a record (default: 100 and 1024)")
    parser.add_argument(
        "--peer", action="append", default=[], choices=PEERS, help="may be given twice"
    )
    parser.add_argument(
        "--connect",
        metavar="HOST:PORT[,HOST:PORT...]",
        help="measure this server, no node of its own; of several the first that is reached",
    )
    durability_option = {
        "choices": ("disk", "os", "memory"),
        "help": "durability of the benchmark's own servers",
    }
    parser.add_argument("--durability", **durability_option)
    parser.add_argument(
        "--data",
        type=Path,
        metavar="DIR",
        help="parent folder for the data of the benchmark's own servers",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object a row; see below")


def _rows(protocol: str) -> str:
    if protocol == "s2":
        return S2_ROWS.format(batch=BATCH)
    polls = ", polling" if DRIVERS[protocol](StreamKind.TAIL).polls else ""
    return ROWS.format(batch=BATCH, polls=polls)


def run(args: argparse.Namespace) -> int:
    """Measure the chosen rows, one after the other."""
    _check(args)
    shape = {"connections": args.connections, "pipeline": args.pipeline, "size": args.size}
    rows = s2_rows if args.what == "s2" else stream_rows
    chosen = rows(args.rows, **shape)
    if not chosen:
        names = ", ".join(row.name for row in rows())
        raise usage_error(f"--rows {args.rows!r} names no row; the rows are {names}")
    if args.connect is not None:
        endpoints = parse_endpoints(args.connect)
        args.connect = format_address(*endpoints[first_reached(endpoints)])
    raise_descriptor_limit()
    if not args.json:
        if _durability(args) != "memory":
            print_line(f"durability {_durability(args)}, {describe_folder(args.data)}")
        print_line(HEADER)
    results = [_measure(args, load) for load in chosen]
    if not args.json and any(result.generator > BUSY for result in results):
        print("* limited by the load generator: the server may be faster", file=sys.stderr)
    bad = [result.row for result in results if not result.ok]
    if bad:
        raise Failure(f"the {'server' if args.connect else 'node'} failed in {', '.join(bad)}")
    return ExitCode.OK


def _check(args: argparse.Namespace) -> None:
    if args.connect is not None:
        if args.durability or args.data:
            raise usage_error("--connect excludes --durability and --data")
        try:
            parse_endpoints(args.connect)
        except ValueError as exc:
            raise usage_error(f"--connect: {exc}") from exc
    if args.data is not None and args.durability == "memory":
        raise usage_error("--durability memory excludes --data")
    if args.size is not None and not SIZE_MIN <= args.size <= SIZE_MAX:
        raise usage_error(f"--size: {SIZE_MIN} to {SIZE_MAX} bytes")
    if args.pipeline is not None and args.pipeline > PIPELINE_MAX:
        raise usage_error(f"--pipeline: at most {PIPELINE_MAX}")
    if args.seconds <= 0:
        raise usage_error("--seconds: more than 0 seconds are needed")


def _measure(args: argparse.Namespace, load: StreamLoad) -> StreamResult:
    """One row on the node, then on the peers: the node's result."""
    with _node(args, load.kind) as measured:
        ours = _run(load, measured, args.seconds)
    _show(ours, None, args.json)
    for name in dict.fromkeys(args.peer):
        _measure_peer(args, load, name, ours)
    return ours


def _measure_peer(
    args: argparse.Namespace, load: StreamLoad, name: str, ours: StreamResult
) -> None:
    try:
        with (
            _data(args) as data,
            peer_servers().own_peer_server(name, _prefix(), data, _durability(args)) as measured,
        ):
            if load.kind not in measured.target.driver().kinds:
                raise ServerMissing(f"{name} is not measured in rows of {load.kind}")
            _show(_run(load, measured, args.seconds), ours, args.json)
    except ServerMissing as exc:
        if args.json:
            row = {"row": load.name, "kind": load.kind.value, "server": name}
            print_json(row | {"not_run": str(exc)})
        else:
            print_line(f"{load.name:27}{name:>7}  not run: {exc}")


@contextmanager
def _node(args: argparse.Namespace, kind: StreamKind) -> Iterator[MeasuredServer]:
    if args.connect is not None:
        host, port = parse_address(args.connect)
        driver = partial(DRIVERS[args.what], kind)
        yield MeasuredServer(StreamTarget("node", host, port, _prefix(), driver), None)
        return
    try:
        with (
            _data(args) as data,
            own_stream_node(args.what, kind, _prefix(), data, _durability(args)) as measured,
        ):
            yield measured
    except (NodeNotReady, ServerMissing) as exc:
        raise Failure(str(exc)) from exc


def _durability(args: argparse.Namespace) -> str:
    return args.durability or ("disk" if args.data else "memory")


@contextmanager
def _data(args: argparse.Namespace) -> Iterator[Path | None]:
    """A folder for as long as it is needed, on a disk; None: everything is in memory."""
    if _durability(args) == "memory":
        yield None
        return
    with temporary_folder(args.data) as data:
        yield data


def _prefix() -> str:
    """Names of streams that are this run's alone."""
    return f"bench-{secrets.token_hex(6)}"


def _run(load: StreamLoad, measured: MeasuredServer, duration_s: float) -> StreamResult:
    options = {"use_uvloop": find_spec("uvloop") is not None}
    clocks = Clocks(time.perf_counter, time.process_time, measured.cpu)
    work = partial(measure_streams, load, measured.target, duration_s, clocks)
    try:
        return anyio.run(work, backend_options=options)
    except* (ConnectionLost, TimeoutError) as group:
        raise Failure(_first(measured.target, group)) from group


def _first(target: StreamTarget, group: BaseExceptionGroup) -> str:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    where = f"{target.host}:{target.port}"
    return f"cannot measure {where}: {error or 'it does not answer in time'}"


def _show(result: StreamResult, ours: StreamResult | None, as_json: bool) -> None:
    if as_json:
        print_json(msgspec.to_builtins(result))
        return
    times = "".join(f"{us / 1000:>9.3f} ms" for us in (result.p50_us, result.p99_us, result.max_us))
    work = "-" if result.server_us is None else f"{result.server_us:.2f} us"
    memory, disk = (
        "-" if each is None else f"{each:,.0f} B" for each in (result.memory_each, result.disk_each)
    )
    share = f"{result.generator:.0%}{'*' if result.generator > BUSY else ' '}"
    ratio = f"{ours.rate / result.rate:.2f}" if ours is not None and result.rate else ""
    print_line(
        f"{result.row:27}{result.server:>7}{result.rate:>11,.0f}/s{times}{work:>10}{memory:>9}"
        f"{disk:>8}{share:>11}{ratio:>7}".rstrip()
    )
    if not result.ok:
        counts = ", ".join(f"{count} {fault}" for fault, count in result.faults.items())
        text = f"{counts}; first: {result.first_fault}" if counts else "no replies"
        print_line(f"  FAULTS {text}")
