"""Fetches that wait for news or for their deadline, and the bounds of requests that wait."""

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
    """A request, and the peer that waits for the response."""

    peer: bytes
    correlation_id: int
    body: Any
    began: float = 0.0
    """When it was received, in the event loop's clock."""
    version: int = 0
    """The version of its api in which it came and is answered; `body` is of the highest one."""


class Response(NamedTuple):
    """A response's body, and payloads that are sent as they are."""

    body: Any
    payloads: Sequence[bytes | memoryview] = ()


class DelayedResponse:
    """The results of a request's entries, which may come later and in any order."""

    def __init__(self, count: int, make: Callable[[list[Any]], Any]) -> None:
        self.send: Callable[[Response | Exception], None] | None = None
        """Gets the response once it is complete, or the error that took its place."""
        self.missing = count
        self._results: list[Any] = [None] * count
        self._make = make

    def put(self, number: int, result: Any) -> None:
        """Set the result of an entry; the last one completes the response."""
        self._results[number] = result
        self.missing -= 1
        if not self.missing and self.send is not None:
            self.send(self.response())

    def response(self) -> Response:
        return Response(self._make(self._results))

    def later(self, work: Callable[..., None], *arguments: Any) -> Callable[..., None]:
        """Make `work` a callback whose own fault is an error for this request alone."""

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
        return (
            self._held.get(peer, 0) + amount <= self._per_peer
            and self._total + amount <= self._in_all
        )

    def has_room_in_all(self, amount: int) -> bool:
        return self._total + amount <= self._in_all

    def adjust(self, peer: bytes, amount: int) -> None:
        """Take room without asking for it; a negative amount gives back."""
        held = self._held.pop(peer, 0) + amount
        if held:
            self._held[peer] = held
        self._total += amount


class DelayedFetch:
    """A fetch that waits; `complete` answers it, or returns None and delays it again."""

    __slots__ = ("_answer", "deadline", "request", "waits")

    def __init__(self, request: Request, deadline: float, answer: "Answer") -> None:
        self.request = request
        self.deadline = deadline
        self.waits = True
        self._answer = answer

    def complete(self, now: Now) -> Response | None:
        return self._answer(self, now)


Answer = Callable[[DelayedFetch, Now], Response | None]


class Purgatory:
    """Fetches that wait, found by their deadline, and the number of all requests that wait.

    The sessions of the fetches complete them. `take_completed` takes them at the end of the turn, so
    that one answer has all that the turn brings. The heap of timers keeps those of completed fetches; it
    is rebuilt when they are most of it.

    Produces wait at their partitions (Partition.wait).

    Owner: the event loop.
    """

    def __init__(self, delayed: Quota | None = None) -> None:
        self._delayed = delayed or Quota(MAX_DELAYED_PER_PEER, MAX_DELAYED)
        self._count = 0
        self._timers: list[tuple[float, int, DelayedFetch]] = []
        self._completed: deque[DelayedFetch] = deque()
        self._number = 0

    def __len__(self) -> int:
        """The number of fetches that wait, without the completed ones."""
        return self._count

    def require_room(self, peer: bytes) -> None:
        """Raises Overloaded if no more requests may wait, of this peer or in all."""
        if not self._delayed.has_room(peer, 1):
            raise Overloaded("too many requests wait already: ask again later")

    def enter(self, peer: bytes) -> None:
        """Count one more request of this peer; there was room when it began."""
        self._delayed.adjust(peer, 1)

    def leave(self, peer: bytes) -> None:
        self._delayed.adjust(peer, -1)

    def delay(self, request: Request, deadline: float, answer: Answer) -> DelayedFetch:
        """Let a fetch wait; the caller has asked for room."""
        self.enter(request.peer)
        self._count += 1
        self._number += 1
        delayed = DelayedFetch(request, deadline, answer)
        heapq.heappush(self._timers, (deadline, self._number, delayed))
        return delayed

    def complete(self, delayed: DelayedFetch) -> None:
        """End a fetch's wait."""
        if delayed.waits:
            delayed.waits = False
            self._count -= 1
            self.leave(delayed.request.peer)
            self._completed.append(delayed)

    def take_completed(self, now: float, most: int) -> list[DelayedFetch]:
        """Take at most `most` fetches that wait no longer, by their deadline or before."""
        timers = self._timers
        while timers and (timers[0][0] <= now or not timers[0][2].waits):
            self.complete(heapq.heappop(timers)[2])
        if len(timers) > 2 * self._count + _SPARE_TIMERS:
            self._timers = [timer for timer in timers if timer[2].waits]
            heapq.heapify(self._timers)
        return [self._completed.popleft() for _ in range(min(most, len(self._completed)))]

    def take_all(self) -> list[DelayedFetch]:
        """Take all fetches, because the broker stops."""
        for _, _, delayed in self._timers:
            self.complete(delayed)
        return list(self._completed)

    def next_deadline(self) -> float:
        """When to call `take_completed` again at the latest, in the clock of the deadlines."""
        if self._completed:
            return -inf
        return self._timers[0][0] if self._timers else inf
