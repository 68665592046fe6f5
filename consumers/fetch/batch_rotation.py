"""Handing out what is buffered: partitions take turns, one batch each."""

from collections.abc import Callable, Mapping

from folkmoot.consumers.fetch.fetch_queue import FetchQueue
from folkmoot.consumers.fetch.partition_state import PartitionFetchState
from folkmoot.consumers.records.batch_view import RecordBatchView
from folkmoot.protocol.errors import FolkmootError
from folkmoot.protocol.records import TopicPartition

StartAt = Callable[[PartitionFetchState, int, int | None], None]
Fail = Callable[[PartitionFetchState, FolkmootError], None]


class BatchRotation:
    """Whose turn it is, and what was taken but may have to be read again.

    What was taken since `begin` is read again after `read_again`: nobody has seen it. The states
    belong to the fetcher, whose thread this is; `start_at` and `fail` are its, too.
    """

    def __init__(
        self,
        states: Mapping[TopicPartition, PartitionFetchState],
        queue: FetchQueue,
        start_at: StartAt,
        fail: Fail,
    ) -> None:
        self._states = states
        self._queue = queue
        self._start_at = start_at
        self._fail = fail
        self._ready: dict[TopicPartition, None] = {}  # a queue without duplicates
        self._taken: dict[TopicPartition, tuple[int, int | None]] = {}  # from where on
        self.taken_bytes = 0
        """Taken since `begin`, decompressed."""

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
            if state.has_more:
                self._taken.setdefault(partition, (state.hand_out, state.since))
            try:
                taken = state.take(limit)
            except FolkmootError as error:
                self._start_at(state, state.hand_out, None)
                self._fail(state, error)
                continue
            finally:
                del self._ready[partition]
                if state.has_more:
                    self._ready[partition] = None
                self._queue.offer(state)
            if taken is not None:
                self.taken_bytes += state.taken_bytes
                return taken
        return None

    def put_back(self, taken: RecordBatchView, row: int) -> None:
        """Of what was taken last only the rows before `row` were handed out after all."""
        state = self._states.get(taken.topic_partition)
        if state is not None:
            self._ready[taken.topic_partition] = None
            state.put_back(taken, row)

    def begin(self) -> None:
        """What was taken so far has been seen."""
        self._taken.clear()
        self.taken_bytes = 0

    def has_taken(self, partition: TopicPartition) -> bool:
        """Whether something was taken of it since `begin`."""
        return partition in self._taken

    def read_again(self) -> None:
        """Go back to before what was taken since `begin`."""
        for partition, (offset, since) in self._taken.items():
            self._start_at(self._states[partition], offset, since)
        self._taken.clear()

    def forget(self, partition: TopicPartition) -> None:
        """It is read from elsewhere now, or no more."""
        self._taken.pop(partition, None)
