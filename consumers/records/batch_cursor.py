"""An iteration over the records of a batch."""

from collections.abc import Sequence

from folkmoot.consumers.records.batch_view import RecordBatchView, iterator


class BatchCursor:
    """An iteration over a batch, without Python code between two records.

    `records` goes to the application. The RecordIterator behind it knows the progress; `cut` ends it after
    the record under way, from any thread or signal handler. Only handed out records count.

    `asks_for_more`: the last handed out record is processed, too, since the application wants the next one.
    An application in another thread sets it before it waits, and clears it before its next step. A reader of
    `row` and then of this never counts too much.
    """

    __slots__ = ("_iterator", "asks_for_more", "records", "view")

    def __init__(self, view: RecordBatchView) -> None:
        self.view = view
        self.asks_for_more = False
        self._iterator = iterator(view)
        self.records = iter(self._iterator)

    def cut(self) -> None:
        """End the iteration; the rest begins at `row`."""
        self._iterator.cut()

    @property
    def row(self) -> int:
        """The number of handed out records."""
        return self._iterator.row

    @property
    def next_offset(self) -> int | None:
        """The next offset to hand out; None after the batch's end."""
        row = self.row
        return self.view.offsets[row] if row < len(self.view) else None

    def progress(self) -> tuple[Sequence[int], int | None]:
        """Return the handed out offsets, and the offset after the processed ones; None if there are none.

        All handed out records but the last, which is under way, are processed.
        """
        row, offsets = self.row, self.view.offsets
        done = row if self.asks_for_more else row - 1
        return offsets[:row], offsets[done - 1] + 1 if done > 0 else None
