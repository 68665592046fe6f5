"""The requests in flight to brokers, and what brokers keep of those that were answered."""

from collections.abc import Iterable

from folkmoot.consumers.fetch.fetch_queue import FetchQueue
from folkmoot.consumers.fetch.partition_state import InFlightFetch, PartitionFetchState


class FetchSessions:
    """Which partitions wait for which answer.

    A fetch is answered by what there is to tell; a broker may keep the rest of it, and the next fetch to
    that broker then goes on with it and names only partitions that have moved. So neither costs anything
    for thousands of partitions of which there is nothing new. Partitions whose rest is kept wait as those
    do whose request is in flight: they are not asked for by name.

    What is kept is gone on with, or let go, which has its partitions named again: when some were sent
    elsewhere meanwhile, when the metadata has changed since they were named, or the broker knows
    nothing of it.
    """

    def __init__(self, queue: FetchQueue) -> None:
        self._queue = queue
        self.in_flight: dict[int, InFlightFetch] = {}
        """By the correlation id of what was sent."""
        self.kept: dict[int, InFlightFetch] = {}
        """By that of the request that it is left of."""

    def count(self, address: str, *, waiting: bool) -> int:
        """The requests at a broker that wait for new records, as far as is known, or those that do not."""
        fetches = self.in_flight.values()
        return sum(each.address == address and each.waits == waiting for each in fetches)

    def begin(self, number: int, fetch: InFlightFetch) -> None:
        """It was sent under this correlation id."""
        self.in_flight[number] = fetch
        # What it goes on with is at its end, too, unless it has found no room.
        fetch.waits = not fetch.found_no_room and all(state.is_at_end for state in fetch.named)
        for state in fetch.named:
            state.in_flight = fetch
            fetch.members[state.partition] = state

    def take_kept(self, metadata_version: int) -> list[tuple[int, InFlightFetch]]:
        """What is to be gone on with: the fetch that it is left of, and what is left."""
        kept, self.kept = self.kept, {}
        for fetch in kept.values():
            if fetch.stale or fetch.metadata_version != metadata_version:
                self.let_go(fetch)
        return [(number, fetch) for number, fetch in kept.items() if fetch.members]

    def let_go(self, fetch: InFlightFetch) -> list[PartitionFetchState]:
        """Those that still wait for it; from now on they do not."""
        left = [state for state in fetch.members.values() if state.in_flight is fetch]
        fetch.members.clear()
        for state in left:
            state.in_flight = None
            self._queue.offer(state)
        return left

    def lose(self, states: Iterable[PartitionFetchState]) -> None:
        """Answers were lost, and nobody knows which: all these are named again, wait they or not."""
        self.in_flight.clear()
        self.kept.clear()
        for state in states:
            state.in_flight = None
            self._queue.offer(state)
