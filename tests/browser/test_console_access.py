"""Access to the console: links, tokens, what a token permits, the end of a session."""

from __future__ import annotations

import time
from contextlib import AsyncExitStack
from hashlib import sha256
from pathlib import Path

import pytest

from millpond import Config, Node, connect
from millpond.jobs import Queue
from millpond.node.client.streams.connect import connect_streams
from tests.browser.chromium import Tab
from tests.browser.test_console import page, press_button, says
from tests.ports import free_port

OWNER, READER = "the-token-of-the-owner", "the-token-of-a-reader"
RULES = """\
token:{owner} all
token:{reader} list,get jobs/mail orders
token:{reader} list,get,admin millpond!probe
token:{reader} list,put letters
"""
STATE = "document.body.dataset.state"
BUTTONS = """[...document.querySelectorAll('main button')]
    .filter((each) => each.checkVisibility()).map((each) => each.innerText)"""


@pytest.fixture
async def node(homes: AsyncExitStack, tmp_path: Path) -> Node:
    rules = tmp_path / "access.conf"
    digests = {"owner": OWNER, "reader": READER}
    told = {name: sha256(token.encode()).hexdigest() for name, token in digests.items()}
    rules.write_text(RULES.format(**told))
    rules.chmod(0o600)
    config = Config(
        data=str(tmp_path / "data"),
        http=f"127.0.0.1:{free_port()}",
        access_file=str(rules),
        drain_timeout_s=0.5,
        **{"ws": "off", "s3p": "off", "rustlog": "off", "p2p": "127.0.0.1:0"},
    )
    running = await homes.enter_async_context(Node(config))
    url = f"tcp://{running.listeners['p2p']}"
    for name in ("orders", "letters", "secret"):
        async with connect(url, name, token=OWNER) as channel:
            await channel.put(b"a body")
    async with Queue(url, "mail", token=OWNER) as queue:
        await queue.put({"to": "alice"})
    async with connect_streams(url, token=OWNER) as streams:
        await streams.stream("log").create()
    return running


async def logged_in(tab: Tab, node: Node, token: str, path: str = "") -> None:
    """The page, with a token that somebody types."""
    await tab.open(page(node, path))
    await tab.until(f"{STATE} === 'denied'")
    assert await tab.run("document.activeElement.id") == "token"
    await tab.type(token)
    await tab.press("Enter")
    await tab.until(f"{STATE} === 'open'")


async def test_a_link_logs_in_once_and_leaves_the_address(tab: Tab, node: Node) -> None:
    link = f"http://{node.listeners['http']}/millpond/#{node.console.login.new_link()}"
    await tab.open(link)
    await says(tab, "Overview")
    await tab.until(f"{STATE} === 'open'")
    assert "mpc1" not in await tab.run("location.href")
    await tab.reload()
    await tab.until(f"{STATE} === 'open'")
    await press_button(tab, "Log out", ".top")
    await tab.until(f"{STATE} === 'denied'")
    assert await tab.run("sessionStorage.length + localStorage.length") == 0
    assert node.console.login.sessions == 0
    await tab.open(link)
    await says(tab, "This link was used already, or has expired.")
    await tab.complains("403")


async def test_a_wrong_token_is_refused_in_words(tab: Tab, node: Node) -> None:
    await tab.open(page(node))
    await says(tab, "Log in", "millpond console")
    await tab.type("nothing like a token")
    await tab.press("Enter")
    await says(tab, "The node does not know this token.")
    assert await tab.run("sessionStorage.length") == 0


async def test_the_owner_sees_all_actions(tab: Tab, node: Node) -> None:
    await logged_in(tab, node, OWNER, "channel/orders")
    await says(tab, "a body")
    assert {"Put a message", "Purge", "Delete"} <= {*await tab.run(BUTTONS)}
    assert "Your token" not in await tab.text("main")


async def test_what_a_token_does_not_permit_is_not_shown(tab: Tab, node: Node) -> None:
    await logged_in(tab, node, READER, "channels")
    await says(tab, "orders", "letters")
    assert "secret" not in await tab.text("main")
    await tab.open(page(node, "channel/orders"))
    await says(tab, "Your token permits here: read, list.")
    assert not {"Put a message", "Purge", "Delete"} & {*await tab.run(BUTTONS)}
    await tab.open(page(node, "channel/letters"))
    await says(tab, "To see messages takes the rights admin and get in the channel.")
    assert {*await tab.run(BUTTONS)} & {"Put a message", "Purge", "Delete"} == {"Put a message"}
    await tab.open(page(node, "queue/jobs%2fmail"))
    await says(tab, "Your token permits here: read, list.", "alice")
    hidden = {"Put a job", "Pause", "Move", "Retry dead", "Purge dead"}
    assert not hidden & {*await tab.run(BUTTONS)}
    await tab.run("document.querySelector('#panel-jobs tbody a').focus()")
    await tab.press("Enter")
    await says(tab, "Payload", '"to": "alice"')
    assert not {"Retry", "Move", "Cancel"} & {*await tab.run(BUTTONS)}
    await tab.open(page(node, "peers"))
    await says(tab, "Peers are shown to the node's operator")


async def test_a_session_that_ends_leads_to_the_login(tab: Tab, node: Node) -> None:
    secret = node.console.login.new_link()
    await tab.open(f"http://{node.listeners['http']}/millpond/#{secret}")
    await tab.until(f"{STATE} === 'open'")
    node.console.login.revoke_all()
    await tab.until(f"{STATE} === 'denied'")
    assert await tab.run("sessionStorage.length") == 0
    secret = node.console.login.new_link()
    await tab.open(f"http://{node.listeners['http']}/millpond/#{secret}")
    await tab.until(f"{STATE} === 'open'")
    node.console.login._now = lambda: time.time() + 13 * 3600  # a day's work later
    await tab.reload()
    await tab.until(f"{STATE} === 'denied'")
    await says(tab, "Your session has ended.")
