"""`millpond completion`: what makes a shell complete commands, options and names."""

from __future__ import annotations

import argparse
from typing import Any

from millpond.node.cli.exit_codes import ExitCode

SHELLS = ("bash", "zsh", "fish")
EPILOG = """\
for this shell, and those that start later:
  bash   millpond completion bash > ~/.local/share/bash-completion/completions/millpond
  zsh    millpond completion zsh > ~/.zfunc/_millpond     (with ~/.zfunc in fpath, before compinit)
  fish   millpond completion fish > ~/.config/fish/completions/millpond.fish

Names of channels, queues, streams and topics are those of the node that the line connects to
(--connect, MILLPOND_CONNECT), names of peers those of the address book. Nothing is offered where
the node does not answer within a second.
"""


def add_parser(subparsers: Any) -> None:
    """Add the parser of `completion`."""
    parser = subparsers.add_parser(
        "completion",
        description="Print the completion of a shell.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("shell", choices=SHELLS, metavar="SHELL", help="bash, zsh or fish")


def run(args: argparse.Namespace) -> int:
    """Print the code for the shell."""
    from argcomplete.shell_integration import shellcode

    print(shellcode(["millpond"], shell=args.shell))
    return ExitCode.OK
