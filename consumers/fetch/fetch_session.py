"""Requests in flight to brokers, and the brokers' fetch sessions."""

from collections.abc import Iterable

from folkmoot.consumers.fetch.fetch_queue import FetchQueue
from folkmoot.consumers.fetch.partition_state import InFlightFetch, PartitionFetchState


class FetchSessions:
    """Which partitions wait for which answer.

    A broker answers a fetch for the partitions with news, and may keep the others in a session. The next
    fetch continues the session and names only partitions that have moved: thousands without news cost
    nothing. Partitions in a session count as in flight.

    A session is dropped, and its partitions are named again, in these cases: a partition was sent elsewhere
    meanwhile, the metadata has changed, or the broker does not know the session.
    """

    def __init__(self, queue: FetchQueue) -> None:
        self._queue = queue
        self.in_flight: dict[int, InFlightFetch] = {}
        """By correlation id."""
        self.idle: dict[int, InFlightFetch] = {}
        """The sessions, by the correlation id of their last fetch."""

    def count(self, address: str, *, waiting: bool) -> int:
        """Count the fetches at a broker that wait for new records there, or the others."""
        fetches = self.in_flight.values()
        return sum(fetch.address == address and fetch.waits == waiting for fetch in fetches)

    def begin(self, number: int, fetch: InFlightFetch) -> None:
        """The fetch was sent with this correlation id."""
        self.in_flight[number] = fetch
        # Those in the session are at their end, too, unless the last answer had no room for them.
        fetch.waits = not fetch.was_full and all(state.is_at_end for state in fetch.named)
        for state in fetch.named:
            state.in_flight = fetch
            fetch.members[state.partition] = state

    def take_idle(self, metadata_version: int) -> list[tuple[int, InFlightFetch]]:
        """Return the sessions to continue, with the correlation ids of their last fetches."""
        idle, self.idle = self.idle, {}
        for fetch in idle.values():
            if fetch.stale or fetch.metadata_version != metadata_version:
                self.drop(fetch)
        return [(number, fetch) for number, fetch in idle.items() if fetch.members]

    def drop(self, fetch: InFlightFetch) -> list[PartitionFetchState]:
        """Drop a fetch, and return the partitions that still waited for it."""
        left = [state for state in fetch.members.values() if state.in_flight is fetch]
        fetch.members.clear()
        for state in left:
            state.in_flight = None
            self._queue.offer(state)
        return left

    def reset(self, states: Iterable[PartitionFetchState]) -> None:
        """Unknown answers were lost: name all partitions again."""
        self.in_flight.clear()
        self.idle.clear()
        for state in states:
            state.in_flight = None
            self._queue.offer(state)
