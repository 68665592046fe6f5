"""The producer for event loops: the same methods with `await`, around the same producer."""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from inspect import iscoroutinefunction
from math import inf
from types import TracebackType
from typing import Any, Final, Generic, Self, TypeVar
from weakref import WeakValueDictionary

from folkmoot.producers.accumulator import WouldBlock, check_timeout, check_topic
from folkmoot.producers.appender import AsyncDelivery
from folkmoot.producers.batch import Batch
from folkmoot.producers.columns import (
    HeadersArgument,
    RecordColumns,
    TableSerializer,
    as_headers,
    as_int,
    is_table,
)
from folkmoot.producers.config import ProducerConfig
from folkmoot.producers.futures import BatchDelivery, Run
from folkmoot.producers.producer import CLOSE_AFTER_ERROR, RECOUNT_WAIT, Producer
from folkmoot.producers.sender import run_callbacks
from folkmoot.protocol.errors import (
    BufferFull,
    ClosedError,
    ConcurrentUse,
    FolkmootError,
    RequestTimeout,
    SerializationError,
)
from folkmoot.protocol.options import configured, options_of
from folkmoot.protocol.process.thread_log import logging_aside, thread_log
from folkmoot.protocol.records import K, RecordMetadata, V
from folkmoot.schemas.values.serialization import WouldWait

SENDS_IN_A_ROW: Final = 1000

_log = thread_log(__name__)

Condition = Callable[[], bool]
T = TypeVar("T")


class _Hub:
    """Lets tasks of one event loop wait for the sender's thread.

    That thread only rings, once for a round of its work; one look on the loop then runs callbacks
    and wakes the tasks whose condition holds. Futures carry no outcome: a task that is woken asks
    the delivery, so that a cancelled task loses no outcome. A task that stops waiting leaves nothing
    here. All but `notify` and `schedule_callbacks` belongs to the loop.
    """

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_notified = False
        self._to_call: deque[Batch] = deque()
        self._waiting: dict[Condition | Batch, set[asyncio.Future[None]]] = {}

    def begin(self) -> None:
        """Belong to the running loop. Raises ConcurrentUse if it belongs to another one."""
        self.check_loop()
        self._loop = asyncio.get_running_loop()

    def check_loop(self) -> None:
        """Raise ConcurrentUse in another loop than its own, whose tasks would never be woken."""
        if self._loop not in (None, asyncio.get_running_loop()):
            raise ConcurrentUse("a producer belongs to the event loop that started it")

    def notify(self) -> None:
        """Have the loop look, since something has changed. From any thread."""
        if self._loop is not None and not self._is_notified:
            self._is_notified = True
            with suppress(RuntimeError):  # the loop is closed, so no task waits
                self._loop.call_soon_threadsafe(self._look)

    def schedule_callbacks(self, batch: Batch) -> None:
        """Have the loop run the callbacks of a batch. In the sender's thread, which rings after it."""
        self._to_call.append(batch)

    def call_back(self) -> None:
        """Run the callbacks of batches that are done."""
        while self._to_call:
            run_callbacks(self._to_call.popleft())

    async def until(self, condition: Condition, timeout: float | None) -> bool:
        """Wait until the condition holds, at most `timeout` seconds. Raises what it raises."""
        check_timeout(timeout)
        deadline = None if timeout is None else time.monotonic() + timeout
        while not condition():
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                return False
            await self._woken(condition, left)
        return True

    async def until_done(self, batch: Batch, timeout: float | None) -> bool:
        """Wait until the batch is done, at most `timeout` seconds."""
        check_timeout(timeout)
        if not batch.done:
            self.notify()  # it may have been done a moment ago
            await self._woken(batch, timeout)
        return batch.done

    async def _woken(self, awaited: Condition | Batch, timeout: float | None) -> None:
        """Wait until a look finds that the condition holds, or that the batch is done."""
        self.check_loop()
        future = asyncio.get_running_loop().create_future()
        futures = self._waiting.setdefault(awaited, set())
        futures.add(future)
        try:
            if timeout is None:
                await future
            else:
                await asyncio.wait([future], timeout=timeout)
        finally:
            futures.discard(future)
            if not futures and self._waiting.get(awaited) is futures:
                del self._waiting[awaited]

    def _look(self) -> None:
        self._is_notified = False  # first: a change during this look rings again
        self.call_back()
        for awaited in [awaited for awaited in self._waiting if _holds(awaited)]:
            for future in self._waiting.pop(awaited):
                if not future.done():
                    future.set_result(None)


def _holds(awaited: Condition | Batch) -> bool:
    if isinstance(awaited, Batch):
        return awaited.done
    try:
        return awaited()
    except FolkmootError:
        return True  # the task that waits calls it again, and gets the error


class AsyncBatchDelivery(BatchDelivery):
    """The outcome of the records of one `send_batch`, now or later: `await` it."""

    __slots__ = ()

    def __await__(self) -> Generator[Any, None, dict[int, list[range]]]:
        """`result` without a timeout."""
        return self.result().__await__()

    async def result(  # type: ignore[override]
        self, timeout: float | None = None
    ) -> dict[int, list[range]]:
        """As `BatchDelivery.result`."""
        await self._until_done(timeout)
        return self._outcome()

    async def exception(  # type: ignore[override]
        self, timeout: float | None = None
    ) -> FolkmootError | None:
        """As `BatchDelivery.exception`."""
        await self._until_done(timeout)
        return self._failure()

    async def _until_done(self, timeout: float | None) -> None:
        if not await self._owner.listener.until(self.done, timeout):
            raise self._too_late(timeout)


OnDelivery = Callable[[AsyncDelivery], object]


class AsyncProducer(Generic[K, V]):
    """A `Producer` for tasks of one event loop.

    ```python
    async with AsyncProducer(zookeeper="localhost:2181") as producer:
        delivery = await producer.send("orders", b"one coffee", key=b"table 4")
        print(await delivery)
    ```

    Options, rules and errors are those of `Producer`, which this one contains: the same appender takes
    records, on the loop. `Producer` blocks for room in the buffer, for a topic that is used for the first
    time, and for acknowledgements. Here these are awaited, without a thread: the sender's thread
    rings, and the loop looks. Only opening and closing connections happens in a thread.

    A task that is cancelled while it awaits `send` has not sent; of a `send_batch`, the parts for
    which there was room have been sent. Cancelling a task that awaits a delivery changes nothing for the
    record. `close` continues when the task that awaits it is cancelled.

    It belongs to the loop that started it: waiting in another loop raises ConcurrentUse, for `send` and
    for the delivery that it returned.

    Options: docs/configuration.md.
    """

    @configured(ProducerConfig[K, V])
    def __init__(self, config: ProducerConfig[K, V]) -> None:
        self.config = config
        self._hub = _Hub()
        self._core = _Core[K, V](self._hub, **options_of(config))
        self._accumulator = self._core._accumulator
        self._appender = self._accumulator.appender
        self._try_send = self._core.try_send()
        self._starting = asyncio.Lock()
        self._closing: asyncio.Task[None] | None = None
        self._left = SENDS_IN_A_ROW  # records until other tasks get a turn; 0 while one is in line
        self._waiting_tasks = 0  # tasks that wait for a topic or for room
        self._topic_locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    # -- life ---------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Connect to ZooKeeper and begin to work. Raises as `Producer.start`."""
        self._hub.begin()
        async with self._starting:
            await _in_thread(self._core.start, undo=partial(self._core.close, 0.0))

    async def close(self, timeout: float | None = None) -> None:
        """As `Producer.close`."""
        if self._closing is None:
            self._hub.begin()
            self._closing = asyncio.get_running_loop().create_task(self._close(timeout))
            # If its task was cancelled, the loop must not report the error as never retrieved.
            self._closing.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
            await asyncio.shield(self._closing)
        elif not self._closing.done():
            self._hub.begin()
            await asyncio.wait([self._closing])

    async def _close(self, timeout: float | None) -> None:
        timeout = min(inf if timeout is None else timeout, self.config.longest_wait)
        deadline = time.monotonic() + timeout
        self._accumulator.close(ClosedError("the producer is closed"))
        try:
            if self._core._thread is not None:
                await self._flush(timeout)
        except BaseException:
            with suppress(FolkmootError):  # the first error counts
                await self._close_core(deadline)
            raise
        await self._close_core(deadline)

    async def _close_core(self, deadline: float) -> None:
        await _in_thread(partial(self._core.close, max(0.0, deadline - time.monotonic())))

    async def __aenter__(self) -> Self:
        await self.start()
        return self

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
            await self.close(CLOSE_AFTER_ERROR)
        except FolkmootError as another:
            _log.error("closing a producer after an error: %s", another)

    # -- records ------------------------------------------------------------------------------------

    async def send(
        self,
        topic: str,
        value: V | None,
        key: K | None = None,
        partition: int | None = None,
        headers: HeadersArgument | None = None,
        timestamp: int | None = None,
        on_delivery: OnDelivery | None = None,
    ) -> AsyncDelivery:
        """Append a record; await the delivery that it returns for the outcome.

        Parameters and errors as of `Producer.send`. `on_delivery` is called on the loop; it is a
        plain function, a coroutine function is a TypeError.
        """
        if headers is not None and not isinstance(headers, dict | list | tuple):
            headers = as_headers(headers)  # they may be read twice, an iterator only once
        # A record that need not wait does not ask which loop runs: that is a system call in some Pythons.
        self._left -= 1
        try:
            if self._left > 0 and on_delivery is None:
                delivery = self._try_send(topic, value, key, partition, headers, timestamp)
                if delivery is not None:
                    return delivery
            if on_delivery is not None:
                self._check_loop()
                _check_plain(on_delivery)
            if self._left <= 0 and not self._waiting_tasks:
                self._left = SENDS_IN_A_ROW
                await asyncio.sleep(0)  # a loop of sends must let other tasks run
            record = (topic, value, key, partition, headers, timestamp, on_delivery)
            delivery = None if self._waiting_tasks else self._try_send(*record)
            while delivery is None:
                number = -1 if partition is None else as_int("partition", partition)
                await self._admission(topic, number)
                delivery = self._try_send(*record)
            return delivery
        except WouldWait:  # the record was not taken
            await _in_thread(partial(self._core._serialized, topic, value, key))
            return await self.send(topic, value, key, partition, headers, timestamp, on_delivery)

    async def send_and_wait(
        self,
        topic: str,
        value: V | None,
        key: K | None = None,
        partition: int | None = None,
        headers: HeadersArgument | None = None,
        timestamp: int | None = None,
        *,
        timeout: float | None = None,
    ) -> RecordMetadata:
        """`send`, and wait for the outcome. Raises as `send`, and as `AsyncDelivery.result`."""
        delivery = await self.send(topic, value, key, partition, headers, timestamp)
        return await delivery.result(timeout)

    async def send_batch(
        self,
        topic: str,
        values: Any,
        keys: Any = None,
        *,
        timestamps: Any = None,
        headers: Sequence[HeadersArgument] | None = None,
        partition: int | None = None,
        serializer: TableSerializer | None = None,
    ) -> AsyncBatchDelivery:
        """Append many records, given as columns; await the delivery that it returns.

        Parameters, rules and errors as of `Producer.send_batch`. Other tasks run between its parts; tables
        are serialised in another thread.
        """
        arguments = (topic, values, keys, timestamps, headers, partition, serializer)
        columns: RecordColumns | None = None
        if serializer is None and not is_table(values):
            with suppress(WouldWait):
                columns = self._core._columns(*arguments)
        if columns is None:
            columns = await _in_thread(partial(self._core._columns, *arguments))
        runs: list[Run] = []
        delivery = AsyncBatchDelivery(runs, self._accumulator)
        row = 0
        try:
            await self._admission(topic)
            while row < len(columns):
                try:
                    row, new_runs = self._appender.send_columns(topic, columns, row)
                except WouldBlock:
                    await self._admission(
                        topic, -1 if columns.partition is None else columns.partition
                    )
                    continue
                runs += new_runs
                await asyncio.sleep(0)
        except BufferFull as error:
            error.delivery = delivery
            raise
        return delivery

    def _check_loop(self) -> None:
        """Raise ConcurrentUse in another loop than its own, unless it is closed."""
        if self._core._thread is not None and self._core._closed is None:
            self._hub.check_loop()

    async def _admission(self, topic: str, partition: int = -1) -> None:
        """Wait for the topic, and that partition, to be known, and for room, which lasts until the next
        await. Tasks that wait for one topic do so in turn, so that each gets room."""
        accumulator, max_block = self._accumulator, self.config.max_block
        self._check_loop()
        check_topic(topic)
        admitted = accumulator.admission(topic, partition)
        deadline = time.monotonic() + max_block
        lock = self._topic_locks.setdefault(topic, asyncio.Lock())
        self._waiting_tasks += 1
        self._left = 0
        try:
            async with asyncio.timeout(max_block):
                await lock.acquire()
            try:
                if not await self._hub.until(admitted, deadline - time.monotonic()):
                    raise accumulator.too_late(topic, max_block, partition)
            finally:
                lock.release()
        except TimeoutError:
            raise accumulator.too_late(topic, max_block, partition) from None
        finally:
            self._waiting_tasks -= 1

    async def flush(self, timeout: float | None = None) -> None:
        """As `Producer.flush`."""
        self._check_loop()
        await self._flush(timeout)

    async def _flush(self, timeout: float | None) -> None:
        self._core._check_open()
        accumulator, target = self._accumulator, self._accumulator.request_flush()
        done = await self._hub.until(lambda: accumulator.settled >= target, timeout)
        self._hub.call_back()
        self._core._check_flushed(done, timeout)

    async def purge(self, timeout: float | None = None) -> None:
        """As `Producer.purge`."""
        self._check_loop()
        self._core._check_open()
        if not await self._hub.until(self._accumulator.request_purge(), timeout):
            raise RequestTimeout(f"purge() timed out after {timeout:g} s; it may still complete")
        self._hub.call_back()

    async def partitions_of(self, topic: str) -> list[int]:
        """As `Producer.partitions_of`."""
        check_topic(topic)
        if topic not in self._accumulator.counts:
            await self._admission(topic)
        else:
            self._check_loop()
            await self._hub.until(self._accumulator.recount(topic), RECOUNT_WAIT)
        return self._core._partitions_known(topic)

    def unacknowledged(self) -> int:
        """As `Producer.unacknowledged`."""
        return self._core.unacknowledged()

    def metrics(self) -> dict[str, float]:
        """As `Producer.metrics`."""
        return self._core.metrics()


class _Core(Producer[K, V]):
    """The producer inside: it never waits for room, and calls back on the loop."""

    _delivery = AsyncDelivery

    def __init__(self, hub: _Hub, **options: Any) -> None:
        super().__init__(**options)
        self._accumulator.blocks = False
        self._accumulator.listener = hub
        self._sender.call_back = hub.schedule_callbacks

    def _may_wait(self) -> bool:
        with suppress(RuntimeError):
            asyncio.get_running_loop()
            return False
        return super()._may_wait()

    def try_send(self) -> Callable[..., AsyncDelivery | None]:
        """Return a `send` that returns None instead of waiting."""
        take: Any = self._appender.try_send
        if not self.serializes:
            return take  # type: ignore[no-any-return]
        key_bytes, value_bytes = self._key_bytes, self._value_bytes

        def serialized(topic: str, value: Any, key: Any = None, *more: Any) -> Any:
            if value_bytes is not None:
                value = value_bytes(topic, value)
            return take(topic, value, key if key_bytes is None else key_bytes(topic, key), *more)

        return serialized


def _check_plain(on_delivery: OnDelivery) -> None:
    """Raise TypeError for a coroutine function, whose coroutine would never be awaited."""
    if iscoroutinefunction(on_delivery) or iscoroutinefunction(type(on_delivery).__call__):
        raise TypeError(
            f"on_delivery must be a plain function, not a coroutine function: {on_delivery!r}; "
            "await the delivery, or make a task in it"
        )


async def _in_thread(call: Callable[[], T], undo: Callable[[], None] | None = None) -> T:
    """Make a call that blocks in a thread of its own: those of the loop may all be in use.

    It runs to its end in any case. If the task was cancelled by then, `undo` is called.
    """
    ended: Future[T] = Future()
    ended.set_running_or_notify_cancel()

    def run() -> None:
        try:
            ended.set_result(call())
        except BaseException as error:
            # A task that awaits a future with CancelledError or SystemExit would never see it end.
            if not isinstance(error, Exception):
                error = SerializationError(f"a call that blocks was ended by {error!r}")
            ended.set_exception(error)

    def undone(ended: "Future[T]") -> None:
        if undo is not None and ended.exception() is None:
            _start_thread(undo)

    _start_thread(run)
    try:
        return await asyncio.wrap_future(ended)
    except asyncio.CancelledError:
        ended.add_done_callback(undone)
        raise


def _start_thread(call: Callable[[], None]) -> None:
    def run() -> None:
        with logging_aside():
            call()

    threading.Thread(target=run, name="folkmoot-errand", daemon=True).start()
