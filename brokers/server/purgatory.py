"""Consumers' fetches that wait for bytes or for their deadline, and how many requests may wait."""

import heapq
from collections import deque
from collections.abc import Callable, Sequence
from math import inf
from typing import Any, Final, NamedTuple

from folkmoot.brokers.server.fetch_sessions import FetchSession, FetchSessions, Quota
from folkmoot.protocol.errors import (
    Overloaded,
)

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


class DelayedFetch(NamedTuple):
    """A fetch that waits, by the moment at which it does no longer; the number makes it sortable."""

    deadline: float
    number: int
    session: FetchSession
    request: Request


class Purgatory:
    """Those that wait, found by what they wait for or by deadline, never by looking at all of them.

    A completed fetch is taken by `take_completed`, still watching, so that all that its turn brings is
    in one answer. It leaves its timer behind; the heap of timers is rebuilt when most of it is such
    remains, so that it never holds more than about twice the fetches that wait.

    Produces wait at their partitions (Partition.wait).

    Requests that wait are bounded for each peer and in all. Owner: the event loop.
    """

    def __init__(self, delayed: Quota | None = None) -> None:
        self.sessions = FetchSessions(self._complete)
        self._delayed = delayed or Quota(MAX_DELAYED_PER_PEER, MAX_DELAYED)
        self._fetches: dict[FetchSession, DelayedFetch] = {}
        self._timers: list[DelayedFetch] = []
        self._completed: deque[DelayedFetch] = deque()
        self._number = 0

    def __len__(self) -> int:
        """How many fetches wait; those already completed are not counted, nor kept sessions."""
        return len(self._fetches)

    def require_room(self, peer: bytes) -> None:
        """Raises Overloaded if no more requests may wait, of this peer or in all."""
        if not self._delayed.has_room(peer, 1):
            raise Overloaded("too many requests wait already: ask again later")

    def enter(self, peer: bytes) -> None:
        """One more request of this peer waits; there was room when it began."""
        self._delayed.take(peer, 1, within=False)

    def leave(self, peer: bytes) -> None:
        self._delayed.give_back(peer, 1)

    # -- delayed fetches -------------------------------------------------------------------------------

    def delay_fetch(
        self, request: Request, session: FetchSession, deadline: float, missing: int
    ) -> None:
        """Let a fetch wait. Raises Overloaded."""
        self.require_room(request.peer)
        if not self.sessions.watch(session):
            raise Overloaded("too many partitions are waited for already: ask again later")
        self.enter(request.peer)
        self._number += 1
        delayed = DelayedFetch(deadline, self._number, session, request)
        session.waits, session.missing = True, missing
        self._fetches[session] = delayed
        heapq.heappush(self._timers, delayed)

    def _complete(self, session: FetchSession) -> None:
        session.waits = False
        delayed = self._fetches.pop(session)
        self.leave(session.peer)
        self._completed.append(delayed)

    def take_completed(self, now: float, most: int) -> list[DelayedFetch]:
        """Fetches that wait no longer, by their deadline or before; to be answered or delayed again.

        Not all of them at a time, however many share a deadline or a partition.
        """
        timers = self._timers
        while timers and (timers[0].deadline <= now or self._is_over(timers[0])):
            timer = heapq.heappop(timers)
            if not self._is_over(timer):
                self._complete(timer.session)
        if len(timers) > 2 * len(self._fetches) + _SPARE_TIMERS:
            self._timers = [timer for timer in timers if not self._is_over(timer)]
            heapq.heapify(self._timers)
        self.sessions.expire(now)
        return [self._completed.popleft() for _ in range(min(most, len(self._completed)))]

    def take_all(self) -> list[DelayedFetch]:
        """All fetches, because the broker stops."""
        for session in list(self._fetches):
            self._complete(session)
        return list(self._completed)

    def next_deadline(self) -> float:
        """When to call `take_completed` again at the latest, in the clock of the deadlines."""
        if self._completed:
            return -inf
        return self._timers[0].deadline if self._timers else inf

    def _is_over(self, timer: DelayedFetch) -> bool:
        return self._fetches.get(timer.session) is not timer
