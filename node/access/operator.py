"""The operator of a node: the one who may read its chats and mailboxes and write in its name.

It is not enough to be on the same machine, where other users are. A client is the operator's by the
cookie, a token in a file that only the operator reads, or because the socket at its end of a
loopback connection belongs to the user that the node runs as, which Linux tells.
"""

from __future__ import annotations

import os
import sys
from base64 import urlsafe_b64encode
from collections.abc import Callable, Collection, Iterator, Mapping
from hashlib import sha256
from hmac import compare_digest
from pathlib import Path

from millpond.node.atomic_files import UnsafeFile, read_private, replace
from millpond.node.ip import IpAddress, ip_of
from millpond.transports.server.interface import Principal

FILE_NAME = "operator.cookie"
PREFIX = "mpo1."
LISTENERS_FILE = "listeners"
FILE_BYTES_MAX = 4096
_SECRET_BYTES = 32
_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
"""The TCP sockets of this network namespace, one a line."""


class Operator:
    """The operator of a running node. `ports` gives the ports of its listeners."""

    def __init__(self, cookie: bytes | None, ports: Callable[[], Collection[int]]) -> None:
        self._digest = None if cookie is None else sha256(cookie).digest()
        self._ports = ports
        self._user = os.geteuid()

    def has_cookie(self, principal: Principal) -> bool:
        """True if the client shows the cookie."""
        if self._digest is None or principal.token is None:
            return False
        return compare_digest(self._digest, sha256(principal.token).digest())

    def is_same_user(self, principal: Principal) -> bool:
        """True if the client's end of a loopback connection belongs to the user of this node.

        Where the system does not tell, nobody is. It takes 3 ms, and 8 ms with 1,000 connections
        (measured on two busy cores), so it is asked for private names only.
        """
        found = ip_of(principal.address)
        if found is None:
            return bool(principal.address)  # the simulated network, in this process
        if not found.is_loopback:
            return False
        users = set(socket_users(found, principal.port, self._ports()))
        return users == {self._user}


def make_cookie(folder: Path, entropy: Callable[[int], bytes]) -> bytes:
    """Write a new cookie into a data folder, for its owner alone. Raises OSError.

    The addresses of the run before are removed first: others may listen there now.
    """
    (folder / LISTENERS_FILE).unlink(missing_ok=True)
    cookie = PREFIX.encode() + urlsafe_b64encode(entropy(_SECRET_BYTES)).rstrip(b"=")
    replace(folder / FILE_NAME, cookie + b"\n")
    return cookie


def write_listeners(folder: Path, listeners: Mapping[str, str]) -> None:
    """Write the addresses of the listeners into a data folder, for commands that look for the node.

    They connect to no other one with the cookie, so nobody gets it who listens elsewhere. Raises
    OSError.
    """
    lines = [f"{name} {address}\n" for name, address in listeners.items()]
    replace(folder / LISTENERS_FILE, "".join(lines).encode())


def read_cookie(folder: Path) -> tuple[str, dict[str, str]] | None:
    """The cookie in a data folder, and the addresses of the listeners by their names; None: there
    is none that this user may read, or others may read it as well."""
    try:
        cookie, addresses = (
            read_private(folder / name, FILE_BYTES_MAX).decode("ascii")
            for name in (FILE_NAME, LISTENERS_FILE)
        )
    except (OSError, UnsafeFile, UnicodeDecodeError):
        return None
    words = [line.split() for line in addresses.splitlines()]
    return cookie.strip(), {each[0]: each[1] for each in words if len(each) == 2}


def socket_users(address: IpAddress, port: int, to_ports: Collection[int]) -> Iterator[int]:
    """The users that own sockets with this address and port, connected to one of these ports."""
    for table in _TABLES:
        try:
            data = table.read_bytes()
        except OSError:
            continue
        for packed in _packed_forms(address, is_ipv6=table.name == "tcp6"):
            yield from _users_in(data, f": {_hex(packed)}:{port:04X} ".encode(), to_ports)


def _users_in(data: bytes, local: bytes, to_ports: Collection[int]) -> Iterator[int]:
    start = data.find(local)
    while start >= 0:
        end = data.find(b"\n", start)
        fields = data[start + 2 : end if end >= 0 else None].split()
        start = data.find(local, start + 1)
        remote_port = int(fields[1].rpartition(b":")[2], 16)
        # A socket that no process has any more is shown with inode 0, and as root's.
        if remote_port in to_ports and fields[8] != b"0":
            yield int(fields[6])


def _packed_forms(address: IpAddress, *, is_ipv6: bool) -> Iterator[bytes]:
    """The bytes of an address in a table: an IPv4 address may be that of an IPv6 socket."""
    if address.version == 4 and is_ipv6:
        yield bytes(10) + b"\xff\xff" + address.packed
    elif (address.version == 6) is is_ipv6:
        yield address.packed


def _hex(packed: bytes) -> str:
    """An address as the tables have it: each 32-bit word in the byte order of the machine."""
    words = (packed[start : start + 4] for start in range(0, len(packed), 4))
    return "".join(f"{int.from_bytes(word, sys.byteorder):08X}" for word in words)
