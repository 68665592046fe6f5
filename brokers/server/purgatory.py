"""Fetches that wait for news or for their deadline, and how many requests may wait."""

import heapq
from collections import deque
from collections.abc import Callable, Sequence
from math import inf
from typing import Any, Final, NamedTuple

from folkmoot.brokers.jobs.jobs import Now
from folkmoot.protocol.errors import Overloaded

MAX_DELAYED: Final = 20_000
MAX_DELAYED_PER_PEER: Final = 256
_SPARE_TIMERS: Final = 64


class Request(NamedTuple):
    """Who waits for the response, and to what."""

    peer: bytes
    correlation_id: int
    body: Any
    began: float = 0.0
    """When it was received, in the event loop's clock."""
    version: int = 0
    """Of its api, in which it came and is answered; `body` is of the highest one."""


class Response(NamedTuple):
    """What to send back; payloads travel as they are."""

    body: Any
    payloads: Sequence[bytes | memoryview] = ()


class DelayedResponse:
    """The results of a request's entries, some of which come later and in any order.

    `send` is set by who is to have the response, or the error that took its place.
    """

    def __init__(self, count: int, make: Callable[[list[Any]], Any]) -> None:
        self.send: Callable[[Response | Exception], None] | None = None
        self._results: list[Any] = [None] * count
        self._missing = count
        self._make = make

    @property
    def is_complete(self) -> bool:
        return not self._missing

    def put(self, number: int, result: Any) -> None:
        """The result of an entry; the last one completes the response."""
        self._results[number] = result
        self._missing -= 1
        if not self._missing and self.send is not None:
            self.send(self.response())

    def response(self) -> Response:
        return Response(self._make(self._results))

    def later(self, work: Callable[..., None], *arguments: Any) -> Callable[..., None]:
        """`work` as a callback, whose own fault is this request's error and nobody else's."""

        def call(*more: Any) -> None:
            try:
                work(*arguments, *more)
            except Exception as error:
                if self.send is None:
                    raise
                self.send(error)

        return call


class Quota:
    """A bound for each peer, and one for all of them together."""

    def __init__(self, per_peer: int, in_all: int) -> None:
        self._per_peer = per_peer
        self._in_all = in_all
        self._held: dict[bytes, int] = {}
        self._total = 0

    def has_room(self, peer: bytes, amount: int) -> bool:
        return self._held.get(peer, 0) + amount <= self._per_peer and self.has_room_in_all(amount)

    def has_room_in_all(self, amount: int) -> bool:
        return self._total + amount <= self._in_all

    def take(self, peer: bytes, amount: int) -> None:
        """Also above the bound: the caller has asked for room, or need not. Below 0: give back."""
        held = self._held.pop(peer, 0) + amount
        if held:
            self._held[peer] = held
        self._total += amount


Answer = Callable[["DelayedFetch", Now], Response | None]


class DelayedFetch:
    """A fetch that waits; `complete` answers it, or delays it again."""

    __slots__ = ("_answer", "deadline", "request", "waits")

    def __init__(self, request: Request, deadline: float, answer: Answer) -> None:
        self.request = request
        self.deadline = deadline
        self.waits = True
        self._answer = answer

    def complete(self, now: Now) -> Response | None:
        """The response; None: it waits again."""
        return self._answer(self, now)


class Purgatory:
    """Fetches that wait, found by deadline, never by looking at all of them.

    Their sessions hear what they wait for, and complete them. A completed fetch is taken by
    `take_completed` at the end of the turn, so that all that its turn brings is in one answer. It leaves
    its timer behind; the heap of timers is rebuilt when most of it is such remains, so that it never
    holds more than about twice the fetches that wait.

    Produces wait at their partitions (Partition.wait).

    Requests that wait are bounded for each peer and in all. Owner: the event loop.
    """

    def __init__(self, delayed: Quota | None = None) -> None:
        self._delayed = delayed or Quota(MAX_DELAYED_PER_PEER, MAX_DELAYED)
        self._count = 0
        self._timers: list[tuple[float, int, DelayedFetch]] = []
        self._completed: deque[DelayedFetch] = deque()
        self._number = 0

    def __len__(self) -> int:
        """How many fetches wait; those already completed are not counted."""
        return self._count

    def require_room(self, peer: bytes) -> None:
        """Raises Overloaded if no more requests may wait, of this peer or in all."""
        if not self._delayed.has_room(peer, 1):
            raise Overloaded("too many requests wait already: ask again later")

    def enter(self, peer: bytes) -> None:
        """One more request of this peer waits; there was room when it began."""
        self._delayed.take(peer, 1)

    def leave(self, peer: bytes) -> None:
        self._delayed.take(peer, -1)

    # -- delayed fetches -------------------------------------------------------------------------------

    def delay(self, request: Request, deadline: float, answer: Answer) -> DelayedFetch:
        """Let a fetch wait; the caller has asked for room."""
        self.enter(request.peer)
        self._count += 1
        self._number += 1
        delayed = DelayedFetch(request, deadline, answer)
        heapq.heappush(self._timers, (deadline, self._number, delayed))
        return delayed

    def complete(self, delayed: DelayedFetch) -> None:
        """It waits no longer."""
        if delayed.waits:
            delayed.waits = False
            self._count -= 1
            self.leave(delayed.request.peer)
            self._completed.append(delayed)

    def take_completed(self, now: float, most: int) -> list[DelayedFetch]:
        """Fetches that wait no longer, by their deadline or before; to be answered or delayed again.

        Not all of them at a time, however many share a deadline or a partition.
        """
        timers = self._timers
        while timers and (timers[0][0] <= now or not timers[0][2].waits):
            self.complete(heapq.heappop(timers)[2])
        if len(timers) > 2 * self._count + _SPARE_TIMERS:
            self._timers = [timer for timer in timers if timer[2].waits]
            heapq.heapify(self._timers)
        return [self._completed.popleft() for _ in range(min(most, len(self._completed)))]

    def take_all(self) -> list[DelayedFetch]:
        """All fetches, because the broker stops."""
        for _, _, delayed in self._timers:
            self.complete(delayed)
        return list(self._completed)

    def next_deadline(self) -> float:
        """When to call `take_completed` again at the latest, in the clock of the deadlines."""
        if self._completed:
            return -inf
        return self._timers[0][0] if self._timers else inf
