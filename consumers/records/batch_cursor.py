"""Records on their way to the application, which is working on one of them while the rest wait."""

from operator import length_hint

from folkmoot.consumers.offsets.positions import Progress
from folkmoot.consumers.records.batch_view import RecordBatchView
from folkmoot.protocol import record_batch


class Lent:
    """A batch that is being iterated over, record by record, with no line of Python for any of them.

    ```
    gate     t t t t t t t t        one entry for each record; emptied by `cut`
    offsets  5 6 7 8 9 …            a C iterator that knows how many are left
                   ▲
    records ───────┘                map(Record, gate, …, offsets, …): ends with the gate
    ```

    `records` goes to the application. How far it came is not counted but read off the offsets, by
    whoever needs it; `cut` ends it behind the record under way, from any thread or signal handler.
    The gate is asked before the offsets, so a record that was not handed out is never counted.

    `is_asked`: the application has asked for more than was handed out, so the last one is processed,
    too. For one that lives in another thread than the consumer: it says so before it waits, and takes
    it back before it takes another step. So who reads `row` first, and this then, never counts too much.
    """

    __slots__ = ("_gate", "_offsets", "is_asked", "records", "view")

    def __init__(self, view: RecordBatchView) -> None:
        self.view = view
        self.is_asked = False
        self._gate = [view.topic] * len(view)
        self._offsets = iter(view.offsets)
        self.records = record_batch.records_from(
            self._gate, view.partition, self._offsets, view.columns, view.append_time
        )

    def cut(self) -> None:
        """End it: nothing more is handed out. What was not goes back with `row`."""
        self._gate.clear()

    @property
    def row(self) -> int:
        """How many records were handed out."""
        return len(self.view) - length_hint(self._offsets)

    @property
    def next_offset(self) -> int | None:
        """The next offset to be handed out; None if that is behind this batch."""
        row = self.row
        return self.view.offsets[row] if row < len(self.view) else None

    def note(self, progress: Progress) -> None:
        """Write down what was handed out, and that it is processed, but for the last one under way."""
        row, offsets = self.row, self.view.offsets
        if row > 0:
            progress.handed_out = offsets[row - 1] + 1
        done = row if self.is_asked else row - 1
        if done > 0:
            # An explicit commit may have said more: that the last one is processed, too.
            progress.processed = max(progress.processed or 0, offsets[done - 1] + 1)
