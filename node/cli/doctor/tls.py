"""`millpond doctor tls`: checks of certificate files and of the TLS of a node."""

from __future__ import annotations

import argparse
import os
import socket
import ssl
import time
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from millpond.node.cli.doctor.finding import Finding, print_findings
from millpond.node.cli.exit_codes import usage_error
from millpond.node.cli.options.node import add_timeout
from millpond.node.cli.options.tls import add_listener_options, add_tls_options, key_of, tls_context
from millpond.node.cli.output import printable
from millpond.node.cli.parser import action
from millpond.node.client.url import Address, parse_url
from millpond.node.config import Config, ConfigError, load_config
from millpond.node.tls.certificates import (
    BadCertificate,
    CertificateInfo,
    is_chain,
    key_hash,
    read_certificates,
    read_der,
)
from millpond.node.tls.contexts import DAY_S, WARN_DAYS, TlsError, TlsFiles, server_context
from millpond.node.tls.errors import reason_of
from millpond.node.tls.pins import key_pin_of, pin_of

EPILOG = """\
examples:
  millpond doctor tls --tls-cert alice.crt            the files for `serve`
  millpond doctor tls --config /etc/millpond.toml     the files in a configuration
  millpond doctor tls tls://mill.lan:7400             the TLS of a running node
  millpond doctor tls wss://mill.lan --pin sha256:...

Each line is ok, warn or fail; the exit code is 1 if a check failed. The pin of a node is what its
address shows now: compare it with the pin on the machine of the node.
"""
REFUSAL_S = 0.5
"""A server that wants a certificate says so only after its part of the handshake is over."""


class Seen(NamedTuple):
    """The result of a TLS handshake."""

    version: str
    cipher: str
    alpn: str | None
    certificate: bytes
    refusal: OSError | None


def add_action(actions: Any) -> None:
    """Add `tls` to `doctor`."""
    parser = action(actions, "tls", "Check certificates and the TLS of a node.", EPILOG)
    parser.add_argument("url", metavar="URL", nargs="?", help="tls://H:P or wss://H:P")
    parser.add_argument("--config", metavar="FILE", default=os.environ.get("MILLPOND_CONFIG"))
    add_listener_options(parser)
    add_tls_options(parser)
    add_timeout(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object per line")
    parser.set_defaults(work=run, uses_context=False)  # the URL is another node


def run(args: argparse.Namespace) -> int:
    """Print the findings; 1 if a check failed."""
    return print_findings(_findings(args), as_json=args.json)


def file_findings(config: Config) -> Iterator[Finding]:
    """The findings about the TLS files of a configuration."""
    if not config.tls_cert:
        return
    key = key_of(config.tls_cert, config.tls_key)
    try:
        server_context(TlsFiles(config.tls_cert, key, config.tls_client_ca))
        shown = read_certificates(Path(config.tls_cert))
    except TlsError as exc:
        yield Finding("tls files", "fail", str(exc))
        return
    except BadCertificate as exc:
        yield Finding("tls files", "fail", f"{config.tls_cert}: {exc}")
        return
    listeners = ", ".join(config.tls_names) or "no listener"
    yield Finding("tls files", "ok", f"{config.tls_cert} and its key, for {listeners}")
    yield from _about(shown[0])
    yield _chain(Path(config.tls_cert), shown)
    if config.tls_client_ca:
        yield from _authorities(Path(config.tls_client_ca), config.tls_client)


def _findings(args: argparse.Namespace) -> Iterator[Finding]:
    names = ("tls_cert", "tls_key", "tls_client_ca", "tls_client", "tls_listeners")
    flags = {name: getattr(args, name) for name in names if getattr(args, name) is not None}
    try:
        config = load_config(flags, os.environ, Path(args.config) if args.config else None).config
    except ConfigError as exc:
        raise usage_error(str(exc)) from exc
    yield from file_findings(config)
    if not config.tls_cert and args.url is None:
        yield Finding("tls files", "ok", "none: no listener uses TLS (--tls-cert)")
    if args.url is not None:
        try:
            address = parse_url(args.url)
        except ValueError as exc:
            raise usage_error(str(exc)) from exc
        if not address.secure:
            raise usage_error(f"{args.url}: not a TLS address; give tls:// or wss://")
        yield from _server_findings(args, address)


def _about(shown: CertificateInfo) -> Iterator[Finding]:
    yield Finding("certificate", "ok", f"{shown.subject}, {pin_of(sha256(shown.der).digest())}")
    yield Finding("key", "ok", key_pin_of(key_hash(shown.der)))
    if shown.names:
        yield Finding("names", "ok", printable(" ".join(shown.names)))
    else:
        yield Finding("names", "warn", "none: clients can trust it only by --pin")
    yield _expiry(shown)


def _expiry(shown: CertificateInfo, check: str = "validity") -> Finding:
    now = time.time()
    days = (shown.not_after - now) / DAY_S
    until = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(shown.not_after))
    renew = "`millpond keys cert NAME --renew`, then SIGHUP"
    if now < shown.not_before:
        return Finding(check, "fail", "not valid yet: check the clock")
    if days < 0:
        return Finding(check, "fail", f"expired on {until}: {renew}")
    if days < WARN_DAYS:
        return Finding(check, "warn", f"{days:.1f} days left, until {until}: {renew}")
    return Finding(check, "ok", f"{days:.0f} days left, until {until}")


def _chain(path: Path, shown: list[CertificateInfo]) -> Finding:
    if not is_chain(path):
        text = f"{path}: a certificate is not signed by the next one; put the own certificate first"
        return Finding("chain", "fail", text)
    if shown[0].is_self_signed:
        return Finding("chain", "ok", "self-signed: clients need the file (--ca) or its pin")
    above = "with its authority's" if len(shown) > 1 else "alone"
    return Finding("chain", "ok", f"signed by {printable(shown[0].issuer)}, in the file {above}")


def _authorities(path: Path, client: str) -> Iterator[Finding]:
    trusted = read_certificates(path)
    names = printable("; ".join(each.subject for each in trusted))
    yield Finding("clients", "ok", f"certificates {client}, of: {names}")
    for each in trusted:
        finding = _expiry(each, "clients")
        if finding.level != "ok":
            yield finding._replace(text=f"{printable(each.subject)}: {finding.text}")


def _server_findings(args: argparse.Namespace, address: Address) -> Iterator[Finding]:
    checking = tls_context(args, address)
    inspecting = tls_context(_without_trust_options(args), address)
    assert checking is not None and inspecting is not None
    inspecting.minimum_version = ssl.TLSVersion.TLSv1_2
    inspecting.check_hostname = False
    inspecting.verify_mode = ssl.CERT_NONE
    try:
        seen = _see(address, inspecting, args.timeout)
    except OSError as exc:
        yield Finding("server", "fail", f"{address}: {reason_of(exc)}")
        return
    yield _version(address, seen)
    try:
        yield from _about(read_der(seen.certificate))
    except BadCertificate as exc:
        yield Finding("certificate", "fail", str(exc))
    if seen.refusal is not None:
        yield Finding("own cert", "fail", str(reason_of(seen.refusal)))
    try:
        _see(address, checking, args.timeout)
    except OSError as exc:
        yield Finding("trust", "fail", str(reason_of(exc)))
    else:
        trusted_by = (
            "it is the pinned one" if args.pin else f"by {args.ca or 'the authorities here'}"
        )
        yield Finding("trust", "ok", f"a client accepts the certificate: {trusted_by}")


def _without_trust_options(args: argparse.Namespace) -> argparse.Namespace:
    return argparse.Namespace(**{**vars(args), "pin": None, "ca": None})


def _version(address: Address, seen: Seen) -> Finding:
    alpn = f", {seen.alpn}" if seen.alpn else ""
    text = f"{address}: {seen.version}, {seen.cipher}{alpn}"
    if seen.version != "TLSv1.3":
        return Finding("server", "fail", f"{text}: Millpond clients require TLS 1.3")
    return Finding("server", "ok", text)


def _see(address: Address, context: ssl.SSLContext, timeout_s: float) -> Seen:
    """Connect, and wait shortly for a refusal of our certificate. Raises OSError."""
    where = (address.host, address.port)
    with socket.create_connection(where, timeout=timeout_s) as plain:
        with context.wrap_socket(plain, server_hostname=address.host) as secured:
            cipher = secured.cipher()
            seen = Seen(
                version=secured.version() or "",
                cipher=cipher[0] if cipher else "",
                alpn=secured.selected_alpn_protocol(),
                certificate=secured.getpeercert(True) or b"",
                refusal=None,
            )
            return seen._replace(refusal=_refusal(secured))


def _refusal(secured: ssl.SSLSocket) -> OSError | None:
    secured.settimeout(REFUSAL_S)
    try:
        secured.recv(1)
    except TimeoutError:
        return None
    except OSError as exc:
        return exc
    return None
