"""Which partitions are to be asked for next, found without looking at all the others."""

from collections.abc import Callable, Iterable, Iterator, Mapping

from folkmoot.consumers.fetch.partition_state import Reading
from folkmoot.protocol.records import TopicPartition


class Waiting:
    """The readings that want something from a broker: an offset (`seeking`) or data (`hungry`).

    In the order in which they began to want it, so that each has its turn when not all fit into a
    request. A reading is offered whenever it may have begun to want something; what no longer wants
    anything is dropped when it is looked at. So a look costs what there is to do, and nothing for
    thousands of partitions that wait for an answer or have enough.
    """

    def __init__(self, share_bytes: int) -> None:
        self._share_bytes = share_bytes
        self._seeking: dict[TopicPartition, Reading] = {}
        self._hungry: dict[TopicPartition, Reading] = {}

    def offer(self, reading: Reading) -> None:
        """Something about this reading has changed."""
        if self._seeks(reading):
            self._seeking[reading.partition] = reading
        elif self._hungers(reading):
            self._hungry[reading.partition] = reading

    def discard(self, partition: TopicPartition) -> None:
        self._seeking.pop(partition, None)
        self._hungry.pop(partition, None)

    def seeking(self) -> Iterator[Reading]:
        for reading in list(self._seeking.values()):
            if self._seeks(reading):
                yield reading
            else:
                del self._seeking[reading.partition]

    def hungry(self) -> Iterator[Reading]:
        for reading in list(self._hungry.values()):
            if self._hungers(reading):
                yield reading
            else:
                del self._hungry[reading.partition]

    def _seeks(self, reading: Reading) -> bool:
        return reading.offset is None and not (reading.asked or reading.stuck)

    def _hungers(self, reading: Reading) -> bool:
        return (
            reading.offset is not None
            and reading.buffered_bytes < self._share_bytes
            and not (reading.asked or reading.stuck or reading.paused)
        )


def by_leader(
    readings: Iterable[Reading], leader_address: Callable[[TopicPartition], str | None]
) -> dict[str, list[Reading]]:
    """By broker; those that nobody leads wait on."""
    by_address: dict[str, list[Reading]] = {}
    for reading in readings:
        address = leader_address(reading.partition)
        if address is not None:
            by_address.setdefault(address, []).append(reading)
    return by_address


def portions(
    by_address: Mapping[str, list[Reading]], most: int
) -> Iterator[tuple[str, list[Reading]]]:
    """What is asked of a broker, `most` at a time."""
    for address, some in by_address.items():
        for start in range(0, len(some), most):
            yield address, some[start : start + most]
