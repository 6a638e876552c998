"""Requests for links to the console, over packet 94, by the operator."""

from __future__ import annotations

from enum import IntEnum

from millpond.transports.http.paths import CONSOLE

PATH = "/" + CONSOLE.decode() + "/"


class ConsoleOperation(IntEnum):
    """The operations of packet 94 for the console."""

    LINK = 18
    REVOKE = 19
