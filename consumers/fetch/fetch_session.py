"""The requests under way to brokers, and what brokers keep of those that were answered."""

from folkmoot.consumers.fetch.fetch_queue import Waiting
from folkmoot.consumers.fetch.partition_state import Asked, Reading


class Requests:
    """Which readings wait for which answer.

    A fetch is answered by what there is to tell; a broker may keep the rest of it, and the next fetch to
    that broker then goes on with it and names only readings that have moved. So neither costs anything
    for thousands of partitions of which there is nothing new. Readings whose rest is kept wait as those
    do whose request is under way: they are not asked for by name.

    What is kept is gone on with, or let go, which has its readings named again: when some were sent
    elsewhere meanwhile, when the metadata has changed since they were named, or the broker knows
    nothing of it.
    """

    def __init__(self, waiting: Waiting) -> None:
        self._waiting = waiting
        self._under_way: dict[int, Asked] = {}
        self._counts: dict[tuple[str, bool], int] = {}  # by broker, and by whether they wait there
        self._kept: dict[int, Asked] = {}

    def under_way(self, address: str) -> int:
        """How many requests there are to that broker which it has an answer to, as far as is known."""
        return self._counts.get((address, False), 0)

    def waiting(self, address: str) -> int:
        """How many that wait there for new records."""
        return self._counts.get((address, True), 0)

    def begin(self, number: int, asked: Asked) -> None:
        """It was sent under this correlation id."""
        self._under_way[number] = asked
        # What it goes on with is at its end, too: else there had been something to tell of it.
        asked.waits = all(reading.is_at_end for reading in asked.named)
        self._count(asked, 1)
        for reading in asked.named:
            reading.asked = asked
            asked.members[reading.partition] = reading

    def end(self, number: int) -> Asked | None:
        """It was answered, or failed; None if it is not known."""
        asked = self._under_way.pop(number, None)
        if asked is not None:
            self._count(asked, -1)
        return asked

    def _count(self, asked: Asked, more: int) -> None:
        kind = asked.address, asked.waits
        self._counts[kind] = self._counts.get(kind, 0) + more

    def keep(self, number: int, asked: Asked) -> None:
        """The broker has kept what is left of it."""
        self._kept[number] = asked

    def take_kept(self, version: int) -> list[tuple[int, Asked]]:
        """What is to be gone on with, and the fetch that it is left of; `version` of the metadata now."""
        kept, self._kept = self._kept, {}
        for asked in kept.values():
            if asked.stale or asked.version != version:
                self.let_go(asked)
        return [(number, asked) for number, asked in kept.items() if asked.members]

    def let_go(self, asked: Asked) -> list[Reading]:
        """Those that still wait for it; from now on they do not."""
        left = [reading for reading in asked.members.values() if reading.asked is asked]
        asked.members.clear()
        for reading in left:
            reading.asked = None
            self._waiting.offer(reading)
        return left
