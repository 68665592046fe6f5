"""Which partitions are to be asked for next, found without looking at all the others."""

from folkmoot.consumers.fetch.partition_state import PartitionFetchState
from folkmoot.protocol.records import TopicPartition


class FetchQueue:
    """The partitions that may want something from a broker: an offset, or data.

    In the order in which they began to want it, so that each has its turn when not all fit into a
    request. A partition is offered whenever something about it has changed; one that wants nothing is
    dropped when it is looked at. So a look costs what there is to do, and nothing for thousands of
    partitions that wait for an answer or have enough (`share_bytes` of each).
    """

    def __init__(self, share_bytes: int) -> None:
        self._share_bytes = share_bytes
        self._offered: dict[TopicPartition, PartitionFetchState] = {}

    def offer(self, state: PartitionFetchState) -> None:
        """Something about this partition has changed."""
        self._offered[state.partition] = state

    def discard(self, partition: TopicPartition) -> None:
        self._offered.pop(partition, None)

    def wanting(self) -> tuple[list[PartitionFetchState], list[PartitionFetchState]]:
        """Those that want an offset, and those that want data."""
        offsets, data = [], []
        for partition, state in [*self._offered.items()]:
            if state.in_flight or state.stopped or state.start.uncommitted:
                del self._offered[partition]
            elif state.offset is None:
                offsets.append(state)
            elif state.buffer.size < self._share_bytes and not state.paused:
                data.append(state)
            else:
                del self._offered[partition]
        return offsets, data
