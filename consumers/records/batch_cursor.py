"""A batch on its way to the application, which works on one of its records while the rest wait."""

from collections.abc import Sequence

from folkmoot.consumers.records.batch_view import RecordBatchView, iterator


class BatchCursor:
    """A batch that is being iterated over, record by record, with no line of Python for any of them.

    `records` goes to the application. How far it came is known to the RecordIterator behind it; `cut`
    ends it behind the record under way, from any thread or signal handler. A record that was not
    handed out is never counted.

    `asks_for_more`: the application has asked for more than was handed out, so the last record is
    processed, too. For an application in another thread than the consumer: it sets this before it
    waits, and takes it back before it takes another step. So whoever reads `row` first, and this then,
    never counts too much.
    """

    __slots__ = ("_iterator", "asks_for_more", "records", "view")

    def __init__(self, view: RecordBatchView) -> None:
        self.view = view
        self.asks_for_more = False
        self._iterator = iterator(view)
        self.records = iter(self._iterator)

    def cut(self) -> None:
        """End the iteration: nothing more is handed out. What was not goes back with `row`."""
        self._iterator.cut()

    @property
    def row(self) -> int:
        """How many records were handed out."""
        return self._iterator.row

    @property
    def next_offset(self) -> int | None:
        """The next offset to be handed out; None if that is behind this batch."""
        row = self.row
        return self.view.offsets[row] if row < len(self.view) else None

    def progress(self) -> tuple[Sequence[int], int | None]:
        """The offsets of what was handed out, and the one behind what is processed; None if nothing is.

        What was handed out is processed, but for the last record, which is under way.
        """
        row, offsets = self.row, self.view.offsets
        done = row if self.asks_for_more else row - 1
        return offsets[:row], offsets[done - 1] + 1 if done > 0 else None
