"""Handing out records to the application, and taking back what it did not get."""

import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from folkmoot.consumers.client.attention import Attention
from folkmoot.consumers.client.life import Life
from folkmoot.consumers.config import ON_DECODE_ERROR, ConsumerConfig, OnDecodeError
from folkmoot.consumers.fetch.fetcher import Fetcher
from folkmoot.consumers.offsets.progress import Positions
from folkmoot.consumers.records.batch_cursor import BatchCursor
from folkmoot.consumers.records.batch_view import RecordBatchView
from folkmoot.consumers.records.deserialization import Deserialization, Skipped
from folkmoot.protocol.errors import ConfigError, DeserializationError
from folkmoot.protocol.records import K, TopicPartition, V

if TYPE_CHECKING:
    from folkmoot.consumers.records.typed import TypedColumns
    from folkmoot.schemas.columns.deserializer import ColumnDeserializer

_Result = TypeVar("_Result")
TakeRecords = Callable[[int], "RecordBatchView | Skipped | None"]

FETCH_PAUSE: Final = 0.002
"""Seconds between two looks at the network while records are handed out."""
ITERATED_RECORDS: Final = 10_000


class HandOut(Generic[K, V]):
    """Hands out batches, whole or in parts, and iterations over records.

    `positions` gets the handed out offsets last, after all that may raise. An error before, Ctrl-C too, makes
    the fetcher take all back. `take_back` returns the rest of an iteration. Owned by the consumer's owner.
    """

    def __init__(
        self,
        config: ConsumerConfig[K, V],
        fetcher: Fetcher,
        positions: Positions,
        call_back: Callable[[str, Any], "Future[Any]"],
        poll_brokers: Callable[[], None],
    ) -> None:
        self.polled_at = 0.0
        """The last look at the network (monotonic)."""
        self._config = config
        self._fetcher = fetcher
        self._positions = positions
        self._call_back = call_back
        self._poll_brokers = poll_brokers
        self._deserialization = Deserialization(config.key_deserializer, config.value_deserializer)
        self.record_source: TakeRecords | None = None
        """How to take records if a deserializer was given."""
        if self._deserialization.is_wanted:
            self.record_source = self.take_records
        self._columns: tuple[object, ColumnDeserializer] | None = None
        """The last schema, and its deserializer."""
        self._taken: RecordBatchView | None = None
        """The cursor's batch, in bytes."""
        self._undecided: tuple[tuple[TopicPartition, int], Future[Any]] | None = None
        """A record that cannot be deserialized, and the call of `on_decode_error` for it."""

    def batches(
        self,
        limit: int,
        make: Callable[[RecordBatchView], _Result | None],
        life: Life,
        *,
        one: bool = False,
        take: TakeRecords | None = None,
    ) -> tuple[list[_Result], bool]:
        """Return `make` of batches of up to `limit` records in all, or of one; and whether nothing was
        buffered. `take` gets them from the fetcher, as bytes if it is None."""
        take, rotation = take or self._fetcher.take_view, self._fetcher.rotation
        before: dict[TopicPartition, int | None] = {}
        rotation.keep()
        try:
            views: list[RecordBatchView | Skipped] = []
            left, most = limit, self._config.buffer_bytes
            while left > 0 and rotation.taken_bytes < most and not life.stopped:
                try:
                    view = take(left)
                except _UndecidedError:
                    view = None  # hand out the records before it
                if view is None:
                    break
                views.append(view)
                # Serve the group after each skipped record: there may be many.
                left = 0 if one or isinstance(view, Skipped) else left - len(view)
            all_results = (make(view) for view in views if isinstance(view, RecordBatchView))
            results = [result for result in all_results if result is not None]
            if views:
                self._keep_fetching()
            for view in views:
                partition = view.topic_partition
                before.setdefault(partition, self._positions.of(partition).handed_out)
                offsets = () if isinstance(view, Skipped) else view.offsets
                self._positions.hand_out(partition, offsets, view.next_offset)
        except BaseException:
            rotation.take_all_back()
            for partition, handed_out in before.items():
                self._positions.of(partition).handed_out = handed_out
            raise
        return results, not views

    def begin_iteration(self, life: Life, attention: Attention) -> tuple[BatchCursor | None, bool]:
        """Return an iteration over records of one partition, and whether nothing was buffered."""
        rotation = self._fetcher.rotation
        rotation.keep()
        try:
            try:
                view = self.take_records(ITERATED_RECORDS)
            except _UndecidedError:
                view = None
            if view is not None:
                self._keep_fetching()
            if isinstance(view, Skipped):
                self._positions.hand_out(view.topic_partition, (), view.next_offset)
                return None, False
            self._positions.cursor = None if view is None else BatchCursor(view)
        except BaseException:
            rotation.take_all_back()
            raise
        cursor = self._positions.cursor
        # A `wake` may have come before there was a cursor to cut.
        if cursor is not None and (attention.is_wanted or life.stopped):
            cursor.cut()
        return cursor, cursor is None

    def take_back(self) -> None:
        """End the iteration over a batch, and return the rest to the fetcher."""
        cursor = self._positions.cursor
        if cursor is not None:
            cursor.cut()
            self._positions.settle()
            taken, row = self._taken, cursor.row
            if taken is not None and row < len(taken):
                self._fetcher.rotation.take_back(taken.topic_partition, taken.offsets[row])
            self._positions.cursor = None

    def _keep_fetching(self) -> None:
        """Send fetches and take answers, often enough that neither waits."""
        if time.monotonic() - self.polled_at >= FETCH_PAUSE:
            self._poll_brokers()

    # -- deserialization --------------------------------------------------------------------------

    def columns_of(self, schema: object, *, headers: bool) -> "TypedColumns":
        """Return what makes a schema's columns; it keeps the look-ups of the last call."""
        from folkmoot.consumers.records.typed import TypedColumns, columns_of

        if self._columns is None or self._columns[0] != schema:
            self._columns = schema, columns_of(schema, self._config.value_deserializer)
        return TypedColumns(self._columns[1], headers, self._config.on_decode_error)

    def take_records(self, limit: int) -> RecordBatchView | Skipped | None:
        """Take the next records, deserialized."""
        if not self._deserialization.is_wanted:
            self._taken = self._fetcher.take_view(limit)
            return self._taken
        return self.take_deserialized(
            self._deserialization, min(limit, self._config.max_poll_records)
        )

    def take_deserialized(
        self, deserialization: "Deserialization | TypedColumns", limit: int
    ) -> RecordBatchView | Skipped | None:
        """Take the records before the first that cannot be deserialized.

        That one comes next, alone: it is skipped, handed out in bytes, or its error is raised.
        """
        rotation = self._fetcher.rotation
        while (view := self._fetcher.take_view(limit)) is not None:
            rows, failed = deserialization.rows_of(view)
            self._taken = view.part(0, max(1, len(rows)))
            if failed is None:
                return rows
            if not isinstance(failed, DeserializationError):
                raise failed  # it may succeed later
            decision = None
            if len(rows) == 0:
                try:
                    decision = self._decide(failed)
                except _UndecidedError:
                    rotation.take_back(view.topic_partition, view.offsets[0])
                    raise
            if decision == "raise":
                self._fetcher.stop_at(view.topic_partition, view.offsets[0], failed)
                continue
            if len(self._taken) < len(view):
                rotation.take_back(view.topic_partition, view.offsets[len(self._taken)])
            if decision is None:
                return rows
            if decision == "raw":
                return deserialization.raw(self._taken)
            self._fetcher.counters.records_skipped += 1
            return Skipped(view.topic_partition, view.offsets[0] + 1)
        return None

    def _decide(self, error: DeserializationError) -> OnDecodeError:
        """Return what to do with a record that cannot be deserialized. Raises what the callback raises, and
        _UndecidedError while it runs: the record is taken again later."""
        decision: Any = self._config.on_decode_error
        if callable(decision):
            where = error.record.topic_partition, error.record.offset
            if self._undecided is None or self._undecided[0] != where:
                self._undecided = where, self._call_back("on_decode_error", error)
            outcome = self._undecided[1]
            if not outcome.done():
                raise _UndecidedError
            self._undecided = None
            decision = outcome.result()
            if decision is not None and decision not in ON_DECODE_ERROR:
                raise ConfigError(
                    f"on_decode_error may return 'raise', 'skip', 'raw' or None, not {decision!r:.80}"
                )
        decided: OnDecodeError = decision or "skip"
        return decided


class _UndecidedError(Exception):
    """An `on_decode_error` is running."""
