"""The size of a consumer's buffer, and which batches are decompressed ahead."""

from collections.abc import Sequence

from folkmoot.consumers.fetch.fetched_batch import FetchedBatch


class BufferBudget:
    """The buffered batches of all partitions, each with its decompressed size.

    Large ones are decompressed from their arrival on, in that order, up to `limit` bytes. Further ones wait
    until others leave: a few kilobytes may become many megabytes.
    """

    def __init__(self, limit: int = 0) -> None:
        self.limit = limit
        self.used = 0
        self._batches: set[FetchedBatch] = set()
        self._waiting: dict[FetchedBatch, None] = {}  # a queue that any batch may leave
        self._ahead_bytes = 0

    def add(self, batches: Sequence[FetchedBatch]) -> None:
        for batch in batches:
            self.used += batch.size
            self._batches.add(batch)
            if batch.is_worth_a_thread:
                self._waiting[batch] = None
        if self._waiting:
            self._open_more()

    def remove(self, batch: FetchedBatch) -> None:
        """The batch was handed out or dropped. A second call does nothing."""
        if batch not in self._batches:
            return
        self._batches.remove(batch)
        self.used -= batch.size
        if batch.ahead is not None:
            self._ahead_bytes -= batch.size
            batch.ahead.cancel()  # the body is not needed: the pool need not begin
        if self._waiting:
            self._waiting.pop(batch, None)
            self._open_more()

    def _open_more(self) -> None:
        while self._waiting:
            batch = next(iter(self._waiting))
            if self._ahead_bytes + batch.size > self.limit:
                return
            del self._waiting[batch]
            batch.open_ahead()
            self._ahead_bytes += batch.size if batch.ahead else 0
