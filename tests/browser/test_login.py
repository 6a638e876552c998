"""Access to the page: links, sessions, other people's pages."""

from __future__ import annotations

from contextlib import AsyncExitStack

import anyio
import pytest

from tests.browser.chromium import Browser, Tab
from tests.browser.conftest import Person

SESSION = "sessionStorage.length + localStorage.length"
VIEW = "document.body.dataset.view"

pytestmark = pytest.mark.usefixtures("friends")


@pytest.fixture(autouse=True)
async def _at_home(homes: AsyncExitStack, alice: Person) -> None:
    await homes.enter_async_context(alice.at_home())


async def addresses(tab: Tab) -> list[str]:
    """The pages that Back and a reload lead to. (The typed address is remembered beside it for as
    long as the tab lives; no page can change that, and the secret in it is used up.)"""
    history = await tab.call("Page.getNavigationHistory")
    return [entry["url"] for entry in history["entries"]]


async def test_without_a_link_there_is_only_a_hint(tab: Tab, alice: Person) -> None:
    await tab.open(alice.page)
    await tab.until(f"{VIEW} === 'login'")
    assert "millpond chat --web" in await tab.text("body")


async def test_a_link_opens_the_page_once_and_leaves_the_address(
    chromium: Browser, tab: Tab, alice: Person
) -> None:
    link = alice.link
    await tab.open(link)
    await tab.until(f"{VIEW} === 'list'")
    assert await tab.run("location.href") == alice.page
    with anyio.fail_after(60):  # the browser's own process hears of the new address a little later
        while any("mpw1" in url for url in await addresses(tab)):  # noqa: ASYNC110
            await anyio.sleep(0.02)
    other = await chromium.tab()
    await other.open(link)
    await other.until(f"{VIEW} === 'login'")
    assert "This link was used" in await other.text("#login-why")
    assert await other.run(SESSION) == 0


async def test_no_key_of_the_node_reaches_the_browser(tab: Tab, alice: Person) -> None:
    await alice.enters(tab)
    await tab.click("#ourselves")
    await tab.until("document.querySelector('.card') !== null")
    page = await tab.run(
        "document.documentElement.outerHTML + document.querySelector('.card').value"
    )
    for text in (alice.identity.seed.hex(), alice.identity.seed.decode("latin-1")):
        assert text not in page
    assert alice.running.peer_services.keyring.identity.id in page


async def test_a_session_ends_with_the_tab_unless_it_shall_stay(tab: Tab, alice: Person) -> None:
    await alice.enters(tab)
    assert await tab.run("[sessionStorage.length, localStorage.length]") == [1, 0]
    await tab.click("#ourselves")
    await tab.click("#stay")
    await tab.until("localStorage.length === 1 && sessionStorage.length === 0")
    await tab.reload()
    await tab.until(f"{VIEW} === 'list'")
    await tab.click("#ourselves")
    await tab.click("#stay")
    await tab.until("localStorage.length === 0 && sessionStorage.length === 1")


async def test_who_logs_out_is_out(tab: Tab, alice: Person) -> None:
    await alice.enters(tab)
    await tab.click("#ourselves")
    await tab.click("#sheet .quiet")
    await tab.until(f"{VIEW} === 'login'")
    assert await tab.run(SESSION) == 0
    assert alice.running.web.login.sessions == 0


async def test_sessions_that_are_revoked_end_at_once(tab: Tab, alice: Person) -> None:
    await alice.enters(tab)
    alice.running.web.login.revoke_all()
    await tab.until(f"{VIEW} === 'login'")
    assert "has ended" in await tab.text("#login-why")
    assert await tab.run(SESSION) == 0


async def test_nothing_runs_that_the_page_did_not_bring(tab: Tab, alice: Person) -> None:
    """Content-Security-Policy, and trusted types: markup is never made of text."""
    await alice.enters(tab)
    outcomes = await tab.run(
        """(() => {
            const attempts = [
                () => { document.body.innerHTML = '<img src=x onerror="window.ran = true">' },
                () => { document.body.setAttribute('onclick', 'window.ran = true') },
                () => { document.createElement('script').src = 'data:,ran=true' },
            ];
            return attempts.map((attempt) => {
                try { attempt() } catch (error) { return error.constructor.name }
                return 'done';
            });
        })()"""
    )
    assert "done" not in outcomes
    assert await tab.run("window.ran ?? null") is None
    await tab.complains("Trusted")


async def test_the_page_of_somebody_else_cannot_use_a_session(
    tab: Tab, bob: Person, homes: AsyncExitStack, alice: Person
) -> None:
    """Bob's page is of another origin than Alice's, in a browser that is logged in at both."""
    await homes.enter_async_context(bob.at_home())
    await bob.enters(tab)
    await alice.enters(tab)
    theirs = f"ws://{bob.config.ws}/v1/channels/millpond!chat"
    outcome = await tab.run(
        f"""new Promise((resolve) => {{
            const socket = new WebSocket('{theirs}', 'p2pbuf.v1.hello');
            socket.onopen = () => resolve('open');
            socket.onerror = () => resolve('refused');
        }}).catch(String)"""
    )
    assert outcome == "refused"
    await tab.complains("violates")
