"""Reading in columns: what `Consumer` offers besides records one by one."""

import time
from collections.abc import Callable, Iterator
from functools import partial
from math import isnan
from typing import TYPE_CHECKING, Final, TypeVar

from folkmoot.consumers.config import ConsumerConfig
from folkmoot.consumers.fetch.fetcher import Fetcher
from folkmoot.consumers.offsets.positions import Positions
from folkmoot.consumers.records.batch_view import RecordBatchView
from folkmoot.protocol.errors import ConfigError
from folkmoot.protocol.records import TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa

_Made = TypeVar("_Made")

ALL: Final = 2**31
TABLE_RECORDS: Final = 100_000
TURN: Final = 1.0
FETCH_PAUSE: Final = 0.002
"""As long as there are records to hand out, the network is looked at this often at most."""


class ColumnReading:
    """The half of a consumer that hands out whole batches, and counts.

    The rules are those of `poll`: asking says that everything handed out before is processed, what
    the group wants is served when something is asked for, and records, batches and tables may be
    read in turns. A batch is the producer's, of one partition; partitions take turns.
    """

    config: ConsumerConfig
    _fetcher: Fetcher
    _positions: Positions
    _stopped: bool
    _fetched_at: float = 0.0
    """When the network was looked at last."""

    def poll_batch(
        self, timeout: float = 1.0, max_records: int | None = None
    ) -> RecordBatchView | None:
        """The next batch, or the next `max_records` of it; None if none comes within `timeout`."""
        found = self._read(timeout, _limit(max_records, ALL), _as_it_is, one=True)
        return found[0] if found else None

    def batches(self, max_records: int | None = None) -> Iterator[RecordBatchView]:
        """Batch after batch, until `stop` is called; cut where they have more than `max_records`."""
        while not self._stopped:
            view = self.poll_batch(TURN, max_records)
            if view is not None:
                yield view

    def poll_arrow(
        self, timeout: float = 1.0, max_records: int | None = None, *, headers: bool = False
    ) -> "pa.Table":
        """What is there, up to `max_records` (100,000), as an Arrow table; waits for the first row.

        Its columns are those of Spark's Kafka source: key, value, topic, partition, offset,
        timestamp, timestampType, and headers if asked for. Raises MissingExtra without pyarrow.
        """
        from folkmoot.consumers.records.arrow import record_batch, table

        limit, make = _limit(max_records, TABLE_RECORDS), partial(record_batch, headers=headers)
        return table(self._read(timeout, limit, make), headers=headers)

    def arrow(
        self, max_records: int | None = None, *, headers: bool = False
    ) -> Iterator["pa.RecordBatch"]:
        """Batch after batch as Arrow, until `stop` is called. Raises MissingExtra without pyarrow."""
        while not self._stopped:
            found = self._next_arrow(TURN, max_records, headers)
            if found is not None:
                yield found

    def _next_arrow(
        self, timeout: float, max_records: int | None, headers: bool
    ) -> "pa.RecordBatch | None":
        """As `poll_batch`, as Arrow."""
        from folkmoot.consumers.records.arrow import record_batch

        make = partial(record_batch, headers=headers)
        found = self._read(timeout, _limit(max_records, ALL), make, one=True)
        return found[0] if found else None

    def metrics(self) -> dict[str, int]:
        """Counters since the start (see `ConsumerCounters`), and what is buffered and the lag now."""
        return self._fetcher.metrics()

    def _read(
        self,
        timeout: float,
        limit: int,
        make: Callable[[RecordBatchView], _Made],
        *,
        one: bool = False,
    ) -> list[_Made]:
        """What `make` makes of batches of up to `limit` records in all, or of one; waits for the first.

        Nothing counts as handed out before all that could raise is behind us.
        """
        deadline = deadline_after(timeout)
        self._ask_for_more()
        while True:
            self._serve()
            self._fetcher.check()
            with self._fetcher.turns.handing_out():
                made: list[_Made] = []
                ends: list[tuple[TopicPartition, int]] = []
                left = limit
                while left > 0 and (view := self._fetcher.take_view(left)) is not None:
                    made.append(make(view))
                    ends.append((view.topic_partition, view.next_offset))
                    left = 0 if one else left - len(view)
                remaining = deadline - time.monotonic()
                is_over = bool(made) or remaining <= 0 or self._stopped or self._is_wanted()
                if made:
                    self._keep_fetching()
                else:
                    self._fetch(0.0 if is_over else min(remaining, TURN))
                for partition, end in ends:
                    self._hand_out(partition, end)
            if is_over:
                return made

    def _keep_fetching(self) -> None:
        """Ask for what follows, and take what has come, so often that neither has to wait."""
        if time.monotonic() - self._fetched_at >= FETCH_PAUSE:
            self._fetch(0.0)

    def _hand_out(self, partition: TopicPartition, end: int) -> None:
        """What was taken of a partition, up to `end`, is the application's now."""
        self._positions.of(partition).handed_out = end

    def _is_wanted(self) -> bool:
        """Whether this thread has other things to do than to wait for records."""
        return False

    # What the consumer itself does:

    def _ask_for_more(self) -> None:
        raise NotImplementedError

    def _serve(self) -> None:
        raise NotImplementedError

    def _fetch(self, timeout: float) -> None:
        raise NotImplementedError


def deadline_after(timeout: float) -> float:
    """When so many seconds have passed. Raises ValueError for nan: that moment never comes."""
    deadline = time.monotonic() + timeout
    if isnan(deadline):
        raise ValueError(f"timeout={timeout} is no number of seconds")
    return deadline


def _limit(max_records: int | None, otherwise: int) -> int:
    if max_records is not None and max_records < 1:
        raise ConfigError(f"max_records must be at least 1, not {max_records}")
    return max_records or otherwise


def _as_it_is(view: RecordBatchView) -> RecordBatchView:
    return view
