"""What callers hold of the records that they have sent."""

from bisect import bisect_right
from collections.abc import Callable, Coroutine, Generator, Iterator, Sequence
from concurrent.futures import Future
from operator import itemgetter
from typing import Any

import msgspec

from folkmoot.producers.columns import as_callback
from folkmoot.protocol.errors import FolkmootError, RequestTimeout
from folkmoot.protocol.quantities import counted
from folkmoot.protocol.records import RecordMetadata


class Delivery(msgspec.Struct, gc=False, eq=False):
    """What became, or will become, of one record. May be kept, asked from any thread, or ignored.

    It is no more than the record's batch and its place there.

    One is made for every record, so the garbage collector is not to know it. Its batch holds it only as
    long as a callback waits.
    """

    _builder: Any
    _rank: int
    timestamp: int
    """In ms since the epoch."""

    def done(self) -> bool:
        """Whether the record was acknowledged, or has failed."""
        is_done: bool = self._builder.done
        return is_done

    def result(self, timeout: float | None = None) -> RecordMetadata:
        """Where the record is. Raises the error that it failed with, RequestTimeout after `timeout`;
        ConcurrentUse within an `on_delivery`, unless it is done; ClosedError in a forked process."""
        if not self._builder.done:
            wait(self.done, self._builder, timeout)
        return self._outcome()

    def exception(self, timeout: float | None = None) -> FolkmootError | None:
        """The error that the record failed with, or None if it was acknowledged."""
        if not self._builder.done:
            wait(self.done, self._builder, timeout)
        return self._failure()

    def _outcome(self) -> RecordMetadata:
        """`result`, once it is done."""
        builder = self._builder
        partition, offset, error = outcome_at(builder, self._rank)
        if error is not None:
            builder.observe(self._rank)
            raise error
        return RecordMetadata(builder.topic_partition.topic, partition, offset, self.timestamp)

    def _failure(self) -> FolkmootError | None:
        """`exception`, once it is done."""
        self._builder.observe(self._rank)
        return outcome_at(self._builder, self._rank)[2]

    def add_done_callback(self, call: Callable[["Delivery"], object]) -> None:
        """Have `call` called with this handle, in the producer's thread, when the record is done.

        If it is done already it is called at once, here. Raises TypeError for what is not callable.
        """
        as_callback("call", call)
        if not self.builder.call_when_done(call, self):
            self._builder.observe(self._rank)
            call(self)

    def future(self) -> "Future[RecordMetadata]":
        """A future of the standard library, for `concurrent.futures.wait`; it cannot be cancelled."""
        return future_of(self)

    @property
    def builder(self) -> Any:
        """The record's batch, for the producer itself."""
        return self._builder


class AsyncDelivery(Delivery, gc=False, eq=False):
    """What became, or will become, of one record: `await` it. May be kept, asked again, or ignored."""

    def __await__(self) -> Generator[Any, None, RecordMetadata]:
        """`result` without a timeout."""
        return outcome_of(self, None).__await__()

    def result(  # type: ignore[override]  # as asyncio's own names are those of concurrent.futures
        self, timeout: float | None = None
    ) -> Coroutine[Any, Any, RecordMetadata]:
        """Where the record is. Raises the error that it failed with, RequestTimeout after `timeout`."""
        return outcome_of(self, timeout)

    def exception(  # type: ignore[override]
        self, timeout: float | None = None
    ) -> Coroutine[Any, Any, FolkmootError | None]:
        """The error that the record failed with, or None if it was acknowledged."""
        return failure_of(self, timeout)


Parts = Sequence[tuple[int, int, int, FolkmootError | None]]
"""Of a batch that was sent in parts, in order: rank of the first record, partition, base offset, error."""


def outcome_at(builder: Any, rank: int) -> tuple[int, int, FolkmootError | None]:
    """Partition and offset of the record of that rank, -1 if that is not known, and its error; its batch
    is done."""
    part = 0, builder.topic_partition.partition, builder.base_offset, builder.error
    if builder.parts is not None:
        part = builder.parts[bisect_right(builder.parts, rank, key=_first) - 1]
    first, partition, base, error = part
    return partition, base + rank - first if base >= 0 else -1, error


_first = itemgetter(0)


async def outcome_of(delivery: Any, timeout: float | None) -> RecordMetadata:
    """`AsyncDelivery.result`, of either implementation."""
    await _until_done(delivery, timeout)
    outcome: RecordMetadata = delivery._outcome()
    return outcome


async def failure_of(delivery: Any, timeout: float | None) -> FolkmootError | None:
    """`AsyncDelivery.exception`, of either implementation."""
    await _until_done(delivery, timeout)
    failure: FolkmootError | None = delivery._failure()
    return failure


async def _until_done(delivery: Any, timeout: float | None) -> None:
    """Wait on the event loop that listens to the owner. Raises RequestTimeout."""
    builder = delivery.builder
    owner = builder.owner
    if owner is not None and not await owner.listener.until_done(builder, timeout):
        raise _too_late(builder, timeout)


def _too_late(builder: Any, timeout: float | None) -> RequestTimeout:
    return RequestTimeout(
        f"a record for {builder.topic_partition.topic} is not acknowledged after "
        f"{timeout:g} s; it may be yet"
    )


def wait(done: Callable[[], bool], builder: Any, timeout: float | None) -> None:
    """Wait until a record of `builder` is done. Raises RequestTimeout, and as `Accumulator.wait_for`."""
    owner = builder.owner
    if owner is None:  # it has just ended
        return
    if not owner.wait_for(done, timeout):
        raise _too_late(builder, timeout)


def future_of(delivery: Any) -> "Future[RecordMetadata]":
    """A future that ends when the delivery does."""
    future: Future[RecordMetadata] = Future()
    future.set_running_or_notify_cancel()
    delivery.add_done_callback(lambda done: _end(future, done))
    return future


def _end(future: "Future[RecordMetadata]", delivery: Any) -> None:
    error = delivery._failure()
    if error is None:
        future.set_result(delivery._outcome())
    else:
        future.set_exception(error)


Run = tuple[Any, int, int]
"""Records of a `send_batch` that follow each other in a batch: the batch, the first one's place, how many."""


class BatchDelivery:
    """What became, or will become, of the records of one `send_batch`; from any thread."""

    __slots__ = ("_owner", "runs")

    def __init__(self, runs: Sequence[Run], owner: Any) -> None:
        self.runs = runs
        self._owner = owner

    def __len__(self) -> int:
        """How many records they are."""
        return sum(count for _, _, count in self.runs)

    def done(self) -> bool:
        """Whether every record was acknowledged, or has failed."""
        return all(builder.done for builder, _, _ in self.runs)

    def result(self, timeout: float | None = None) -> dict[int, list[range]]:
        """The offsets by partition, in the order of the rows; no ranges with acks=0.

        Raises the first error that records failed with, RequestTimeout after `timeout`.
        """
        self._wait(timeout)
        return self._outcome()

    def exception(self, timeout: float | None = None) -> FolkmootError | None:
        """The first error that records failed with, or None if all were acknowledged."""
        self._wait(timeout)
        return self._failure()

    def _wait(self, timeout: float | None) -> None:
        if not self._owner.wait_for(self.done, timeout):
            raise self._too_late(timeout)

    def _too_late(self, timeout: float | None) -> RequestTimeout:
        return RequestTimeout(
            f"not acknowledged after {timeout:g} s, and may be yet: {counted(len(self), 'record')}"
        )

    def _outcome(self) -> dict[int, list[range]]:
        """`result`, once all are done."""
        error = self._failure()
        if error is not None:
            raise error
        offsets: dict[int, list[range]] = {}
        for builder, position, count in self._pieces():
            partition, start, _ = outcome_at(builder, position)
            ranges = offsets.setdefault(partition, [])
            if start < 0:
                continue
            if ranges and ranges[-1].stop == start:
                ranges[-1] = range(ranges[-1].start, start + count)
            else:
                ranges.append(range(start, start + count))
        return offsets

    def _failure(self) -> FolkmootError | None:
        """`exception`, once all are done."""
        first = None
        for builder, position, count in self._pieces():
            builder.observe(position, count)
            first = first or outcome_at(builder, position)[2]
        return first

    def _pieces(self) -> Iterator[Run]:
        """The runs, cut where batches were sent in parts."""
        for builder, position, count in self.runs:
            end = position + count
            for first, _, _, _ in builder.parts or ():
                if position < first < end:
                    yield builder, position, first - position
                    position = first
            yield builder, position, end - position
