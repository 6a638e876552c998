"""Checks of a running node: round trip, store, and a test message."""

from __future__ import annotations

import argparse
import os
from collections.abc import Generator
from functools import partial
from pathlib import Path
from typing import Any

import anyio

from millpond.actors.errors import RequestError
from millpond.node.cli.connection import INFO, explain_errors, open_channel
from millpond.node.cli.doctor.data_folder import describe_partition
from millpond.node.cli.doctor.finding import Finding
from millpond.node.cli.exit_codes import ExitCode, Failure
from millpond.node.client.probe import PROBE
from millpond.node.client.url import parse_urls
from millpond.node.ip import is_loopback

SELF_TEST_TTL_S = 60
SLOW_MS = 100.0
SCRUB = 3
"""The operation of packet 90 that has the node read the next slice of the scrub."""
SCRUB_WAIT_S = 0.02


def node_findings(args: argparse.Namespace) -> Generator[Finding, None, Path | None]:
    """The findings about the running node; returns its local data folder, if known."""
    folder = None
    try:
        with explain_errors(args):
            address = parse_urls(args.connect)[0]
            ms, answer = anyio.run(partial(_ping_and_info, args))
        yield _round_trip(str(address), ms)
        yield from _store(answer)
        yield from _replica(answer)
        yield from _parts(answer)
        if answer is not None and answer["store"] is not None and is_loopback(address.host):
            folder = Path(answer["store"]["folder"])
        data = os.urandom(16)
        tested = argparse.Namespace(**{**vars(args), "channel": f"millpond-doctor/{data.hex()}"})
        with explain_errors(tested):
            anyio.run(partial(_self_test, tested, data))
        yield Finding("self test", "ok", "put, list, get and ack")
    except Failure as exc:
        level = "warn" if exc.code is ExitCode.REFUSED else "fail"
        yield Finding("node", level, str(exc))
    return folder


def scrub_findings(args: argparse.Namespace) -> Generator[Finding]:
    """The findings of a whole pass of the running node's scrub; the node serves meanwhile."""
    try:
        with explain_errors(args):
            answer = anyio.run(partial(_scrub, args))
    except Failure as exc:
        yield Finding("scrub", "fail", str(exc))
        return
    size = f"{answer['bytes'] / 2**20:.1f} MiB"
    yield Finding("scrub", "ok", f"everything was read: {size} of files and segments")
    for damage in answer["damages"]:
        name = damage["name"]
        whose = "" if name is None else f"{describe_partition(name)}: "
        yield Finding("damage", "fail", f"{whose}{damage['where']}: {damage['text']}")
    if not answer["known"]:
        yield Finding("damage", "ok", "none")
    elif answer["known"] > len(answer["damages"]):
        yield Finding("damage", "fail", f"{answer['known']} damages in all")


async def _scrub(args: argparse.Namespace) -> dict[str, Any]:
    """The node's answer after a pass that began after the request."""
    async with open_channel(args, PROBE, "consumer") as channel:
        answer: dict[str, Any] = await channel.admin(SCRUB, {})
        first, begun = answer["bytes"], answer["progress"] > 0
        last = answer["passes"] + (2 if begun else 1)
        while answer["passes"] < last:
            await anyio.sleep(SCRUB_WAIT_S)
            answer = await channel.admin(SCRUB, {})
        return {**answer, "bytes": answer["bytes"] - first}


def _round_trip(where: str, ms: float) -> Finding:
    if ms > SLOW_MS:
        text = f"{where} answers in {ms:.0f} ms: far away or busy (`millpond info`)"
        return Finding("node", "warn", text)
    return Finding("node", "ok", f"{where} answers in {ms:.3f} ms")


async def _ping_and_info(args: argparse.Namespace) -> tuple[float, dict[str, Any] | None]:
    """A round trip in ms, and the INFO reply of the node; None without the right to it."""
    with anyio.fail_after(args.timeout):
        async with open_channel(args, PROBE, "consumer") as channel:
            await channel.ping()
            ms = await channel.ping() * 1000
            try:
                return ms, await channel.admin(INFO, {"channel": PROBE, "after": b"", "limit": 1})
            except RequestError:
                return ms, None


def _store(answer: dict[str, Any] | None) -> Generator[Finding]:
    """The findings about the store of the node."""
    if answer is None:
        yield Finding("store", "warn", "unknown: a token with the right `admin` is required")
        return
    store, redis = answer["store"], answer.get("redis")  # a node of an older version has no redis
    if redis is not None:
        yield _redis(redis)
        for text in redis.get("damaged", ()):  # a node of an older version has none
            advice = "it is not served; restore the keys, or remove them all while the node is down"
            yield Finding("damage", "fail", f"{text}; {advice}")
        if redis.get("damages", 0) > len(redis.get("damaged", ())):
            yield Finding("damage", "fail", f"{redis['damages']} damages in all")
        return
    if store is None:
        yield Finding("store", "ok", "in memory only: a restart loses all messages")
        return
    folder, health, damaged = store["folder"], store["health"], store["counters"]["damaged"]
    if health["is_writable"]:
        yield Finding("store", "ok", f"{folder} is writable, {health['failures']} failures so far")
    else:
        text = (
            f"{folder} cannot be written, messages are refused: {health['reason']}; free space or"
        )
        yield Finding("store", "fail", f"{text} repair the disk; no restart is needed")
    damages = store["counters"].get("damages", damaged)  # a node of an older version
    if damaged or damages:
        advice = f"stop the node, then `millpond doctor --data {folder}` says what to do"
        count = "1 channel is" if damaged == 1 else f"{damaged} channels are"
        found = "1 damage" if damages == 1 else f"{damages} damages"
        text = f"{found} in the data folder; {count} not served; {advice}"
        yield Finding("damage", "fail", text)


def _redis(redis: dict[str, Any]) -> Finding:
    """The finding about a store in Redis."""
    health = redis["health"]
    if health["is_writable"]:
        kept = f"durability up to {redis['durability']} ({redis['reason']})"
        text = f"{redis['url']} is writable, {kept}, {health['failures']} failures so far"
        return Finding("store", "ok", text)
    text = f"{redis['url']} cannot be written, messages are refused: {health['reason']}; the node"
    return Finding("store", "fail", f"{text} goes on once Redis is back, or ends 60 s later")


def _replica(answer: dict[str, Any] | None) -> Generator[Finding]:
    """The finding about the replica of the node, if it has one."""
    replica = None if answer is None else answer.get("replica")
    if replica is None:
        return
    if replica["error"]:
        lag = f"{replica['lag_bytes']} bytes wait; the node serves on"
        text = f"{replica['url']} is away: {replica['error']}: {lag}"
        yield Finding("replica", "warn", text)
    elif not replica["snapshot_at"]:
        yield Finding("replica", "warn", f"{replica['url']} has no snapshot yet")
    else:
        yield Finding("replica", "ok", f"{replica['url']} is {replica['lag_s']:.1f} s behind")


def _parts(answer: dict[str, Any] | None) -> Generator[Finding]:
    """The findings about staged parts of Spark sinks."""
    count = 0 if answer is None else answer.get("parts", 0)
    if count:
        text = "staged and not published; unpublished parts are removed a day after their last row"
        yield Finding("parts", "ok", f"{count} parts of batches are {text}")


async def _self_test(args: argparse.Namespace, data: bytes) -> None:
    with anyio.fail_after(args.timeout):
        async with open_channel(args, os.fsencode(args.channel), "both") as channel:
            receipt = await channel.put(data, ttl=SELF_TEST_TTL_S)
            if receipt.id not in await channel.list():
                raise Failure("the message just put is not listed: report this as a bug")
            if await channel.get(receipt.id) != data:
                raise Failure("the message just put came back changed: report this as a bug")
            await channel.ack(receipt.id)
            if await channel.list():
                raise Failure("the message just acknowledged is still there: report this as a bug")
