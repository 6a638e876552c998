"""A real browser, and two people with nodes whose pages it shows."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from millpond.node.chat.local_stream import LocalStream
from millpond.node.chat.records import conversation_stream
from millpond.node.node import Node
from tests.browser.chromium import Browser, Tab, browser_process, connected, find
from tests.node.outbox.peer_nodes import PeerNode
from tests.ports import free_port

HERE = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)  # before -m chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The tests of this folder are the part `browser`."""
    for item in items:
        if item.path.parent == HERE:
            item.add_marker(pytest.mark.browser)


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """The browser's driver is of asyncio."""
    return "asyncio"


@pytest.fixture(scope="session")
def devtools_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """One browser serves all tests of a process: each tab has a context of its own."""
    program = find()
    if program is None:
        pytest.skip("not run: there is no Chromium here (set CHROMIUM to one)")
    with browser_process(program, tmp_path_factory.mktemp("chromium")) as url:
        yield url


@pytest.fixture(scope="module")
async def connection(devtools_url: str) -> AsyncIterator[Browser]:
    async with connected(devtools_url) as browser:
        yield browser


@pytest.fixture
async def chromium(connection: Browser, homes: AsyncExitStack) -> AsyncIterator[Browser]:
    """The browser; all tabs of the test end before the nodes in `homes` do."""
    yield connection
    await connection.close_tabs()


@pytest.fixture
async def tab(chromium: Browser) -> AsyncIterator[Tab]:
    """A page in a window of its own, which has nothing to complain of in the end."""
    tab = await chromium.tab()
    yield tab
    await tab.close()
    assert tab.errors == []


class Person(PeerNode):
    """A neighbour with a chat page at an address that stays the same."""

    running: Node

    def __init__(self, folder: Path, name: str, **settings: object) -> None:
        super().__init__(folder, name, ws=f"127.0.0.1:{free_port()}", **settings)

    @asynccontextmanager
    async def at_home(self) -> AsyncIterator[Node]:
        """Their node runs."""
        async with self.node() as self.running:
            yield self.running

    @property
    def page(self) -> str:
        return f"http://{self.config.ws}/chat"

    @property
    def link(self) -> str:
        """One that logs in, once."""
        return f"{self.page}#{self.running.web.login.new_link()}"

    def history_with(self, public: bytes) -> LocalStream:
        """The file of a conversation; to be filled before the peer is known."""
        node = self.running
        number = node.services.next_number()
        return LocalStream(node.scheduler, node.clock.now, number, conversation_stream(public))

    async def enters(self, tab: Tab) -> None:
        """The page, logged in, with its list."""
        await tab.open(self.link)
        await tab.until("document.body.dataset.view === 'list'")


@pytest.fixture
def alice(tmp_path: Path) -> Person:
    return Person(tmp_path, "alice")


@pytest.fixture
def bob(tmp_path: Path) -> Person:
    return Person(tmp_path, "bob")


@pytest.fixture
def friends(alice: Person, bob: Person) -> None:
    """Alice and Bob know each other."""
    alice.knows(bob)
    bob.knows(alice)


@pytest.fixture
async def homes() -> AsyncIterator[AsyncExitStack]:
    """Contexts that are entered here end with the test."""
    async with AsyncExitStack() as stack:
        yield stack
