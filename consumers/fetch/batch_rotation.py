"""Handing out what is buffered: partitions take turns, one batch each."""

from collections.abc import Mapping

from folkmoot.consumers.fetch.fetch_queue import FetchQueue
from folkmoot.consumers.fetch.partition_state import PartitionFetchState
from folkmoot.consumers.records.batch_view import RecordBatchView
from folkmoot.protocol.errors import FolkmootError
from folkmoot.protocol.records import TopicPartition


class BatchRotation:
    """Whose turn it is. What was taken since `keep` can be taken back (PartitionBuffer).

    The states belong to the fetcher, whose thread this is.
    """

    def __init__(
        self,
        states: Mapping[TopicPartition, PartitionFetchState],
        queue: FetchQueue,
    ) -> None:
        self.errors: dict[TopicPartition, FolkmootError] = {}
        """Why partitions were stopped, until the application hears it."""
        self._states = states
        self._queue = queue
        self._ready: dict[TopicPartition, None] = {}  # a queue without duplicates
        self._taken: dict[TopicPartition, PartitionFetchState] = {}
        self.taken_bytes = 0
        """Taken since `keep`, decompressed."""

    @property
    def is_idle(self) -> bool:
        """Nothing can be taken: whatever is buffered is paused."""
        return not self._ready

    def add(self, partition: TopicPartition) -> None:
        """There may be something of this partition: it takes its turn."""
        self._ready[partition] = None

    def take(self, limit: int) -> RecordBatchView | None:
        """Up to `limit` records of the partition whose turn it is; it goes to the end of the queue."""
        while self._ready:
            partition = next(iter(self._ready))
            state = self._states.get(partition)
            if state is None or state.paused:
                del self._ready[partition]
                continue
            self._taken[partition] = state
            try:
                taken = state.take(limit)
            except FolkmootError as error:
                state.fetch_again()
                self.stop(state, error)
                continue
            finally:
                del self._ready[partition]
                if state.has_more:
                    self._ready[partition] = None
                self._queue.offer(state)
            if taken is not None:
                self.taken_bytes += taken[1]
                return taken[0]
        return None

    def stop(self, state: PartitionFetchState, error: FolkmootError) -> None:
        """Read no further until the application has decided where."""
        self.errors[state.partition] = error
        state.stopped = True

    def stopped(self) -> TopicPartition | None:
        """A partition whose error is due: not before the good records in front of it are handed out, be it
        paused or not, since a seek behind it would skip them unseen."""
        return next((each for each in self.errors if not self._states[each].has_more), None)

    def keep(self) -> None:
        """What was taken so far is in the application's hands for good."""
        for state in self._taken.values():
            state.keep()
        self._taken.clear()
        self.taken_bytes = 0

    def has_taken(self, partition: TopicPartition) -> bool:
        """Whether something was taken of it since `keep`."""
        state = self._taken.get(partition)
        return state is not None and state is self._states.get(partition)

    def take_back(self, partition: TopicPartition, offset: int = -1) -> None:
        """The next to be taken of a partition is the record at `offset`, or the first since `keep`."""
        state = self._taken.get(partition)
        if state is not None:
            self._ready[partition] = None
            state.buffer.rewind(offset)

    def take_all_back(self) -> None:
        """Nothing was taken since `keep`."""
        for partition in self._taken:
            self.take_back(partition)
