"""The partitions to fetch next, found without a look at all the others."""

from folkmoot.consumers.fetch.partition_state import PartitionFetchState
from folkmoot.protocol.records import TopicPartition


class FetchQueue:
    """The partitions that may need an offset or data from a broker, in the order of their need.

    A partition is offered with each change, and dropped by a look at it when it needs nothing. So thousands
    of partitions that are in flight, or have `partition_bytes` buffered, cost nothing.
    """

    def __init__(self, partition_bytes: int) -> None:
        self._partition_bytes = partition_bytes
        self._offered: dict[TopicPartition, PartitionFetchState] = {}

    def offer(self, state: PartitionFetchState) -> None:
        self._offered[state.partition] = state

    def discard(self, partition: TopicPartition) -> None:
        self._offered.pop(partition, None)

    def wanting(self) -> tuple[list[PartitionFetchState], list[PartitionFetchState]]:
        """Return those that need an offset, and those that need data."""
        need_offset, need_data = [], []
        for partition, state in [*self._offered.items()]:
            if state.in_flight or state.stopped or state.start.uncommitted:
                del self._offered[partition]
            elif state.offset is None:
                need_offset.append(state)
            elif state.buffer.size < self._partition_bytes and not state.paused:
                need_data.append(state)
            else:
                del self._offered[partition]
        return need_offset, need_data
