"""The consumer for event loops: the same words with `await`, around the same consumer."""

import asyncio
import logging
import signal
import time
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Mapping,
)
from contextlib import AbstractContextManager, contextmanager
from datetime import datetime
from functools import partial
from itertools import islice
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from folkmoot.consumers.client.background import Worker
from folkmoot.consumers.client.consumer import CLOSE_TIMEOUT, Consumer
from folkmoot.consumers.client.health import Health
from folkmoot.consumers.client.offering import OfferingConsumer
from folkmoot.consumers.client.signals import stopped_by_signals
from folkmoot.consumers.client.subscription import Starts
from folkmoot.consumers.group.events import Rebalanced
from folkmoot.consumers.group.group_thread import Member
from folkmoot.consumers.offsets.offset_lookup import Place
from folkmoot.consumers.records.batch_view import RecordBatchView
from folkmoot.consumers.records.columns import TURN, deadline_after
from folkmoot.protocol.errors import ClosedError, ConcurrentUse, RequestTimeout
from folkmoot.protocol.records import Record, TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")

CLOSE_GRACE: Final = 1.0
RECORDS_IN_A_ROW: Final = 1000

log = logging.getLogger(__name__)

OnAssign = Callable[
    ["AsyncConsumer", list[TopicPartition]], Awaitable[Starts | None] | Starts | None
]
OnPartitions = Callable[["AsyncConsumer", list[TopicPartition]], Awaitable[None] | None]
OnRebalance = Callable[["AsyncConsumer", Rebalanced], Awaitable[None] | None]


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
    after `hand_over` and is fenced, as a handler that takes too long always is.

    One task reads at a time; others may call everything else meanwhile, and end its wait by that, not
    its call. `commit` without offsets counts all that was handed out as processed: it is for the task
    that reads.

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
            OfferingConsumer,
            on_assign=self._on_loop(on_assign),
            on_revoke=self._on_loop(on_revoke),
            on_lost=self._on_loop(on_lost),
            on_rebalance=self._on_loop(on_rebalance),
            **options,
        )
        self._core = self._make()
        self.config = self._core.config
        self._worker = Worker("folkmoot-consumer", self._core.wake)
        self._reader: asyncio.Task[Any] | None = None
        self._closing: asyncio.Future[None] | None = None
        self._end_of_loop: AsyncGenerator[None, None] | None = None

    def _on_loop(
        self, callback: Callable[["AsyncConsumer", Any], Any] | None
    ) -> Callable[[Consumer, Any], Any] | None:
        """What the consumer calls in its thread, so that the callback is called on the loop."""
        if callback is None:
            return None
        return lambda _, notice: self._worker.call_back(partial(callback, self, notice))

    # -- life -------------------------------------------------------------------------------------

    async def start(self) -> Self:
        """Connect to ZooKeeper and join the group. Raises ZooKeeperUnreachable."""
        if self._closing is not None:
            raise ClosedError("the consumer is closed: make another one")
        if self._worker.has_started:
            await self._worker.ask(self._core.start)
            return self
        core, worker = self._core, self._worker
        core.is_wanted = worker.is_wanted
        worker.start()
        try:
            await worker.ask(core.start)
        except BaseException:
            worker.post(core.abandon)
            worker.stop()
            self._core = self._make()
            self._worker = Worker("folkmoot-consumer", self._core.wake)
            raise
        self._end_of_loop = self._close_with_the_loop()
        await anext(self._end_of_loop)
        return self

    async def _close_with_the_loop(self) -> AsyncGenerator[None, None]:
        """Begun and not ended, it is ended by the loop when that ends."""
        try:
            yield
        finally:
            try:
                await self._close(partial(self._core.close, CLOSE_TIMEOUT), CLOSE_TIMEOUT)
            except Exception as error:
                log.error("closing a consumer with its event loop: %s", error)

    def stop(self) -> None:
        """End the iteration after the record under way. From any thread, or a signal handler."""
        self._core.stop()

    async def close(self, timeout: float = CLOSE_TIMEOUT) -> None:
        """Leave the group, with `auto_commit` after committing what was handed out; disconnect.

        Ends within `timeout` seconds, whatever is dead; what could not be committed comes again.
        Raises what a callback raises, after all is closed. In a forked child it does nothing.
        """
        await self._close(partial(self._core.close, timeout), timeout)
        await self._forget_the_loop()

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._close(partial(self._core.__exit__, kind, error, trace), CLOSE_TIMEOUT)
        await self._forget_the_loop()

    async def _close(self, close: Callable[[], None], timeout: float) -> None:
        """Have the thread close the consumer, once; whoever asks meanwhile waits for that."""
        self._check_not_called_back()
        if self._worker.is_forked:
            return
        if self._closing is not None:
            if not self._closing.done():
                self._worker.check_usable()
                await asyncio.wait([self._closing], timeout=timeout + CLOSE_GRACE)
            return
        worker = self._worker
        if not worker.has_started:
            close()
            self._closing = asyncio.get_running_loop().create_future()
            self._closing.set_result(None)
            return
        worker.check_usable()
        worker.give_up_at = time.monotonic() + timeout
        closing = self._closing = worker.submit(close, alone=True)
        closing.add_done_callback(partial(_closed, worker))
        ended, _ = await asyncio.wait([closing], timeout=timeout + CLOSE_GRACE)
        if not ended:
            raise RequestTimeout(f"closing a consumer takes longer than {timeout:g} s; it goes on")
        closing.result()

    async def _forget_the_loop(self) -> None:
        end, self._end_of_loop = self._end_of_loop, None
        if end is not None:
            await end.aclose()

    # -- records ----------------------------------------------------------------------------------

    async def poll(self, timeout: float = 1.0, max_records: int | None = None) -> list[Record]:
        """Up to `max_records` records; waits at most `timeout` seconds for the first.

        Asking says that everything handed out before is processed.
        """
        return await self._read(lambda left: self._core.poll(left, max_records), timeout)

    async def poll_batch(
        self, timeout: float = 1.0, max_records: int | None = None
    ) -> RecordBatchView | None:
        """The next batch, or the next `max_records` of it; None if none comes within `timeout`."""
        return await self._read(lambda left: self._core.poll_batch(left, max_records), timeout)

    async def poll_arrow(
        self, timeout: float = 1.0, max_records: int | None = None, *, headers: bool = False
    ) -> "pa.Table":
        """What is there, up to `max_records` (100,000), as an Arrow table; waits for the first row.

        Columns as of `Consumer.poll_arrow`. Raises MissingExtra without pyarrow.
        """
        return await self._read(
            lambda left: self._core.poll_arrow(left, max_records, headers=headers), timeout
        )

    def __aiter__(self) -> AsyncIterator[Record]:
        """Records one by one, until `stop` is called. It may be left and begun again at any record."""
        return self._records()

    async def _records(self) -> AsyncGenerator[Record, None]:
        core = self._core
        while not core.is_stopped:
            with self._reading():
                lent = await self._worker.ask(core.lend, alone=True)
            is_over = lent is None
            while lent is not None and not is_over:
                lent.is_asked, begun = False, lent.row
                for record in islice(lent.records, RECORDS_IN_A_ROW):
                    yield record
                lent.is_asked = True  # whoever is cancelled from here on is done with the last one
                is_over = lent.row < begun + RECORDS_IN_A_ROW
                await asyncio.sleep(0)  # a loop that awaits nothing is not to keep others waiting

    async def batches(
        self, max_records: int | None = None
    ) -> AsyncGenerator[RecordBatchView, None]:
        """Batch after batch, until `stop` is called; cut where they have more than `max_records`."""
        while not self._core.is_stopped:
            view = await self.poll_batch(TURN, max_records)
            if view is not None:
                yield view

    async def arrow(
        self, max_records: int | None = None, *, headers: bool = False
    ) -> AsyncGenerator["pa.RecordBatch", None]:
        """Batch after batch as Arrow, until `stop` is called. Raises MissingExtra without pyarrow."""
        while not self._core.is_stopped:
            found = await self._read(
                lambda left: self._core.next_arrow(left, max_records, headers), TURN
            )
            if found is not None:
                yield found

    async def _read(self, read: Callable[[float], T], timeout: float) -> T:
        """What `read` finds, handed out as soon as it is here; again if it was interrupted."""
        core, deadline = self._core, deadline_after(timeout)
        with self._reading():
            while True:
                left = deadline - time.monotonic()
                try:
                    found = await self._worker.ask(partial(read, max(0.0, left)), alone=True)
                except BaseException:
                    self._worker.post(core.read_again, first=True)
                    raise
                if core.accept() or core.is_stopped or time.monotonic() >= deadline:
                    return found

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """One task at a time. What nobody was told, since who had asked was cancelled, comes first."""
        self._check_not_called_back()
        self._worker.check_usable()
        if self._reader is not None:
            raise ConcurrentUse("another task reads from this consumer: one at a time may")
        if self._worker.untold:
            raise self._worker.untold.popleft()
        self._reader = asyncio.current_task()
        try:
            yield
        finally:
            self._reader = None

    def _check_not_called_back(self) -> None:
        if self._worker.is_calling_back:
            raise ConcurrentUse("a callback may not poll or close: call stop() to end")

    def assignment(self) -> frozenset[TopicPartition]:
        """The partitions that this consumer reads now."""
        return self._core.assignment()

    def fencing_token(self, partition: TopicPartition) -> int:
        """The epoch of our claim on a partition: it grows with every owner. Raises NotOwner."""
        return self._core.fencing_token(partition)

    def health(self) -> Health:
        """How it stands; never waits."""
        return self._core.health()

    def leave_on_signals(
        self, *signals: signal.Signals
    ) -> AbstractContextManager[Callable[[], signal.Signals | None]]:
        """While it lasts, the first of these signals (SIGTERM and SIGINT) stops the consumer."""
        return stopped_by_signals(self.stop, signals)

    @property
    def member(self) -> Member | None:
        """This consumer's place in its group; None without one."""
        return self._core.member

    def metrics(self) -> dict[str, int]:
        """Counters since the start (see `ConsumerCounters`), and what is buffered and the lag now."""
        return self._core.metrics()

    # -- offsets ----------------------------------------------------------------------------------

    async def commit(
        self, offsets: Mapping[TopicPartition, int] | None = None, timeout: float = 30.0
    ) -> None:
        """Commit the next offsets to process; without `offsets`, of everything handed out so far.

        Raises NotOwner if a partition is no longer ours (the others are committed), RequestTimeout
        if ZooKeeper did not answer in time (then the commit may still come to pass, as it may when
        the task is cancelled), ConfigError for what is no offset (then nothing is committed), and
        InstanceReplaced.
        """
        await self._worker.ask(partial(self._core.commit, offsets, timeout))

    async def committed(self, partition: TopicPartition) -> int | None:
        """The group's committed offset, None if there is none. Raises ZooKeeperUnreachable."""
        return await self._worker.ask(partial(self._core.committed, partition))

    async def position(self, partition: TopicPartition) -> int | None:
        """The next offset to be handed out; None while it is looked up. Raises NotAssigned."""
        return await self._worker.ask(partial(self._core.position, partition))

    async def end_offset(self, partition: TopicPartition) -> int | None:
        """The partition's end as the last fetch saw it; None before the first. Raises NotAssigned."""
        return await self._worker.ask(partial(self._core.end_offset, partition))

    async def seek(self, partition: TopicPartition, place: Place) -> None:
        """Go on at an offset, at "beginning" or "end", or at a time. Raises NotAssigned, ConfigError."""
        await self._worker.ask(partial(self._core.seek, partition, place))

    async def offsets_for_time(
        self, times: Mapping[TopicPartition, datetime], timeout: float = 30.0
    ) -> dict[TopicPartition, int | None]:
        """The first offset at each time or later; None: none yet. Raises RequestTimeout, ConfigError."""
        return await self._worker.ask(partial(self._core.offsets_for_time, times, timeout))

    async def pause(self, *partitions: TopicPartition) -> None:
        """Hand out nothing of these partitions until `resume`. Raises NotAssigned."""
        await self._worker.ask(partial(self._core.pause, *partitions))

    async def resume(self, *partitions: TopicPartition) -> None:
        """Undo `pause`. Raises NotAssigned."""
        await self._worker.ask(partial(self._core.resume, *partitions))

    async def assign(self, partitions: Iterable[tuple[str, int]]) -> None:
        """Read exactly these partitions, without a group. Raises UnknownTopicOrPartition."""
        await self._worker.ask(partial(self._core.assign, list(partitions)))

    async def partitions_of(self, topic: str) -> list[TopicPartition]:
        """All partitions of a topic. Raises UnknownTopicOrPartition, or why no broker told."""
        return await self._worker.ask(partial(self._core.partitions_of, topic))


def _closed(worker: Worker, closing: "asyncio.Future[None]") -> None:
    closing.exception()  # perhaps nobody waits for it any more
    worker.stop()
