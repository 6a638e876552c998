"""`millpond keys cert`: self-signed certificates, and certificates of an own authority."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from millpond.node import atomic_files as files
from millpond.node.cli.exit_codes import ExitCode, Failure, usage_error
from millpond.node.cli.options.node import positive
from millpond.node.cli.output import print_json, print_line
from millpond.node.cli.parser import action

EPILOG = """\
examples:
  millpond keys cert alice                          alice.crt and alice.key for this machine
  millpond keys cert alice --host mill.lan --host 192.168.1.5
  millpond keys cert mill --ca                      the authority mill.crt with mill.key
  millpond keys cert bob --signed-by mill.crt       a certificate signed by it, for node or client
  millpond keys cert alice --renew                  a new certificate with the same names and key
  millpond keys cert alice --renew --new-key        with the same names and another key

A node uses the certificate with `millpond serve --tls-cert alice.crt`, and reloads it on SIGHUP.
Clients verify it by its pin or that of its key (`--pin`), by the file (`--ca alice.crt`), or by the
authority that signed it (`--ca mill.crt`). Keep .key files secret (they have mode 0600). The key of
an authority belongs on no node.
"""

HERE = ("localhost", "127.0.0.1", "::1")
DAYS, AUTHORITY_DAYS, DAYS_MAX = 365, 3650, 36_500


def add_action(actions: Any) -> None:
    """Add `cert` to `keys`."""
    summary = "Create a TLS certificate, self-signed or signed by an authority."
    parser = action(actions, "cert", summary, EPILOG)
    parser.add_argument("name", metavar="NAME", help="name of the files and of the owner")
    parser.add_argument(
        "--host",
        dest="hosts",
        action="append",
        default=[],
        metavar="HOST",
        help="name or address that the certificate is valid for, beside NAME; "
        "repeatable (default: those of this machine)",
    )
    parser.add_argument("--days", type=positive, metavar="N", help="default 365; an authority 3650")
    parser.add_argument(
        "--out",
        type=Path,
        default=Path(),
        metavar="DIR",
        help="folder for the files (default: the current one)",
    )
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--ca", action="store_true", help="make an authority, which signs others")
    kind.add_argument(
        "--signed-by",
        type=Path,
        metavar="FILE",
        help="certificate of the authority, with its key beside it",
    )
    parser.add_argument(
        "--renew", action="store_true", help="replace an existing certificate, and keep its key"
    )
    parser.add_argument(
        "--new-key", action="store_true", help="with --renew: replace the key as well"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.set_defaults(work=make)


def make(args: argparse.Namespace) -> int:
    """Write certificate and key. Raises Failure for existing files and invalid options."""
    from millpond.node.tls.certificates import BadCertificate, make_authority, make_certificate

    certificate, key = _paths(args)
    days = args.days or (AUTHORITY_DAYS if args.ca else DAYS)
    if days > DAYS_MAX:
        raise usage_error(f"--days: at most {DAYS_MAX}")
    if args.new_key and not args.renew:
        raise usage_error("--new-key needs --renew; without it every key is new")
    try:
        before = _before(args, certificate) if args.renew else ()
        kept = key.read_bytes() if args.renew and not args.new_key else None
        if args.ca:
            pair = make_authority(args.name, days, time.time(), key=kept)
        else:
            hosts = _hosts(args.name, args.hosts, before)
            above = _authority(args.signed_by)
            pair = make_certificate(args.name, hosts, days, time.time(), above, key=kept)
    except BadCertificate as exc:
        raise usage_error(str(exc)) from exc
    except OSError as exc:
        raise Failure(f"{exc.filename}: {exc.strerror}") from exc
    _write(certificate, key, pair.certificate, pair.key, args.renew)
    _print_result(certificate, key, args)
    return ExitCode.OK


def _paths(args: argparse.Namespace) -> tuple[Path, Path]:
    name = args.name
    if "/" in name or "\0" in name or name.startswith((".", "-")):
        raise usage_error(f"{name!r} cannot name a file")
    return args.out / f"{name}.crt", args.out / f"{name}.key"


def _before(args: argparse.Namespace, certificate: Path) -> tuple[str, ...]:
    from millpond.node.tls.certificates import BadCertificate, read_certificate

    try:
        old = read_certificate(certificate)
    except BadCertificate as exc:
        raise usage_error(f"{certificate}: {exc}") from exc
    if old.is_authority != args.ca:
        what = "an authority: --ca makes a new one" if old.is_authority else "no authority"
        raise usage_error(f"{certificate} is {what}")
    if not old.is_self_signed and args.signed_by is None:
        raise usage_error(
            f"{certificate} is signed by {old.issuer}; give its file with --signed-by"
        )
    return old.names


def _hosts(name: str, given: Sequence[str], before: Sequence[str]) -> list[str]:
    from millpond.node.tls.certificates import is_host

    own = (name,) if is_host(name) else ()
    return list(dict.fromkeys((*own, *(given or before or HERE))))


def _authority(path: Path | None) -> Any:
    if path is None:
        return None
    from millpond.node.tls.certificates import CertificateAndKey
    from millpond.node.tls.contexts import TlsError, check_secret

    key = path.with_suffix(".key")
    try:
        check_secret(key)
    except TlsError as exc:
        raise Failure(str(exc)) from exc
    return CertificateAndKey(path.read_bytes(), key.read_bytes())


def _write(certificate: Path, key: Path, shown: bytes, secret: bytes, renew: bool) -> None:
    try:
        certificate.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if renew:
            files.replace(key, secret)
            files.replace(certificate, shown)
        else:
            for path, data in ((key, secret), (certificate, shown)):
                files.write_new(path, data, path.name + ".new")
        certificate.chmod(0o644)
    except FileExistsError as exc:
        text = f"{exc.filename2 or exc.filename} already exists; --renew replaces it"
        raise Failure(text) from exc
    except OSError as exc:
        raise Failure(f"{exc.filename}: {exc.strerror}") from exc


def _print_result(certificate: Path, key: Path, args: argparse.Namespace) -> None:
    from millpond.node.tls.certificates import key_hash, read_certificate
    from millpond.node.tls.pins import key_pin_of, pin_of

    shown = read_certificate(certificate)
    pin, key_pin = pin_of(sha256(shown.der).digest()), key_pin_of(key_hash(shown.der))
    until = time.strftime("%Y-%m-%d", time.gmtime(shown.not_after))
    if args.json:
        paths = {"certificate": str(certificate), "key": str(key)}
        print_json(
            {**paths, "names": shown.names, "not_after": until, "pin": pin, "key_pin": key_pin}
        )
        return
    print_line(f"{certificate}: public; valid until {until}, issued by {shown.issuer}")
    print_line(f"{key}: secret")
    if shown.names:
        print_line(f"names: {' '.join(shown.names)}")
    print_line(f"pin: {pin}")
    print_line(f"pin of the key: {key_pin}")
