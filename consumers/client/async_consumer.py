"""The consumer for event loops: the methods of `Consumer` with `await`, on the loop itself."""

import asyncio
import contextvars
import select
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
from contextlib import contextmanager, suppress
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
    ParamSpec,
    Self,
    TypeVar,
    overload,
)

from folkmoot.consumers.client.callbacks import call_now
from folkmoot.consumers.client.consumer import Consumer
from folkmoot.consumers.client.core import CLOSE_TIMEOUT, MAX_WAIT, ConsumerCore
from folkmoot.consumers.client.face import ConsumerFace
from folkmoot.consumers.client.life import Stage
from folkmoot.consumers.client.rebalance_listener import Starts
from folkmoot.consumers.client.signals import SignalHandlers
from folkmoot.consumers.client.steps import Answer, BlockingWork, Steps
from folkmoot.consumers.config import ConsumerConfig, OnDecodeError
from folkmoot.consumers.group.events import Rebalanced
from folkmoot.consumers.records.batch_view import RecordBatchView
from folkmoot.protocol import errors
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
"""The call of a callback that this task runs in, or was begun by."""


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
            ["AsyncConsumer[K, V]", errors.DeserializationError],
            Awaitable[OnDecodeError | None] | OnDecodeError | None,
        ]
    ) = "raise"


class LoopPoller:
    """A `select.poll` whose waiting an event loop does: that calls `news` once for all ready descriptors."""

    def __init__(self, on_ready: Callable[[], None]) -> None:
        self._on_ready = on_ready
        self._loop: asyncio.AbstractEventLoop | None = None
        self._events: dict[int, int] = {}
        self._is_due = False

    def register(self, descriptor: int, events: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(descriptor, self._add_ready, descriptor)

    def unregister(self, descriptor: int) -> None:
        self._events.pop(descriptor, None)
        if self._loop is not None and not self._loop.is_closed():
            self._loop.remove_reader(descriptor)

    def poll(self, timeout: float) -> list[tuple[int, int]]:
        """Return what became ready since the last call; it never waits."""
        events, self._events = self._events, {}
        return list(events.items())

    def _add_ready(self, descriptor: int) -> None:
        self._events[descriptor] = select.POLLIN
        if not self._is_due and self._loop is not None:
            self._is_due = True
            self._loop.call_soon(self._call)

    def _call(self) -> None:
        self._is_due = False
        self._on_ready()


def _awaited(
    method: Callable[Concatenate[Consumer[Any, Any], P], T],
    *,
    is_read: bool = False,
    is_alone: bool = False,
) -> "Callable[Concatenate[AsyncConsumer[Any, Any], P], Coroutine[Any, Any, T]]":
    """The consumer's method, awaited. `is_read`: one task at a time; `is_alone`: no callback may call it."""

    @wraps(method)
    async def ask(self: "AsyncConsumer[Any, Any]", /, *args: P.args, **options: P.kwargs) -> T:
        if is_alone:
            self._check_not_called_back()
        if not is_read:
            self._check_usable()
        outcome: Any = getattr(self._core, method.__name__)(*args, **options)
        if is_read:
            outcome = await self._read(outcome, asyncio.current_task())
        elif isinstance(outcome, Generator):
            outcome = await self._run(outcome)
        result: T = outcome
        return result

    return ask


class AsyncConsumer(ConsumerFace[K, V]):
    """A `Consumer` for tasks of one event loop.

    ```
    async with AsyncConsumer(zookeeper="localhost:2181", group="billing", topics=["orders"]) as consumer:
        async for record in consumer:
            await handle(record)
    ```

    Options, rules and errors are those of `Consumer`. It reads on the loop itself; blocking work runs in
    threads of the loop's executor. An iteration waits once for each batch, and awaits nothing between two
    records. The group's own thread keeps the membership: a blocked loop loses partitions after
    `max_processing_time` and is fenced, like a slow handler.

    One task reads at a time. Another one gets ConcurrentUse while a read waits or an iteration is under
    way, which ends when it is left or its task ends. Other tasks may call everything else meanwhile: a
    waiting read gives way to it and continues; `close` ends it. `commit` without offsets counts all that
    was handed out as processed: only the reading task may call it. A commit whose task is cancelled may
    still complete.

    Callbacks may be coroutine functions. The loop calls each in a task of its own. The consumer waits for
    it, but reads other partitions while `on_revoke` runs. They may not read or close; tasks that they begin
    may, after the callback has ended.

    Records are handed out when the reading task continues: if it is cancelled before, the next one gets
    them. `close` continues when its task is cancelled. If the loop ends first (as in `asyncio.run`), the
    consumer is closed with it, as by an exception. In another loop it raises ConcurrentUse.

    Options: docs/configuration.md.
    """

    @configured(AsyncConsumerOptions[K, V])
    def __init__(self, config: AsyncConsumerOptions[K, V]) -> None:
        self.config = config
        self._core = self._make()
        self._signals = SignalHandlers(self.stop)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: set[asyncio.Future[None]] = set()
        """One for each task that waits for news."""
        self._poll_error: Exception | None = None
        """Raised by a turn without a waiting task; the next one raises it."""
        self._is_reading = False
        self._iterations: list[asyncio.Task[Any] | None] = []
        """The task of each iteration under way."""
        self._callbacks: dict[object, asyncio.Task[Any]] = {}
        """Running calls of callbacks, whose tasks the loop does not keep alive."""
        self._starting = asyncio.Lock()
        self._closing: asyncio.Task[None] | None = None
        self._end_of_loop: AsyncGenerator[None, None] | None = None

    def _make(self) -> ConsumerCore[K, V]:
        return ConsumerCore[K, V](self.config, self._call_back, LoopPoller(self._handle_ready))

    # -- life -------------------------------------------------------------------------------------

    async def start(self) -> Self:
        """Connect to ZooKeeper and join the group. Raises ZooKeeperUnreachable."""
        async with self._starting:
            if self._closing is not None or self._core.life.is_closed:
                raise errors.ClosedError("the consumer is closed: make another one")
            if self._loop is not None:
                self._check_usable()
                return self
            core, self._loop = self._core, asyncio.get_running_loop()
            opening = self._loop.run_in_executor(None, core.open)
            try:
                await asyncio.shield(opening)
            except BaseException:
                opening.add_done_callback(partial(_close_core, core))
                self._core, self._loop = self._make(), None
                raise
            self._loop.add_reader(core.attention.wakeup.fileno(), self._woken)
            self._end_of_loop = self._close_with_the_loop()
            await anext(self._end_of_loop)
            return self

    async def _close_with_the_loop(self) -> AsyncGenerator[None, None]:
        """Started and not finished: the loop finishes it at its own end, perhaps by an exception. Records in
        hand may then be unprocessed."""
        try:
            yield
        finally:
            self._end_of_loop = None
            try:
                await self._close(CLOSE_TIMEOUT, processed=False)
            except Exception as error:
                log.error("closing a consumer with its event loop: %s", error)

    async def close(self, timeout: float = CLOSE_TIMEOUT) -> None:
        """Leave the group, with `auto_commit` after a commit of all that was handed out; disconnect.

        Ends within `timeout` seconds in any case; uncommitted records come again. Raises what a callback
        raises, after all is closed. In a forked child it does nothing.
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
        except Exception as another:  # raise the first error
            log.error("closing a consumer after an error: %s", another)

    async def _close(self, timeout: float, *, processed: bool) -> None:
        """Close it once, in a task of its own, which no caller cancels; later callers wait for it."""
        core, closing = self._core, self._closing
        self._check_not_called_back()
        if self._loop is None:
            core.life.enter(Stage.CLOSED)
            return
        if core.life.is_forked or (closing is not None and closing.done()):
            return
        self._check_usable()
        if is_first := closing is None:
            core.life.enter(Stage.CLOSING)
            self._notify()  # waiting reads end
            steps = core.close(timeout, processed=processed)
            self._closing = asyncio.create_task(self._shut(steps))
        closing = self._closing
        assert closing is not None
        ended, _ = await asyncio.wait([closing], timeout=timeout + CLOSE_GRACE)
        if not is_first:
            return
        self._signals.close()
        if not ended:
            raise errors.RequestTimeout(
                f"closing a consumer takes longer than {timeout:g} s; it continues"
            )
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
        """Return up to `max_records` records; wait at most `timeout` seconds for the first.

        Without the last batch they have at most `buffer_bytes`, decompressed. All that was handed out before
        counts as processed.
        """
        return await self._read(self._core.poll(timeout, max_records), asyncio.current_task())

    poll_batch = _awaited(Consumer.poll_batch, is_read=True)
    poll_arrow = _awaited(Consumer.poll_arrow, is_read=True)

    def __aiter__(self) -> AsyncIterator[Record[K, V]]:
        """Yield records until `stop` is called. The loop may be left and begun again at any record."""
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
                    cursor.asks_for_more, first_row = False, cursor.row
                    for record in islice(cursor.records, RECORDS_IN_A_ROW):
                        yield record
                    # A task that is cancelled from here on has processed the last record.
                    cursor.asks_for_more = True
                    is_over = cursor.row < first_row + RECORDS_IN_A_ROW
                    await asyncio.sleep(0)  # let other tasks run if the loop's body awaits nothing

    def batches(self, max_records: int | None = None) -> AsyncGenerator[RecordBatchView, None]:
        """Yield batches until `stop` is called; longer ones in parts of `max_records`."""
        return self._batches(max_records, lambda view: view, asyncio.current_task())

    def arrow(
        self, max_records: int | None = None, *, headers: bool = False
    ) -> AsyncGenerator["pa.RecordBatch", None]:
        """Yield batches as Arrow until `stop` is called. Raises MissingExtra without pyarrow."""
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
                item = await self._read(self._core.poll_batch(MAX_WAIT, max_records, make), task)
                if item is not None:
                    yield item

    async def _read(self, steps: Steps[T], task: "asyncio.Task[Any] | None") -> T:
        """Return the steps' result. The task awaits nothing after their end: the next read gets the records
        that a cancelled task did not get."""
        self._check_not_called_back()
        self._check_usable()
        others = [other for other in self._iterations if other is not None and other is not task]
        if self._is_reading or not all(other.done() for other in others):
            raise errors.ConcurrentUse("another task reads from this consumer: one at a time may")
        if self._closing is not None:
            raise errors.ClosedError(_NOT_OPEN)
        self._is_reading = True
        try:
            # Let other tasks and the brokers' sockets come, even with a full buffer.
            await asyncio.sleep(0)
            return await self._run(steps)
        finally:
            self._is_reading = False

    @contextmanager
    def _iterating(self, task: "asyncio.Task[Any] | None") -> Iterator[None]:
        """Note that this task has records in hand until it leaves the iteration."""
        self._iterations.append(task)
        try:
            yield
        finally:
            self._iterations.remove(task)

    # -- waiting ----------------------------------------------------------------------------------

    async def _run(self, steps: Steps[T]) -> T:
        """Take the steps; blocking work runs in a thread of the loop's executor."""
        answer: Any = None
        error: BaseException | None = None
        while True:
            # A callback's call does not count a task's records in hand as processed.
            self._core.in_callback = self._is_in_callback
            try:
                step = steps.send(answer) if error is None else steps.throw(error)
            except StopIteration as end:
                result: T = end.value
                return result
            finally:
                self._core.in_callback = False
            answer = error = None
            try:
                match step:
                    case BlockingWork(work):
                        answer = await asyncio.to_thread(work)
                    case Answer(future, timeout):
                        # Shielded: its thread must not find it cancelled.
                        outcome = asyncio.shield(asyncio.wrap_future(future))
                        answer = await asyncio.wait_for(outcome, timeout)
                    case _:
                        await self._wait(step)
            except BaseException as raised:
                error = raised

    async def _wait(self, timeout: float) -> None:
        """Wait for news, at most `timeout` seconds."""
        error, self._poll_error = self._poll_error, None
        if error is not None:
            raise error
        self._core.poll_brokers()
        if self._core.is_urgent or timeout <= 0:
            await asyncio.sleep(0)
            return
        waiter = asyncio.get_running_loop().create_future()
        self._waiting.add(waiter)
        try:
            due = self._core.due() - time.monotonic()
            with suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, min(timeout, due))):
                    await waiter
        finally:
            self._waiting.discard(waiter)

    def _handle_ready(self) -> None:
        """A broker has sent something."""
        if not self._core.life.is_closed:
            try:
                self._core.poll_brokers()
            except Exception as error:
                self._poll_error = error
            self._notify()

    def _woken(self) -> None:
        """Serve the group, or `stop`."""
        self._core.attention.wakeup.clear()
        self._notify()

    def _notify(self) -> None:
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_result(None)

    # -- callbacks --------------------------------------------------------------------------------

    def _call_back(self, name: str, notice: Any) -> "Future[Any]":
        """Have the loop call it, in a task of its own."""
        callback: Callable[[AsyncConsumer[K, V], Any], Any] | None = getattr(self.config, name)
        if callback is None:
            return call_now(lambda: None)
        mark, outcome = object(), Future[Any]()

        async def call() -> Any:
            _calling_back.set(mark)  # for this task, and for those that it begins
            result = callback(self, notice)
            return await result if isawaitable(result) else result

        def ended(task: "asyncio.Task[Any]") -> None:
            if task.cancelled():
                outcome.set_exception(errors.ClosedError("a callback was cancelled"))
            else:
                call_now(task.result, outcome)
            self._callbacks.pop(mark, None)
            if self._core.group is not None:
                self._core.group.callbacks.ended()
            self._notify()

        self._callbacks[mark] = asyncio.create_task(call())
        self._callbacks[mark].add_done_callback(ended)
        return outcome

    @property
    def _is_in_callback(self) -> bool:
        return _calling_back.get() in self._callbacks

    # -- who may call -----------------------------------------------------------------------------

    def _check_usable(self) -> None:
        """Raises ClosedError, and in another loop ConcurrentUse: there it would wait for ever."""
        if self._loop is None or (self._closing is not None and self._closing.done()):
            raise errors.ClosedError(_NOT_OPEN)
        self._core.life.check_process()
        if self._loop is not asyncio.get_running_loop():
            raise errors.ConcurrentUse("a consumer belongs to the event loop that started it")

    def _check_not_called_back(self) -> None:
        if self._is_in_callback:  # the consumer waits for the callback
            raise errors.ConcurrentUse(
                "a callback may not poll, subscribe or close: call stop() to end"
            )

    # -- the rest, as in Consumer -----------------------------------------------------------------

    commit = _awaited(Consumer.commit)

    @overload
    async def committed(self, partitions: TopicPartition) -> int | None: ...

    @overload
    async def committed(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, OffsetAndMetadata | None]: ...

    async def committed(self, partitions: Any) -> Any:
        """Return the group's committed offset of a partition; for several, each with its metadata.

        None if there is none for the current topic of this name. Raises ZooKeeperUnreachable.
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
    subscribe = _awaited(Consumer.subscribe, is_alone=True)
    unsubscribe = _awaited(Consumer.unsubscribe, is_alone=True)


def _close_core(core: ConsumerCore[Any, Any], opening: "asyncio.Future[None]") -> None:
    """Close what was opened after `start` was cancelled."""
    if not opening.cancelled() and opening.exception() is None:
        for _ in core.close(0.0, processed=False):
            break
