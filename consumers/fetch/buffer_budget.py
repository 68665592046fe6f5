"""How much a consumer's buffer holds, and what of that is decompressed ahead."""

from collections.abc import Sequence

from folkmoot.consumers.fetch.fetched_batch import FetchedBatch


class BufferBudget:
    """The batches that all partitions of a consumer have buffered, each as large as it is when open.

    Those that are worth a thread are decompressed from their arrival on, in that order, up to `limit`
    bytes. Further ones wait until others leave: a few kilobytes may become many megabytes.
    """

    def __init__(self, limit: int = 0) -> None:
        self.limit = limit
        self.used = 0
        self._opened_bytes = 0
        self._closed: set[FetchedBatch] = set()
        """Those that are opened when their turn comes."""
        self._opened: set[FetchedBatch] = set()
        self._waiting: dict[FetchedBatch, None] = {}  # a queue that any may leave

    def add(self, batches: Sequence[FetchedBatch]) -> None:
        """These batches have arrived."""
        for batch in batches:
            self.used += batch.size
            if batch.is_worth_a_thread:
                self._waiting[batch] = None
            else:
                self._closed.add(batch)
        self._open_more()

    def remove(self, batch: FetchedBatch) -> None:
        """The batch was handed out, or is not read any more. A second time does nothing."""
        if batch in self._closed:
            self._closed.remove(batch)
        elif batch in self._opened:
            self._opened.remove(batch)
            self._opened_bytes -= batch.size
        elif batch in self._waiting:
            del self._waiting[batch]
        else:
            return
        self.used -= batch.size
        batch.give_up()
        self._open_more()

    def _open_more(self) -> None:
        while self._waiting:
            batch = next(iter(self._waiting))
            if self._opened_bytes + batch.size > self.limit:
                return
            self._opened.add(batch)
            self._opened_bytes += batch.size
            del self._waiting[batch]
            batch.open_ahead()
