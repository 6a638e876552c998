"""Options of benchmarks that measure a running node."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from contextlib import contextmanager

from millpond.node.bench.own_node import OwnNode
from millpond.node.cli.bench.addresses import first_reached
from millpond.node.cli.commands.serve import raise_descriptor_limit
from millpond.node.cli.connection import explain_errors
from millpond.node.cli.exit_codes import usage_error
from millpond.node.cli.options.tls import add_plain_option, add_tls_options, tls_context
from millpond.node.cli.token_file import read_token
from millpond.node.client.url import parse_url, parse_urls
from millpond.node.jobs.connector import ConnectionOptions


def add_remote_options(parser: argparse.ArgumentParser) -> None:
    """Add `--connect`, `--token-file` and the options of TLS."""
    parser.add_argument(
        "--connect",
        metavar="URL[,URL...]",
        help="measure this node (tcp, ws, tls, wss), none of its own",
    )
    parser.add_argument(
        "--token-file",
        metavar="FILE",
        default=os.environ.get("MILLPOND_TOKEN"),
        help="file that begins with the access token (or MILLPOND_TOKEN)",
    )
    add_tls_options(parser)
    add_plain_option(parser)


def reached_url(addresses: str) -> str:
    """The first address that takes a connection. Raises Failure."""
    try:
        parsed = parse_urls(addresses)
    except ValueError as exc:
        raise usage_error(f"--connect: {exc}") from exc
    index = first_reached([(each.host, each.port) for each in parsed])
    return addresses.split(",")[index].strip()


@contextmanager
def remote_node(args: argparse.Namespace) -> Iterator[tuple[OwnNode, ConnectionOptions]]:
    """The node at `args.connect`, and the options of connections to it. Errors of the client
    within become failures."""
    raise_descriptor_limit()
    url = reached_url(args.connect)
    options: ConnectionOptions = {
        "token": read_token(args.token_file),
        "tls": tls_context(args, parse_url(url)),
        "allow_plain": args.allow_plain,
    }
    with explain_errors(argparse.Namespace(**vars(args) | {"connect": url})):
        yield OwnNode(url, None), options
