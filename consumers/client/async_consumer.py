"""The consumer for event loops: the same words with `await`, around the same consumer in a thread."""

import asyncio
import contextvars
import threading
import time
from collections import deque
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
)
from concurrent.futures import CancelledError, Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial, wraps
from inspect import isawaitable
from itertools import islice
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Final,
    Generic,
    ParamSpec,
    Self,
    TypeVar,
    overload,
)

from folkmoot.consumers.client.consumer import CLOSE_TIMEOUT, TURN, Consumer
from folkmoot.consumers.client.rebalance_listener import Starts
from folkmoot.consumers.config import ConsumerConfig, OnDecodeError
from folkmoot.consumers.group.events import Rebalanced
from folkmoot.consumers.offsets.progress import Progress
from folkmoot.consumers.records.batch_view import RecordBatchView
from folkmoot.protocol.errors import (
    ClosedError,
    ConcurrentUse,
    DeserializationError,
    RequestTimeout,
)
from folkmoot.protocol.options import configured, given
from folkmoot.protocol.process.thread_log import logging_aside, thread_log
from folkmoot.protocol.records import K, OffsetAndMetadata, Record, TopicPartition, V

if TYPE_CHECKING:
    import pyarrow as pa

P = ParamSpec("P")
T = TypeVar("T")

CLOSE_GRACE: Final = 1.0
LOOK: Final = 0.5
RECORDS_IN_A_ROW: Final = 1000
_NOT_OPEN: Final = "the consumer is not open: use it in an async with block"
_NOT_ENDED: Final = "a callback did not end before the consumer had to be closed"
_LOOP_CLOSED: Final = "the event loop of this consumer is closed"

log = thread_log(__name__)

_calling_back: contextvars.ContextVar[object] = contextvars.ContextVar("calling back", default=None)
"""In a callback, and in tasks that it has begun: what that one call of it asks for (`_aside`)."""


_Job = tuple[Callable[[], Any], Callable[[Any, BaseException | None], None]]
"""What is to be done, and who is told what it returned or raised."""


class _RunningCallback:
    """An `on_revoke` on the loop, for which the thread does not wait: it reads other partitions meanwhile.

    What the callback asks for comes through `aside`, and is done in the thread, between its own jobs.
    """

    def __init__(self, core: "_Core[Any, Any]") -> None:
        self.aside = SimpleQueue[_Job | None]()
        self._core = core
        self._future: Future[Any] | None = None

    def begin(self, future: "Future[Any]") -> None:
        self._future = future
        future.add_done_callback(self._ended)

    def _ended(self, _: object) -> None:
        self.aside.put(None)
        self._core.wake_for(self._core.end_revocation)

    @property
    def is_over(self) -> bool:
        return self._future is not None and self._future.done()

    def serve(self) -> None:
        """Do what the callback has asked for."""
        with suppress(Empty):
            while True:
                self._do(self.aside.get_nowait())

    def wait(self, until: float) -> None:
        while not self.is_over and (left := until - time.monotonic()) > 0:
            with suppress(Empty):
                self._do(self.aside.get(timeout=left))

    def _do(self, job: "_Job | None") -> None:
        if job is not None:
            call, tell = job
            tell(*self._core.outcome_within_callback(call))

    def error(self) -> Exception | None:
        if self._future is None or not self._future.done():
            return RequestTimeout(_NOT_ENDED)
        try:
            raised = self._future.exception()
        except CancelledError:
            return ClosedError("a callback was cancelled")
        return (
            raised if raised is None or isinstance(raised, Exception) else ClosedError(repr(raised))
        )


@dataclass(frozen=True, kw_only=True)
class AsyncConsumerOptions(ConsumerConfig[K, V]):
    """Options of an `AsyncConsumer`: its callbacks may be coroutine functions."""

    on_assign: (
        Callable[
            ["AsyncConsumer[K, V]", list[TopicPartition]], Awaitable[Starts | None] | Starts | None
        ]
        | None
    ) = None
    on_revoke: (
        Callable[["AsyncConsumer[K, V]", list[TopicPartition]], Awaitable[None] | None] | None
    ) = None
    on_lost: (
        Callable[["AsyncConsumer[K, V]", list[TopicPartition]], Awaitable[None] | None] | None
    ) = None
    on_rebalance: Callable[["AsyncConsumer[K, V]", Rebalanced], Awaitable[None] | None] | None = (
        None
    )
    on_decode_error: (
        OnDecodeError
        | Callable[
            ["AsyncConsumer[K, V]", DeserializationError],
            Awaitable[OnDecodeError | None] | OnDecodeError | None,
        ]
    ) = "raise"


def _outcome(call: Callable[[], Any]) -> tuple[Any, BaseException | None]:
    try:
        return call(), None
    except BaseException as raised:
        return None, raised


class _Core(Consumer[K, V]):
    """What it finds is only offered: it is handed out when somebody accepts it, else read again.

    For a consumer in a thread of its own, whose records go to tasks that may be gone when they come.
    The loop calls `accept`, takes its steps through what `_next_cursor` returned, and puts what it
    asks for into `jobs`; everything else belongs to the thread.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.offered: list[tuple[Progress, int]] = []
        self.jobs = SimpleQueue[_Job | None]()
        self.is_busy = False
        """The thread does a job, and may have to be woken for the next one."""

    def work(self) -> None:
        """The thread: one job after another, until there is None."""
        with logging_aside():
            while (job := self.jobs.get()) is not None:
                call, tell = job
                self.is_busy = True
                outcome = _outcome(call)
                self.is_busy = False
                tell(*outcome)

    def wake_for(self, call: Callable[[], None]) -> None:
        """Have this done soon, for nobody. From any thread."""
        self.jobs.put((call, lambda result, error: None))
        if self.is_busy:
            self._wakeup.wake()

    def end_revocation(self) -> None:
        if self._group is not None:
            self._group.end_revocation()

    def outcome_within_callback(self, call: Callable[[], Any]) -> tuple[Any, BaseException | None]:
        """What is done for a callback does not count as processed what a task has in hand."""
        before, self._calling_back = self._calling_back, True
        try:
            return _outcome(call)
        finally:
            self._calling_back = before

    def _is_wanted(self) -> bool:
        return not self.jobs.empty()

    def _hand_out(self, partition: TopicPartition, end: int) -> None:
        self.offered.append((self._positions.of(partition), end))

    def accept(self) -> None:
        """What was found is the application's."""
        offered, self.offered = self.offered, []
        for progress, end in offered:
            progress.handed_out = end

    def read_again(self) -> None:
        """What was found has reached nobody."""
        if self.offered:
            self.offered = []
            self._fetcher.rotation.read_again()


def _awaited(
    method: Callable[Concatenate[Consumer[Any, Any], P], T],
) -> "Callable[Concatenate[AsyncConsumer[Any, Any], P], Coroutine[Any, Any, T]]":
    """The consumer's method, done by its thread and awaited."""

    @wraps(method)
    async def ask(self: "AsyncConsumer[Any, Any]", /, *args: P.args, **options: P.kwargs) -> T:
        return await self._ask(partial(method, self._core, *args, **options))

    return ask


def _awaited_read(
    method: Callable[Concatenate[Consumer[Any, Any], P], T],
) -> "Callable[Concatenate[AsyncConsumer[Any, Any], P], Coroutine[Any, Any, T]]":
    """The same for a method that hands out, and begins with `timeout`: one task at a time."""

    @wraps(method)
    async def read(
        self: "AsyncConsumer[Any, Any]", /, timeout: float = 1.0, *args: Any, **options: Any
    ) -> T:
        def call(left: float) -> T:
            return method(self._core, left, *args, **options)  # type: ignore[arg-type]

        return await self._read(call, timeout, asyncio.current_task())

    return read  # type: ignore[return-value]


def _plain(
    method: Callable[Concatenate[Consumer[Any, Any], P], T],
) -> "Callable[Concatenate[AsyncConsumer[Any, Any], P], T]":
    """The consumer's method, which neither waits nor looks anything up."""

    @wraps(method)
    def call(self: "AsyncConsumer[Any, Any]", /, *args: P.args, **options: P.kwargs) -> T:
        return method(self._core, *args, **options)

    return call


class AsyncConsumer(Generic[K, V]):
    """A `Consumer` for tasks of one event loop.

    ```
    async with AsyncConsumer(zookeeper="localhost:2181", group="billing", topics=["orders"]) as consumer:
        async for record in consumer:
            await handle(record)
    ```

    Options, rules and errors are those of `Consumer`, which this one holds in a thread: what is asked
    of it is done there, in order, and awaited here. An iteration gets its records batch by batch and
    waits once for each; between two records nothing is awaited and no thread is changed. The group's
    own thread keeps the membership, so a loop that is blocked loses partitions after `max_processing_time`
    and is fenced, as a handler that takes too long always is.

    One task reads at a time: another one gets ConcurrentUse while a read waits, or an iteration goes
    on, which ends when it is left or its task has ended. Others may call everything else meanwhile: a
    wait for records gives way to it and goes on afterwards; `close` ends it. `commit` without offsets
    counts all that was handed out as processed: it is for the task that reads. One whose task is
    cancelled may come to pass.

    Callbacks may be coroutine functions. They are called on the loop, as tasks of their own, and the
    consumer waits for them as for others, but reads what does not move while `on_revoke` runs; they may
    not read or close, and tasks that they begin may when they have ended.

    Records are handed out when the task that asked goes on: what was on its way to a task that is
    cancelled then is read again by the next one. `close` goes on when the task that awaits it is
    cancelled. If the loop ends first (as `asyncio.run` does it), the consumer is closed with it, as by an
    exception.

    It belongs to the loop that started it: awaited in another one, it raises ConcurrentUse.

    Options: docs/configuration.md.
    """

    @configured(AsyncConsumerOptions[K, V])
    def __init__(self, config: AsyncConsumerOptions[K, V]) -> None:
        self.config = config
        options = given(config)
        options |= {
            name: self._on_loop(option, waits=name != "on_revoke")
            for name, option in options.items()
            if name.startswith("on_") and callable(option)
        }
        self._make = partial(_Core[K, V], **options)
        self._core = self._make()
        self._loop: asyncio.AbstractEventLoop | None = None
        """The one that has started it."""
        self._aside: SimpleQueue[_Job | None] | None = None
        """There while a callback runs, for which the thread waits: what it asks for is done then."""
        self._running: _RunningCallback | None = None
        """An `on_revoke`, for which the thread does not wait."""
        self._is_reading = False
        self._iterations: list[asyncio.Task[Any] | None] = []
        """Of each iteration that goes on, the task that has begun it."""
        self._untold_errors: deque[BaseException] = deque()
        """Of reads whose task was cancelled."""
        self._starting = asyncio.Lock()
        self._closing: asyncio.Future[None] | None = None
        self._end_of_loop: AsyncGenerator[None, None] | None = None

    # -- life -------------------------------------------------------------------------------------

    async def start(self) -> Self:
        """Connect to ZooKeeper and join the group. Raises ZooKeeperUnreachable."""
        async with self._starting:  # two tasks may, and each is told how it went
            return await self._start()

    async def _start(self) -> Self:
        if self._closing is not None or self._core._closed:
            raise ClosedError("the consumer is closed: make another one")
        if self._loop is not None:
            await self._ask(self._core.start)
            return self
        core, self._loop = self._core, asyncio.get_running_loop()
        threading.Thread(target=core.work, name="folkmoot-consumer", daemon=True).start()
        try:
            await self._ask(core.start)
        except BaseException:
            self._submit(partial(core._close, CLOSE_TIMEOUT, processed=False))
            core.jobs.put(None)
            self._core, self._loop = self._make(), None
            raise
        self._end_of_loop = self._close_with_the_loop()
        await anext(self._end_of_loop)
        return self

    async def _close_with_the_loop(self) -> AsyncGenerator[None, None]:
        """Begun and not ended, it is ended by the loop when that ends, perhaps by an exception: what was
        handed out last may not be processed."""
        try:
            yield
        finally:
            self._end_of_loop = None
            close = partial(self._core._close, CLOSE_TIMEOUT, processed=False)
            try:
                await self._close(close, CLOSE_TIMEOUT)
            except Exception as error:
                log.error("closing a consumer with its event loop: %s", error)

    stop = _plain(Consumer.stop)

    async def close(self, timeout: float = CLOSE_TIMEOUT) -> None:
        """Leave the group, with `auto_commit` after committing what was handed out; disconnect.

        Ends within `timeout` seconds, whatever is dead or hangs; what could not be committed comes
        again. Raises what a callback raises, after all is closed. In a forked child it does nothing.
        """
        await self._close(partial(self._core.close, timeout), timeout)

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._close(partial(self._core.__exit__, kind, error, trace), CLOSE_TIMEOUT)

    async def _close(self, close: Callable[[], None], timeout: float) -> None:
        """Have the thread close the consumer, once; whoever asks meanwhile waits for that."""
        self._check_not_called_back()
        if self._loop is None:
            return close()
        closing = self._closing
        if self._core._is_forked or (closing is not None and closing.done()):
            return None
        self._check_usable()
        if closing is not None:
            await asyncio.wait([closing], timeout=timeout + CLOSE_GRACE)
            return None
        closing = self._closing = self._submit(close, alone=True)
        closing.add_done_callback(self._closed)
        ended, _ = await asyncio.wait([closing], timeout=timeout + CLOSE_GRACE)
        self._core._signals.close()
        if not ended:
            raise RequestTimeout(f"closing a consumer takes longer than {timeout:g} s; it goes on")
        if self._end_of_loop is not None:
            await self._end_of_loop.aclose()
        return closing.result()

    # -- records ----------------------------------------------------------------------------------

    async def poll(
        self, timeout: float = 1.0, max_records: int | None = None
    ) -> list[Record[K, V]]:
        """Up to `max_records` records; waits at most `timeout` seconds for the first.

        No more than `buffer_bytes`, decompressed, but for the last batch. Asking says that everything
        handed out before is processed.
        """
        read = partial(self._core.poll, max_records=max_records)
        return await self._read(read, timeout, asyncio.current_task())

    poll_batch = _awaited_read(Consumer.poll_batch)
    poll_arrow = _awaited_read(Consumer.poll_arrow)

    def __aiter__(self) -> AsyncIterator[Record[K, V]]:
        """Records one by one, until `stop` is called. It may be left and begun again at any record."""
        return self._records(asyncio.current_task())

    async def _records(
        self, task: "asyncio.Task[Any] | None"
    ) -> AsyncGenerator[Record[K, V], None]:
        core = self._core
        with self._iterating(task):
            while not core._stopped:
                with self._reading(task):
                    cursor = await self._ask(core._next_cursor, alone=True)
                is_over = cursor is None
                while cursor is not None and not is_over:
                    cursor.asks_for_more, begun = False, cursor.row
                    for record in islice(cursor.records, RECORDS_IN_A_ROW):
                        yield record
                    # Whoever is cancelled from here on is done with the last one.
                    cursor.asks_for_more = True
                    is_over = cursor.row < begun + RECORDS_IN_A_ROW
                    await asyncio.sleep(0)  # a loop body that awaits nothing does not starve others

    def batches(self, max_records: int | None = None) -> AsyncGenerator[RecordBatchView, None]:
        """Batch after batch, until `stop` is called; cut where they have more than `max_records`."""
        read = partial(self._core.poll_batch, max_records=max_records)
        return self._batches(read, asyncio.current_task())

    def arrow(
        self, max_records: int | None = None, *, headers: bool = False
    ) -> AsyncGenerator["pa.RecordBatch", None]:
        """Batch after batch as Arrow, until `stop` is called. Raises MissingExtra without pyarrow."""
        make = partial(RecordBatchView.arrow, headers=headers)
        read = partial(self._core._read_one, max_records=max_records, make=make)
        return self._batches(read, asyncio.current_task())

    async def _batches(
        self, read: Callable[[float], T | None], task: "asyncio.Task[Any] | None"
    ) -> AsyncGenerator[T, None]:
        with self._iterating(task):
            while not self._core._stopped:
                found = await self._read(read, TURN, task)
                if found is not None:
                    yield found

    async def _read(
        self, read: Callable[[float], T], timeout: float, task: "asyncio.Task[Any] | None"
    ) -> T:
        """What `read` finds, handed out as soon as it is here. It ends early for whoever waits."""
        deadline, left = time.monotonic() + timeout, timeout
        with self._reading(task):
            while True:
                try:
                    found = await self._ask(partial(read, left), alone=True)
                except asyncio.CancelledError:
                    if self._closing is None:
                        self._submit(self._core.read_again, alone=True)
                    raise
                self._core.accept()
                left = deadline - time.monotonic()
                if found or left <= 0 or self._core._stopped or self._closing is not None:
                    return found

    @contextmanager
    def _iterating(self, task: "asyncio.Task[Any] | None") -> Iterator[None]:
        """What was handed out is in the hands of this task until its iteration is left."""
        self._iterations.append(task)
        try:
            yield
        finally:
            self._iterations.remove(task)

    @contextmanager
    def _reading(self, task: "asyncio.Task[Any] | None") -> Iterator[None]:
        """One task at a time. What nobody was told, since who had asked was cancelled, comes first."""
        self._check_not_called_back()
        self._check_usable()
        others = [each for each in self._iterations if each is not None and each is not task]
        if self._is_reading or not all(each.done() for each in others):
            raise ConcurrentUse("another task reads from this consumer: one at a time may")
        if self._closing is not None:
            raise ClosedError(_NOT_OPEN)
        if self._untold_errors:
            raise self._untold_errors.popleft()
        self._is_reading = True
        try:
            yield
        finally:
            self._is_reading = False

    # -- the thread -------------------------------------------------------------------------------

    def _submit(self, call: Callable[[], T], *, alone: bool = False) -> "asyncio.Future[T]":
        """Have it done when its turn has come; a wait for records in progress gives way to it.

        Within a callback, for which the thread waits, at once, unless it is to be done `alone`.
        """
        core, loop, running = self._core, asyncio.get_running_loop(), self._running
        job: asyncio.Future[T] = loop.create_future()

        def tell(result: Any, error: BaseException | None) -> None:
            with suppress(RuntimeError):  # the loop is closed: nobody is there to be told
                loop.call_soon_threadsafe(self._told, job, alone, result, error)

        if running is not None and _calling_back.get() is running.aside:
            running.aside.put((call, tell))
            core.wake_for(running.serve)
            return job
        (core.jobs if alone or self._aside is None else self._aside).put((call, tell))
        if core.is_busy:
            core._wakeup.wake()
        return job

    def _told(
        self, job: "asyncio.Future[Any]", alone: bool, result: Any, error: BaseException | None
    ) -> None:
        """An error that comes too late, of what was done `alone`, is kept."""
        if job.cancelled():
            self._keep(error if alone else None)
        elif error is None:
            job.set_result(result)
        else:
            job.set_exception(error)

    async def _ask(self, call: Callable[[], T], *, alone: bool = False) -> T:
        """What `call` returns or raises."""
        self._check_usable()
        job = self._submit(call, alone=alone)
        try:
            return await job
        except asyncio.CancelledError:
            if not job.cancelled():  # it came at the very moment
                self._keep(job.exception() if alone else None)
            raise

    def _keep(self, error: BaseException | None) -> None:
        if error is not None:
            self._untold_errors.append(error)

    def _closed(self, closing: "asyncio.Future[None]") -> None:
        closing.exception()  # perhaps nobody waits for it any more
        self._core.jobs.put(None)

    def _on_loop(
        self, callback: Callable[["AsyncConsumer[K, V]", Any], Any], *, waits: bool
    ) -> Callable[[Consumer[K, V], Any], Any]:
        """What the consumer calls in its thread, so that the callback is called on the loop."""
        call = self._call_back if waits else self._begin_callback
        return lambda _, notice: call(callback, notice)

    def _begin_callback(
        self, callback: Callable[["AsyncConsumer[K, V]", Any], Any], notice: Any
    ) -> _RunningCallback:
        """In the thread: have the loop call it, and do not wait for it."""
        loop, running = self._loop, _RunningCallback(self._core)
        if loop is None or loop.is_closed():
            raise ClosedError(_LOOP_CLOSED)

        async def call() -> None:
            _calling_back.set(running.aside)  # for this task, and for those that it makes
            self._running = running
            try:
                outcome = callback(self, notice)
                if isawaitable(outcome):
                    await outcome
            finally:
                self._running = None

        running.begin(asyncio.run_coroutine_threadsafe(call(), loop))
        return running

    def _call_back(self, callback: Callable[["AsyncConsumer[K, V]", Any], Any], notice: Any) -> Any:
        """In the thread: have the loop call it, and await what can be awaited; → its result."""
        loop, aside = self._loop, SimpleQueue[_Job | None]()
        if loop is None or loop.is_closed():
            raise ClosedError(_LOOP_CLOSED)

        async def call() -> Any:
            _calling_back.set(aside)  # for this task, and for those that it makes
            self._aside = aside
            try:
                outcome = callback(self, notice)
                return await outcome if isawaitable(outcome) else outcome
            finally:
                self._aside = None

        future = asyncio.run_coroutine_threadsafe(call(), loop)
        future.add_done_callback(lambda _: aside.put(None))
        while not loop.is_closed():
            try:
                job = aside.get(timeout=LOOK)  # a loop that is closed says nothing
                if job is None:
                    return future.result()
                call_aside, tell = job
                tell(*_outcome(call_aside))
            except Empty:
                continue
            except CancelledError:
                raise ClosedError("a callback was cancelled") from None
        raise ClosedError(_LOOP_CLOSED)

    # -- who may call -----------------------------------------------------------------------------

    def _check_usable(self) -> None:
        """Raises ClosedError, ConcurrentUse in another loop than its own: it would wait for ever."""
        if self._loop is None or (self._closing is not None and self._closing.done()):
            raise ClosedError(_NOT_OPEN)
        if self._core._is_forked:
            raise ClosedError("the consumer was made before a fork: make one in each process")
        if self._loop is not asyncio.get_running_loop():
            raise ConcurrentUse("a consumer belongs to the event loop that started it")

    def _check_not_called_back(self) -> None:
        called = (self._aside, None if self._running is None else self._running.aside)
        here = _calling_back.get()
        if here is not None and here in called:  # the thread waits for it, or will
            raise ConcurrentUse("a callback may not poll, subscribe or close: call stop() to end")

    # -- the rest, as the consumer has it ---------------------------------------------------------

    assignment = _plain(Consumer.assignment)
    fencing_token = _plain(Consumer.fencing_token)
    health = _plain(Consumer.health)
    metrics = _plain(Consumer.metrics)
    leave_on_signals = _plain(Consumer.leave_on_signals)

    commit = _awaited(Consumer.commit)

    @overload
    async def committed(self, partitions: TopicPartition) -> int | None: ...

    @overload
    async def committed(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, OffsetAndMetadata | None]: ...

    @wraps(Consumer.committed)
    async def committed(self, partitions: Any) -> Any:
        return await self._ask(partial(self._core.committed, partitions))

    beginning_offsets = _awaited(Consumer.beginning_offsets)
    end_offsets = _awaited(Consumer.end_offsets)
    position = _awaited(Consumer.position)
    end_offset = _awaited(Consumer.end_offset)
    offsets_for_times = _awaited(Consumer.offsets_for_times)
    seek = _awaited(Consumer.seek)
    pause = _awaited(Consumer.pause)
    resume = _awaited(Consumer.resume)
    partitions_of = _awaited(Consumer.partitions_of)
    assign = _awaited(Consumer.assign)
    subscribe = _awaited(Consumer.subscribe)
    unsubscribe = _awaited(Consumer.unsubscribe)
