"""Tasks: a handler with its queue, its attempts and its backoff; and the tasks of a worker."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from datetime import datetime
from math import inf, isinf
from random import Random
from typing import (
    TYPE_CHECKING,
    Any,
    Generic,
    Literal,
    Never,
    Protocol,
    TypedDict,
    TypeVar,
    Unpack,
    get_args,
    get_origin,
    get_type_hints,
    overload,
)

import msgspec

from millpond.node.client.sync.portal import BlockingContext
from millpond.node.jobs.errors import PayloadRefused, Retry, seconds_of
from millpond.node.jobs.limits import Limits
from millpond.node.jobs.payload import ATTEMPTS_MAX, JobMessage
from millpond.node.jobs.records import kept_seconds
from millpond.node.jobs.schedules import Missed, Timing, When

if TYPE_CHECKING:
    from millpond.node.jobs.handle import Handle
    from millpond.node.jobs.job import Job
    from millpond.node.jobs.queue import Queue
    from millpond.node.jobs.sync import Queue as BlockingQueue
    from millpond.node.jobs.sync_task import BoundTask as BlockingBoundTask

ATTEMPTS = 5
LEASE_S = 30.0
LEASE_S_MAX = 3600.0
DOUBLINGS_MAX = 32
BATCH = 100
BATCH_MAX = 10_000
BATCH_WAIT_S = 0.05

OnHang = Literal["abandon", "kill"]
"""The answer of a worker to a handler in a thread that goes on after its time-out."""

P = TypeVar("P")
P_contra = TypeVar("P_contra", contravariant=True)
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
T = TypeVar("T")
Handler = Callable[..., object]


class Backoff(msgspec.Struct, frozen=True):
    """Delays between attempts: random up to `base_s`, doubled with each attempt, to `max_s`.

    Raises TypeError and ValueError for arguments.
    """

    base_s: float = 1.0
    max_s: float = 300.0

    def __post_init__(self) -> None:
        if isinf(seconds_of("base_s", self.base_s)):
            raise ValueError("base_s has an end")
        seconds_of("max_s", self.max_s)

    def delay_s(self, attempt: int, rng: Random) -> float:
        """Seconds to wait after this failed attempt, which counts from 1."""
        doublings = min(max(attempt, 1) - 1, DOUBLINGS_MAX)
        return rng.uniform(0.0, min(self.max_s, self.base_s * 2.0**doublings))


class PutOptions(TypedDict, total=False):
    """Options of `Queue.put`."""

    name: str | None
    ttl: int
    due: datetime | float | None
    unique: str | bytes | None
    attempts: int | None
    headers: dict[str, str] | None
    priority: int
    limit_key: str | bytes
    start_within: float | None
    wait: bool
    keep: int | None
    retry_for: float


class Task(Generic[P_contra, R_co]):
    """A handler with its settings: `Task[Mail, int]` takes a `Mail` and returns an int. Calling it
    calls the handler, as in a test.

    `queue` None: any queue of the worker. `batch`: the handler takes lists of up to so many
    payloads (0: one payload), and waits `batch_wait` seconds for them. `any_name`: alone in a
    worker, it takes jobs whatever their names are. `timing`: the schedule that workers of the task
    have the node keep, if any; `limits`: those of its queue that they set.
    """

    def __init__(
        self,
        handler: Callable[..., R_co],
        *,
        name: str | None = None,
        queue: str | None = None,
        attempts: int = ATTEMPTS,
        backoff: Backoff | None = None,
        lease: float = LEASE_S,
        timeout: float | None = None,
        on_hang: OnHang = "abandon",
        keep: int = 0,
        any_name: bool = False,
        schedule: When | None = None,
        tz: str = "UTC",
        missed: Missed = "one",
        limits: Limits | None = None,
        batch: int = 0,
        batch_wait: float = BATCH_WAIT_S,
    ) -> None:
        if not 0 <= batch <= BATCH_MAX:
            raise ValueError(f"a batch has up to {BATCH_MAX} jobs, not {batch}")
        if not 1 <= attempts <= ATTEMPTS_MAX:
            raise ValueError(f"attempts must be within 1..{ATTEMPTS_MAX}, not {attempts}")
        if not 0 < lease <= LEASE_S_MAX:
            raise ValueError(f"a lease has up to {LEASE_S_MAX:g} seconds, not {lease}")
        self.handler = handler
        self.name: str = name or str(getattr(handler, "__name__", type(handler).__name__))
        self.queue = queue
        self.attempts = attempts
        self.backoff = backoff or Backoff()
        if timeout is not None and not 0 < seconds_of("timeout", timeout) < inf:
            raise ValueError(f"a time-out has more than 0 seconds, and an end, not {timeout}")
        self.lease_s = lease
        self.timeout_s = timeout
        self.on_hang: OnHang = on_hang
        self.keep_s = kept_seconds(keep)
        self.takes_any_name = any_name
        self.timing = None if schedule is None else Timing(schedule, tz, missed)
        self.limits = limits
        self.batch_size = batch
        self.batch_wait_s = seconds_of("wait", batch_wait)
        self.is_async = _is_async(handler)
        if on_hang not in get_args(OnHang):
            raise ValueError(
                f"on_hang is one of {', '.join(get_args(OnHang))}, and not {on_hang!r}"
            )
        if on_hang == "kill" and (timeout is None or self.is_async):
            raise ValueError("on_hang='kill' is for a handler that is not async, with a timeout")
        self._parameters = _parameters(handler)
        self._payload_type: Any = None
        self.__doc__ = handler.__doc__

    def __repr__(self) -> str:
        return f"Task({self.name!r}, queue={self.queue!r})"

    def __call__(self, *args: P_contra | Job, **kwargs: P_contra | Job) -> R_co:
        return self.handler(*args, **kwargs)

    @overload
    async def put(
        self: Task[None, Awaitable[T]],
        queue: Queue,
        payload: None = None,
        **options: Unpack[PutOptions],
    ) -> Handle[T]: ...

    @overload
    async def put(
        self: Task[P, Awaitable[T]], queue: Queue, payload: P, **options: Unpack[PutOptions]
    ) -> Handle[T]: ...

    @overload
    async def put(
        self: Task[None, R],
        queue: Queue,
        payload: None = None,
        **options: Unpack[PutOptions],
    ) -> Handle[R]: ...

    @overload
    async def put(
        self: Task[P, R], queue: Queue, payload: P, **options: Unpack[PutOptions]
    ) -> Handle[R]: ...

    async def put(
        self, queue: Queue, payload: object = None, **options: Unpack[PutOptions]
    ) -> Handle[Any]:
        """Put a job for this task into `queue`; options as those of `Queue.put`.

        The payload is of the type that the handler takes; `Queue.put` takes any other form of it.
        With `wait=True` the handle has the result, of the type that the handler returns. Raises
        ValueError for a queue that the task is not served from, and TypeError for a payload that
        the handler would not get.
        """
        self.check_queue(queue.name)
        self.check_payload(payload)
        options.setdefault("name", self.name)
        return await queue.put(payload, **options)

    @overload
    def bind(self, queue: Queue) -> BoundTask[P_contra, R_co]: ...

    @overload
    def bind(self, queue: BlockingQueue) -> BlockingBoundTask[P_contra, R_co]: ...

    def bind(
        self, queue: Queue | BlockingQueue
    ) -> BoundTask[P_contra, R_co] | BlockingBoundTask[P_contra, R_co]:
        """The task with its queue: `send = send_mail.bind(queue)`, `await send.put(Mail("alice"))`;
        with a queue of `millpond.sync` methods block.

        Raises ValueError for a queue that the task is not served from.
        """
        self.check_queue(queue.name)
        if isinstance(queue, BlockingContext):
            from millpond.node.jobs.sync_task import BoundTask as Bound  # it needs this module

            return Bound(self, queue)
        return BoundTask(self, queue)

    def check_queue(self, queue: str) -> None:
        """Raises ValueError for a queue that the task is not served from."""
        if self.queue not in (None, queue):
            raise ValueError(f"{self!r} is not served from queue {queue!r}")

    def check_payload(self, payload: object) -> None:
        """Raises TypeError for a payload that does not fit what the handler takes, or that
        MessagePack cannot encode."""
        self.resolve()
        if self._payload_type is Any:
            if payload is not None and not self._parameters:
                raise TypeError(f"{self!r} takes no payload")
            return
        sent = msgspec.msgpack.decode(msgspec.msgpack.encode(payload))
        try:
            msgspec.convert(sent, self._payload_type)
        except msgspec.ValidationError as exc:
            raise TypeError(f"{self!r} does not take this payload: {exc}") from exc

    def resolve(self) -> None:
        """Resolve the annotation of the payload, once all its names are defined.

        Raises TypeError where a name is not defined, or msgspec cannot convert to it.
        """
        if self._payload_type is not None:
            return
        try:
            found = _payload_type(self.handler, self._parameters)
            if self.batch_size:
                found = _item_type(found)
            with suppress(msgspec.ValidationError):
                msgspec.convert(None, found)
        except Exception as exc:  # the border to code that is not ours: annotations are evaluated
            raise TypeError(f"{self!r} cannot take its payload: {exc}") from exc
        if self.timing is not None and self._parameters:
            try:
                msgspec.convert(None, found)
            except msgspec.ValidationError as exc:
                text = "its jobs have no payload: use Queue.schedule for jobs that have one"
                raise TypeError(f"{self!r} has a schedule, and {text}") from exc
        self._payload_type = found

    def arguments(self, payload: object, job: object) -> tuple[object, ...]:
        """The arguments for the handler. Raises PayloadRefused where the payload does not fit.

        Raises the errors of a user's type as well, and TypeError as `resolve`.
        """
        self.resolve()
        if self._payload_type is not Any:
            try:
                payload = msgspec.convert(payload, self._payload_type)
            except msgspec.ValidationError as exc:
                raise PayloadRefused(str(exc)) from exc
        return self.of_parameters(payload, job)

    def of_parameters(self, payload: object, job: object) -> tuple[object, ...]:
        """As many of these as the handler takes."""
        return (payload, job)[: len(self._parameters)]


class BoundTask(Generic[P_contra, R_co]):
    """A task with the queue that its jobs are put into."""

    def __init__(self, task: Task[P_contra, R_co], queue: Queue) -> None:
        self.task = task
        self.queue = queue

    def __repr__(self) -> str:
        return f"BoundTask({self.task.name!r}, queue={self.queue.name!r})"

    @overload
    async def put(
        self: BoundTask[None, Awaitable[T]], payload: None = None, **options: Unpack[PutOptions]
    ) -> Handle[T]: ...

    @overload
    async def put(
        self: BoundTask[P, Awaitable[T]], payload: P, **options: Unpack[PutOptions]
    ) -> Handle[T]: ...

    @overload
    async def put(
        self: BoundTask[None, R], payload: None = None, **options: Unpack[PutOptions]
    ) -> Handle[R]: ...

    @overload
    async def put(
        self: BoundTask[P, R], payload: P, **options: Unpack[PutOptions]
    ) -> Handle[R]: ...

    async def put(self, payload: object = None, **options: Unpack[PutOptions]) -> Handle[Any]:
        """Put a job; else as `Task.put`."""
        self.task.check_payload(payload)
        options.setdefault("name", self.task.name)
        return await self.queue.put(payload, **options)

    async def put_many(
        self: BoundTask[P, object],
        payloads: Iterable[P],
        *,
        ttl: int = 0,
        due: datetime | float | None = None,
        keep: int | None = None,
    ) -> list[int]:
        """Put a job for each payload, all or none of them; else as `Queue.put_many`."""
        found = list(payloads)
        for each in found:
            self.task.check_payload(each)
        name = self.task.name
        return await self.queue.put_many(found, name=name, ttl=ttl, due=due, keep=keep)


class TaskDecorator(Protocol):
    """Makes a task of a handler, which takes nothing, the payload, or the payload and the job."""

    @overload
    def __call__(self, handler: Callable[[], R], /) -> Task[None, R]: ...

    @overload
    def __call__(self, handler: Callable[[P], R], /) -> Task[P, R]: ...

    @overload
    def __call__(self, handler: Callable[[P, Job], R], /) -> Task[P, R]: ...


def task(
    *,
    queue: str | None = None,
    name: str | None = None,
    attempts: int = ATTEMPTS,
    backoff: Backoff | None = None,
    lease: float = LEASE_S,
    timeout: float | None = None,
    on_hang: OnHang = "abandon",
    keep: int = 0,
    schedule: When | None = None,
    tz: str = "UTC",
    missed: Missed = "one",
    limits: Limits | None = None,
) -> TaskDecorator:
    """Make a function a task: `@task(queue="mail") def send(mail: Mail, job: Job) -> None`.

    The function takes the payload, and the job if it wants to. If the payload is annotated, it is
    converted (msgspec), and a job whose payload does not fit is rejected. `name` names the task in
    its jobs, by default as the function is called. `attempts` before the job is a dead letter;
    `lease`, in seconds, is renewed after each third of it. `timeout`: an attempt has so many
    seconds; then its handler is cancelled, the attempt counts, and the job is tried again.
    `on_hang`: a handler in a thread that goes on for a second after that is left to itself
    (`abandon`), or its worker drains and ends with `HandlersHang` (`kill`). `keep`: the node keeps
    the result for so many seconds, for `Queue.result` (0: it does not).

    `schedule`: a worker has the node put a job without payload at each moment of this cron
    expression, read in the time zone `tz`, or interval; the schedule has the name of the task.
    `missed` as in `Queue.schedule`. It stays when the code has it no more: `millpond jobs schedule
    rm`. `limits`: a worker has the node hold to these limits of the task's queue; they stay as well
    (`millpond jobs limits`).
    """

    def decorate(handler: Callable[..., R]) -> Task[P, R]:
        return Task(
            handler,
            name=name,
            queue=queue,
            attempts=attempts,
            backoff=backoff,
            lease=lease,
            timeout=timeout,
            on_hang=on_hang,
            keep=keep,
            schedule=schedule,
            tz=tz,
            missed=missed,
            limits=limits,
        )

    return decorate


class BatchDecorator(Protocol):
    """Makes a task of a handler that takes a list of payloads, or that and the list of jobs."""

    @overload
    def __call__(self, handler: Callable[[list[P]], Awaitable[None]], /) -> Task[P, None]: ...

    @overload
    def __call__(
        self, handler: Callable[[list[P], list[Job]], Awaitable[None]], /
    ) -> Task[P, None]: ...

    @overload
    def __call__(self, handler: Callable[[list[P]], None], /) -> Task[P, None]: ...

    @overload
    def __call__(self, handler: Callable[[list[P], list[Job]], None], /) -> Task[P, None]: ...

    @overload
    def __call__(
        self, handler: Callable[[list[P]], Awaitable[Sequence[R | Exception]]], /
    ) -> Task[P, R]: ...

    @overload
    def __call__(
        self, handler: Callable[[list[P], list[Job]], Awaitable[Sequence[R | Exception]]], /
    ) -> Task[P, R]: ...

    @overload
    def __call__(self, handler: Callable[[list[P]], Sequence[R | Exception]], /) -> Task[P, R]: ...

    @overload
    def __call__(
        self, handler: Callable[[list[P], list[Job]], Sequence[R | Exception]], /
    ) -> Task[P, R]: ...


def batch_task(
    *,
    size: int = BATCH,
    wait: float = BATCH_WAIT_S,
    queue: str | None = None,
    name: str | None = None,
    attempts: int = ATTEMPTS,
    backoff: Backoff | None = None,
    lease: float = LEASE_S,
    timeout: float | None = None,
    on_hang: OnHang = "abandon",
    keep: int = 0,
    limits: Limits | None = None,
) -> BatchDecorator:
    """Make a task of a function that takes many jobs at once: `@batch_task(queue="rows", size=500)
    def insert(rows: list[Row]) -> None`.

    The function takes a list of payloads, and the list of their jobs if it wants to. It is called
    with `size` jobs, or with those that came within `wait` seconds after the first; a batch is no
    larger than the concurrency of its worker. It returns None, or a list with the result of each
    job; an exception in the place of a result fails that job alone. An exception that it raises
    fails all of them. A job keeps its own attempts, lease, time-out and result; one that is
    cancelled leaves the batch, and the last one that does ends the call. Payloads are put one by
    one, as for `task`; other options as those of `task`.
    """
    if size < 1:
        raise ValueError(f"a batch has a job at least, not {size}")

    def decorate(handler: Callable[..., Any]) -> Task[Any, Any]:
        return Task(
            handler,
            name=name,
            queue=queue,
            attempts=attempts,
            backoff=backoff,
            lease=lease,
            timeout=timeout,
            on_hang=on_hang,
            keep=keep,
            limits=limits,
            batch=size,
            batch_wait=wait,
        )

    return decorate


def _item_type(found: Any) -> Any:
    """The type of one payload, of the annotation of a list of them."""
    if found is Any or found is list:
        return Any
    if get_origin(found) not in (list, Sequence):
        raise TypeError(f"the handler of a batch takes a list, and not {found!r}")
    return get_args(found)[0]


def _is_async(handler: Handler) -> bool:
    call = getattr(handler, "__call__", None)  # noqa: B004  the instance's own, which may be async
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(call)


def _parameters(handler: Handler) -> list[str]:
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    found = [
        each.name for each in inspect.signature(handler).parameters.values() if each.kind in kinds
    ]
    if len(found) > 2:
        raise TypeError(f"a handler takes the payload and the job, and not {', '.join(found)}")
    return found


def _payload_type(handler: Handler, parameters: list[str]) -> Any:
    if not parameters:
        return Any
    home = handler if inspect.isroutine(handler) else type(handler).__call__
    annotations = getattr(home, "__annotations__", {})
    if parameters[0] not in annotations:
        return Any

    def payload_alone() -> None:
        """Other annotations may name what only a type checker imports: `Job`, for one."""

    payload_alone.__annotations__ = {"payload": annotations[parameters[0]]}
    names = getattr(inspect.unwrap(home), "__globals__", {})
    return get_type_hints(payload_alone, globalns=names)["payload"]


async def finished(value: Any) -> Any:
    """The value that a handler returned, awaited if need be."""
    return await value if isinstance(value, Awaitable) else value


AnyTask = Task[Never, object]
Work = Handler | AnyTask | Iterable[AnyTask]
"""The work of a worker: one handler, or tasks."""


class TaskRegistry:
    """The tasks of a worker.

    Raises ValueError where two have the same name, TypeError where one's annotation is unusable.
    """

    def __init__(self, work: Work, lease_s: float) -> None:
        self._only: AnyTask | None = None
        if isinstance(work, Iterable):
            tasks = list(work)
        else:
            only = work if isinstance(work, Task) else None
            tasks = [only or Task(work, lease=lease_s, any_name=True)]
        if not tasks:
            raise ValueError("a worker needs a handler, or a task at least")
        for task in tasks:
            if not isinstance(task, Task):
                raise TypeError(f"{task!r} is no task: give one handler, or tasks")
        self._tasks: dict[tuple[str | None, str], AnyTask] = {}
        for task in tasks:
            if (task.queue, task.name) in self._tasks:
                raise ValueError(f"two tasks of queue {task.queue!r} are called {task.name!r}")
            task.resolve()
            self._tasks[task.queue, task.name] = task
        if len(tasks) == 1:
            self._only = tasks[0]
        self._unknown: AnyTask = Task(_unknown, name="unknown")

    @property
    def queues(self) -> list[str]:
        """The queues that the tasks name."""
        return sorted({task.queue for task in self._tasks.values() if task.queue is not None})

    def scheduled(self, queue: str, *, is_only: bool) -> list[AnyTask]:
        """The tasks whose schedules are to be kept in this queue. One that names no queue is for
        the only one that the worker has."""
        wanted = (queue, None) if is_only else (queue,)
        return [
            task
            for task in self._tasks.values()
            if task.timing is not None and task.queue in wanted
        ]

    def limits_of(self, queue: str, *, is_only: bool) -> Limits | None:
        """The limits of a queue that its tasks have; None: they have none. Raises ValueError where
        two tasks have others."""
        wanted = (queue, None) if is_only else (queue,)
        tasks = [task for task in self._tasks.values() if task.queue in wanted]
        given = [task.limits for task in tasks if task.limits is not None]
        if any(each != given[0] for each in given):
            raise ValueError(f"the tasks of queue {queue!r} have different limits")
        return given[0] if given else None

    def task_for(self, queue: str, body: JobMessage) -> AnyTask:
        """The task of a job. A job without one fails, and says so.

        It is tried again: it may be for a newer worker than this one.
        """
        if self._only is not None and (body.name is None or self._only.takes_any_name):
            return self._only
        if body.name is not None:
            for where in (queue, None):
                if (task := self._tasks.get((where, body.name))) is not None:
                    return task
            return self._unknown
        of_queue = [task for task in self._tasks.values() if task.queue in (queue, None)]
        return of_queue[0] if len(of_queue) == 1 else self._unknown


async def _unknown(_payload: object, job: Job) -> None:
    name = "without a name" if job.name is None else f"called {job.name!r}"
    raise Retry(text=f"there is no task here for a job {name}")
