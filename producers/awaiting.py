"""What tasks wait for, and what they hold of the records that they have sent."""

import asyncio
import logging
import time
from collections.abc import Callable, Generator
from contextlib import suppress
from functools import partial
from inspect import iscoroutinefunction

import msgspec

from folkmoot.producers.batches import Batch
from folkmoot.producers.chunks import Chunk, Delivery
from folkmoot.producers.column_chunks import BatchDelivery
from folkmoot.protocol.errors import ConcurrentUse, FolkmootError, RequestTimeout
from folkmoot.protocol.records import RecordMetadata

_log = logging.getLogger(__name__)

Condition = Callable[[], bool]
OnDelivery = Callable[["AsyncDelivery"], None]


class Waiting:
    """Tasks of one event loop that wait for the sender's thread.

    That thread only rings, for a round of its work as a whole; one look on the loop then wakes
    everybody whose time has come: the waiters of each batch that is done, and those whose condition
    holds. Futures carry nothing: who is woken asks the Delivery, so that no outcome is lost with a
    task that was cancelled. All but `ring` belongs to the loop.

    A waiter is kept with its record's chunk until the chunk is divided, and then with its batch: it
    is touched twice, however often it is woken.
    """

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._rung = False
        self._by_chunk: dict[Chunk, list[tuple[Delivery, Condition]]] = {}
        self._by_batch: dict[Batch, list[Condition]] = {}
        self._conditions: list[tuple[Condition, asyncio.Future[None]]] = []

    def begin(self) -> None:
        """Belong to the loop that runs. Raises ConcurrentUse if it belongs to another one."""
        self.check_loop()
        self._loop = asyncio.get_running_loop()

    def check_loop(self) -> None:
        """Raises ConcurrentUse in another loop than its own: nobody would wake who waits there."""
        if self._loop not in (None, asyncio.get_running_loop()):
            raise ConcurrentUse("a producer belongs to the event loop that started it")

    def ring(self) -> None:
        """Something has changed. From any thread."""
        if self._loop is not None and not self._rung:
            self._rung = True
            with suppress(RuntimeError):  # the loop is closed, and nobody waits
                self._loop.call_soon_threadsafe(self._look)

    async def until(self, condition: Condition, timeout: float | None) -> bool:
        """Wait until it holds, at most `timeout` seconds. Raises what it raises."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while not condition():
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                return False
            future = asyncio.get_running_loop().create_future()
            self._conditions.append((condition, future))
            await asyncio.wait([future], timeout=left)
        return True

    def for_record(self, delivery: Delivery, told: Condition) -> None:
        """Have `told` called when the record is done; it returns whether anybody cared."""
        place = delivery._place()
        if place is None:
            self._by_chunk.setdefault(delivery._chunk, []).append((delivery, told))
        else:
            self._by_batch.setdefault(place[0], []).append(told)
            self.ring()  # it may have been done a moment ago

    def _look(self) -> None:
        self._rung = False  # before anything is looked at: what changes from here on rings again
        for chunk in [chunk for chunk in self._by_chunk if chunk.placed]:
            for delivery, told in self._by_chunk.pop(chunk):
                place = delivery._place()
                assert place is not None
                self._by_batch.setdefault(place[0], []).append(told)
        for batch in [batch for batch in self._by_batch if batch.done]:
            for told in self._by_batch.pop(batch):
                if told():
                    batch.observed = True
        waiting, self._conditions = self._conditions, []
        for condition, future in waiting:
            if not future.done():
                if _holds(condition):
                    future.set_result(None)
                else:
                    self._conditions.append((condition, future))


def _holds(condition: Condition) -> bool:
    try:
        return condition()
    except FolkmootError:
        return True  # who waits will ask itself, and have it raised


class AsyncDelivery(msgspec.Struct, gc=False, eq=False):
    """What became, or will become, of one record: `await` it. May be kept, asked again, or ignored."""

    _delivery: Delivery
    _waiting: Waiting

    def done(self) -> bool:
        """Whether the record was acknowledged, or has failed."""
        return self._delivery.done()

    def __await__(self) -> Generator[None, None, RecordMetadata]:
        """`result` without a timeout."""
        return self.result().__await__()

    async def result(self, timeout: float | None = None) -> RecordMetadata:
        """Where the record is. Raises the error that it failed with, RequestTimeout after `timeout`."""
        await self._wait(timeout)
        return self._delivery.result(0)

    async def exception(self, timeout: float | None = None) -> FolkmootError | None:
        """The error that the record failed with, or None if it was acknowledged."""
        await self._wait(timeout)
        return self._delivery.exception(0)

    async def _wait(self, timeout: float | None) -> None:
        if self._delivery.done():
            return
        self._waiting.check_loop()
        future = asyncio.get_running_loop().create_future()
        self._waiting.for_record(self._delivery, partial(_wake, future))
        if timeout is None:
            await future
            return
        done, _ = await asyncio.wait([future], timeout=timeout)
        if not done:
            future.cancel()
            raise RequestTimeout(
                f"a record for {self._delivery._chunk.topic} is not acknowledged after "
                f"{timeout:g} s; it may be yet"
            )

    def tell(self, on_delivery: OnDelivery) -> None:
        """Have it called, on the loop, when the record is done."""
        self._waiting.for_record(self._delivery, partial(_call_back, on_delivery, self))


def check_plain(on_delivery: OnDelivery) -> None:
    """Raises TypeError for a coroutine function: nobody would await what it returns."""
    if iscoroutinefunction(on_delivery) or iscoroutinefunction(type(on_delivery).__call__):
        raise TypeError(
            f"on_delivery must be a plain function, not a coroutine function: {on_delivery!r}; "
            "await the delivery, or make a task in it"
        )


def _wake(future: asyncio.Future[None]) -> bool:
    if future.done():  # who waited was cancelled
        return False
    future.set_result(None)
    return True


def _call_back(on_delivery: OnDelivery, delivery: AsyncDelivery) -> bool:
    try:
        on_delivery(delivery)
    except Exception:
        _log.exception("an on_delivery callback has failed")
    return True


class AsyncBatchDelivery:
    """What became, or will become, of the records of one `send_batch`: `await` it."""

    __slots__ = ("_delivery", "_waiting")

    def __init__(self, delivery: BatchDelivery, waiting: Waiting) -> None:
        self._delivery = delivery
        self._waiting = waiting

    def __len__(self) -> int:
        """How many records they are."""
        return len(self._delivery)

    def done(self) -> bool:
        """Whether every record was acknowledged, or has failed."""
        return self._delivery.done()

    def __await__(self) -> Generator[None, None, dict[int, list[range]]]:
        """`result` without a timeout."""
        return self.result().__await__()

    async def result(self, timeout: float | None = None) -> dict[int, list[range]]:
        """The offsets by partition, in the order of the rows; no ranges with acks=0.

        Raises the first error that records failed with, RequestTimeout after `timeout`.
        """
        await self._wait(timeout)
        return self._delivery.result(0)

    async def exception(self, timeout: float | None = None) -> FolkmootError | None:
        """The first error that records failed with, or None if all were acknowledged."""
        await self._wait(timeout)
        return self._delivery.exception(0)

    async def _wait(self, timeout: float | None) -> None:
        if not self._delivery.done():
            self._waiting.check_loop()
        if not await self._waiting.until(self._delivery.done, timeout):
            raise RequestTimeout(
                f"{len(self)} records are not acknowledged after {timeout:g} s; they may be yet"
            )
