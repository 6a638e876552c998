"""`millpond keys passphrase`: encryption of the keys and chat histories in a data folder."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from millpond.node.cli.commands.address_book import add_command
from millpond.node.cli.exit_codes import ExitCode, Failure, usage_error
from millpond.node.cli.options.data_folder import check_owner, explain_folder_errors
from millpond.node.cli.output import print_json, print_line
from millpond.node.data_folder import FolderLock, has_no_secrets

EPILOG = """\
examples:
  millpond keys passphrase set --passphrase-file FILE
                                    encrypt keys and chat histories; then: serve --passphrase-file
  millpond keys passphrase change --passphrase-file FILE --new-passphrase-file OTHER
  millpond keys passphrase remove --passphrase-file FILE        store them in clear text again

The node is stopped. A passphrase file has 8 to 1024 bytes, of which a line end at the end does not
count; only its owner may be able to read it. A command that was interrupted is finished by running
it again, with the same passphrase. Without the passphrase nothing can be read: keep a copy of it.
`change` does not help against somebody who had the old passphrase and a copy of the folder.
"""


def add_action(actions: Any) -> None:
    """Add `passphrase` to `keys`."""
    summary = "Encrypt the keys and chat histories of this node under a passphrase."
    parser = add_command(actions, "passphrase", summary, EPILOG, _passphrase, may_run=False)
    parser.add_argument(
        "change",
        choices=("set", "change", "remove"),
        metavar="set|change|remove",
        help="encrypt, use another passphrase, or store in clear text again",
    )
    parser.add_argument(
        "--passphrase-file",
        metavar="FILE",
        default=os.environ.get("MILLPOND_PASSPHRASE_FILE") or None,
        help="the passphrase of the folder (or MILLPOND_PASSPHRASE_FILE)",
    )
    parser.add_argument(
        "--new-passphrase-file", metavar="FILE", help="change: the passphrase from now on"
    )


def _passphrase(folder: Path, args: argparse.Namespace) -> None:
    from millpond.node.folder_encryption import CannotConvert, FolderConversion
    from millpond.node.peers.data_key import DataKeyError, is_encrypted, read_passphrase
    from millpond.node.peers.local_envelope import LocalKeyError
    from millpond.node.peers.peer_store import PeerStoreError

    if args.passphrase_file is None:
        raise usage_error("give --passphrase-file FILE")
    if (args.change == "change") is not (args.new_passphrase_file is not None):
        raise usage_error("--new-passphrase-file goes with `change`, and with nothing else")
    check_owner(folder)
    try:
        passphrase = read_passphrase(args.passphrase_file)
        new = read_passphrase(args.new_passphrase_file) if args.new_passphrase_file else b""
    except DataKeyError as exc:
        raise usage_error(str(exc)) from exc
    if not is_encrypted(folder):
        if has_no_secrets(folder):
            text = f"{folder} has no keys or chat histories of a node; a new folder is encrypted by"
            raise Failure(f"{text} `millpond serve --passphrase-file`", ExitCode.NOT_FOUND)
        if args.change != "set":
            raise Failure(f"{folder}: it is not encrypted")
    with explain_folder_errors(folder):
        lock = FolderLock(folder)
        try:
            conversion = FolderConversion(folder, passphrase, os.urandom)
            match args.change:
                case "set":
                    conversion.encrypt()
                case "change":
                    conversion.change_passphrase(new)
                case _:
                    conversion.decrypt()
        except DataKeyError as exc:
            raise usage_error(str(exc)) from exc
        except (CannotConvert, LocalKeyError, PeerStoreError) as exc:
            raise Failure(str(exc)) from exc
        finally:
            lock.release()
    _report(folder, args)


def _report(folder: Path, args: argparse.Namespace) -> None:
    is_encrypted = args.change != "remove"
    if args.json:
        print_json({"data": str(folder), "encrypted": is_encrypted})
        return
    if not is_encrypted:
        print_line(f"{folder}: keys and chat histories are stored in clear text")
        return
    if args.change == "change":
        print_line(f"{folder}: the passphrase is changed")
        return
    print_line(f"{folder}: keys and chat histories are encrypted")
    if any((folder / "damaged").glob("*.sqlite3.*")):
        print_line(f"{folder}/damaged has old files of repairs, which are not: delete them")
