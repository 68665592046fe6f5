"""The handles that callers get for the records that they have sent."""

from collections.abc import Callable, Coroutine, Generator, Iterator, Sequence
from concurrent.futures import Future
from typing import Any

import msgspec

from folkmoot.producers.columns import as_callback
from folkmoot.protocol.errors import FolkmootError, RequestTimeout
from folkmoot.protocol.quantities import counted
from folkmoot.protocol.records import RecordMetadata

RecordOutcome = tuple[int, int, FolkmootError | None]
"""The partition of a record, its offset (-1 if it is not known), its error."""
Run = tuple[Any, int, int]
"""Records of a `send_batch` that lie side by side: their batch, the rank of the first one, how many."""


class Delivery(msgspec.Struct, gc=False, eq=False):
    """The outcome of one record, now or later. May be kept, asked from any thread, or ignored.

    It is only the record's batch and its rank there. One is made for every record, so the garbage
    collector does not track it; its batch refers to it only while a callback waits.
    """

    _builder: Any
    _rank: int
    timestamp: int
    """In ms since the epoch."""

    def done(self) -> bool:
        """Return whether the record was acknowledged or has failed."""
        is_done: bool = self._builder.done
        return is_done

    def result(self, timeout: float | None = None) -> RecordMetadata:
        """Return where the record is. Raises the error that it failed with, RequestTimeout after `timeout`;
        ConcurrentUse within an `on_delivery`, unless it is done; ClosedError in a forked process."""
        if not self._builder.done:
            wait(self.done, self._builder, timeout)
        return self._outcome()

    def exception(self, timeout: float | None = None) -> FolkmootError | None:
        """Return the error that the record failed with, or None if it was acknowledged."""
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
        """Call `call` with this delivery, in the producer's thread, when the record is done.

        If it is done already, `call` runs at once, here. Raises TypeError for what is not callable.
        """
        as_callback("call", call)
        if not self.builder.call_when_done(call, self):
            self._builder.observe(self._rank)
            call(self)

    def future(self) -> "Future[RecordMetadata]":
        """Return a future of the standard library, for `concurrent.futures.wait`; it cannot be cancelled."""
        return future_of(self)

    @property
    def builder(self) -> Any:
        """The record's batch, for the producer itself."""
        return self._builder


class AsyncDelivery(Delivery, gc=False, eq=False):
    """The outcome of one record, now or later: `await` it. May be kept, asked again, or ignored."""

    def __await__(self) -> Generator[Any, None, RecordMetadata]:
        """`result` without a timeout."""
        return outcome_of(self, None).__await__()

    def result(  # type: ignore[override]  # as asyncio's own names are those of concurrent.futures
        self, timeout: float | None = None
    ) -> Coroutine[Any, Any, RecordMetadata]:
        """As `Delivery.result`, to be awaited."""
        return outcome_of(self, timeout)

    def exception(  # type: ignore[override]
        self, timeout: float | None = None
    ) -> Coroutine[Any, Any, FolkmootError | None]:
        """As `Delivery.exception`, to be awaited."""
        return failure_of(self, timeout)


def outcome_at(builder: Any, rank: int) -> RecordOutcome:
    """Return the outcome of the record of that rank, whose batch is done."""
    if builder.outcomes is not None:
        outcome: RecordOutcome = builder.outcomes[rank]
        return outcome
    base = builder.base_offset
    return builder.topic_partition.partition, base + rank if base >= 0 else -1, builder.error


async def outcome_of(delivery: Any, timeout: float | None) -> RecordMetadata:
    """`AsyncDelivery.result`, for both implementations."""
    await _until_done(delivery.builder, timeout)
    outcome: RecordMetadata = delivery._outcome()
    return outcome


async def failure_of(delivery: Any, timeout: float | None) -> FolkmootError | None:
    """`AsyncDelivery.exception`, for both implementations."""
    await _until_done(delivery.builder, timeout)
    failure: FolkmootError | None = delivery._failure()
    return failure


async def _until_done(builder: Any, timeout: float | None) -> None:
    owner = builder.owner
    if owner is not None and not await owner.listener.until_done(builder, timeout):
        raise _too_late(builder, timeout)


def wait(done: Callable[[], bool], builder: Any, timeout: float | None) -> None:
    """Wait until a record of `builder` is done. Raises RequestTimeout, and as `Accumulator.wait_for`."""
    owner = builder.owner  # None: it has just ended
    if owner is not None and not owner.wait_for(done, timeout):
        raise _too_late(builder, timeout)


def _too_late(builder: Any, timeout: float | None) -> RequestTimeout:
    return RequestTimeout(
        f"a record for {builder.topic_partition.topic} is not acknowledged after "
        f"{timeout:g} s; it may be yet"
    )


def future_of(delivery: Any) -> "Future[RecordMetadata]":
    """Return a future that ends when the delivery does."""
    future: Future[RecordMetadata] = Future()
    future.set_running_or_notify_cancel()

    def end(delivery: Any) -> None:
        error = delivery._failure()
        if error is None:
            future.set_result(delivery._outcome())
        else:
            future.set_exception(error)

    delivery.add_done_callback(end)
    return future


class BatchDelivery:
    """The outcome of the records of one `send_batch`, now or later; from any thread."""

    __slots__ = ("_owner", "runs")

    def __init__(self, runs: Sequence[Run], owner: Any) -> None:
        self.runs = runs
        self._owner = owner

    def __len__(self) -> int:
        """Return the number of records."""
        return sum(count for _, _, count in self.runs)

    def done(self) -> bool:
        """Return whether every record was acknowledged or has failed."""
        return all(builder.done for builder, _, _ in self.runs)

    def result(self, timeout: float | None = None) -> dict[int, list[range]]:
        """Return the offsets by partition, in the order of the rows; no ranges with acks=0.

        Raises the first error that records failed with, RequestTimeout after `timeout`.
        """
        self._wait(timeout)
        return self._outcome()

    def exception(self, timeout: float | None = None) -> FolkmootError | None:
        """Return the first error that records failed with, or None if all were acknowledged."""
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
        for (partition, start, _), count in self._outcomes():
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
        for builder, rank, count in self.runs:
            builder.observe(rank, count)
        errors = (error for (_, _, error), _ in self._outcomes() if error is not None)
        return next(errors, None)

    def _outcomes(self) -> Iterator[tuple[RecordOutcome, int]]:
        """The outcomes of the first records of runs, and how many records follow with the same."""
        for builder, rank, count in self.runs:
            if builder.outcomes is None:
                yield outcome_at(builder, rank), count
            else:  # it was sent in parts
                yield from ((outcome, 1) for outcome in builder.outcomes[rank : rank + count])
