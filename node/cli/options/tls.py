"""Options of TLS: of `serve`, and of commands that speak it to a node."""

from __future__ import annotations

import argparse
import os
import ssl
from pathlib import Path

from millpond.node.cli.exit_codes import usage_error
from millpond.node.client.url import Address

ALPN_WEBSOCKET = ("http/1.1",)


def add_tls_options(parser: argparse.ArgumentParser) -> None:
    """`--ca`, `--pin`, `--cert`, `--cert-key`: for addresses with tls:// and wss://."""
    parser.add_argument(
        "--ca",
        metavar="FILE",
        default=os.environ.get("MILLPOND_CA"),
        help="TLS: certificates to trust in the place of the system's (MILLPOND_CA)",
    )
    parser.add_argument(
        "--pin",
        metavar="sha256:HEX",
        default=os.environ.get("MILLPOND_PIN"),
        help="TLS: the node's certificate is this one, or one of these with a comma between "
        "(MILLPOND_PIN)",
    )
    parser.add_argument(
        "--cert",
        metavar="FILE",
        default=os.environ.get("MILLPOND_CERT"),
        help="TLS: a certificate of your own, where the node demands one (MILLPOND_CERT)",
    )
    parser.add_argument(
        "--cert-key",
        metavar="FILE",
        default=os.environ.get("MILLPOND_CERT_KEY"),
        help="its key; else it is in the same file, or beside it with the ending .key "
        "(MILLPOND_CERT_KEY)",
    )


def add_listener_options(parser: argparse.ArgumentParser) -> None:
    """What the listeners of `serve` show and ask for."""
    parser.add_argument("--tls-cert", metavar="FILE", help="the listeners speak TLS, and show this")
    parser.add_argument(
        "--tls-key", metavar="FILE", help="its key; else in the same file, or beside it as .key"
    )
    parser.add_argument(
        "--tls-client-ca",
        metavar="FILE",
        help="who connects needs a certificate that is in this file, or signed by one that is",
    )
    parser.add_argument(
        "--tls-client",
        metavar="required|optional",
        help="optional: who has no certificate comes in too, by tokens and keys (default required)",
    )
    parser.add_argument(
        "--tls",
        dest="tls_listeners",
        metavar="LISTENER,...",
        help="which listeners speak TLS, of p2p,ws,s3p,rustlog,http (default all)",
    )


def tls_context(args: argparse.Namespace, address: Address) -> ssl.SSLContext | None:
    """What `args` say of TLS to an address; None where it is not spoken. Raises Failure."""
    if not address.secure:
        return None
    from millpond.node.tls.contexts import TlsError, client_context

    try:
        return client_context(
            ca=args.ca or "",
            pins=_pins(args.pin or ""),
            cert=args.cert or "",
            key=key_of(args.cert or "", args.cert_key or ""),
            alpn=ALPN_WEBSOCKET if address.websocket else (),
        )
    except TlsError as exc:
        raise usage_error(str(exc)) from exc


def key_of(cert: str, key: str) -> str:
    """The file of a certificate's key: as given, beside it, or "" for the same file."""
    if key or not cert:
        return key
    beside = Path(cert).with_suffix(".key")
    return str(beside) if beside.is_file() else ""


def _pins(text: str) -> list[bytes]:
    from millpond.node.tls.contexts import parse_pin

    try:
        return [parse_pin(each) for each in text.split(",") if each.strip()]
    except ValueError as exc:
        raise usage_error(f"--pin: {exc}") from exc
