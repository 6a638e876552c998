"""`millpond ping` and `info`: round trip and statistics of a node."""

from __future__ import annotations

import argparse
import os
from functools import partial
from typing import Any

from millpond.node.cli.connection import INFO, open_channel, run_in_loop
from millpond.node.cli.exit_codes import ExitCode, Failure
from millpond.node.cli.options.node import add_channel, add_node_options, add_timeout, positive
from millpond.node.cli.output import counted, print_json, print_line, printable, size_text
from millpond.node.client.channel import Channel
from millpond.node.client.probe import PROBE

PING_EPILOG = """\
examples:
  millpond ping                                   three round trips to the local node
  millpond ping --connect ws://10.0.0.5:7401 -c 10
"""
INFO_EPILOG = """\
examples:
  millpond info              the node and its channels
  millpond info chat/1       one channel; exit code 4 if it does not exist
  millpond info --json       the same as a JSON object

Requires the right `admin`, which every local client has if there is no token file.
"""
CHANNELS_MAX = 1000


def add_parser(subparsers: Any) -> None:
    """Add `ping` and `info` to the command line."""
    ping = subparsers.add_parser(
        "ping",
        description="Measure the round trip to a node.",
        epilog=PING_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    ping.add_argument("-c", dest="count", type=positive, metavar="N", default=3)
    ping.set_defaults(work=_ping)
    info = subparsers.add_parser(
        "info",
        description="Show a running node and its channels.",
        epilog=INFO_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    info.set_defaults(work=_info)
    for parser in (ping, info):
        add_channel(parser, optional=True)
        add_timeout(parser)
        add_node_options(parser)


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    return run_in_loop(args, partial(args.work, args))


async def _ping(args: argparse.Namespace) -> int:
    times_ms: list[float] = []
    async with open_channel(args, args.channel or PROBE, "consumer") as channel:
        for number in range(1, args.count + 1):
            times_ms.append(await channel.ping() * 1000)
            if args.json:
                print_json({"number": number, "ms": round(times_ms[-1], 3)})
            else:
                print_line(f"{args.connect}: {times_ms[-1]:.3f} ms")
    if not args.json and args.count > 1:
        mean_ms = sum(times_ms) / len(times_ms)
        print_line(f"min {min(times_ms):.3f}  mean {mean_ms:.3f}  max {max(times_ms):.3f} ms")
    return ExitCode.OK


async def _info(args: argparse.Namespace) -> int:
    async with open_channel(args, PROBE, "consumer") as channel:
        answer = await _all_pages(channel, args.channel)
    if args.channel is not None and not answer["page"]:
        name = os.fsdecode(args.channel)
        raise Failure(f"the node has no channel {name!r} now", ExitCode.NOT_FOUND)
    if args.json:
        print_json(answer)
    else:
        for line in _page(answer):
            print_line(line)
    return ExitCode.OK


async def _all_pages(channel: Channel, only: bytes | None) -> dict[str, Any]:
    """The latest statistics of the node, with the channels of all pages."""
    page: list[dict[str, Any]] = []
    after, more = b"", True
    while more:
        request = {"channel": only, "after": after, "limit": CHANNELS_MAX}
        answer: dict[str, Any] = await channel.admin(INFO, request)
        page += answer["page"]
        more = answer["more"] and bool(answer["page"])
        after = page[-1]["name"] if page else b""
    for each in page:
        each["name"] = each["name"].decode("utf-8", "backslashreplace")
    return answer | {"page": page}


def _page(answer: dict[str, Any]) -> list[str]:
    usage, wire, scheduler = answer["usage"], answer["wire"], answer["scheduler"]
    kept = f"{counted(usage['messages'])}, {size_text(usage['bytes'])}, {usage['keys']} keys"
    rows = {
        "version": answer["version"],
        "up": f"{answer['uptime_s']:.0f} s",
        "durability": answer["durability"],
        "memory": size_text(answer["rss_bytes"]),
        "connections": f"{answer['connections']} now, {wire['connections']} in all",
        "received": f"{wire['packets_in']} packets, {size_text(wire['bytes_in'])}",
        "refused": f"{wire['refused']} ({wire['malformed']} malformed, {wire['aborted']} aborted)",
        **_reasons(wire),
        "crashes": f"{scheduler['crashes']} ({scheduler['quarantines']} channels quarantined)",
        "kept": kept,
        **_store_rows(answer["store"]),
        **_redis_rows(answer.get("redis")),
        **_replica_rows(answer.get("replica")),
        "streams": f"{answer['streams']}, {size_text(usage['log_bytes'])}",
        "channels": str(answer["channels"]),
    }
    lines = [f"{name:12} {value}" for name, value in rows.items()]
    return [*lines, "", *_table(answer["page"])]


def _reasons(wire: dict[str, Any]) -> dict[str, str]:
    """The counts of refusals and delays by reason."""
    summary = ", ".join(f"{count} {reason}" for reason, count in sorted(wire["reasons"].items()))
    return {"reasons": summary} if summary else {}


def _store_rows(store: dict[str, Any] | None) -> dict[str, str]:
    if store is None:
        return {}
    health, counters = store["health"], store["counters"]
    state = "writable" if health["is_writable"] else f"NOT WRITABLE: {health['reason']}"
    journal = f"{size_text(counters['journal_bytes'])} in {counters['segments']} segments"
    work = f"{counters['groups']} commits, {counters['syncs']} syncs"
    moved = f"{counters['flushes']} flushes, {counters['carries']} rewrites"
    rows = {
        "data folder": store["folder"],
        "store": f"{state}, {health['failures']} failures",
        "journal": f"{journal}, {work}",
        "partitions": f"{counters['files']} files, {moved}",
    }
    damages = counters.get("damages", counters["damaged"])  # a node of an older version
    if counters["damaged"] or damages:
        how = f"stop the node, then `millpond doctor --data {store['folder']}`"
        count = "1 damage" if damages == 1 else f"{damages} damages"
        rows["damaged"] = f"{count}, {counters['damaged']} channels not served: {how}"
    return rows


def _redis_rows(redis: dict[str, Any] | None) -> dict[str, str]:
    if redis is None:  # or a node of an older version
        return {}
    health = redis["health"]
    state = "writable" if health["is_writable"] else f"NOT WRITABLE: {health['reason']}"
    damages = redis.get("damages", 0)  # a node of an older version has none
    return {
        "redis": f"{redis['url']}, durability up to {redis['durability']} ({redis['reason']})",
        "store": f"{state}, {health['failures']} failures, {redis['partitions']} partitions, "
        f"{size_text(redis['waiting_bytes'])} on their way",
        **({"damaged": f"{damages}: `millpond doctor` tells which"} if damages else {}),
    }


def _replica_rows(replica: dict[str, Any] | None) -> dict[str, str]:
    if replica is None:  # or a node of an older version
        return {}
    state = f"AWAY: {replica['error']}" if replica["error"] else replica["state"]
    lag = f"{size_text(replica['lag_bytes'])} and {replica['lag_s']:.1f} s behind"
    return {"replica": f"{replica['url']}, {state}, {lag}"}


def _table(channels: list[dict[str, Any]]) -> list[str]:
    columns = ("mode", "messages", "bytes", "leased", "connections")
    names = [printable(channel["name"]) for channel in channels]
    width = max(len(name) for name in (*names, "channel"))
    lines = [f"{'channel':{width}}  " + "  ".join(f"{column:>11}" for column in columns)]
    for name, channel in zip(names, channels, strict=True):
        cells = "  ".join(f"{channel[column]!s:>11}" for column in columns)
        lines.append(f"{name:{width}}  {cells}")
    return lines
