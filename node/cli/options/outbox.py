"""Options of `serve` for relays and contact cards (docs/internals/peers.md)."""

from __future__ import annotations

import argparse

from millpond.node.units import byte_count

OUTBOX_FIELDS = (
    "relay",
    "via",
    "addresses",
    "peer_channels",
    "message_requests",
    "discover",
    "discover_interfaces",
    "chat_typing",
    "chat_file_bytes_max",
    "chat_files_bytes_max",
    "relay_files_bytes_max",
    "allow_plain_peers",
    "delivery_tokens_required",
)
"""The settings of these options."""


def add_outbox_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of relays, contact cards and lines to peers."""
    parser.add_argument(
        "--relay",
        action="store_true",
        default=None,
        help="store encrypted messages for contacts",
    )
    parser.add_argument(
        "--via",
        action="append",
        metavar="RELAY",
        help="relay that stores messages for this node: its name, URL or PEER-ID@URL; repeatable",
    )
    parser.add_argument(
        "--address",
        dest="addresses",
        action="append",
        metavar="URL",
        help="address of this node for its contact card: tls://H:P; repeatable",
    )
    parser.add_argument(
        "--allow-plain-peers",
        action="store_true",
        default=None,
        help="exchange messages with peers on other machines without TLS if they have none",
    )
    parser.add_argument(
        "--require-delivery-tokens",
        dest="delivery_tokens_required",
        action="store_true",
        default=None,
        help="as a relay, take messages only with the delivery token of the recipient",
    )
    parser.add_argument(
        "--peer-channel",
        dest="peer_channels",
        action="append",
        metavar="PATTERN",
        help="channels to which contacts may send messages, besides their chat; repeatable",
    )
    parser.add_argument(
        "--message-requests",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="keep first chat messages of unknown senders until you answer them (default yes)",
    )
    parser.add_argument(
        "--discover",
        action="store_true",
        default=None,
        help="announce the node on its private networks and list nodes that are announced there",
    )
    parser.add_argument(
        "--discover-interface",
        dest="discover_interfaces",
        action="append",
        metavar="IP",
        help="with --discover, only on the network of this address of the machine; repeatable",
    )
    parser.add_argument(
        "--chat-typing",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="tell a contact when somebody writes to it (default yes)",
    )
    parser.add_argument(
        "--chat-file-bytes-max",
        type=byte_count,
        metavar="BYTES",
        help="largest file of a chat, up to 512M (default 100M)",
    )
    parser.add_argument(
        "--chat-files-bytes-max",
        type=byte_count,
        metavar="BYTES",
        help="bytes of all files of chats (default 1G)",
    )
    parser.add_argument(
        "--relay-files-bytes-max",
        type=byte_count,
        metavar="BYTES",
        help="as a relay, bytes of all files for others; 0: none (default 1G)",
    )
