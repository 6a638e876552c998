"""`millpond keys tls`: the key and the certificate of a node's connections to other machines."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

from millpond.node.cli.commands.address_book import add_command
from millpond.node.cli.exit_codes import Failure
from millpond.node.cli.options.data_folder import check_owner
from millpond.node.cli.output import print_json, print_line

EPILOG = """\
examples:
  millpond keys tls                           the pin of the key, and the end of the certificate
  millpond keys tls --new-key                 another key, such as after a theft of the old one

A node whose P2P listener other machines reach speaks TLS there, by a certificate of its own unless
--tls-cert gives another. The node makes it at its first start and renews it; this command makes it
before that. Contact cards have the pin of its key. After --new-key restart the node, and give peers
a new card: until then they refuse to connect, and messages wait.
"""


def add_action(actions: Any) -> None:
    """Add `tls` to `keys`."""
    summary = "Show the TLS key of this node, or replace it."
    parser = add_command(actions, "tls", summary, EPILOG, _tls)
    parser.add_argument("--new-key", action="store_true", help="replace the key")


def _tls(folder: Path, args: argparse.Namespace) -> None:
    from millpond.node.tls.certificates import read_certificate
    from millpond.node.tls.contexts import TlsError
    from millpond.node.tls.own_certificate import own_certificate, replace_key
    from millpond.node.tls.pins import key_pin_of

    check_owner(folder)
    try:
        own = (replace_key if args.new_key else own_certificate)(folder, time.time())
    except TlsError as exc:
        raise Failure(str(exc)) from exc
    certificate = Path(own.files.cert)
    until = time.strftime("%Y-%m-%d", time.gmtime(read_certificate(certificate).not_after))
    pin = key_pin_of(own.key_hash)
    if args.json:
        print_json({"certificate": str(certificate), "not_after": until, "key_pin": pin})
        return
    print_line(f"certificate  {certificate}, until {until}; the node renews it")
    print_line(f"key          {pin}")
