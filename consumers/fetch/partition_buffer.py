"""The fetched batches of one partition, on their way to the application. No I/O."""

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from folkmoot.consumers.fetch.buffer_budget import BufferBudget
from folkmoot.consumers.fetch.fetched_batch import FetchedBatch
from folkmoot.consumers.records.batch_view import RecordBatchView, view_of_batch
from folkmoot.protocol.batch_header import BatchHeader
from folkmoot.protocol.errors import FolkmootError
from folkmoot.protocol.records import TopicPartition


class _Open(NamedTuple):
    """The wanted records of an opened batch.

    `size` in bytes, decompressed; `behind` is where the next batch begins, perhaps after a gap.
    """

    view: RecordBatchView
    size: int
    behind: int


class PartitionBuffer:
    """Batches of one partition, in order: fetched, opened, taken.

    ```
    fetched ──open──► opened ──take──► taken ──keep──► gone
                        ▲                │
                        └────rewind──────┘
    ```

    `next_offset` is the next to take. Taken batches stay until `keep`, so that `rewind` can go back to any
    of their records, after an interrupted call or an iteration that was left.
    """

    __slots__ = (
        "_behind",
        "_fetched",
        "_index",
        "_open_batches",
        "_rewind_row",
        "_row",
        "budget",
        "partition",
        "size",
    )

    def __init__(self, partition: TopicPartition, budget: BufferBudget, offset: int = 0) -> None:
        self.size = 0
        """Bytes of the fetched batches, as they came."""
        self.partition = partition
        self.budget = budget
        self._fetched: deque[FetchedBatch] = deque()
        self._open_batches: list[_Open] = []
        self._index = self._row = 0
        """The next batch in `_open_batches`, and its row."""
        self._rewind_row = 0
        """The first row in `_open_batches` that `rewind` goes back to."""
        self._behind = offset
        """The next offset, if `_open_batches` is empty."""

    @property
    def next_offset(self) -> int:
        batches, index, row = (
            self._open_batches,
            self._index,
            self._row,
        )  # read once: other threads call, too
        if index < len(batches) and row < len(batches[index].view):
            return batches[index].view.offsets[row]
        return batches[-1].behind if batches else self._behind

    @property
    def has_taken(self) -> bool:
        """Return whether records were taken since `keep`."""
        return self._index > 0 or self._row > self._rewind_row

    @property
    def has_more(self) -> bool:
        """Return whether a batch is left to take."""
        return self._index < len(self._open_batches) or bool(self._fetched)

    def drop_fetched(self) -> None:
        for batch in reversed(self._fetched):
            self.budget.remove(batch)
        self.size = 0
        self._fetched.clear()

    def add(self, fetched: Sequence[tuple[BatchHeader, memoryview]]) -> None:
        """Append these batches."""
        batches = [FetchedBatch(header, data) for header, data in fetched]
        self._fetched.extend(batches)
        self.size += sum(batch.header.length for batch in batches)
        self.budget.add(batches)

    def open_next(self, since: int | None) -> bool:
        """Open a batch if none is open, and return whether one is; with `since`, from the first record of
        that time (ms) or later. Raises what makes the batch illegible.

        It may be interrupted at any line and called again: opened batches are before `next_offset` then.
        """
        while self._index == len(self._open_batches) and self._fetched:
            batch, behind = self._fetched[0], self.next_offset
            header = batch.header
            try:
                body = batch.body()
                view = view_of_batch(self.partition, header, batch.data, body)
            except FolkmootError as error:
                where = f"{self.partition}, batch at {header.base_offset}"
                raise type(error)(f"{where}: {error}") from None
            row = view.row_of_offset(behind)
            if since is not None and not self._open_batches:
                row = view.row_of_time(since, row)
            if row < len(view):
                rest = view.part(row, len(view)) if row else view
                self._open_batches.append(_Open(rest, len(body), header.next_offset))
            elif self._open_batches:
                last = self._open_batches[-1]
                self._open_batches[-1] = last._replace(behind=max(behind, header.next_offset))
            else:
                self._behind = max(behind, header.next_offset)
            self.budget.remove(batch)
            self.size -= header.length
            self._fetched.popleft()
            if not self._fetched:
                self.size = 0  # interruptions may have made it wrong
        return self._index < len(self._open_batches)

    def take(self, limit: int) -> tuple[RecordBatchView, int]:
        """Take up to `limit` records of the opened batch; return them and their bytes, decompressed."""
        view, size, _ = self._open_batches[self._index]
        start, end = self._row, min(self._row + limit, len(view))
        part = view.part(start, end)
        is_left = end < len(view)
        self._index, self._row = (self._index, end) if is_left else (self._index + 1, 0)
        return part, size * (end - start) // len(view)

    def keep(self) -> None:
        """Drop the taken records."""
        behind, left = self.next_offset, self._open_batches[self._index :]
        self._open_batches, self._index, self._rewind_row, self._behind = left, 0, self._row, behind

    def rewind(self, offset: int = -1) -> None:
        """Go back to the taken record at `offset`, or to the first one since `keep`."""
        for index, (view, _, behind) in enumerate(self._open_batches[: self._index + 1]):
            row = max(view.row_of_offset(offset), 0 if index else self._rewind_row)
            if offset < behind and row < len(view):
                self._index, self._row = index, row
                return

    def drop_rest(self) -> None:
        """Drop all that was not taken."""
        behind, taken = self.next_offset, self._open_batches[: self._index]
        if self._row:
            view, size, _ = self._open_batches[self._index]
            taken.append(_Open(view.part(0, self._row), size * self._row // len(view), behind))
        self.drop_fetched()
        self._open_batches, self._index, self._row, self._behind = taken, len(taken), 0, behind
