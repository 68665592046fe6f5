"""The producer for event loops: the same words with `await`, around the same producer."""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Any, Final, Self
from weakref import WeakValueDictionary

from folkmoot.producers.awaiting import AsyncBatchDelivery, AsyncDelivery, Waiting, check_plain
from folkmoot.producers.column_chunks import BatchDelivery, ColumnChunk
from folkmoot.producers.given import HeadersArgument, check_topic
from folkmoot.producers.producer import CLOSE_AFTER_ERROR, Producer
from folkmoot.producers.staging import Staging
from folkmoot.protocol.errors import ClosedError, FolkmootError

SENDS_IN_A_ROW: Final = 1000

_log = logging.getLogger(__name__)


class AsyncProducer:
    """A `Producer` for tasks of one event loop.

    ```python
    async with AsyncProducer(zookeeper="localhost:2181") as producer:
        delivery = await producer.send("orders", b"one coffee", key=b"table 4")
        print(await delivery)
    ```

    Options, rules and errors are those of `Producer`, which this one holds: records are staged by
    the very same `send`, right on the loop. What would block there is awaited here (room in the
    buffer, a topic used for the first time, acknowledgements), on no thread: the sender's thread
    rings, and the loop looks. Only opening and closing connections is done in a thread.

    A task that is cancelled while it awaits `send` has not sent; of a `send_batch`, the parts for
    which there was room have been sent. Cancelling whoever awaits a delivery changes nothing for the
    record. `close` goes on when the task that awaits it is cancelled.

    It belongs to the loop that started it: what waits in another one raises ConcurrentUse,
    be it `send` or the delivery that it returned.
    """

    def __init__(self, **options: Any) -> None:
        self._core = _Core(**options)
        self.config = self._core.config
        self._waiting = Waiting()
        self._core.listen(self._waiting.ring)
        self._open_chunks = self._core.open_chunks
        self._starting = asyncio.Lock()
        self._closing: asyncio.Task[None] | None = None
        self._in_a_row = 0
        # Tasks that wait for a topic or for room, and whose turn it is in each topic.
        self._in_line = 0
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    # -- life ---------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Connect to ZooKeeper and begin to work. Raises ZooKeeperUnreachable, MissingExtra."""
        self._waiting.begin()
        async with self._starting:
            await _in_thread(self._core.start, undo=partial(self._core.close, 0.0))

    async def close(self, timeout: float | None = None) -> None:
        """Flush, then let go of everything, within `timeout` seconds whatever is dead.

        Without a timeout it waits until every record is delivered or has failed, which
        `delivery_timeout` bounds. Raises as `flush` does, after all is closed.
        """
        if self._closing is None:
            self._waiting.begin()
            self._closing = asyncio.get_running_loop().create_task(self._close(timeout))
            self._closing.add_done_callback(_look_at)
            await asyncio.shield(self._closing)
        elif not self._closing.done():
            self._waiting.begin()
            await asyncio.wait([self._closing])

    async def _close(self, timeout: float | None) -> None:
        if timeout is None:
            timeout = self.config.longest_wait
        deadline = time.monotonic() + timeout
        self._core.take_no_more()
        try:
            if self._core.is_open:
                await self.flush(timeout)
        except BaseException:
            with suppress(FolkmootError):  # the first error is the one to be seen
                await self._let_go(deadline)
            raise
        await self._let_go(deadline)

    async def _let_go(self, deadline: float) -> None:
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
        value: bytes | None,
        key: bytes | None = None,
        partition: int | None = None,
        headers: HeadersArgument | None = None,
        timestamp: int | None = None,
        on_delivery: Callable[[AsyncDelivery], None] | None = None,
    ) -> AsyncDelivery:
        """Stage a record; await the delivery that it returns to know what became of it.

        Parameters and errors as of `Producer.send`. `on_delivery` is called on the loop; it is a
        plain function, a coroutine function is a TypeError.
        """
        # Which loop runs is not asked for a record that need not wait: it is a system call in some Pythons.
        if on_delivery is not None:
            self._check_loop()
            check_plain(on_delivery)
        self._in_a_row += 1
        if self._in_a_row == SENDS_IN_A_ROW:
            self._in_a_row = 0
            await asyncio.sleep(0)  # a loop of sends is not to keep all other tasks waiting
        if self._in_line or topic not in self._open_chunks:
            await self._admission(topic)
        staged = self._core.send(topic, value, key, partition, headers, timestamp)
        delivery = AsyncDelivery(staged, self._waiting)
        if on_delivery is not None:
            delivery.tell(on_delivery)
        return delivery

    async def send_batch(
        self,
        topic: str,
        values: Any,
        keys: Any = None,
        *,
        timestamps: Any = None,
        headers: Sequence[HeadersArgument] | None = None,
        partition: int | None = None,
    ) -> AsyncBatchDelivery:
        """Stage many records, given as columns; await the delivery that it returns.

        Parameters, rules and errors as of `Producer.send_batch`. Part by part, each of a few MB at
        most, so that other tasks come in between.
        """
        columns = Staging(values, keys, timestamps, headers, partition)
        chunks: list[ColumnChunk] = []
        await self._admission(topic)
        for chunk in self._core.parts(columns, topic):
            await self._admission(topic)
            self._core.hand_in(chunk)
            chunks.append(chunk)
            await asyncio.sleep(0)
        return AsyncBatchDelivery(self._core.delivery_of(chunks), self._waiting)

    def _check_loop(self) -> None:
        """Raises ConcurrentUse, in another loop than its own; what is closed says so itself."""
        if self._core.is_usable:
            self._waiting.check_loop()

    async def _admission(self, topic: str) -> None:
        """Wait for the topic to be known and for room: from here to the next await there is.

        The sender makes and takes room at any moment, so it would be luck who looks when there is
        some: of those who wait for a topic only the first one looks.
        """
        core, max_block = self._core, self.config.max_block
        self._check_loop()
        check_topic(topic)
        admitted, deadline = core.admission(topic), time.monotonic() + max_block
        turn = self._turns.setdefault(topic, asyncio.Lock())
        self._in_line += 1
        try:
            async with asyncio.timeout(max_block):
                await turn.acquire()
            try:
                if not await self._waiting.until(admitted, deadline - time.monotonic()):
                    raise core.too_late(topic)
            finally:
                turn.release()
        except TimeoutError:
            raise core.too_late(topic) from None
        finally:
            self._in_line -= 1

    async def flush(self, timeout: float | None = None) -> None:
        """Wait until all that was sent before is delivered or has failed.

        Raises FlushTimeout if that takes longer, and the first error of a record that has failed
        without anybody asking for its delivery.
        """
        self._check_loop()
        done = await self._waiting.until(self._core.flushing(), timeout)
        self._core.check_flushed(done, timeout)

    async def partitions_of(self, topic: str) -> list[int]:
        """The topic's partitions; the first time it may wait as `send` does."""
        if not self._core.knows(topic):
            await self._admission(topic)
        return self._core.partitions_of(topic)

    def unacknowledged(self) -> int:
        """How many records are neither delivered nor failed."""
        return self._core.unacknowledged()

    def metrics(self) -> dict[str, int]:
        """Counters since the start (see `ProducerCounters`), and what is buffered now."""
        return self._core.metrics()


class _Core(Producer):
    """The producer with its steps laid open: what its methods do, up to where they would wait."""

    def listen(self, told: Callable[[], None]) -> None:
        self._accumulator.listen(told)

    @property
    def is_open(self) -> bool:
        return self._thread is not None

    @property
    def is_usable(self) -> bool:
        return self._thread is not None and not self._closed

    @property
    def open_chunks(self) -> Any:
        """The topics for which `send` does not block."""
        return self._chunks

    def knows(self, topic: str) -> bool:
        return topic in self._accumulator.counts

    def admission(self, topic: str) -> Callable[[], bool]:
        """Whether there is room by now, for a topic that is known. It raises what `send` raises."""
        if self._thread is None:
            raise ClosedError(
                "the producer is not open: use it in an async with block, or await start()"
            )
        begun = time.monotonic()

        def is_admitted() -> bool:
            with self._lock:
                return self._accumulator.admits(topic, begun)

        return is_admitted

    def too_late(self, topic: str) -> FolkmootError:
        with self._lock:
            return self._accumulator.too_late(topic, self.config.max_block)

    def parts(self, columns: Staging, topic: str) -> Any:
        return self._parts(columns, topic)

    def hand_in(self, chunk: ColumnChunk) -> None:
        with self._lock:
            self._accumulator.hand_in(chunk, 0.0)

    def delivery_of(self, chunks: list[ColumnChunk]) -> BatchDelivery:
        return BatchDelivery(chunks, self._accumulator.completed)

    def flushing(self) -> Callable[[], bool]:
        """Ask for what was sent so far to be flushed. → whether it was."""
        accumulator = self._accumulator
        target = accumulator.request_flush()
        return lambda: accumulator.settled >= target

    def check_flushed(self, done: bool, timeout: float | None) -> None:
        self._check_flushed(done, timeout)

    def take_no_more(self) -> None:
        self._accumulator.close(ClosedError("the producer is closed"))


async def _in_thread(call: Callable[[], None], undo: Callable[[], None] | None = None) -> None:
    """Call something that blocks, in a thread of its own: those of the loop may all be in use.

    It ends in any case. If nobody waits for it any more by then, it is undone.
    """
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[None] = loop.create_future()
    ended.add_done_callback(_look_at)

    def run() -> None:
        error: Exception | None = None
        try:
            call()
        except Exception as raised:
            error = raised
        try:
            loop.call_soon_threadsafe(_end, ended, error)
        except RuntimeError:  # the loop is closed
            if undo is not None and error is None:
                undo()

    _start_thread(run)
    try:
        await asyncio.shield(ended)
    except asyncio.CancelledError:
        if undo is not None:
            ended.add_done_callback(partial(_undo, undo))
        raise


def _undo(undo: Callable[[], None], ended: asyncio.Future[None]) -> None:
    if ended.exception() is None:
        _start_thread(undo)


def _start_thread(call: Callable[[], None]) -> None:
    threading.Thread(target=call, name="folkmoot-errand", daemon=True).start()


def _end(ended: asyncio.Future[None], error: Exception | None) -> None:
    if ended.done():
        return
    if error is None:
        ended.set_result(None)
    else:
        ended.set_exception(error)


def _look_at(ended: asyncio.Future[None]) -> None:
    """What nobody waits for any more is no error of the loop's."""
    if not ended.cancelled():
        ended.exception()
