"""A user's program: what README and the tutorials do, each call with its types."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable

import anyio
import msgspec

from millpond import (
    ChannelInfo,
    Config,
    Durability,
    Message,
    Node,
    NotFound,
    Receipt,
    connect,
    connect_channels,
    connect_streams,
)
from millpond import sync as blocking
from millpond.errors import ClientClosed, ConnectionLost, JobFailed, NoListener
from millpond.jobs import Backoff, Handle, Job, Queue, Task, Worker, batch_task, task
from millpond.state import Collection, StateWriter, StreamState, follow_state
from millpond.streams import Appended, Record
from millpond.testing import World, virtual


class Mail(msgspec.Struct):
    to: str


@task(queue="mail", backoff=Backoff(base_s=0.1))
async def send(mail: Mail, job: Job) -> int:
    job.progress("on its way")
    return len(mail.to)


@task(queue="mail")
def tidy() -> None:
    """A task without a payload."""


of_mail: Task[Mail, Awaitable[int]] = send


async def channels_by_name(url: str) -> None:
    async with connect_channels(url) as channels:
        await channels.create("orders/1", "queue")
        found: list[ChannelInfo] = [each async for each in channels.list("orders/*")]
        print([(each.name, each.mode, each.messages) for each in found])
        async with connect(url, "orders/1", role="producer") as orders:
            try:
                answer: bytes = await orders.ask(b"how many?", 5)
                print(answer)
            except NoListener as error:
                print(error)
            async with channels.receiver("orders/*") as receiver:
                await orders.put(b"tea")
                async with await receiver.receive(5) as message:
                    print(message.channel.name, message.payload)
        removed: int = await channels.purge("orders/1")
        print(removed)
    reply = await asked(url)
    print(reply["version"])


async def asked(url: str) -> dict[str, object]:
    async with connect(url, "chat/1") as channel:
        return await channel.admin(1, {"limit": 1})


async def messages(url: str) -> None:
    async with connect(url, channel="chat/1") as channel, connect(url, "chat/1") as other:
        receipt: Receipt = await channel.put(b"hello", ttl=60)
        durability: Durability = receipt.durability
        print(receipt.id, durability.name, receipt.durability.name.lower())
        async with await other.receive(5) as message:
            data: bytes = message.data
            print(data, message.attempt)
        try:
            await channel.get(receipt.id)
        except NotFound as error:
            print(error)


@batch_task(queue="mail", size=10)
async def send_all(mails: list[Mail], jobs: list[Job]) -> list[int | Exception]:
    return [len(mail.to) for mail in mails]


@batch_task(queue="mail")
def store(mails: list[Mail]) -> None:
    print(mails)


def blocking_jobs(queue: blocking.Queue) -> None:
    counted: blocking.Handle[int] = send.bind(queue).put(Mail("alice"), wait=True)
    nothing: blocking.Handle[None] = tidy.bind(queue).put()
    many: list[int] = send.bind(queue).put_many([Mail("alice")])
    value: int = counted.result(5)
    print(nothing.id, many, value)


async def batches(queue: Queue) -> None:
    counted: Handle[int] = await send_all.put(queue, Mail("alice"), wait=True)
    stored: Handle[None] = await store.bind(queue).put(Mail("alice"))
    print(counted.id, stored.id)


async def jobs(url: str) -> None:
    async with Queue(url, "mail") as queue, Worker(url, [send, tidy]) as worker:
        handle: Handle[int] = await send.put(queue, Mail("alice"), wait=True)
        nothing: Handle[None] = await tidy.put(queue)
        bound: Handle[int] = await send.bind(queue).put(Mail("alice"))
        many: list[int] = await send.bind(queue).put_many([Mail("alice")])
        print(bound.id, many)
        print(nothing.id > 0)
        untyped: Handle = await queue.put({"to": "bob"}, name="send", wait=True)
        await worker.run(burst=True)
        print(await untyped.result(5))
        try:
            length: int = await handle.result(5)
            print(length)
        except JobFailed as error:
            print(error.reason)


async def streams(url: str) -> None:
    async with connect_streams(url) as node:
        orders = node.stream("orders")
        await orders.create(exist_ok=True)
        kept: Appended = await orders.append([b"tea", b"milk"])
        records: list[Record] = await orders.read(kept.first)
        print([record.data for record in records], kept.tail)
        mails = Collection("mail", Mail)
        definition = StreamState(notes=Collection("note", None), mails=mails)
        board = node.stream("board")
        await board.create(exist_ok=True)
        await StateWriter(board, definition).insert("notes", "buy tea", "n1")
        async with follow_state(board, definition) as view:
            await view.caught_up()
            print(view.position, view.get("note", "n1"), view["notes"])
            recipients: list[str] = [mail.to for mail in view.table(mails).values()]
            print(recipients)


def in_a_thread(url: str) -> None:
    with blocking.connect(url, channel="chat/2") as channel, blocking.connect(url, "chat/2") as bob:
        receipt: Receipt = channel.put(b"hi")
        message: Message | blocking.Message = bob.receive(5)
        print(receipt.durability.name, message.data)
    notes = blocking.connect(f"{url},tcp://127.0.0.1:1", "notes").open()
    notes.put(b"hello")
    notes.close()
    try:
        notes.put(b"late")
    except ClientClosed as error:
        print(error)
    with blocking.connect_streams(url) as node:
        records: list[Record] = node.stream("orders").read()
        print([record.data for record in records])
        mails = Collection("mail", Mail)
        board = node.stream("board")
        with blocking.follow_state(board, StreamState(mails=mails)) as view:
            recipients: list[str] = [mail.to for mail in view.table(mails).values()]
            print(recipients)
    with blocking.connect_channels(url) as channels:
        names: list[bytes] = [each.name for each in channels.list("chat/*")]
        print(names)
    with blocking.Queue(url, "mail") as queue:
        print(queue.counts().ready)


async def main() -> None:
    config = Config(p2p="127.0.0.1:0", ws="off", s3p="off", rustlog="off", http="off")
    async with Node(config) as node:
        url = f"tcp://{node.listeners['p2p']}"
        await messages(url)
        await channels_by_name(url)
        await jobs(url)
        await streams(url)
        thread = threading.Thread(target=in_a_thread, args=(url,))
        thread.start()
        await asyncio.to_thread(thread.join)
    try:
        async with connect("tcp://127.0.0.1:1", channel="nobody"):
            pass
    except ConnectionLost as error:
        print(error)


async def simulated() -> None:
    async with World() as world:
        node = await world.node("pond")
        async with node.connect("chat", who="ann") as ann:
            print((await ann.put(b"later")).durability.name)
            await world.clock.sleep(600)


if __name__ == "__main__":
    asyncio.run(main())
    backend, options = virtual("asyncio")
    anyio.run(simulated, backend=backend, backend_options=options)
    print("done")
