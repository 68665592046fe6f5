"""The consumer for event loops: the same words with `await`, on the loop itself."""

import asyncio
import contextvars
import select
import signal
import time
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Generator,
    Iterable,
    Iterator,
)
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from functools import partial, wraps
from inspect import isawaitable
from itertools import islice
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

from folkmoot.consumers.client.callbacks import CallbackRun, Called
from folkmoot.consumers.client.consumer import Consumer
from folkmoot.consumers.client.core import CLOSE_TIMEOUT, TURN, ConsumerCore
from folkmoot.consumers.client.life import Stage
from folkmoot.consumers.client.rebalance_listener import Starts
from folkmoot.consumers.client.signals import SignalHandlers, Signalled
from folkmoot.consumers.client.steps import Answer, Beside, Steps
from folkmoot.consumers.config import ConsumerConfig, OnDecodeError
from folkmoot.consumers.group.events import Rebalanced
from folkmoot.consumers.records.batch_view import RecordBatchView
from folkmoot.protocol.errors import (
    ClosedError,
    ConcurrentUse,
    DeserializationError,
    RequestTimeout,
)
from folkmoot.protocol.options import configured
from folkmoot.protocol.process.thread_log import thread_log
from folkmoot.protocol.records import K, OffsetAndMetadata, Record, TopicPartition, V

if TYPE_CHECKING:
    import pyarrow as pa

P = ParamSpec("P")
T = TypeVar("T")

CLOSE_GRACE: Final = 1.0
RECORDS_IN_A_ROW: Final = 1000
_NOT_OPEN: Final = "the consumer is not open: use it in an async with block"

log = thread_log(__name__)

_calling_back: contextvars.ContextVar[object] = contextvars.ContextVar("calling back", default=None)
"""In a callback, and in tasks that it has begun: that one call of it."""


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


class LoopPoller:
    """In place of `select.poll`: an event loop waits, and calls `news` soon when there is some, once for all
    descriptors that are ready."""

    def __init__(self, news: Callable[[], None]) -> None:
        self._news = news
        self._loop: asyncio.AbstractEventLoop | None = None
        self._events: dict[int, int] = {}
        self._is_due = False

    def register(self, descriptor: int, events: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(descriptor, self._found, descriptor)

    def unregister(self, descriptor: int) -> None:
        self._events.pop(descriptor, None)
        if self._loop is not None and not self._loop.is_closed():
            self._loop.remove_reader(descriptor)

    def poll(self, timeout: float) -> list[tuple[int, int]]:
        """What was found since the last time; it never waits."""
        events, self._events = self._events, {}
        return list(events.items())

    def _found(self, descriptor: int) -> None:
        self._events[descriptor] = select.POLLIN
        if not self._is_due and self._loop is not None:
            self._is_due = True
            self._loop.call_soon(self._call)

    def _call(self) -> None:
        self._is_due = False
        self._news()


class _TaskRun:
    """A callback that runs on the loop, as a task of its own."""

    def __init__(self, task: "asyncio.Task[Any]") -> None:
        self._task = task

    def done(self) -> bool:
        return self._task.done()

    def result(self) -> Any:
        if self._task.cancelled():
            raise ClosedError("a callback was cancelled")
        return self._task.result()


def _plain(
    method: Callable[Concatenate[Consumer[Any, Any], P], T],
) -> "Callable[Concatenate[AsyncConsumer[Any, Any], P], T]":
    """The consumer's method, which neither waits nor looks anything up."""

    @wraps(method)
    def call(self: "AsyncConsumer[Any, Any]", /, *args: P.args, **options: P.kwargs) -> T:
        found: T = getattr(self._core, method.__name__)(*args, **options)
        return found

    return call


def _awaited(
    method: Callable[Concatenate[Consumer[Any, Any], P], T],
) -> "Callable[Concatenate[AsyncConsumer[Any, Any], P], Coroutine[Any, Any, T]]":
    """The consumer's method, awaited."""

    @wraps(method)
    async def ask(self: "AsyncConsumer[Any, Any]", /, *args: P.args, **options: P.kwargs) -> T:
        self._check_usable()
        found: Any = getattr(self._core, method.__name__)(*args, **options)
        result: T = await self._run(found) if isinstance(found, Generator) else found
        return result

    return ask


def _awaited_read(
    method: Callable[Concatenate[Consumer[Any, Any], P], T],
) -> "Callable[Concatenate[AsyncConsumer[Any, Any], P], Coroutine[Any, Any, T]]":
    """The same for a method that hands out: one task at a time."""

    @wraps(method)
    async def read(self: "AsyncConsumer[Any, Any]", /, *args: P.args, **options: P.kwargs) -> T:
        steps = getattr(self._core, method.__name__)(*args, **options)
        result: T = await self._read(steps, asyncio.current_task())
        return result

    return read


def _awaited_alone(
    method: Callable[Concatenate[Consumer[Any, Any], P], T],
) -> "Callable[Concatenate[AsyncConsumer[Any, Any], P], Coroutine[Any, Any, T]]":
    """The same for what no callback may ask for, and nobody may who reads."""

    @wraps(method)
    async def ask(self: "AsyncConsumer[Any, Any]", /, *args: P.args, **options: P.kwargs) -> T:
        self._check_not_called_back()
        self._check_usable()
        result: T = await self._run(getattr(self._core, method.__name__)(*args, **options))
        return result

    return ask


class AsyncConsumer(Generic[K, V]):
    """A `Consumer` for tasks of one event loop.

    ```
    async with AsyncConsumer(zookeeper="localhost:2181", group="billing", topics=["orders"]) as consumer:
        async for record in consumer:
            await handle(record)
    ```

    Options, rules and errors are those of `Consumer`. It reads on the loop itself; what blocks is done in
    threads of the loop's executor. An iteration gets its records batch by batch and waits once for each;
    between two records nothing is awaited. The group's own thread keeps the membership, so a loop that is
    blocked loses partitions after `max_processing_time` and is fenced, as a handler that takes too long is.

    One task reads at a time: another one gets ConcurrentUse while a read waits, or an iteration goes
    on, which ends when it is left or its task has ended. Others may call everything else meanwhile: a
    wait for records gives way to it and goes on afterwards; `close` ends it. `commit` without offsets
    counts all that was handed out as processed: it is for the task that reads. One whose task is
    cancelled may come to pass.

    Callbacks may be coroutine functions. They are called on the loop, as tasks of their own, and the
    consumer waits for them as for others, but reads what does not move while `on_revoke` runs; they may
    not read or close, and tasks that they begin may when they have ended.

    Records are handed out when the task that asked continues: of a task that is cancelled before, the next
    one gets them. `close` continues when the task that awaits it is cancelled. If the loop ends first (as
    `asyncio.run` does it), the consumer is closed with it, as by an exception.

    It belongs to the loop that started it: awaited in another one, it raises ConcurrentUse.

    Options: docs/configuration.md.
    """

    @configured(AsyncConsumerOptions[K, V])
    def __init__(self, config: AsyncConsumerOptions[K, V]) -> None:
        self.config = config
        self._core = self._make()
        self._signals = SignalHandlers(self.stop)
        self._loop: asyncio.AbstractEventLoop | None = None
        """The one that has started it."""
        self._waiting: set[asyncio.Future[None]] = set()
        """Of each task that waits for news."""
        self._turn_error: Exception | None = None
        """What a turn raised while no task waited; the next task that waits raises it."""
        self._is_reading = False
        self._iterations: list[asyncio.Task[Any] | None] = []
        """Of each iteration under way, the task that has begun it."""
        self._callbacks: set[object] = set()
        """The calls of callbacks that run."""
        self._starting = asyncio.Lock()
        self._closing: asyncio.Task[None] | None = None
        self._end_of_loop: AsyncGenerator[None, None] | None = None

    def _make(self) -> ConsumerCore[K, V]:
        return ConsumerCore[K, V](self.config, self._call_back, LoopPoller(self._take_news))

    # -- life -------------------------------------------------------------------------------------

    async def start(self) -> Self:
        """Connect to ZooKeeper and join the group. Raises ZooKeeperUnreachable."""
        async with self._starting:  # two tasks may, and each learns how it went
            if self._closing is not None or self._core.life.is_closed:
                raise ClosedError("the consumer is closed: make another one")
            if self._loop is not None:
                self._check_usable()
                return self
            core, self._loop = self._core, asyncio.get_running_loop()
            opening = self._loop.run_in_executor(None, core.open)
            try:
                await asyncio.shield(opening)
            except BaseException:
                opening.add_done_callback(partial(_close_opened, core))
                self._core, self._loop = self._make(), None
                raise
            self._loop.add_reader(core.attention.wakeup.fileno(), self._woken)
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
            try:
                await self._close(CLOSE_TIMEOUT, processed=False)
            except Exception as error:
                log.error("closing a consumer with its event loop: %s", error)

    def stop(self) -> None:
        """End the iteration after the record under way, and have `poll` and its like return nothing.

        From any thread, or a signal handler.
        """
        self._core.stop()

    async def close(self, timeout: float = CLOSE_TIMEOUT) -> None:
        """Leave the group, with `auto_commit` after committing what was handed out; disconnect.

        Ends within `timeout` seconds, whatever is dead or hangs; what could not be committed comes
        again. Raises what a callback raises, after all is closed. In a forked child it does nothing.
        """
        await self._close(timeout, processed=True)

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            await self.close()
            return
        try:
            await self._close(CLOSE_TIMEOUT, processed=False)
        except Exception as another:  # the first error is the one to be seen
            log.error("closing a consumer after an error: %s", another)

    async def _close(self, timeout: float, *, processed: bool) -> None:
        """Close it once, in a task of its own, which no caller's end cancels; later callers wait for it."""
        core, closing = self._core, self._closing
        self._check_not_called_back()
        if self._loop is None:
            core.life.enter(Stage.CLOSED)
            return
        if core.life.is_forked or (closing is not None and closing.done()):
            return
        self._check_usable()
        if closing is None:
            core.life.enter(Stage.CLOSING)
            self._notify()  # who reads gets nothing more
            steps = core.close(timeout, processed=processed)
            closing = self._closing = asyncio.create_task(self._shut(steps))
            is_first = True
        else:
            is_first = False
        ended, _ = await asyncio.wait([closing], timeout=timeout + CLOSE_GRACE)
        if not is_first:
            return
        self._signals.close()
        if not ended:
            raise RequestTimeout(f"closing a consumer takes longer than {timeout:g} s; it goes on")
        if self._end_of_loop is not None:
            await self._end_of_loop.aclose()
        closing.result()

    async def _shut(self, steps: Steps[None]) -> None:
        loop, descriptor = self._loop, self._core.attention.wakeup.fileno()
        try:
            await self._run(steps)
        finally:
            if loop is not None:
                loop.remove_reader(descriptor)

    # -- records ----------------------------------------------------------------------------------

    async def poll(
        self, timeout: float = 1.0, max_records: int | None = None
    ) -> list[Record[K, V]]:
        """Up to `max_records` records; waits at most `timeout` seconds for the first.

        No more than `buffer_bytes`, decompressed, but for the last batch. Asking says that everything
        handed out before is processed.
        """
        return await self._read(self._core.poll(timeout, max_records), asyncio.current_task())

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
            while not core.life.stopped:
                cursor = await self._read(core.next_cursor(), task)
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
        return self._batches(max_records, lambda view: view, asyncio.current_task())

    def arrow(
        self, max_records: int | None = None, *, headers: bool = False
    ) -> AsyncGenerator["pa.RecordBatch", None]:
        """Batch after batch as Arrow, until `stop` is called. Raises MissingExtra without pyarrow."""
        make = partial(RecordBatchView.arrow, headers=headers)
        return self._batches(max_records, make, asyncio.current_task())

    async def _batches(
        self,
        max_records: int | None,
        make: Callable[[RecordBatchView], T],
        task: "asyncio.Task[Any] | None",
    ) -> AsyncGenerator[T, None]:
        with self._iterating(task):
            while not self._core.life.stopped:
                found = await self._read(self._core.poll_one(TURN, max_records, make), task)
                if found is not None:
                    yield found

    async def _read(self, steps: Steps[T], task: "asyncio.Task[Any] | None") -> T:
        """What the steps find. Nothing is awaited between their end and the task that gets it: what was
        not handed out to a task that is cancelled, the next one gets."""
        with self._reading(task):
            # Other tasks have their turn, and brokers are heard, though much is there.
            await asyncio.sleep(0)
            return await self._run(steps)

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
        """One task at a time."""
        self._check_not_called_back()
        self._check_usable()
        others = [each for each in self._iterations if each is not None and each is not task]
        if self._is_reading or not all(each.done() for each in others):
            raise ConcurrentUse("another task reads from this consumer: one at a time may")
        if self._closing is not None:
            raise ClosedError(_NOT_OPEN)
        self._is_reading = True
        try:
            yield
        finally:
            self._is_reading = False

    # -- waiting ----------------------------------------------------------------------------------

    async def _run(self, steps: Steps[T]) -> T:
        """Take the steps; what blocks is done in a thread of the loop's executor."""
        answer: Any = None
        error: BaseException | None = None
        while True:
            try:
                with self._within_callback():
                    step = steps.send(answer) if error is None else steps.throw(error)
            except StopIteration as end:
                found: T = end.value
                return found
            answer = error = None
            try:
                match step:
                    case Beside(work):
                        answer = await asyncio.to_thread(work)
                    case Answer(future, timeout):
                        answer = await _answer(future, timeout)
                    case _:
                        await self._wait(step)
            except BaseException as raised:
                error = raised

    async def _wait(self, timeout: float) -> None:
        """Until there is news, at most `timeout` seconds."""
        self._turn()
        if self._core.is_urgent or timeout <= 0:
            await asyncio.sleep(0)
            return
        news = asyncio.get_running_loop().create_future()
        self._waiting.add(news)
        try:
            due = self._core.due() - time.monotonic()
            with suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, min(timeout, due))):
                    await news
        finally:
            self._waiting.discard(news)

    def _take_news(self) -> None:
        """A broker has sent something."""
        if not self._core.life.is_closed:
            try:
                self._core.turn()
            except Exception as error:
                self._turn_error = error
            self._notify()

    def _turn(self) -> None:
        error, self._turn_error = self._turn_error, None
        if error is not None:
            raise error
        self._core.turn()

    def _woken(self) -> None:
        """The group wants something, or `stop` was called."""
        self._core.attention.wakeup.clear()
        self._notify()

    def _notify(self) -> None:
        for news in self._waiting:
            if not news.done():
                news.set_result(None)

    # -- callbacks --------------------------------------------------------------------------------

    def _call_back(self, name: str, notice: Any) -> CallbackRun:
        """Have the loop call it, as a task of its own."""
        callback: Callable[[AsyncConsumer[K, V], Any], Any] | None = getattr(self.config, name)
        if callback is None:
            return Called(lambda: None)
        mark = object()

        async def call() -> Any:
            _calling_back.set(mark)  # for this task, and for those that it makes
            outcome = callback(self, notice)
            return await outcome if isawaitable(outcome) else outcome

        task = asyncio.create_task(call())
        self._callbacks.add(mark)

        def ended(_: object) -> None:
            self._callbacks.discard(mark)
            if self._core.group is not None:
                self._core.group.callbacks.ended()
            self._notify()

        task.add_done_callback(ended)
        return _TaskRun(task)

    @contextmanager
    def _within_callback(self) -> Iterator[None]:
        """What is done for a callback does not count as processed what a task has in hand."""
        self._core.in_callback = self._is_in_callback
        try:
            yield
        finally:
            self._core.in_callback = False

    @property
    def _is_in_callback(self) -> bool:
        return _calling_back.get() in self._callbacks

    # -- who may call -----------------------------------------------------------------------------

    def _check_usable(self) -> None:
        """Raises ClosedError, ConcurrentUse in another loop than its own: it would wait for ever."""
        if self._loop is None or (self._closing is not None and self._closing.done()):
            raise ClosedError(_NOT_OPEN)
        self._core.life.check_process()
        if self._loop is not asyncio.get_running_loop():
            raise ConcurrentUse("a consumer belongs to the event loop that started it")

    def _check_not_called_back(self) -> None:
        if self._is_in_callback:  # the consumer waits for it, or will
            raise ConcurrentUse("a callback may not poll, subscribe or close: call stop() to end")

    # -- the rest, as the consumer has it ---------------------------------------------------------

    assignment = _plain(Consumer.assignment)
    fencing_token = _plain(Consumer.fencing_token)
    health = _plain(Consumer.health)
    metrics = _plain(Consumer.metrics)
    done = _plain(Consumer.done)
    revoking = _plain(Consumer.revoking)

    def leave_on_signals(self, *signals: signal.Signals) -> AbstractContextManager[Signalled]:
        """While it lasts, the first of these signals (SIGTERM and SIGINT) stops the consumer.

        As for `Consumer`.
        """
        return self._signals.handled(signals, lambda: self._core.life.is_closed)

    commit = _awaited(Consumer.commit)

    @overload
    async def committed(self, partitions: TopicPartition) -> int | None: ...

    @overload
    async def committed(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, OffsetAndMetadata | None]: ...

    async def committed(self, partitions: Any) -> Any:
        """The group's committed offset of a partition; of several, with the text beside each.

        None if there is none for the topic that has this name now. Raises ZooKeeperUnreachable.
        """
        self._check_usable()
        return await self._run(self._core.committed(partitions))

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
    subscribe = _awaited_alone(Consumer.subscribe)
    unsubscribe = _awaited_alone(Consumer.unsubscribe)


def _close_opened(core: ConsumerCore[Any, Any], opening: "asyncio.Future[None]") -> None:
    """Nobody waits for it any more: undo what was opened."""
    if not opening.cancelled() and opening.exception() is None:
        for _ in core.close(0.0, processed=False):
            break


async def _answer(future: "Future[Any]", timeout: float) -> Any:
    """Who answers it must find it as it was, though nobody waits for it any more."""
    return await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(future)), timeout)
