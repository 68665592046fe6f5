"""How what was fetched gets into the application's hands, and back."""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from folkmoot.consumers.client.attention import Attention
from folkmoot.consumers.client.callbacks import CallbackRun
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

_Made = TypeVar("_Made")
Take = Callable[[int], "RecordBatchView | Skipped | None"]

FETCH_PAUSE: Final = 0.002
"""While there are records to hand out, the network is looked at once in this time."""
ITERATED_RECORDS: Final = 10_000


class HandOut(Generic[K, V]):
    """Hands out batches, whole, in parts, or to be iterated over.

    What is handed out is noted in `positions` last, behind all that may raise; whatever is raised before,
    Ctrl-C too, has the fetcher take it all back. What was not handed out of an iteration goes back with
    `take_back`.

    Owned by the consumer's owner; its group is served before each method that hands out.
    """

    def __init__(
        self,
        config: ConsumerConfig[K, V],
        fetcher: Fetcher,
        positions: Positions,
        call_back: Callable[[str, Any], CallbackRun],
        turn: Callable[[], None],
    ) -> None:
        self.turned_at = 0.0
        """When the network was looked at last (monotonic)."""
        self._config = config
        self._fetcher = fetcher
        self._positions = positions
        self._call_back = call_back
        self._turn = turn
        self._deserialization = Deserialization(config.key_deserializer, config.value_deserializer)
        self._columns: tuple[object, ColumnDeserializer] | None = None
        """What was given as a schema last, and what makes its columns."""
        self._taken: RecordBatchView | None = None
        """What the cursor was made of: bytes."""
        self._undecided: tuple[tuple[TopicPartition, int], CallbackRun] | None = None
        """The record of which nothing can be made, and the call of `on_decode_error` for it."""

    def batches(
        self,
        limit: int,
        make: Callable[[RecordBatchView], _Made | None],
        life: Life,
        *,
        one: bool = False,
        take: Take | None = None,
    ) -> tuple[list[_Made], bool]:
        """What `make` makes of batches of up to `limit` records in all, or of one → and whether there was
        nothing. `take` gets them from the fetcher, as bytes if it is None."""
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
                    view = None  # what is in front of it is handed out
                if view is None:
                    break
                views.append(view)
                # The group is looked at behind a record that is skipped: there may be many.
                left = 0 if one or isinstance(view, Skipped) else left - len(view)
            all_made = (make(view) for view in views if isinstance(view, RecordBatchView))
            made = [each for each in all_made if each is not None]
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
        return made, not views

    def begin_iteration(self, life: Life, attention: Attention) -> tuple[BatchCursor | None, bool]:
        """Records of one partition to be iterated over → and whether there was nothing."""
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
        # It may have been wanted before there was this to cut.
        if cursor is not None and (attention.is_wanted or life.stopped):
            cursor.cut()
        return cursor, cursor is None

    def take_back(self) -> None:
        """End the iteration over a batch: what was not handed out of it goes back to the fetcher."""
        cursor = self._positions.cursor
        if cursor is not None:
            cursor.cut()
            self._positions.settle()
            taken, row = self._taken, cursor.row
            if taken is not None and row < len(taken):
                self._fetcher.rotation.take_back(taken.topic_partition, taken.offsets[row])
            self._positions.cursor = None

    def _keep_fetching(self) -> None:
        """Ask for what follows, and take what has come, so often that neither has to wait."""
        if time.monotonic() - self.turned_at >= FETCH_PAUSE:
            self._turn()

    # -- what the application's deserializers make --------------------------------------------------

    @property
    def takes_records(self) -> Take | None:
        """How records are taken, if they are to be deserialized."""
        return self.take_records if self._deserialization.is_wanted else None

    def columns_of(self, schema: object, *, headers: bool) -> "TypedColumns":
        """What makes columns of values. What the last one of the same schema has looked up is kept."""
        from folkmoot.consumers.records.typed import TypedColumns, columns_of

        if self._columns is None or self._columns[0] != schema:
            self._columns = schema, columns_of(schema, self._config.value_deserializer)
        return TypedColumns(self._columns[1], headers, self._config.on_decode_error)

    def take_records(self, limit: int) -> RecordBatchView | Skipped | None:
        """The records whose turn it is, with what the application's deserializers make of their bytes."""
        if not self._deserialization.is_wanted:
            self._taken = self._fetcher.take_view(limit)
            return self._taken
        return self.take_made(self._deserialization, min(limit, self._config.max_poll_records))

    def take_made(
        self, deserialization: "Deserialization | TypedColumns", limit: int
    ) -> RecordBatchView | Skipped | None:
        """The records in front of one of which nothing can be made.

        That one comes next, alone: it is skipped, handed out in bytes, or its error is raised.
        """
        rotation = self._fetcher.rotation
        while (view := self._fetcher.take_view(limit)) is not None:
            made, failed = deserialization.rows_of(view)
            self._taken = view.part(0, max(1, len(made)))
            if failed is None:
                return made
            if not isinstance(failed, DeserializationError):
                raise failed  # it may have gone by the next time
            what = None
            if len(made) == 0:
                try:
                    what = self._asked_about(failed)
                except _UndecidedError:
                    rotation.take_back(view.topic_partition, view.offsets[0])
                    raise
            if what == "raise":
                self._fetcher.stop_at(view.topic_partition, view.offsets[0], failed)
                continue
            if len(self._taken) < len(view):
                rotation.take_back(view.topic_partition, view.offsets[len(self._taken)])
            if what is None:
                return made
            if what == "raw":
                return deserialization.raw(self._taken)
            self._fetcher.counters.records_skipped += 1
            return Skipped(view.topic_partition, view.offsets[0] + 1)
        return None

    def _asked_about(self, error: DeserializationError) -> OnDecodeError:
        """What is to become of a record of which nothing can be made. Raises what the callback raises, and
        _UndecidedError while it runs: the record's turn comes again."""
        what: Any = self._config.on_decode_error
        if callable(what):
            where = error.record.topic_partition, error.record.offset
            if self._undecided is None or self._undecided[0] != where:
                self._undecided = where, self._call_back("on_decode_error", error)
            run = self._undecided[1]
            if not run.done():
                raise _UndecidedError
            self._undecided = None
            what = run.result()
            if what is not None and what not in ON_DECODE_ERROR:
                raise ConfigError(
                    f"on_decode_error may return 'raise', 'skip', 'raw' or None, not {what!r:.80}"
                )
        decided: OnDecodeError = what or "skip"
        return decided


class _UndecidedError(Exception):
    """An `on_decode_error` is running."""
