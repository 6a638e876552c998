"""The console in a browser."""

from __future__ import annotations

import threading
from contextlib import AsyncExitStack
from pathlib import Path

import anyio
import pytest

from millpond import Config, Node, connect
from millpond.jobs import Job, Queue, RateLimit, Reject, Step, Worker, join, task
from millpond.node.client.streams.connect import connect_streams
from millpond.node.jobs.payload import decode_job
from millpond.node.peers.identity import Identity
from tests.browser.chromium import Tab
from tests.ports import free_port

HOSTILE = '<img src=x onerror="window.ran = true">\u202egpj'
TEXT = "document.querySelector('main').innerText"


@pytest.fixture
async def node(homes: AsyncExitStack, tmp_path: Path) -> Node:
    config = Config(
        data=str(tmp_path / "data"),
        http=f"127.0.0.1:{free_port()}",
        drain_timeout_s=0.5,
        **{"ws": "off", "s3p": "off", "rustlog": "off", "p2p": "127.0.0.1:0"},
    )
    return await homes.enter_async_context(Node(config))


def page(node: Node, path: str = "") -> str:
    return f"http://{node.listeners['http']}/millpond/#/{path}"


def url(node: Node) -> str:
    return f"tcp://{node.listeners['p2p']}"


async def says(tab: Tab, *words: str) -> None:
    """Wait until the view has all of these."""
    for word in words:
        await tab.until(f"{TEXT}.includes({word!r})")


async def test_the_overview_is_live_and_shows_names_as_text(tab: Tab, node: Node) -> None:
    async with connect(url(node), HOSTILE) as channel:
        await channel.put(b"x")
        await tab.open(f"http://{node.listeners['http']}/")
        await says(tab, "Everything is in order.", "Channels", "<img src=x")
        assert await tab.run("location.pathname") == "/millpond/"
        assert "\\u{202e}gpj" in await tab.text("main")
        before = await tab.run("document.querySelector('.plot svg').getAttribute('aria-label')")
        await channel.put(b"y")
        shown = "document.querySelector('.plot svg').getAttribute('aria-label')"
        await tab.until(f"/in [0-9.]+\\/s/.test({shown}) && {shown} !== {before!r}")
    assert not await tab.run("'ran' in window")


async def press_button(tab: Tab, text: str, where: str = "main") -> None:
    """Press the button with this text by the keyboard, once it is there."""
    every = f"[...document.querySelectorAll('{where} button')]"
    found = f"{every}.find((each) => each.innerText === {text!r} && !each.disabled)"
    await tab.until(f"(({found})?.focus(), !!({found}))")
    await tab.press("Enter")


async def test_a_stream_is_followed_appended_to_and_trimmed_with_a_warning(
    tab: Tab, node: Node
) -> None:
    async with connect_streams(url(node)) as streams:
        stream = streams.stream("weather")
        await stream.create()
        await stream.append([b"%d" % number for number in range(70)])
        await stream.commit("readers", 10)
        await tab.open(page(node, "streams"))
        await says(tab, "weather", "60")  # records of lag
        await tab.click("tbody a")
        await tab.until("document.querySelectorAll('button.link').length === 50")
        await press_button(tab, "Older")
        await tab.until("document.querySelector('button.link').innerText === '0'")
        await press_button(tab, "Follow")
        await tab.until("document.querySelector('button.link').innerText === '69'")
        await stream.append(HOSTILE.encode())
        await says(tab, "<img src=x")
        await press_button(tab, "Append")
        await tab.until("document.querySelector('dialog')?.open")
        await tab.type("by hand")
        await press_button(tab, "Append", "dialog")
        await says(tab, "by hand")
        await press_button(tab, "Trim")
        await tab.until("document.querySelector('dialog')?.open")
        await tab.run("document.querySelector('dialog input').value = ''")
        await tab.type("20")
        await press_button(tab, "Show what goes", "dialog")
        await tab.until("document.querySelector('dialog')?.innerText.includes('20 records go')")
        assert "readers has not read 10 of them" in await tab.text("dialog")
        await press_button(tab, "Remove 20 records", "dialog")
        await tab.until("!document.querySelector('dialog')")
        assert (await stream.info()).trim_point == 20
    assert not await tab.run("'ran' in window")


async def test_a_queue_is_paused_and_a_dead_job_is_retried(tab: Tab, node: Node) -> None:
    async def fail(payload: dict[str, str]) -> None:
        raise Reject(f"{HOSTILE} is nobody")

    async with Queue(url(node), "mail") as queue:
        await queue.put({"to": "<b>alice</b>"})
        async with Worker(url(node), fail, queues=["mail"]) as worker:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(worker.run)
                with anyio.fail_after(30):
                    while not (await queue.counts()).dead:  # noqa: ASYNC110
                        await anyio.sleep(0.05)
                tasks.cancel_scope.cancel()
        await tab.open(page(node, "jobs"))
        await says(tab, "mail")
        await tab.click("tbody a")
        await press_button(tab, "Pause")
        await says(tab, "Resume")
        assert (await queue.counts()).paused
        await tab.click("[data-state=dead]")
        await says(tab, "is nobody")
        await tab.run("document.querySelector('tbody a').focus()")
        await tab.press("Enter")
        await says(tab, '"to": "<b>alice</b>"', "Why it failed")
        await press_button(tab, "Retry")
        await tab.until("location.hash === '#/queue/jobs%2fmail'")
        assert (await queue.counts()).ready == 1
    assert not await tab.run("'ran' in window")


async def test_a_channel_is_found_read_and_purged_by_the_keyboard(tab: Tab, node: Node) -> None:
    async with connect(url(node), "orders/eu") as channel, connect(url(node), "zoo") as other:
        await channel.put(b'{"to":"<b>alice</b>","n":12345678901234567890}')
        await other.put(b"\x00\xff")
    await tab.open(page(node, "channels"))
    await says(tab, "orders/eu", "zoo")
    await tab.press("/")
    await tab.type("ders")
    await tab.until(f"!{TEXT}.includes('zoo')")
    await tab.run("document.querySelector('tbody a').focus()")
    await tab.press("Enter")
    await says(tab, "oldest first", '"<b>alice</b>"')
    await tab.run("document.querySelector('tbody button').focus()")
    await tab.press("Enter")
    body = await tab.text("pre.body")
    assert body == '{\n  "to": "<b>alice</b>",\n  "n": 12345678901234567890\n}'
    await press_button(tab, "Purge")
    await tab.until("document.querySelector('dialog')?.open")
    assert "1 message (46 B) go" in await tab.text("dialog")
    assert await tab.run("document.activeElement.innerText") == "Cancel"
    await tab.press("Tab")
    await tab.press("Enter")
    await says(tab, "No messages.")
    assert not await tab.run("!!document.querySelector('dialog')")


@task(queue="mail", keep=600)
async def send(payload: dict[str, str], job: Job) -> str:
    job.progress(0.25, "waits for the gate")
    job.log(HOSTILE)
    while not GATE.is_set():  # noqa: ASYNC110
        await anyio.sleep(0.02)
    return f"sent to {payload['to']}"


GATE = threading.Event()


@task(queue="mail", attempts=1)
async def refuse(payload: dict[str, str]) -> None:
    raise LookupError(f"{HOSTILE} {payload['to']}")


async def test_a_failed_job_shows_the_traceback_of_its_attempt(tab: Tab, node: Node) -> None:
    async with Queue(url(node), "mail") as queue:
        put = await queue.put({"to": "bob"}, name="refuse")
        async with Worker(url(node), [refuse], name="ann") as worker:
            await worker.run(burst=True)
        (job,) = [each async for each in queue.jobs("dead")]
        await tab.open(page(node, f"job/jobs%2fmail/{job.id}"))
        await says(tab, str(put.id), "Traceback of attempt 1", "LookupError: <img")
        await tab.run("document.querySelector('summary').focus()")
        await tab.run("[...document.querySelectorAll('summary')].at(-1).click()")
        await says(tab, "in refuse", "raise LookupError(f")
        await anyio.sleep(2.5)  # what is drawn anew stays open
        await says(tab, "in refuse")
    assert not await tab.run("'ran' in window")


@task(queue="mail", attempts=1)
async def sleeps(payload: float) -> None:
    await anyio.sleep(payload)
    if payload > 0.1:
        raise LookupError


async def test_throughput_and_durations_of_jobs_are_charts(tab: Tab, node: Node) -> None:
    labels = "[...document.querySelectorAll('.chart svg')].map((each) => each.ariaLabel).join()"
    moving = "/Jobs: put [0-9.]+\\/s, done [0-9.]+\\/s, failed [1-9]/"
    took = "/Attempts take: half [0-9.]+ ms, 99 % [1-4][0-9]+ ms/"
    async with Queue(url(node), "mail") as queue, Worker(url(node), [sleeps]) as worker:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(worker.run)
            tasks.start_soon(puts, queue)
            for path in ("jobs", "queue/jobs%2fmail"):
                await tab.open(page(node, path))
                for wanted in (moving, took):
                    await tab.until(f"{wanted}.test({labels})", 20)
            tasks.cancel_scope.cancel()


async def puts(queue: Queue) -> None:
    while True:
        for seconds in (0.01, 0.01, 0.01, 0.01, 0.3):
            await queue.put(seconds)
            await anyio.sleep(0.1)


async def chosen(tab: Tab, title: str) -> None:
    """Choose a part of the page by its tab."""
    await press_button(tab, title, "[role=tablist]")


async def test_workers_have_names_and_jobs_progress_and_results(tab: Tab, node: Node) -> None:
    GATE.clear()
    async with Queue(url(node), "mail") as queue:
        put = await queue.put({"to": "alice"}, name="send", keep=600)
        async with Worker(url(node), [send], name="ann <b>\u202e") as worker:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(worker.run)
                await tab.open(page(node, "queue/jobs%2fmail"))
                await chosen(tab, "Workers")
                await says(tab, "ann <b>\\u{202e}", "25 %, waits for the gate", "1 of 8")
                await tab.run("document.querySelector('#panel-workers tbody a').focus()")
                await tab.press("Enter")
                await says(tab, f"Job {put.id}", "25 %", "<img src=x", "running")
                GATE.set()
                await says(tab, '"sent to alice"', "done")
                worker.drain()
        await tab.reload()  # the result is kept, and the history has the attempt
        await says(tab, '"sent to alice"', "No attempt is in the history.")
    assert not await tab.run("'ran' in window")


async def test_limits_schedules_and_jobs_are_set_by_hand(tab: Tab, node: Node) -> None:
    async with Queue(url(node), "mail") as queue:
        await tab.open(page(node, "queue/jobs%2fmail?tab=limits"))
        await press_button(tab, "Change")
        await fill(tab, concurrency="3", rate="100/m", burst="10")
        await press_button(tab, "Set", "dialog")
        await says(tab, "3 at once", "100/m, up to 10 at once")
        state = await queue.state()
        assert (state.concurrency, state.key_concurrency, state.key_rate) == (3, 0, None)
        assert state.rate == RateLimit(100, 60.0, 10)
        await chosen(tab, "Schedules")
        await press_button(tab, "New schedule")
        await fill(tab, name="nightly", cron="0 3 * * *", zone="UTC", payload='{"to": "all"}')
        await press_button(tab, "Add", "dialog")
        await says(tab, "nightly", "0 3 * * * UTC", '"to": "all"')
        await press_button(tab, "Run now", "#panel-schedules")
        await chosen(tab, "Jobs")
        await press_button(tab, "Put a job")
        await fill(tab, payload='{"to": "bob"}', task="send", priority="9")
        await press_button(tab, "Put", "dialog")
        await says(tab, '"to": "all"', 'send { "to": "bob" }')
        jobs = [decode_job(each.data or b"") async for each in queue.jobs("ready")]
    assert [(each.name, each.payload, each.priority) for each in jobs] == [
        (None, {"to": "all"}, 4),
        ("send", {"to": "bob"}, 9),
    ]


async def test_jobs_move_to_another_queue_and_keep_their_data(tab: Tab, node: Node) -> None:
    async with Queue(url(node), "mail") as queue, Queue(url(node), "slow") as slow:
        for number in range(3):
            await queue.put(number, ttl=3600)
        await queue.put("later", due=3600)
        await tab.open(page(node, "queue/jobs%2fmail"))
        await press_button(tab, "Move")
        await fill(tab, queue="slow")
        await press_button(tab, "Move", "dialog")
        await tab.until("document.querySelector('#news').innerText === '4 jobs moved.'")
        counts = await slow.counts()
        assert (counts.ready, counts.delayed) == (3, 1)
        moved = [each async for each in slow.jobs("ready")]
        assert [decode_job(each.data or b"").payload for each in moved] == [0, 1, 2]
        assert all(each.expires for each in moved)
        assert (await queue.counts()).ready == 0


async def test_a_flow_shows_what_waits_for_what(tab: Tab, node: Node) -> None:
    async with Queue(url(node), "mail") as queue:
        first, second = Step(payload=1), Step(payload=2)
        flow = await queue.put_flow(join(Step(queue="total"), [first, second]))
        await tab.open(page(node, "queue/jobs%2fmail?tab=flows"))
        await says(tab, str(flow), "0 of 3")
        await tab.run("document.querySelector('#panel-flows tbody a').focus()")
        await tab.press("Enter")
        await says(tab, f"Flow {flow}", "running", "total", "1, 2")
        await press_button(tab, "Cancel")
        await press_button(tab, "Cancel the flow", "dialog")
        await says(tab, "cancelled")
        assert (await queue.flow(flow)).state == "cancelled"


async def fill(tab: Tab, **fields: str) -> None:
    """Write into fields of the dialog, by their names."""
    await tab.until("document.querySelector('dialog')?.open")
    for name, text in fields.items():
        await tab.run(f"document.querySelector('dialog [name={name}]').select()")
        await tab.type(text)


async def test_the_overview_shows_the_replica_and_peers(
    tab: Tab, homes: AsyncExitStack, tmp_path: Path
) -> None:
    (tmp_path / "store").mkdir()
    config = Config(
        data=str(tmp_path / "data"),
        http=f"127.0.0.1:{free_port()}",
        replica=f"file:{tmp_path}/store",
        drain_timeout_s=0.5,
        **{"ws": "off", "s3p": "off", "rustlog": "off", "p2p": "127.0.0.1:0"},
    )
    running = await homes.enter_async_context(Node(config))
    identity = Identity(bytes(range(32)))
    async with connect(url(running), "chat/1", identity=identity) as channel:
        await channel.put(b"x")
        await tab.open(page(running))
        await says(tab, f"file:{tmp_path}/store", "nothing waits", "of owner 1", identity.id[:16])
        await channel.put(b"x" * 100_000)
        await tab.until(f"/{identity.id[:16]}…\\s+1\\s+[0-9.]+ KiB\\/s/.test({TEXT})")


async def test_the_replica_has_a_page(
    tab: Tab, node: Node, homes: AsyncExitStack, tmp_path: Path
) -> None:
    await tab.open(page(node, "replica"))
    await says(tab, "This node has no replica.")
    objects, secret = tmp_path / "objects", tmp_path / "passphrase"
    secret.write_text("three hedgehogs")
    secret.chmod(0o600)
    config = Config(
        data=str(tmp_path / "owner"),
        http=f"127.0.0.1:{free_port()}",
        public_url="https://node.example",
        replica=f"file:{objects}",
        replica_keys=str(secret),
        drain_timeout_s=0.5,
        **{"ws": "off", "s3p": "off", "rustlog": "off", "p2p": "127.0.0.1:0"},
    )
    running = await homes.enter_async_context(Node(config))
    (objects / "standby").mkdir(parents=True, exist_ok=True)
    (objects / "standby" / f"{'ab' * 16}-2500").write_bytes(b"")  # as a standby tells of itself
    await tab.open(page(running, "replica"))
    await says(tab, f"file:{objects}", "shipping", "nothing waits", "the owner number 1")
    await says(tab, "https://node.example", "sealed, of ", "the last ", "abababababababab", "2.5 s")
    rows = "document.querySelectorAll('section[aria-label=Snapshots] tbody tr').length"
    await tab.until(f"{rows} === 1")
    async with connect(url(running), "chat/1") as channel:
        await channel.put(b"x")
        await channel.admin(26, {"number": 0})
        await tab.until(f"{rows} === 2")
    await tab.run("document.querySelector('#menu a[data-path=\"\"]').click()")
    await says(tab, "Everything is in order.")
