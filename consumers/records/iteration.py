"""Reading record by record: what `Consumer` offers as an iterator."""

from collections.abc import Iterator
from itertools import chain
from typing import Final

from folkmoot.consumers.records.batch_cursor import Lent
from folkmoot.consumers.records.columns import TURN, ColumnReading
from folkmoot.coordination.wakeup import Wakeup
from folkmoot.protocol.records import Record

LENT_RECORDS: Final = 10_000


class RecordReading(ColumnReading):
    """The half of a consumer that lends its batches to a loop of the application's.

    A batch is handed to the loop as a C iterator (see Lent): this class is asked again when it has
    ended. So nothing here runs between two records of a batch, and what has to be done there (the
    group wants something, a commit is due, `stop`) cuts the iterator first, by `_wake`.
    """

    _wakeup: Wakeup
    _attention = False
    _lent: Lent | None = None
    """What is being iterated over."""

    def __iter__(self) -> Iterator[Record]:
        """Records one by one, until `stop` is called. It may be left and begun again at any record."""
        return chain.from_iterable(self._lendings())

    def _lendings(self) -> Iterator[Iterator[Record]]:
        while not self._stopped:
            if (lent := self._lend()) is not None:
                yield lent.records

    def _lend(self) -> Lent | None:
        """Records of one partition to be iterated over; None if none came within a turn.

        What the group wants is served between any two of them: `_wake` cuts what is lent. The rest
        is taken back by whoever looks at the consumer next: by the caller's next round, or by a
        method that the loop's body calls.
        """
        self._ask_for_more()
        self._serve()
        self._fetcher.check()
        with self._fetcher.turns.handing_out():
            view = self._fetcher.take_view(LENT_RECORDS)
            if view is None:
                self._fetch(TURN)
                return None
            self._keep_fetching()
            self._lent = lent = Lent(view)
        if self._attention or self._stopped:  # it may have been said before there was this to cut
            lent.cut()
        return lent

    def _settle(self) -> None:
        """Write down how far the iteration has come."""
        if self._lent is not None:
            self._lent.note(self._positions.of(self._lent.view.topic_partition))

    def _take_back(self) -> None:
        """End the iteration over a batch: what was not handed out of it goes back to the fetcher."""
        lent = self._lent
        if lent is not None:
            lent.cut()
            self._settle()
            self._fetcher.turns.put_back(lent.view, lent.row)
            self._lent = None

    def _wake(self) -> None:
        """Have what the group wants served soon. From any thread, or a signal handler."""
        self._attention = True
        lent = self._lent
        if lent is not None:
            lent.cut()
        self._wakeup.wake()
