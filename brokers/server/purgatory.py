"""Fetches that wait for bytes, and what is left of one until its client's next fetch goes on with it."""

import heapq
from collections.abc import Iterable, Sequence
from math import inf
from typing import Any, Final

from folkmoot.protocol.errors import Overloaded
from folkmoot.protocol.messages import FetchEntry
from folkmoot.protocol.records import TopicPartition

MAX_WATCHES: Final = 100_000
_SPARE_TIMERS: Final = 64

Key = tuple[bytes, int]
"""A fetch: who asked, and its correlation id."""


class Parked:
    """What one fetch, and those that go on with it, want to know of, a partition after the other.

    `entries` were asked for at the end of their logs; `touched` are those partitions, the first one
    first, with which something has happened since they were looked at: of the others there is nothing
    to tell. While it waits, `missing` bytes on its partitions wake it, and so does `deadline`.
    """

    __slots__ = (
        *("begun", "deadline", "entries", "forget_at", "missing", "request", "ticket", "touched"),
        *("unwatched", "waits", "watched"),
    )

    def __init__(self, begun: float) -> None:
        self.begun = begun
        self.entries: dict[TopicPartition, FetchEntry] = {}
        self.touched: dict[TopicPartition, None] = {}
        self.watched: set[TopicPartition] = set()
        self.unwatched: list[TopicPartition] = []
        self.request: Any = None
        self.deadline = inf
        self.missing = 0
        self.waits = False
        self.ticket = 0
        self.forget_at = inf

    def name(self, entries: Iterable[FetchEntry]) -> None:
        """Want to know of these as well; they go to the end of the line."""
        for entry in entries:
            partition = TopicPartition(entry.topic, entry.partition)
            self.entries.pop(partition, None)
            self.entries[partition] = entry
            if partition not in self.watched:
                self.unwatched.append(partition)

    def news(self) -> list[FetchEntry]:
        """Those of which there can be something to tell."""
        entries = self.entries
        return [entries[partition] for partition in self.touched if partition in entries]

    def looked_at(self, told: Sequence[TopicPartition]) -> None:
        """All news were looked at, and there was something to tell of these."""
        self.touched.clear()
        for partition in told:
            self.entries.pop(partition, None)


class ParkedRequests:
    """Those that wait, found by partition or by deadline, never by looking at all of them.

    One that was woken is taken by `take_woken`, still watching, so that all that its turn brings is in
    one answer; then it is either kept (`keep`) until its client goes on with it (`resume`), and what
    happens meanwhile is noted, or let go (`release`). What is kept costs the next fetch nothing for
    all those partitions with which nothing happens.

    Bounded: all of them together watch at most `max_watches` partitions. What is kept goes when it is
    too old, and, the oldest first, when room is needed. One that was woken leaves its timer behind; the
    heap of timers is rebuilt when most of it is such remains, so that it never holds more than about
    twice the requests that wait. The reactor's thread only.
    """

    def __init__(self, max_watches: int = MAX_WATCHES) -> None:
        self._max_watches = max_watches
        self._watches = 0
        self._count = 0
        self._tickets = 0
        self._by_partition: dict[TopicPartition, dict[Parked, None]] = {}
        self._timers: list[tuple[float, int, Parked]] = []
        self._woken: list[Parked] = []
        self._kept: dict[Key, Parked] = {}

    def __len__(self) -> int:
        """How many requests wait; those already woken are not counted, nor what is kept."""
        return self._count

    def park(self, parked: Parked, deadline: float, missing: int, request: Any) -> None:
        """Let a request wait. Raises Overloaded; then nothing is left of it."""
        if not self._watch(parked):
            self.release(parked)
            raise Overloaded("too many requests wait for data already: ask again later")
        self._tickets += 1
        self._count += 1
        parked.deadline, parked.missing, parked.request = deadline, missing, request
        parked.ticket, parked.waits = self._tickets, True
        heapq.heappush(self._timers, (deadline, self._tickets, parked))

    def keep(self, parked: Parked, key: Key, forget_at: float) -> bool:
        """Keep what is left of a fetch that was answered. False if there is no room; it is let go."""
        if not self._watch(parked):
            self.release(parked)
            return False
        self._forget(key)
        parked.request, parked.forget_at = None, forget_at
        self._kept[key] = parked
        return True

    def resume(self, key: Key) -> Parked | None:
        """What was kept of this fetch; the caller has to park, keep or release it."""
        return self._kept.pop(key, None)

    def release(self, parked: Parked) -> None:
        """Nobody goes on with this one."""
        for partition in parked.watched:
            waiting = self._by_partition[partition]
            del waiting[parked]
            if not waiting:
                del self._by_partition[partition]
        self._watches -= len(parked.watched)
        parked.watched.clear()

    def appended(self, partition: TopicPartition, length: int) -> None:
        """Bytes were appended to a partition; wakes who has enough now."""
        waiting = self._by_partition.get(partition)
        if waiting:
            for parked in waiting:
                if partition in parked.entries:
                    parked.touched[partition] = None
                    parked.missing -= length
                    if parked.missing <= 0:
                        self._wake(parked)

    def disturb(self, partitions: Iterable[TopicPartition]) -> None:
        """Something other than an append happened to partitions; wakes all who wait on them."""
        for partition in partitions:
            for parked in self._by_partition.get(partition, ()):
                if partition in parked.entries:
                    parked.touched[partition] = None
                    self._wake(parked)

    def take_woken(self, now: float) -> list[Parked]:
        """Those that were woken, or whose deadline has come; to be kept or released."""
        timers = self._timers
        while timers and (timers[0][0] <= now or _is_over(timers[0])):
            timer = heapq.heappop(timers)
            if not _is_over(timer):
                self._wake(timer[2])
        if len(timers) > 2 * self._count + _SPARE_TIMERS:
            self._timers = [timer for timer in timers if not _is_over(timer)]
            heapq.heapify(self._timers)
        while self._kept and (oldest := next(iter(self._kept.items())))[1].forget_at <= now:
            self._forget(oldest[0])
        woken, self._woken = self._woken, []
        return woken

    def take_all(self) -> list[Parked]:
        """Everyone, because the broker stops."""
        return self.take_woken(inf)

    def next_deadline(self) -> float | None:
        """When to call `take_woken` again at the latest, in the clock of the deadlines."""
        if self._woken:
            return -inf
        return self._timers[0][0] if self._timers else None

    def _watch(self, parked: Parked) -> bool:
        """Be told of all that it has named. False if there is no room."""
        unwatched, parked.unwatched = parked.unwatched, []
        while self._kept and self._watches + len(unwatched) > self._max_watches:
            self._forget(next(iter(self._kept)))
        if self._watches + len(unwatched) > self._max_watches:
            return False
        before = len(parked.watched)
        parked.watched.update(unwatched)
        self._watches += len(parked.watched) - before
        for partition in unwatched:
            self._by_partition.setdefault(partition, {})[parked] = None
        return True

    def _forget(self, key: Key) -> None:
        kept = self._kept.pop(key, None)
        if kept is not None:
            self.release(kept)

    def _wake(self, parked: Parked) -> None:
        if parked.waits:
            parked.waits = False
            self._count -= 1
            self._woken.append(parked)


def _is_over(timer: tuple[float, int, Parked]) -> bool:
    """Whether the wait that it was set for has ended."""
    _, ticket, parked = timer
    return not parked.waits or parked.ticket != ticket
