"""Requests that wait: for bytes to be appended to one of their partitions, or for their deadline."""

import heapq
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from folkmoot.protocol.errors import Overloaded
from folkmoot.protocol.records import TopicPartition

MAX_WATCHES: Final = 100_000
_SPARE_TIMERS: Final = 64


@dataclass(eq=False, slots=True)
class Parked:
    """A request that waits. `missing` bytes on its partitions wake it, and so does `deadline`.

    `has_some`: when it began to wait there was something already; `touched`: where something
    has happened since.
    """

    deadline: float
    missing: int
    partitions: tuple[TopicPartition, ...]
    has_some: bool
    request: Any
    touched: set[TopicPartition] = field(default_factory=set, init=False)
    awake: bool = field(default=False, init=False)

    @property
    def news(self) -> set[TopicPartition] | None:
        """The partitions of which there can be something to tell; None: any."""
        return None if self.has_some else self.touched


class ParkedRequests:
    """Waiting requests, found by partition or by deadline, never by looking at all of them.

    Bounded: all of them together wait on at most `max_watches` partitions. A woken request leaves
    its timer behind; the heap of timers is rebuilt when most of it is such remains, so that it never
    holds more than about twice the requests that wait. The reactor's thread only.
    """

    def __init__(self, max_watches: int = MAX_WATCHES) -> None:
        self._max_watches = max_watches
        self._watches = 0
        self._count = 0
        self._tickets = 0
        self._by_partition: dict[TopicPartition, dict[Parked, None]] = {}
        self._timers: list[tuple[float, int, Parked]] = []
        self._woken: list[Parked] = []

    def __len__(self) -> int:
        """How many requests wait; those already woken are not counted."""
        return self._count

    def park(self, parked: Parked) -> None:
        """Let a request wait. Raises Overloaded."""
        if self._watches + len(parked.partitions) + 1 > self._max_watches:
            raise Overloaded("too many requests wait for data already: ask again later")
        self._watches += len(parked.partitions) + 1
        self._count += 1
        self._tickets += 1
        for partition in parked.partitions:
            self._by_partition.setdefault(partition, {})[parked] = None
        heapq.heappush(self._timers, (parked.deadline, self._tickets, parked))

    def appended(self, partition: TopicPartition, length: int) -> None:
        """Bytes were appended to a partition; wakes who has enough now."""
        waiting = self._by_partition.get(partition)
        if waiting:
            for parked in list(waiting):
                parked.missing -= length
                parked.touched.add(partition)
                if parked.missing <= 0:
                    self._wake(parked)

    def disturb(self, partitions: Iterable[TopicPartition]) -> None:
        """Something other than an append happened to partitions; wakes all who wait on them."""
        for partition in partitions:
            for parked in list(self._by_partition.get(partition, ())):
                parked.touched.add(partition)
                self._wake(parked)

    def take_woken(self, now: float) -> list[Parked]:
        """Those that were woken, or whose deadline has come; they wait no longer."""
        while self._timers and (self._timers[0][0] <= now or self._timers[0][2].awake):
            self._wake(heapq.heappop(self._timers)[2])
        if len(self._timers) > 2 * self._count + _SPARE_TIMERS:
            self._timers = [timer for timer in self._timers if not timer[2].awake]
            heapq.heapify(self._timers)
        woken, self._woken = self._woken, []
        for parked in woken:
            self._unwatch(parked)
        return woken

    def take_all(self) -> list[Parked]:
        """Everyone, because the broker stops."""
        return self.take_woken(float("inf"))

    def next_deadline(self) -> float | None:
        """When to call `take_woken` again at the latest, in the clock of the deadlines."""
        if self._woken:
            return float("-inf")
        return self._timers[0][0] if self._timers else None

    def _wake(self, parked: Parked) -> None:
        if parked.awake:
            return
        parked.awake = True
        self._watches -= len(parked.partitions) + 1
        self._count -= 1
        self._woken.append(parked)

    def _unwatch(self, parked: Parked) -> None:
        # Only when it is taken, so that all that its turn brings is in one answer.
        for partition in parked.partitions:
            waiting = self._by_partition.get(partition)
            if waiting is not None:
                waiting.pop(parked, None)
                if not waiting:
                    del self._by_partition[partition]
