"""Chromium without a window, told what to do over its own DevTools protocol."""

from __future__ import annotations

import base64
import json
import os
import shutil
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from itertools import count
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import anyio
from websockets.asyncio.client import ClientConnection, connect

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
QUIET = (
    "--headless=new",
    "--no-first-run",
    "--no-default-browser-check",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-dev-shm-usage",
    "--disable-domain-reliability",
    "--disable-extensions",
    # Pages of the address bar, loaded into two processes more for each context.
    "--disable-features=WebUIOmniboxPopup,WebUIOmniboxAimPopup",
    "--disable-gpu",
    "--disable-sync",
    "--hide-scrollbars",
    "--mute-audio",
    # Names of strangers lead to this machine: what a page does that was rebound, or never left.
    "--host-resolver-rules="
    "MAP *.example 127.0.0.1, MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost",
    "--remote-debugging-port=0",
)
START_S = 120.0
WAIT_S = 60.0


def find() -> str | None:
    """The browser's program: `$CHROMIUM`, or one of the usual names; None: there is none."""
    named = os.environ.get("CHROMIUM")
    return shutil.which(named) if named else next(filter(None, map(shutil.which, NAMES)), None)


class Failure(AssertionError):
    """The page threw something, or never came to be as it should."""


class Tab:
    """A page of its own; tabs of one `context` alone share the memory of the browser."""

    context: str

    def __init__(self, browser: Browser, session: str, target: str) -> None:
        self.errors: list[str] = []
        self._browser = browser
        self._session = session
        self._target = target

    async def call(self, method: str, **params: object) -> dict[str, Any]:
        """A command of the protocol, in this tab."""
        return await self._browser.call(method, self._session, **params)

    async def open(self, url: str) -> None:
        """Go there, also if only the fragment differs."""
        here = str(await self.until("location.href"))
        if here.partition("#")[0] == url.partition("#")[0]:
            # By the page itself: Chromium starts a process for a page after one that it blanked.
            await self.run("location.replace('about:blank')")
            await self.until("location.href === 'about:blank'")
        await self.call("Page.navigate", url=url)

    async def reload(self) -> None:
        """Until the new page is there."""
        await self.run("window.isOld = true")
        await self.call("Page.reload")
        await self.until("document.body && !window.isOld")

    async def close(self) -> None:
        """Any answer of the page to it."""
        await self._browser.call("Target.closeTarget", targetId=self._target)

    async def run(self, script: str) -> Any:
        """The value of an expression, awaited. Raises Failure for what it throws."""
        told = await self.call(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
        )
        if "exceptionDetails" in told:
            raise Failure(told["exceptionDetails"].get("exception", {}).get("description"))
        return told["result"].get("value")

    async def until(self, script: str, wait_s: float = WAIT_S) -> Any:
        """Wait until an expression is true; gives its value."""
        value = None
        with anyio.move_on_after(wait_s):
            while True:
                try:
                    value = await self.run(script)
                except Failure:  # the page is being made
                    value = None
                if value:
                    return value
                await anyio.sleep(0.02)
        seen = await self.run("document.body.innerText")
        raise Failure(f"never true: {script}\nerrors: {self.errors}\nthe page says:\n{seen}")

    async def text(self, selector: str) -> str:
        """The visible text of an element."""
        return str(await self.until(f"document.querySelector({json.dumps(selector)})?.innerText"))

    async def click(self, selector: str) -> None:
        """With the mouse, in the middle of an element that is to be seen."""
        place = await self.place_of(selector)
        await self.mouse("mousePressed", place)
        await self.mouse("mouseReleased", place)

    async def mouse(self, kind: str, place: dict[str, float]) -> None:
        """One half of a click, as DevTools names it."""
        await self.call("Input.dispatchMouseEvent", type=kind, button="left", clickCount=1, **place)

    async def place_of(self, selector: str) -> dict[str, float]:
        """The middle of an element that nothing covers, in pixels {x, y}."""
        place: dict[str, float] = await self.until(
            f"""(() => {{
                const element = document.querySelector({json.dumps(selector)});
                if (!element) return null;
                element.scrollIntoViewIfNeeded();
                const {{ left, top, width, height }} = element.getBoundingClientRect();
                const [x, y] = [left + width / 2, top + height / 2];
                const hit = document.elementFromPoint(x, y);
                return width && element.contains(hit) ? {{ x, y }} : null;
            }})()"""
        )
        return place

    async def type(self, text: str) -> None:
        """Into what has the focus."""
        await self.call("Input.insertText", text=text)

    async def press(self, key: str, *, shift: bool = False, alt: bool = False) -> None:
        """A key of the keyboard, as `KeyboardEvent.key` names it."""
        codes = {"Enter": 13, "Escape": 27, "Tab": 9, "ArrowUp": 38, "ArrowDown": 40, "/": 191}
        codes |= {"ArrowLeft": 37, "ArrowRight": 39, "Home": 36, "End": 35}
        text = {"Enter": "\r", "/": "/"}.get(key, "") if not alt else ""
        modifiers = (1 if alt else 0) | (8 if shift else 0)
        fields = {"key": key, "code": key, "windowsVirtualKeyCode": codes[key]}
        down = {**fields, "modifiers": modifiers, "text": text}
        await self.call("Input.dispatchKeyEvent", type="keyDown", **down)
        await self.call("Input.dispatchKeyEvent", type="keyUp", modifiers=modifiers, **fields)

    async def resize(self, width: int, height: int, *, phone: bool = False) -> None:
        """The window in CSS pixels; `phone`: with fingers, and finer pixels."""
        scale = 2 if phone else 1
        await self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=scale, mobile=phone,
        )  # fmt: skip
        await self.call("Emulation.setTouchEmulationEnabled", enabled=phone)

    async def prefer(self, **features: str) -> None:
        """Media features, with `_` for `-`: prefers_color_scheme="dark"."""
        told = [{"name": k.replace("_", "-"), "value": v} for k, v in features.items()]
        await self.call("Emulation.setEmulatedMedia", features=told)

    async def complains(self, *words: str) -> None:
        """Wait until the browser has complained of each of these, and forget it."""
        with anyio.fail_after(WAIT_S):
            for word in words:
                while True:
                    if any(word in each for each in self.errors):
                        break
                    await anyio.sleep(0.02)
        self.errors.clear()

    async def picture(self, path: Path) -> None:
        """A PNG of what is to be seen."""
        shot = await self.call("Page.captureScreenshot", format="png")
        await anyio.Path(path).write_bytes(base64.b64decode(shot["data"]))


class Browser:
    """A connection to a browser. Use `connected()`."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._numbers = count(1)
        self._answers: dict[int, dict[str, Any]] = {}
        self._asked: dict[int, anyio.Event] = {}
        self._tabs: dict[str, Tab] = {}
        self._contexts: list[str] = []

    async def call(self, method: str, session: str | None = None, **params: object) -> Any:
        """A command; `session` is that of a tab."""
        number = next(self._numbers)
        self._asked[number] = anyio.Event()
        request: dict[str, object] = {"id": number, "method": method, "params": params}
        if session is not None:
            request["sessionId"] = session
        await self._socket.send(json.dumps(request))
        with anyio.fail_after(START_S):
            await self._asked[number].wait()
        del self._asked[number]
        answer = self._answers.pop(number)
        if "error" in answer:
            raise Failure(f"{method}: {answer['error']['message']}")
        return answer["result"]

    async def tab(self, beside: Tab | None = None) -> Tab:
        """A new one, with a memory of its own, or with that of another one."""
        if beside is None:
            context = (await self.call("Target.createBrowserContext"))["browserContextId"]
            self._contexts.append(context)
        else:
            context = beside.context
        where = {"url": "about:blank", "browserContextId": context}
        target = (await self.call("Target.createTarget", **where))["targetId"]
        told = await self.call("Target.attachToTarget", targetId=target, flatten=True)
        tab = self._tabs[told["sessionId"]] = Tab(self, told["sessionId"], target)
        tab.context = context
        for domain in ("Page", "Runtime", "Log", "Network"):
            await tab.call(f"{domain}.enable")
        await tab.call("Emulation.setFocusEmulationEnabled", enabled=True)
        await tab.resize(1180, 760)
        return tab

    async def close_tabs(self) -> None:
        """All tabs, with the memories that they had."""
        while self._contexts:
            context = self._contexts.pop()
            await self.call("Target.disposeBrowserContext", browserContextId=context)

    async def listen(self) -> None:
        """Hand out answers, and keep what pages complain of, until the connection is closed."""
        async for message in self._socket:
            told = json.loads(message)
            if "id" in told:
                self._answers[told["id"]] = told
                if told["id"] in self._asked:
                    self._asked[told["id"]].set()
            elif tab := self._tabs.get(told.get("sessionId", "")):
                _complain(tab, told["method"], told["params"])


def _complain(tab: Tab, method: str, params: dict[str, Any]) -> None:
    if method == "Runtime.exceptionThrown":
        details = params["exceptionDetails"]
        tab.errors.append(details.get("exception", {}).get("description") or details["text"])
    elif method == "Runtime.consoleAPICalled" and params["type"] in ("warning", "error"):
        tab.errors.append(" ".join(str(each.get("value")) for each in params["args"]))
    elif method == "Log.entryAdded" and params["entry"]["level"] == "error":
        entry = params["entry"]
        tab.errors.append(f"{entry['text']} {entry.get('url', '')}")


@contextmanager
def browser_process(program: str, folder: Path) -> Iterator[str]:
    """A browser that keeps its things in `folder`, until the end of the block; gives the address of
    its DevTools."""
    flags = [*QUIET, f"--user-data-dir={folder}"]
    if os.geteuid() == 0:
        flags.append("--no-sandbox")  # it refuses to run as root with one
    process = subprocess.Popen([program, *flags, "about:blank"], start_new_session=True)
    try:
        yield _devtools_url(process, folder / "DevToolsActivePort")
    finally:
        os.killpg(process.pid, signal.SIGKILL)  # with all that it started: they are its group
        process.wait()


def _devtools_url(process: subprocess.Popen[bytes], file: Path) -> str:
    """The port and the path that a browser writes when it has started."""
    ends = monotonic() + START_S
    while monotonic() < ends and process.poll() is None:
        lines = file.read_text().splitlines() if file.exists() else []
        if len(lines) == 2:
            return f"ws://127.0.0.1:{lines[0]}{lines[1]}"
        sleep(0.02)
    raise Failure(f"the browser did not start: exit code {process.poll()}")


@asynccontextmanager
async def connected(devtools_url: str) -> AsyncIterator[Browser]:
    """A browser that runs, told what to do until the end of the block."""
    async with (
        anyio.create_task_group() as tasks,
        connect(devtools_url, max_size=2**26, ping_interval=None) as socket,
    ):
        found = Browser(socket)
        tasks.start_soon(found.listen)
        yield found
