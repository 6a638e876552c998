"""TLS options of `serve` and of commands that connect to a node."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING

from millpond.node.cli.exit_codes import usage_error

if TYPE_CHECKING:
    import ssl

    from millpond.node.client.url import Address

ALPN_WEBSOCKET = ("http/1.1",)


def add_tls_options(parser: argparse.ArgumentParser) -> None:
    """Add `--ca`, `--pin`, `--cert` and `--cert-key`, for tls:// and wss:// addresses."""
    parser.add_argument(
        "--ca",
        metavar="FILE",
        default=os.environ.get("MILLPOND_CA"),
        help="trusted certificates in place of the system's (or MILLPOND_CA)",
    )
    parser.add_argument(
        "--pin",
        metavar="[key-]sha256:HEX",
        default=os.environ.get("MILLPOND_PIN"),
        help="accepted fingerprints of the node's certificate or of its key, comma-separated "
        "(or MILLPOND_PIN)",
    )
    parser.add_argument(
        "--cert",
        metavar="FILE",
        default=os.environ.get("MILLPOND_CERT"),
        help="client certificate (or MILLPOND_CERT)",
    )
    parser.add_argument(
        "--cert-key",
        metavar="FILE",
        default=os.environ.get("MILLPOND_CERT_KEY"),
        help="key of the client certificate (default: in the same file, or beside it "
        "as .key; or MILLPOND_CERT_KEY)",
    )


def add_plain_option(parser: argparse.ArgumentParser) -> None:
    """Add `--allow-plain`, for addresses without TLS."""
    parser.add_argument(
        "--allow-plain",
        action="store_true",
        default=bool(os.environ.get("MILLPOND_ALLOW_PLAIN")),
        help="send the token or prove the identity to another machine without TLS as well"
        " (or MILLPOND_ALLOW_PLAIN=1)",
    )


def add_listener_options(parser: argparse.ArgumentParser) -> None:
    """Add the TLS options of listeners."""
    parser.add_argument(
        "--tls-cert", metavar="FILE", help="certificate of the listeners, which then use TLS"
    )
    parser.add_argument(
        "--tls-key",
        metavar="FILE",
        help="key of the certificate (default: in the same file, or beside it as .key)",
    )
    parser.add_argument(
        "--tls-client-ca",
        metavar="FILE",
        help="require client certificates that are in this file or signed by one in it",
    )
    parser.add_argument(
        "--tls-client",
        metavar="required|optional",
        help="optional: accept clients without a certificate, too (default required)",
    )
    parser.add_argument(
        "--tls",
        dest="tls_listeners",
        metavar="LISTENER,...",
        help="listeners that use TLS: p2p,ws,s3p,rustlog,http (default all)",
    )


def tls_context(args: argparse.Namespace, *addresses: Address) -> ssl.SSLContext | None:
    """The TLS context for the addresses of a node; None if none has TLS. Raises Failure."""
    secure = [address for address in addresses if address.secure]
    if not secure:
        return None
    from millpond.node.tls.contexts import TlsError, client_context

    pins, key_pins = _pins(args.pin or "")
    key_pins += [address.key_pin for address in secure if address.key_pin is not None]
    try:
        return client_context(
            ca=args.ca or "",
            pins=pins,
            key_pins=key_pins,
            cert=args.cert or "",
            key=key_of(args.cert or "", args.cert_key or ""),
            alpn=ALPN_WEBSOCKET if secure[0].websocket else (),
        )
    except TlsError as exc:
        raise usage_error(str(exc)) from exc


def key_of(cert: str, key: str) -> str:
    """The key file of a certificate: as given, beside it, or "" for the same file."""
    if key or not cert:
        return key
    from pathlib import Path

    beside = Path(cert).with_suffix(".key")
    return str(beside) if beside.is_file() else ""


def _pins(text: str) -> tuple[list[bytes], list[bytes]]:
    """The pins of certificates, and those of keys."""
    from millpond.node.tls.pins import is_key_pin, parse_key_pin, parse_pin

    given = [each for each in text.split(",") if each.strip()]
    try:
        return (
            [parse_pin(each) for each in given if not is_key_pin(each)],
            [parse_key_pin(each) for each in given if is_key_pin(each)],
        )
    except ValueError as exc:
        raise usage_error(f"--pin: {exc}") from exc
