"""Traces: one from put through handler and ack, one from append to read; nothing when off."""

from __future__ import annotations

import json
import subprocess
import sys
import tracemalloc
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from threading import Event
from time import monotonic
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import anyio
import pytest

import millpond
from millpond import Channel, Config, Node, connect, tracing
from millpond.actors.messages import Msg, Put, PutAck
from millpond.errors import RequestError
from millpond.jobs import Job, Queue, Reject, Worker, task
from millpond.node.client.tracing import trace_of, with_trace
from millpond.node.jobs.payload import JobMessage, decode_job, encode_job
from millpond.streams import NewRecord
from tests.node.processes import ROOT

trace = pytest.importorskip("opentelemetry.trace", reason="an extra, `otel`")
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider  # noqa: E402
from opentelemetry.sdk.trace.export import (  # noqa: E402
    ConsoleSpanExporter,
    SimpleSpanProcessor,
)
from opentelemetry.sdk.trace.export.in_memory_span_exporter import (  # noqa: E402
    InMemorySpanExporter,
)

from millpond.node.cli.options import traces  # noqa: E402
from millpond.node.node_spans import OPEN_SPANS_MAX, OpenTelemetryNodeTracing  # noqa: E402

SOON_S = 20
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
"""The example of W3C Trace Context."""


class Spans:
    """The spans that were made, by name."""

    def __init__(self, provider: TracerProvider, exporter: InMemorySpanExporter) -> None:
        self.provider = provider
        self.tracer = provider.get_tracer("test")
        self._exporter = exporter

    def __getitem__(self, name: str) -> ReadableSpan:
        (found,) = (each for each in self.all if each.name == name)
        return found

    @property
    def all(self) -> list[ReadableSpan]:
        return list(self._exporter.get_finished_spans())

    @property
    def names(self) -> list[str]:
        return sorted(each.name for each in self.all)


@pytest.fixture
def spans() -> Iterator[Spans]:
    provider, exporter = TracerProvider(shutdown_on_exit=False), InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracing.instrument(provider)
    assert tracing.is_instrumented()
    yield Spans(provider, exporter)
    tracing.uninstrument()
    assert not tracing.is_instrumented()


@pytest.fixture
async def url() -> Iterator[str]:  # type: ignore[misc]
    off = dict.fromkeys(("ws", "s3p", "rustlog", "http"), "off")
    async with Node(Config(p2p="127.0.0.1:0", drain_timeout_s=0.2, **off)) as node:  # type: ignore[arg-type]
        yield f"tcp://{node.listeners['p2p']}"


def is_below(span: ReadableSpan, parent: ReadableSpan) -> bool:
    return (
        span.parent is not None
        and span.parent.span_id == parent.context.span_id
        and span.context.trace_id == parent.context.trace_id
    )


@task(queue="mail")
async def send(to: str, job: Job) -> str:
    return to


def resize(to: str) -> None:
    """A handler in a thread."""
    inside.append(trace.get_current_span().get_span_context().trace_id)


inside: list[int] = []


@pytest.mark.parametrize("options", [{}, {"due": 0.01}, {"unique": "one"}])
async def test_a_trace_goes_from_the_put_of_a_job_to_its_ack(
    spans: Spans, url: str, options: dict[str, object]
) -> None:
    async with Queue(url, "mail") as queue, Worker(url, [send], history=False) as worker:
        with spans.tracer.start_as_current_span("request"):
            job = await queue.put("ann", name="send", **options)  # type: ignore[arg-type]
        with anyio.fail_after(SOON_S):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(worker.run)
                while "ack jobs/mail" not in spans.names:  # noqa: ASYNC110
                    await anyio.sleep(0.01)
                worker.drain()
    put, process, ack = spans["send jobs/mail"], spans["process jobs/mail"], spans["ack jobs/mail"]
    assert is_below(put, spans["request"])
    assert is_below(process, put) and is_below(ack, process)
    assert process.kind is trace.SpanKind.CONSUMER and put.kind is trace.SpanKind.PRODUCER
    for each in (put, process, ack):
        assert each.attributes is not None
        assert each.attributes["messaging.system"] == "millpond"
        assert each.attributes["messaging.message.id"] == str(job.id)
        assert each.attributes["messaging.destination.name"] == "jobs/mail"
        assert each.status.status_code is not trace.StatusCode.ERROR
    assert process.attributes is not None and process.attributes["millpond.task"] == "send"


async def test_a_handler_in_a_thread_is_within_the_trace(spans: Spans, url: str) -> None:
    inside.clear()
    async with (
        Queue(url, "pictures") as queue,
        Worker(url, resize, queues=["pictures"], history=False) as worker,
    ):
        await queue.put("cat.png")
        with anyio.fail_after(SOON_S):
            await worker.run(burst=True)
    assert inside == [spans["send jobs/pictures"].context.trace_id]


async def test_a_failure_is_an_error_of_its_span(spans: Spans, url: str) -> None:
    async def refuse(payload: str) -> None:
        raise Reject("not today")

    async def fail(payload: str) -> None:
        raise KeyError(payload)

    for name, handler, told in (("a", refuse, "not today"), ("b", fail, "KeyError: 'x'")):
        async with (
            Queue(url, name) as queue,
            Worker(url, handler, queues=[name], history=False) as worker,
        ):
            await queue.put("x", attempts=1)
            with anyio.fail_after(SOON_S):
                await worker.run(burst=True)
        span = spans[f"process jobs/{name}"]
        assert span.status.status_code is trace.StatusCode.ERROR
        assert span.status.description == told
        word = "reject" if name == "a" else "nack"
        assert is_below(spans[f"{word} jobs/{name}"], span)
    assert [each.name for each in spans["process jobs/b"].events] == ["exception"]


async def test_headers_of_the_program_win_over_the_trace(spans: Spans, url: str) -> None:
    async with Queue(url, "mail") as queue:
        job = await queue.put("ann", headers={"traceparent": TRACE, "mine": "1"})
        data = (await queue.show(job.id)).data
    assert data is not None
    assert decode_job(data).headers == {"traceparent": TRACE, "mine": "1"}
    span = trace.get_current_span(tracing.context_of({"traceparent": TRACE}))
    assert f"{span.get_span_context().trace_id:032x}" == TRACE.split("-")[1]


async def test_messages_of_channels(spans: Spans, url: str) -> None:
    """A PUT has no room for a trace: the id of the message tells which spans belong together."""
    async with (
        connect(url, "chat/1", role="producer") as producer,
        connect(url, "chat/1", role="consumer") as channel,
    ):
        receipt = await producer.put(b"hello")
        async with await received(channel):
            with spans.tracer.start_as_current_span("mine"):
                pass
        await producer.put(b"again", retry_for=1.0)
        with pytest.raises(KeyError):
            async with await received(channel):
                raise KeyError("x")
        await (await received(channel)).ack()
    sent = [each for each in spans.all if each.name == "send chat/1"]
    assert (sent[0].attributes or {})["messaging.message.id"] == str(receipt.id)
    processed = [each for each in spans.all if each.name == "process chat/1"]
    acks = [each for each in spans.all if each.name == "ack chat/1"]
    assert len(sent) == 2 and len(processed) == 2 and len(acks) == 2
    assert is_below(acks[0], processed[0]) and is_below(spans["mine"], processed[0])
    assert is_below(spans["nack chat/1"], processed[1])
    assert processed[1].status.status_code is trace.StatusCode.ERROR


async def received(channel: Channel) -> millpond.Message:
    return await channel.receive(SOON_S)


async def test_a_refused_put_is_an_error_of_its_span(spans: Spans, url: str) -> None:
    async with connect(url, "chat/1", role="consumer") as channel:
        with pytest.raises(RequestError):
            await channel.put(b"hello")
    assert spans["send chat/1"].status.status_code is trace.StatusCode.ERROR


async def test_a_trace_goes_from_append_to_read(spans: Spans, url: str) -> None:
    async with connect(url, "any") as channel:
        stream = channel.streams.stream("orders")
        await stream.create()
        await stream.append([b"1", NewRecord(b"2", [(b"mine", b"x")])])
        await stream.append(NewRecord(b"3", [(b"traceparent", TRACE.encode())]))
        records = await stream.read(0)
    wrote = [each for each in spans.all if each.name == "send orders"]
    assert (wrote[0].attributes or {})["messaging.batch.message_count"] == 2
    assert records[1].headers[0] == (b"mine", b"x")
    for record, trace_id in (
        (records[0], wrote[0].context.trace_id),
        (records[1], wrote[0].context.trace_id),
        (records[2], int(TRACE.split("-")[1], 16)),
    ):
        context = trace.get_current_span(tracing.context_of(record.headers)).get_span_context()
        assert context.trace_id == trace_id and context.is_remote
    read = spans["receive orders"]
    assert {each.context.trace_id for each in read.links} == {
        wrote[0].context.trace_id,
        int(TRACE.split("-")[1], 16),
    }


async def test_a_put_that_nothing_waits_for_has_a_span_until_its_answer(
    spans: Spans, url: str
) -> None:
    async with connect(url, "chat/1") as channel:
        with spans.tracer.start_as_current_span("view"):
            first, second = channel.put_nowait(b"hello"), channel.put_nowait(b"you")
        assert [each.name for each in spans.all] == ["view"]
        receipts = [await first, await second]
        with pytest.raises(ValueError, match="ttl"):
            channel.put_nowait(b"never", ttl=-1)
    sent = [each for each in spans.all if each.name == "send chat/1"]
    numbers = [(each.attributes or {}).get("messaging.message.id") for each in sent]
    assert numbers == [str(each.id) for each in receipts] + [None]
    assert all(is_below(each, spans["view"]) for each in sent[:2])
    assert sent[2].status.status_code is trace.StatusCode.ERROR


async def test_s3p_and_rustlog_have_spans_of_appends_and_reads(spans: Spans) -> None:
    with millpond.testing.run_node(s3p="127.0.0.1:0", rustlog="127.0.0.1:0") as node:
        async with (
            millpond.connect_s3p(node.listeners["s3p"]) as s3p,
            millpond.connect_rustlog(node.listeners["rustlog"]) as rustlog,
        ):
            await s3p.create("orders")
            last = await s3p.append("orders", [b"tea", b"milk"])
            assert len(await s3p.read("orders")) == 2
            assert await s3p.read("orders", str(last)[:-1] + "9") == []
            await rustlog.create_topic("logs")
            await rustlog.produce("logs", b"line")
            assert len((await rustlog.fetch("logs", 0)).records) == 1
    rows = [(each.name, dict(each.attributes or {})) for each in spans.all]
    assert [name for name, _ in rows] == [
        "send orders",
        "receive orders",
        "send logs",
        "receive logs",
    ]
    assert rows[0][1]["messaging.message.id"] == str(last)
    assert rows[0][1]["messaging.batch.message_count"] == 2
    assert rows[2][1]["messaging.message.id"] == "0:0"
    assert [attributes.get("messaging.batch.message_count") for _, attributes in rows[1::2]] == [
        2,
        1,
    ]


async def test_a_read_has_links_to_32_traces(spans: Spans, url: str) -> None:
    async with connect(url, "any") as channel:
        stream = channel.streams.stream("many")
        await stream.create()
        for n in range(40):
            await stream.append(b"%d" % n)
        assert len(await stream.read(0)) == 40
    assert len(spans["receive many"].links) == 32


def test_a_blocking_client_continues_the_trace_of_its_thread(spans: Spans) -> None:
    with millpond.testing.run_node() as node, millpond.sync.connect(node.url, "chat/1") as channel:
        with spans.tracer.start_as_current_span("view"):
            channel.put(b"hello")
    assert is_below(spans["send chat/1"], spans["view"])


def test_a_record_keeps_a_trace_that_it_has() -> None:
    own = [(b"traceparent", TRACE.encode())]
    assert with_trace(own, {"traceparent": "00-other"}) == own
    assert with_trace([(b"a", b"b")], {"traceparent": TRACE}) == [(b"a", b"b"), *own]
    assert trace_of([(b"a", b"b"), *own]) == {"traceparent": TRACE}
    context = tracing.context_of({"traceparent": "nonsense"})
    assert not trace.get_current_span(context).get_span_context().is_valid


async def test_without_it_there_are_no_headers_and_no_spans(url: str) -> None:
    async with connect(url, "any") as channel:
        stream = channel.streams.stream("orders")
        await stream.create()
        await stream.append(b"1")
        assert list((await stream.read(0))[0].headers) == []


def test_nothing_of_opentelemetry_is_imported_before_it_is_asked() -> None:
    program = (
        "import sys, millpond, millpond.jobs, millpond.sync, millpond.tracing, millpond.streams\n"
        "import millpond.node.jobs.worker.worker, millpond.node.node\n"
        "print([each for each in sys.modules if each.startswith('opentelemetry')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


async def test_a_node_continues_the_trace_of_a_job_until_its_ack(spans: Spans, url: str) -> None:
    async def refuse(payload: str) -> None:
        raise Reject("not today")

    async with (
        Queue(url, "mail") as queue,
        Worker(url, refuse, queues=["mail"], history=False) as worker,
    ):
        job = await queue.put("ann")
        with anyio.fail_after(SOON_S):
            await worker.run(burst=True)
    put, accept, push = spans["send jobs/mail"], spans["accept jobs/mail"], spans["push jobs/mail"]
    assert is_below(accept, put) and is_below(push, put)
    assert accept.kind is push.kind is trace.SpanKind.SERVER
    for each in (accept, push):
        assert (each.attributes or {})["messaging.message.id"] == str(job.id)
        assert each.status.status_code is trace.StatusCode.UNSET
    assert (push.attributes or {})["millpond.outcome"] == "reject"
    assert (push.attributes or {})["millpond.attempt"] == 1


@pytest.mark.parametrize("options", [{"due": 0.01}, {"unique": "one"}, {"retry_for": 1.0}])
async def test_a_node_has_a_span_of_each_kind_of_put(
    spans: Spans, url: str, options: dict[str, object]
) -> None:
    async with Queue(url, "mail") as queue:
        await queue.put("ann", **options)  # type: ignore[arg-type]
    assert is_below(spans["accept jobs/mail"], spans["send jobs/mail"])


async def test_a_push_whose_connection_is_lost_is_an_error(spans: Spans, url: str) -> None:
    async with Queue(url, "mail") as queue:
        await queue.put("ann")
        async with connect(url, "jobs/mail", role="consumer") as channel:
            await received(channel)
        with anyio.fail_after(SOON_S):
            while "push jobs/mail" not in spans.names:  # noqa: ASYNC110
                await anyio.sleep(0.01)
    push = spans["push jobs/mail"]
    assert push.status.status_code is trace.StatusCode.ERROR
    assert push.status.description == "connection lost"


async def test_a_node_has_a_span_of_an_append_with_a_trace(spans: Spans, url: str) -> None:
    async with connect(url, "any") as channel:
        stream = channel.streams.stream("orders")
        await stream.create()
        await stream.append([b"1", b"2"])
        with pytest.raises(RequestError):
            await stream.append(b"3", match=7)
    accepted = [each for each in spans.all if each.name == "accept orders"]
    sent = [each for each in spans.all if each.name == "send orders"]
    assert [is_below(*pair) for pair in zip(accepted, sent, strict=True)] == [True, True]
    ok, refused = accepted
    assert ok.status.status_code is trace.StatusCode.UNSET
    assert refused.status.status_code is trace.StatusCode.ERROR


async def test_a_node_makes_no_span_of_what_carries_no_trace(spans: Spans, url: str) -> None:
    async with (
        connect(url, "chat/1", role="producer") as producer,
        connect(url, "chat/1", role="consumer") as channel,
    ):
        for data in (b"hello", b"traceparent of nothing"):
            await producer.put(data)
            await (await received(channel)).ack()
    assert not [each for each in spans.names if each.startswith(("accept", "push"))]


async def test_a_question_carries_the_trace_to_its_answer(spans: Spans, url: str) -> None:
    async with (
        connect(url, "ask/1", role="producer") as asking,
        connect(url, "ask/1", role="consumer") as answering,
        anyio.create_task_group() as tasks,
    ):

        async def reply() -> None:
            async with await received(answering) as message:
                await message.reply(b"fine")

        tasks.start_soon(reply)
        with anyio.fail_after(SOON_S):
            assert await asking.ask(b"how are you?") == b"fine"
    assert is_below(spans["process ask/1"], spans["send ask/1"])
    assert is_below(spans["push ask/1"], spans["send ask/1"])


def test_a_request_of_http_continues_its_trace(spans: Spans) -> None:
    with millpond.testing.run_node(http="127.0.0.1:0") as node:
        base = f"http://{node.listeners['http']}"
        for method, path, headers in (
            ("PUT", "/v1/stream/orders", {"traceparent": TRACE}),
            ("GET", "/v1/stream/orders?offset=-1", {"traceparent": TRACE}),
            ("GET", "/v1/stream/orders?offset=-1", {}),
            ("GET", "/v1/stream/nothing", {"traceparent": TRACE}),
        ):
            with suppress(HTTPError):
                urlopen(Request(base + path, headers=headers, method=method)).close()
    assert [each.name for each in spans.all] == ["PUT durable", "GET durable", "GET durable"]
    for span, status in zip(spans.all, (201, 200, 404), strict=True):
        attributes = span.attributes or {}
        assert span.kind is trace.SpanKind.SERVER and span.parent is not None
        assert f"{span.parent.span_id:016x}" == TRACE.split("-")[2]
        assert attributes["http.response.status_code"] == status
    assert (spans.all[1].attributes or {})["url.path"] == "/v1/stream/orders"


async def test_batches_of_producers_have_spans(spans: Spans) -> None:
    """A batch is below the span in which its records were taken; of several it has links."""
    with millpond.testing.run_node(s3p="127.0.0.1:0", rustlog="127.0.0.1:0") as node:
        async with (
            millpond.connect_s3p(node.listeners["s3p"]) as s3p,
            millpond.connect_rustlog(node.listeners["rustlog"]) as rustlog,
        ):
            await s3p.create("orders")
            await rustlog.create_topic("logs")
            async with s3p.producer("orders") as producer:
                with spans.tracer.start_as_current_span("one"):
                    last = [await producer.send(b"tea"), await producer.send(b"milk")][-1]
                    last_id = await last
            async with rustlog.producer("logs") as logs:
                for name in ("first", "second"):
                    with spans.tracer.start_as_current_span(name):
                        await logs.send(b"line")
                await logs.flush()
                await rustlog.create_topic("gone")
            with pytest.raises(RequestError):
                async with s3p.producer("missing") as producer:
                    await producer.append(b"x")
    orders, lines, missing = (spans[f"send {name}"] for name in ("orders", "logs", "missing"))
    assert is_below(orders, spans["one"])
    assert (orders.attributes or {})["messaging.message.id"] == str(last_id)
    assert (orders.attributes or {})["messaging.batch.message_count"] == 2
    assert (orders.attributes or {})["messaging.message.body.size"] == 7
    assert lines.parent is None and (lines.attributes or {})["messaging.message.id"] == "0:1"
    assert {each.context.span_id for each in lines.links} == {
        spans[name].context.span_id for name in ("first", "second")
    }
    assert missing.status.status_code is trace.StatusCode.ERROR


def test_serve_writes_spans_to_an_exporter() -> None:
    off = [part for each in ("ws", "s3p", "rustlog", "p2p") for part in (f"--{each}", "off")]
    command = [sys.executable, "-m", "millpond", "serve", "--memory", *off]
    command += ["--http", "127.0.0.1:0", "--json", "--traces", "console"]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdout is not None
        try:
            address = json.loads(process.stdout.readline())["listeners"]["http"]
            request = Request(f"http://{address}/health", headers={"traceparent": TRACE})
            urlopen(request).close()
            process.terminate()
            rest, _ = process.communicate(timeout=SOON_S)
        finally:
            process.kill()
    assert '"name": "GET health"' in rest and TRACE.split("-")[1] in rest


def test_an_exporter_that_is_not_installed_is_a_wrong_argument() -> None:
    command = [sys.executable, "-m", "millpond", "serve", "--memory", "--traces", "nothing"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=SOON_S)
    assert done.returncode == 2 and "--traces nothing: not installed" in done.stderr


def test_a_connection_has_spans_of_so_many_requests_and_pushes(spans: Spans) -> None:
    open_spans = OpenTelemetryNodeTracing(spans.provider).connection()
    data = encode_job(JobMessage("x", headers={"traceparent": TRACE}))
    count = OPEN_SPANS_MAX + 5
    open_spans.accepted(b"jobs/mail", [Put(n, 0, data) for n in range(count)])
    open_spans.sent(b"jobs/mail", [PutAck(n, 0, n) for n in range(count)])
    assert spans.names == ["accept jobs/mail"] * OPEN_SPANS_MAX
    open_spans.sent(b"jobs/mail", [Msg(n, 1, data) for n in range(count)])
    open_spans.sent(b"jobs/mail", [Msg(0, 2, data)])
    open_spans.sent(b"jobs/mail", [Msg(0, 3, data)])
    open_spans.ended()
    pushes = [each for each in spans.all if each.name == "push jobs/mail"]
    ends = Counter(each.status.description for each in pushes)
    # The oldest made way for those behind it, that of a lease that is over for its next one.
    assert ends == {"not answered": 6, "lease over": 1, "connection lost": OPEN_SPANS_MAX}


def test_a_span_of_a_path_that_is_no_text_can_be_exported(spans: Spans) -> None:
    with millpond.testing.run_node(http="127.0.0.1:0") as node:
        url = f"http://{node.listeners['http']}/v1/stream/%ff"
        with suppress(HTTPError):
            urlopen(Request(url, headers={"traceparent": TRACE})).close()
    path = str((spans["GET durable"].attributes or {})["url.path"])
    assert path.encode() == rb"/v1/stream/\xff"


def test_a_span_of_a_job_takes_no_memory_for_its_payload(spans: Spans) -> None:
    open_spans = OpenTelemetryNodeTracing(spans.provider).connection()
    data = encode_job(JobMessage([{}] * 200_000, headers={"traceparent": TRACE}))
    tracemalloc.start()
    try:
        open_spans.accepted(b"jobs/mail", [Put(1, 0, data)])
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    open_spans.ended()
    assert spans.names == ["accept jobs/mail"]
    assert peak_bytes < len(data)


def test_a_collector_that_does_not_answer_keeps_no_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    released = Event()
    monkeypatch.setattr(ConsoleSpanExporter, "shutdown", lambda self: released.wait())
    monkeypatch.setattr(traces, "FLUSH_S", 0.05)
    flush = traces.make_spans("console")
    try:
        began_at = monotonic()
        flush()
        assert monotonic() - began_at < SOON_S / 2
    finally:
        released.set()
        tracing.uninstrument()
