"""The consumer for event loops: the same words with `await`, around the same consumer."""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from functools import partial, wraps
from itertools import islice
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, Final, ParamSpec, Self, TypeVar

from folkmoot.consumers.client.background import NOT_OPEN, Worker
from folkmoot.consumers.client.consumer import CLOSE_TIMEOUT, TURN, Consumer
from folkmoot.consumers.client.rebalance_listener import Starts
from folkmoot.consumers.group.events import Rebalanced
from folkmoot.consumers.group.group_thread import Member
from folkmoot.consumers.offsets.progress import Progress
from folkmoot.consumers.records.batch_view import RecordBatchView
from folkmoot.protocol.errors import ClosedError, ConcurrentUse, RequestTimeout
from folkmoot.protocol.records import Record, TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa

P = ParamSpec("P")
T = TypeVar("T")

CLOSE_GRACE: Final = 1.0
RECORDS_IN_A_ROW: Final = 1000

log = logging.getLogger(__name__)

OnAssign = Callable[
    ["AsyncConsumer", list[TopicPartition]], Awaitable[Starts | None] | Starts | None
]
OnPartitions = Callable[["AsyncConsumer", list[TopicPartition]], Awaitable[None] | None]
OnRebalance = Callable[["AsyncConsumer", Rebalanced], Awaitable[None] | None]


class _Core(Consumer):
    """What it finds is only offered: it is handed out when somebody accepts it, else read again.

    For a consumer in the worker's thread, whose records go to tasks that may be gone when they come.
    The loop calls `accept`, takes its steps through what `_next_cursor` returned, and may call `_wake`;
    everything else belongs to the worker's thread. While a read waits, the thread does there what other
    tasks ask for.
    """

    worker: Worker

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.offered: list[tuple[Progress, int]] = []

    def _serve(self) -> None:
        super()._serve()
        self.worker.do_waiting()  # behind it, which silences what has told of them

    def _is_wanted(self) -> bool:
        return self.worker.is_abandoned()

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
    method: Callable[Concatenate[Consumer, P], T],
) -> "Callable[Concatenate[AsyncConsumer, P], Coroutine[Any, Any, T]]":
    """The consumer's method, done by its thread and awaited."""

    @wraps(method)
    async def ask(self: "AsyncConsumer", /, *args: P.args, **options: P.kwargs) -> T:
        return await self._thread.ask(partial(method, self._core, *args, **options))

    return ask


def _awaited_read(
    method: Callable[Concatenate[Consumer, P], T],
) -> "Callable[Concatenate[AsyncConsumer, P], Coroutine[Any, Any, T]]":
    """The same for a method that hands out: one task at a time."""

    @wraps(method)
    async def read(self: "AsyncConsumer", /, *args: P.args, **options: P.kwargs) -> T:
        call = partial(method, self._core, *args, **options)
        return await self._read(call, asyncio.current_task())

    return read


def _plain(
    method: Callable[Concatenate[Consumer, P], T],
) -> "Callable[Concatenate[AsyncConsumer, P], T]":
    """The consumer's method, which neither waits nor looks anything up."""

    @wraps(method)
    def call(self: "AsyncConsumer", /, *args: P.args, **options: P.kwargs) -> T:
        return method(self._core, *args, **options)

    return call


class AsyncConsumer:
    """A `Consumer` for tasks of one event loop.

    ```
    async with AsyncConsumer(zookeeper="localhost:2181", group="billing", topics=["orders"]) as consumer:
        async for record in consumer:
            await handle(record)
    ```

    Options, rules and errors are those of `Consumer`, which this one holds in a thread (`Worker`):
    what is asked of it is done there, in order, and awaited here. An iteration gets its records
    batch by batch and waits once for each; between two records nothing is awaited and no thread is
    changed. The group's own thread keeps the membership, so a loop that is blocked loses partitions
    after `revoke_timeout` and is fenced, as a handler that takes too long always is.

    One task reads at a time: another one gets ConcurrentUse while a read waits, or an iteration goes
    on, which ends when it is left or its task has ended. Others may call everything else meanwhile:
    the thread does it within that wait, which `close` ends. `commit` without offsets counts all that
    was handed out as processed: it is for the task that reads. One whose task is cancelled may come
    to pass.

    Callbacks may be coroutine functions. They are called on the loop, as tasks of their own, and the
    consumer waits for them as for others; they may not read or close.

    Records are handed out when the task that asked goes on: what was on its way to a task that is
    cancelled then is read again by the next one. `close` goes on when the task that awaits it is
    cancelled. If the loop ends first (as `asyncio.run` does it), the consumer is closed with it.

    It belongs to the loop that started it: awaited in another one, it raises ConcurrentUse.
    """

    def __init__(
        self,
        *,
        on_assign: OnAssign | None = None,
        on_revoke: OnPartitions | None = None,
        on_lost: OnPartitions | None = None,
        on_rebalance: OnRebalance | None = None,
        **options: Any,
    ) -> None:
        self._make = partial(
            _Core,
            on_assign=self._on_loop(on_assign),
            on_revoke=self._on_loop(on_revoke),
            on_lost=self._on_loop(on_lost),
            on_rebalance=self._on_loop(on_rebalance),
            **options,
        )
        self._core = self._make()
        self._worker: Worker | None = None
        self.config = self._core.config
        self._is_reading = False
        self._iterations: list[asyncio.Task[Any] | None] = []
        """Of each iteration that goes on, the task that has begun it."""
        self._closing: asyncio.Future[None] | None = None
        self._end_of_loop: AsyncGenerator[None, None] | None = None

    def _on_loop(
        self, callback: Callable[["AsyncConsumer", Any], Any] | None
    ) -> Callable[[Consumer, Any], Any] | None:
        """What the consumer calls in its thread, so that the callback is called on the loop."""
        if callback is None:
            return None
        return lambda _, notice: self._thread.call_back(partial(callback, self, notice))

    # -- life -------------------------------------------------------------------------------------

    async def start(self) -> Self:
        """Connect to ZooKeeper and join the group. Raises ZooKeeperUnreachable."""
        if self._closing is not None:
            raise ClosedError("the consumer is closed: make another one")
        if self._worker is not None:
            await self._worker.ask(self._core.start)
            return self
        core = self._core
        core.worker = worker = self._worker = Worker("folkmoot-consumer", core._wake)
        try:
            await worker.ask(core.start)
        except BaseException:
            worker.post(partial(core._close, CLOSE_TIMEOUT, processed=False))
            worker.stop()
            self._core, self._worker = self._make(), None
            raise
        self._end_of_loop = self._close_with_the_loop()
        await anext(self._end_of_loop)
        return self

    async def _close_with_the_loop(self) -> AsyncGenerator[None, None]:
        """Begun and not ended, it is ended by the loop when that ends."""
        try:
            yield
        finally:
            self._end_of_loop = None
            try:
                await self._close(partial(self._core.close, CLOSE_TIMEOUT), CLOSE_TIMEOUT)
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
        worker, closing = self._worker, self._closing
        if worker is None:
            close()
            self._closing = asyncio.get_running_loop().create_future()
            self._closing.set_result(None)
            return
        if worker.is_forked or (closing is not None and closing.done()):
            return
        if closing is not None:
            worker.check_usable()
            await asyncio.wait([closing], timeout=timeout + CLOSE_GRACE)
            return
        closing = self._closing = worker.submit(close, alone=True)
        closing.add_done_callback(partial(_closed, worker))
        ended, _ = await asyncio.wait([closing], timeout=timeout + CLOSE_GRACE)
        if not ended:
            raise RequestTimeout(f"closing a consumer takes longer than {timeout:g} s; it goes on")
        if self._end_of_loop is not None:
            await self._end_of_loop.aclose()
        closing.result()

    # -- records ----------------------------------------------------------------------------------

    poll = _awaited_read(Consumer.poll)
    poll_batch = _awaited_read(Consumer.poll_batch)
    poll_arrow = _awaited_read(Consumer.poll_arrow)

    def __aiter__(self) -> AsyncIterator[Record]:
        """Records one by one, until `stop` is called. It may be left and begun again at any record."""
        return self._records(asyncio.current_task())

    async def _records(self, task: "asyncio.Task[Any] | None") -> AsyncGenerator[Record, None]:
        core = self._core
        with self._iterating(task):
            while not core._stopped:
                with self._reading(task):
                    cursor = await self._thread.ask(core._next_cursor, alone=True)
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
        read = partial(self._core.poll_batch, TURN, max_records)
        return self._batches(read, asyncio.current_task())

    def arrow(
        self, max_records: int | None = None, *, headers: bool = False
    ) -> AsyncGenerator["pa.RecordBatch", None]:
        """Batch after batch as Arrow, until `stop` is called. Raises MissingExtra without pyarrow."""
        make = partial(RecordBatchView.arrow, headers=headers)
        read = partial(self._core._read_one, TURN, max_records, make)
        return self._batches(read, asyncio.current_task())

    async def _batches(
        self, read: Callable[[], T | None], task: "asyncio.Task[Any] | None"
    ) -> AsyncGenerator[T, None]:
        with self._iterating(task):
            while not self._core._stopped:
                found = await self._read(read, task)
                if found is not None:
                    yield found

    async def _read(self, read: Callable[[], T], task: "asyncio.Task[Any] | None") -> T:
        """What `read` finds, handed out as soon as it is here."""
        with self._reading(task):
            try:
                found = await self._thread.ask(read, alone=True)
            except BaseException:
                self._thread.post(self._core.read_again)
                raise
            self._core.accept()
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
        self._thread.check_usable()
        others = [each for each in self._iterations if each is not None and each is not task]
        if self._is_reading or not all(each.done() for each in others):
            raise ConcurrentUse("another task reads from this consumer: one at a time may")
        if self._thread.undelivered_errors:
            raise self._thread.undelivered_errors.popleft()
        self._is_reading = True
        try:
            yield
        finally:
            self._is_reading = False

    @property
    def _thread(self) -> Worker:
        """Where everything is done once it has started. Raises ClosedError."""
        if self._worker is None:
            raise ClosedError(NOT_OPEN)
        return self._worker

    def _check_not_called_back(self) -> None:
        if self._worker is not None and self._worker.is_calling_back:
            raise ConcurrentUse("a callback may not poll or close: call stop() to end")

    # -- the rest, as the consumer has it ---------------------------------------------------------

    assignment = _plain(Consumer.assignment)
    fencing_token = _plain(Consumer.fencing_token)
    health = _plain(Consumer.health)
    metrics = _plain(Consumer.metrics)
    leave_on_signals = _plain(Consumer.leave_on_signals)

    @property
    def member(self) -> Member | None:
        """This consumer's place in its group; None without one."""
        return self._core.member

    commit = _awaited(Consumer.commit)
    committed = _awaited(Consumer.committed)
    position = _awaited(Consumer.position)
    end_offset = _awaited(Consumer.end_offset)
    offsets_for_times = _awaited(Consumer.offsets_for_times)
    seek = _awaited(Consumer.seek)
    pause = _awaited(Consumer.pause)
    resume = _awaited(Consumer.resume)
    partitions_of = _awaited(Consumer.partitions_of)
    assign = _awaited(Consumer.assign)


def _closed(worker: Worker, closing: "asyncio.Future[None]") -> None:
    closing.exception()  # perhaps nobody waits for it any more
    worker.stop()
