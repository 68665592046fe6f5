"""Handing out buffered batches: partitions take turns, one batch each."""

from collections.abc import Mapping

from folkmoot.consumers.fetch.fetch_queue import FetchQueue
from folkmoot.consumers.fetch.partition_state import PartitionFetchState
from folkmoot.consumers.records.batch_view import RecordBatchView
from folkmoot.protocol.errors import FolkmootError
from folkmoot.protocol.records import TopicPartition


class BatchRotation:
    """The order of partitions. Batches taken since `keep` can be taken back (PartitionBuffer).

    The states belong to the fetcher, whose thread this is.
    """

    def __init__(
        self,
        states: Mapping[TopicPartition, PartitionFetchState],
        queue: FetchQueue,
    ) -> None:
        self.errors: dict[TopicPartition, FolkmootError] = {}
        """Errors of stopped partitions, until the application gets them."""
        self._states = states
        self._queue = queue
        self._ready: dict[TopicPartition, None] = {}  # a queue without duplicates
        self._taken: dict[TopicPartition, PartitionFetchState] = {}
        self.taken_bytes = 0
        """Taken since `keep`, decompressed."""

    @property
    def is_idle(self) -> bool:
        """Return whether nothing can be taken: all that is buffered is paused."""
        return not self._ready

    def add(self, partition: TopicPartition) -> None:
        """The partition may have a batch: it takes its turn."""
        self._ready[partition] = None

    def take(self, limit: int) -> RecordBatchView | None:
        """Take up to `limit` records of the first partition, which goes to the end of the queue."""
        while self._ready:
            partition = next(iter(self._ready))
            state = self._states.get(partition)
            if state is None or state.paused:
                del self._ready[partition]
                continue
            self._taken[partition] = state
            taken = None
            try:
                if state.buffer.open_next(state.start.since):
                    taken = state.buffer.take(limit)
            except FolkmootError as error:
                state.fetch_again()
                self.stop(state, error)
                continue
            finally:
                del self._ready[partition]
                if state.buffer.has_more:
                    self._ready[partition] = None
                self._queue.offer(state)
            if taken is not None:
                self.taken_bytes += taken[1]
                return taken[0]
        return None

    def stop(self, state: PartitionFetchState, error: FolkmootError) -> None:
        """Read no further until the application seeks."""
        self.errors[state.partition] = error
        state.stopped = True

    def stopped(self) -> TopicPartition | None:
        """Return a partition whose error is due: all good records before it are handed out. They come first
        even while it is paused, because a seek would skip them."""
        return next(
            (partition for partition in self.errors if not self._states[partition].buffer.has_more),
            None,
        )

    def keep(self) -> None:
        """Give all taken batches to the application for good."""
        for state in self._taken.values():
            if state.buffer.has_taken:
                state.start.since = None
            state.buffer.keep()
        self._taken.clear()
        self.taken_bytes = 0

    def has_taken(self, partition: TopicPartition) -> bool:
        """Return whether a batch of it was taken since `keep`."""
        state = self._taken.get(partition)
        return state is not None and state is self._states.get(partition)

    def take_back(self, partition: TopicPartition, offset: int = -1) -> None:
        """Take the record at `offset` next, or the first one since `keep`."""
        state = self._taken.get(partition)
        if state is not None:
            self._ready[partition] = None
            state.buffer.rewind(offset)

    def take_all_back(self) -> None:
        """Take back all batches since `keep`."""
        for partition in self._taken:
            self.take_back(partition)
