"""`millpond top`: what a node does now, drawn anew every few seconds."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import aclosing, contextmanager
from functools import partial
from typing import Any

import anyio

from millpond.actors.errors import OutcomeUnknown
from millpond.node.cli.connection import ACTIVITY, open_channel, run_in_loop
from millpond.node.cli.exit_codes import ExitCode, until_signal
from millpond.node.cli.options.node import RECONNECT_S, add_node_options, positive
from millpond.node.cli.options.units import seconds
from millpond.node.cli.output import print_json, printable, size_text, write_async
from millpond.node.cli.style import BOLD, DIM, RED, fitted, has_styles, padded, styled
from millpond.node.client.channel import Channel
from millpond.node.client.probe import PROBE

EPILOG = """\
examples:
  millpond top                     drawn anew every two seconds, until Ctrl-C
  millpond top --interval 10       every ten seconds
  millpond top -n 1                once, for a script or a mail
  millpond top -n 5 --json         five JSON objects

The lists have the busiest channels, queues, streams and connections; then those with most messages
or records. Only what is in memory is listed: the rest does nothing. Channels that left memory since
the start are counted as passivated. `reads/s` are reads that got records. Rates are those since the
last time, or over a second; a node with more than 1000 channels and streams shows those of the time
before. Without a terminal, and with --json, it is once unless -n is given.
Requires the right `admin`, which every local client has if there is no token file.
"""
INTERVAL_S, INTERVAL_S_MIN = 2.0, 0.1
FIRST_S = 1.0
FIRST_TRIES_MAX = 30
"""A busy node with many channels may take so many times `FIRST_S` until it has rates."""
ROWS = 10
ROWS_MAX = 50
NAME_COLUMNS_MIN = 12
BEGIN, END = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
"""The other screen, without a cursor; and back."""
HOME, TO_LINE_END, TO_END = "\x1b[H", "\x1b[K", "\x1b[J"

Rows = Sequence[dict[str, Any]]
Column = tuple[str, str]
"""The title of a column, and the field that it shows; a field that ends with `_s` is a rate."""

TABLES: tuple[tuple[str, str, tuple[Column, ...]], ...] = (
    (
        "protocols",
        "protocol",
        (("open", "open"), ("requests/s", "requests_s"), ("received/s", "bytes_s")),
    ),
    (
        "channels",
        "channel",
        (
            ("in/s", "in_s"),
            ("acked/s", "out_s"),
            ("messages", "messages"),
            ("lag", "lag"),
            ("leased", "leased"),
            ("bytes", "bytes"),
            ("clients", "connections"),
            ("mode", "mode"),
        ),
    ),
    (
        "queues",
        "queue",
        (
            ("in/s", "in_s"),
            ("done/s", "out_s"),
            ("ready", "ready"),
            ("leased", "leased"),
            ("delayed", "delayed"),
            ("dead", "dead"),
            ("workers", "workers"),
        ),
    ),
    (
        "streams",
        "stream",
        (
            ("in/s", "in_s"),
            ("reads/s", "out_s"),
            ("records", "records"),
            ("lag", "lag"),
            ("groups", "groups"),
            ("bytes", "bytes"),
            ("waiting", "waiting"),
        ),
    ),
    (
        "connections",
        "connection",
        (("moved/s", "bytes_s"), ("seconds", "seconds"), ("listener", "listener")),
    ),
)
SIZES = frozenset({"bytes", "bytes_s"})
"""Fields that are numbers of bytes."""


def add_parser(subparsers: Any) -> None:
    """Add `top` to the command line."""
    parser = subparsers.add_parser(
        "top",
        description="Show what a node does now: rates, lags, and the busiest channels and streams.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("-n", dest="count", type=positive, metavar="N", help="end after N times")
    parser.add_argument(
        "--interval",
        type=seconds,
        metavar="S",
        default=INTERVAL_S,
        help="seconds from one time to the next (default %(default)g)",
    )
    parser.add_argument(
        "--rows",
        type=positive,
        metavar="N",
        default=ROWS,
        help=f"rows of each list, {ROWS_MAX} at most (default %(default)s)",
    )
    add_node_options(parser)


def run(args: argparse.Namespace) -> int:
    """Show the node until there is enough, or Ctrl-C."""
    args.timeout = None
    is_live = not args.json and sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"
    if args.count is None and not is_live:
        args.count = 1
    if args.json or args.count == 1 or not is_live:
        return run_in_loop(args, partial(_until_signal, args, is_drawn=False))
    with _screen():
        return run_in_loop(args, partial(_until_signal, args, is_drawn=True))


async def _until_signal(args: argparse.Namespace, *, is_drawn: bool) -> int:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(until_signal, tasks.cancel_scope)
        async with open_channel(
            args,
            PROBE,
            "consumer",
            reconnect_s=RECONNECT_S,
            notify=_draw_notice if is_drawn else None,
        ) as channel:
            async with aclosing(_answers(args, channel)) as answers:
                async for answer in answers:
                    await _show(args, answer, is_drawn=is_drawn)
        tasks.cancel_scope.cancel()
        return ExitCode.OK
    return ExitCode.OK if args.count is None else ExitCode.INTERRUPTED


async def _answers(args: argparse.Namespace, channel: Channel) -> AsyncGenerator[dict[str, Any]]:
    """The node's activity, as often as it is wanted. The first rates are those over a second."""
    request = {"limit": min(args.rows, ROWS_MAX)}
    done, has_rates, tries = 0, False, 0
    while args.count is None or done < args.count:
        try:
            answer = await channel.admin(ACTIVITY, request)
        except OutcomeUnknown:  # the connection is lost; the next request waits for it
            has_rates, tries = False, 0
            continue
        is_first = tries == 0
        if is_first or (not has_rates and tries < FIRST_TRIES_MAX and not answer["window_s"]):
            tries += 1
            if args.count is None:
                yield answer  # nobody is to wait for the first rates
            await anyio.sleep(FIRST_S)
            continue
        has_rates = True
        done += 1
        yield answer
        if args.count is None or done < args.count:
            await anyio.sleep(max(args.interval, INTERVAL_S_MIN))


async def _show(args: argparse.Namespace, answer: dict[str, Any], *, is_drawn: bool) -> None:
    answer = readable(answer)
    if args.json:
        print_json(answer)
        return
    if not is_drawn:
        is_terminal = sys.stdout.isatty()
        columns = os.get_terminal_size(sys.stdout.fileno()).columns if is_terminal else 0
        lines = page(answer, columns or None, has_styles=has_styles())
        await write_async("".join(f"{line}\n" for line in lines).encode("utf-8", "replace"))
        return
    columns, rows = os.get_terminal_size(sys.stdout.fileno())
    lines = page(answer, columns, has_styles=has_styles())[: max(1, rows - 1)]
    drawn = "".join(f"{line}{TO_LINE_END}\r\n" for line in lines)
    await write_async(f"{HOME}{drawn}{TO_END}".encode("utf-8", "replace"))


@contextmanager
def _screen() -> Generator[None]:
    """The other screen of the terminal, for the block."""
    output = sys.stdout.fileno()
    os.write(output, BEGIN.encode())
    try:
        yield
    finally:
        try:
            os.write(output, END.encode())
        except OSError:
            pass  # it was hung up


def _draw_notice(text: str) -> None:
    """Draw a line about the connection over the first one."""
    columns = os.get_terminal_size(sys.stdout.fileno()).columns
    os.write(sys.stdout.fileno(), f"{HOME}{fitted(text, columns)}{TO_LINE_END}".encode())


def readable(answer: dict[str, Any]) -> dict[str, Any]:
    """The answer with names as text."""
    return {
        key: [{name: _text(value) for name, value in each.items()} for each in value]
        if isinstance(value, list)
        else value
        for key, value in answer.items()
    }


def page(answer: dict[str, Any], columns: int | None, *, has_styles: bool) -> list[str]:
    """The lines for a terminal of so many columns; None: as long as they are."""
    lines = [_cut(line, columns) for line in _head(answer)]
    lines[0] = styled(lines[0], BOLD, is_wanted=has_styles)
    if not answer["store"]["is_writable"]:
        lines[-1] = styled(lines[-1], RED, is_wanted=has_styles)
    for key, title, shown in TABLES:
        rows = answer[key]
        if key == "protocols":
            rows = [row for row in rows if row["open"] or row["requests_s"]]
        if rows:
            head, *body = table(title, [*map(_named, rows)], shown, columns)
            lines += ["", styled(head, DIM, is_wanted=has_styles), *body]
    return lines


def table(title: str, rows: Rows, shown: Sequence[Column], columns: int | None) -> list[str]:
    """The lines of a table. In a narrow terminal it has fewer columns, and names are cut."""
    cells = [[_cell(row[field], field) for _, field in shown] for row in rows]
    widths = [
        max(len(head), *(len(row[at]) for row in cells)) for at, (head, _) in enumerate(shown)
    ]
    names = [row["name"] for row in rows]
    width = max(len(name) for name in (*names, title))
    if columns is not None:
        while len(widths) > 1 and columns - sum(widths) - 2 * len(widths) < min(
            width, NAME_COLUMNS_MIN
        ):
            widths.pop()
        width = max(1, min(width, columns - sum(widths) - 2 * len(widths)))
    heads = [head for head, _ in shown]
    return [
        _cut(
            padded(name, width)
            + "".join(f"  {cell:>{wide}}" for cell, wide in zip(line, widths, strict=False)),
            columns,
        )
        for name, line in zip((title, *names), (heads, *cells), strict=True)
    ]


def _head(answer: dict[str, Any]) -> list[str]:
    totals, rates, store = answer["totals"], answer["rates"], answer["store"]
    kept = f"messages {totals['messages']} ({size_text(totals['message_bytes'])})"
    passivated = totals.get("passivated", 0)
    at_rest = f" ({passivated} passivated)" if passivated else ""
    writable = "store writable" if store["is_writable"] else f"NOT WRITABLE: {store['reason']}"
    disk = ""
    if "journal_bytes" in store:
        disk = f"  journal {size_text(store['journal_bytes'])}  files {store['files']}"
        disk += f"  commits {rates['commits']:g}/s  written {size_text(rates['written_bytes'])}/s"
    damages = f"  DAMAGES {store['damages']}" if store.get("damages") else ""
    return [
        f"millpond {answer['version']}  up {_span(answer['uptime_s'])}  {answer['durability']}"
        f"  memory {size_text(answer['rss_bytes'])}  cpu {answer['cpu'] * 100:.0f} %",
        f"connections {totals['connections']}  channels {totals['channels']}{at_rest}  {kept}"
        f"  streams {totals['streams']} ({size_text(totals['stream_bytes'])})"
        f"  dead {totals['dead_letters']}  crashes {totals['crashes']}"
        f"  refused {totals['refused']}",
        f"stored {rates['kept']:g}/s  pushed {rates['pushes']:g}/s  acked {rates['acks']:g}/s"
        f"  redelivered {rates['redeliveries']:g}/s  expired {rates['expired']:g}/s"
        f"  appended {rates['appended']:g}/s",
        f"{writable}{damages}{disk}",
    ]


def _named(row: dict[str, Any]) -> dict[str, Any]:
    """A row with a name; that of a connection is its number, channel and peer."""
    if "name" in row:
        return row | {"name": printable(row["name"])}
    about = [f"#{row['number']}", row["peer"], row["channel"], row["identity"]]
    return row | {"name": printable(" ".join(str(each) for each in about if each is not None))}


def _cell(value: Any, field: str) -> str:
    if field in SIZES:
        return size_text(value)
    return f"{value:g}" if isinstance(value, float) else str(value)


def _cut(line: str, columns: int | None) -> str:
    return line if columns is None else fitted(line, columns)


def _span(seconds_: float) -> str:
    whole = int(seconds_)
    days, hours, minutes = whole // 86400, whole // 3600 % 24, whole // 60 % 60
    if days:
        return f"{days}d{hours}h"
    return f"{hours}h{minutes}m" if hours else f"{minutes}m{whole % 60}s"


def _text(value: Any) -> Any:
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else value
