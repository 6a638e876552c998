"""Files in the page: attached, dropped, saved, and shown where they are images
(docs/guides/chat.md)."""

from __future__ import annotations

import json
import os
import struct
import zlib
from base64 import b64encode
from contextlib import AsyncExitStack

import pytest

from millpond.node.chat.records import Kind, Transfer
from tests.browser.chromium import Browser, Tab
from tests.browser.conftest import Person
from tests.browser.test_actions import both_talk
from tests.node.chat.file_client import read_file, send_file, until_transfer

pytestmark = pytest.mark.usefixtures("friends")

MAKE_FILE = """(() => {{
  const data = Uint8Array.from(atob({data}), (each) => each.charCodeAt(0));
  const transfer = new DataTransfer();
  transfer.items.add(new File([data], {name}, {{ type: {type} }}));
  return transfer;
}})()"""
KEEP_BLOBS = """
window.blobs = [];
window.clicked = [];
const made = URL.createObjectURL.bind(URL);
URL.createObjectURL = (blob) => { window.blobs.push(blob); return made(blob); };
HTMLAnchorElement.prototype.click = function click() { window.clicked.push(this.download); };
"""


def png(width: int, height: int, *, rows: int | None = None) -> bytes:
    """A green image; `rows`: fewer of them than its header says."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        checked = kind + body
        return struct.pack(">I", len(body)) + checked + struct.pack(">I", zlib.crc32(checked))

    line = b"\0" + b"\x20\x90\x60" * min(width, 1000)
    data = zlib.compress(line * (height if rows is None else rows))
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def made(data: bytes, name: str, type_: str) -> str:
    encoded = json.dumps(b64encode(data).decode())
    return MAKE_FILE.format(data=encoded, name=json.dumps(name), type=json.dumps(type_))


async def attach(tab: Tab, data: bytes, name: str, type_: str = "") -> None:
    await tab.run(f"document.getElementById('attached').files = {made(data, name, type_)}.files; 0")
    await tab.run("document.getElementById('attached').dispatchEvent(new Event('change')); 0")


async def drop(tab: Tab, data: bytes, name: str, on: str) -> None:
    await tab.run(
        f"document.querySelector('{on}').dispatchEvent(new DragEvent('drop',"
        f" {{ bubbles: true, cancelable: true, dataTransfer: {made(data, name, '')} }})); 0"
    )


async def test_a_file_is_attached_saved_and_shown_as_an_image(
    chromium: Browser, tab: Tab, homes: AsyncExitStack, alice: Person, bob: Person
) -> None:
    other = await both_talk(chromium, tab, homes, alice, bob)
    image = png(640, 480) + os.urandom(700_000)  # what is behind the end counts for nothing
    await attach(tab, image, "cat.png", "image/png")
    await tab.until("document.querySelector('.ours .file-state')?.innerText === 'received'")
    await other.until("document.querySelector('.theirs [data-file=show]') !== null")
    assert await other.text(".theirs .file-name") == "cat.png"
    assert await other.text(".theirs .file-size") == f"{len(image) / 1000:.1f} kB"
    assert await other.run("document.querySelector('img')") is None  # nothing opens by itself
    assert await read_file(bob.running, alice) == image

    await other.run(KEEP_BLOBS)
    await other.run("document.querySelector('.theirs [data-file=show]').click()")
    await other.until("document.querySelector('.theirs img')?.naturalWidth === 640")
    shown = "(({ src, alt, naturalHeight }) => [src.slice(0, 5), alt, naturalHeight])"
    assert await other.run(f"{shown}(document.querySelector('.theirs img'))") == [
        "blob:",
        "cat.png",
        480,
    ]
    assert await other.run("window.blobs[0].type") == "image/png"
    await other.run("document.querySelector('.theirs [data-file=save]').click()")
    await other.until("window.clicked.length === 1")
    assert await other.run("[window.clicked[0], window.blobs[1].size, window.blobs[1].type]") == [
        "cat.png",
        len(image),
        "application/octet-stream",
    ]
    assert other.errors == []


async def test_files_are_dropped_on_the_conversation_and_nowhere_else(
    chromium: Browser, tab: Tab, homes: AsyncExitStack, alice: Person, bob: Person
) -> None:
    other = await both_talk(chromium, tab, homes, alice, bob)
    await drop(tab, b"on the list", "list.txt", "#people-list")
    await drop(tab, b"hello", "hello.txt", "#scroller")
    await other.until("document.querySelector('.theirs [data-file=save]') !== null")
    assert await other.run("document.querySelectorAll('.file').length") == 1
    assert await other.run("document.querySelector('[data-file=show]')") is None
    assert await read_file(bob.running, alice) == b"hello"
    assert other.errors == []


@pytest.mark.parametrize(
    "data",
    [
        b"<svg xmlns='http://www.w3.org/2000/svg' onload='window.ran = 1'></svg>",
        b"<script>window.ran = 1</script>",
        b"\x89PNG\r\n\x1a\n" + bytes(100),
        png(60_000, 60_000, rows=1),
        b"\xff\xd8\xff\xe0" + bytes(100),
        b"\xff\xd8" + b"\xff" * 5000,
        b"GIF89a" + bytes(4),
        b"",
    ],
    ids=["svg", "html", "no header", "bomb", "jpeg", "endless", "no pixels", "empty"],
)
async def test_nothing_but_an_image_is_shown(
    tab: Tab, homes: AsyncExitStack, alice: Person, bob: Person, data: bytes
) -> None:
    """The name that its sender gives it does not matter."""
    here = await homes.enter_async_context(alice.at_home())
    there = await homes.enter_async_context(bob.at_home())
    await send_file(there, "alice", data, "<img src=x onerror=window.ran=1>.png", type="image/png")
    await until_transfer(here, bob, Kind.FILE_IN, Transfer.RECEIVED)
    await alice.enters(tab)
    await tab.run(f"document.querySelector('[data-id=\"{bob.identity.id}\"]').click()")
    await tab.until("document.querySelector('[data-file=show]') !== null")
    await tab.run("document.querySelector('[data-file=show]').click()")
    await tab.until("document.querySelector('.file-state').innerText.includes('Save it instead')")
    assert await tab.run("document.querySelector('.file img')") is None
    assert await tab.run("window.ran ?? null") is None
