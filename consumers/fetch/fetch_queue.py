"""Which partitions are to be asked for next, found without looking at all the others."""

from collections.abc import Callable

from folkmoot.consumers.fetch.partition_state import PartitionFetchState
from folkmoot.protocol.records import TopicPartition


class FetchQueue:
    """The partitions that want something from a broker: an offset, or data as `fetchable` ones do.

    In the order in which they began to want it, so that each has its turn when not all fit into a
    request. A partition is offered whenever it may have begun to want something; one that no longer
    wants anything is dropped when it is looked at. So a look costs what there is to do, and nothing for
    thousands of partitions that wait for an answer or have enough (`share_bytes` of each).
    """

    def __init__(self, share_bytes: int) -> None:
        self._share_bytes = share_bytes
        self._needs_offset: dict[TopicPartition, PartitionFetchState] = {}
        self._fetchable: dict[TopicPartition, PartitionFetchState] = {}

    def offer(self, state: PartitionFetchState) -> None:
        """Something about this partition has changed."""
        if self._lacks_offset(state):
            self._needs_offset[state.partition] = state
        elif self._has_room(state):
            self._fetchable[state.partition] = state

    def discard(self, partition: TopicPartition) -> None:
        self._needs_offset.pop(partition, None)
        self._fetchable.pop(partition, None)

    def needs_offset(self) -> list[PartitionFetchState]:
        return _still(self._needs_offset, self._lacks_offset)

    def fetchable(self) -> list[PartitionFetchState]:
        return _still(self._fetchable, self._has_room)

    def _lacks_offset(self, state: PartitionFetchState) -> bool:
        return state.offset is None and not (state.in_flight or state.failed)

    def _has_room(self, state: PartitionFetchState) -> bool:
        return (
            state.offset is not None
            and state.buffered_bytes < self._share_bytes
            and not (state.in_flight or state.failed or state.paused)
        )


def _still(
    queue: dict[TopicPartition, PartitionFetchState], wants: Callable[[PartitionFetchState], bool]
) -> list[PartitionFetchState]:
    """Those that still want it; the others are dropped until they are offered again."""
    for partition in [partition for partition, state in queue.items() if not wants(state)]:
        del queue[partition]
    return list(queue.values())
