"""What all partitions of a broker share: its logs, its disk, its connections, and its view of brokers."""

import heapq
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import count
from math import inf
from typing import Final, Protocol

from folkmoot.brokers.jobs.jobs import call_guarded
from folkmoot.brokers.jobs.serial_queue import Pending
from folkmoot.brokers.replication.replica_fetcher import ReplicaFetcher
from folkmoot.brokers.storage.flusher import Flusher
from folkmoot.brokers.storage.log_manager import LogManager
from folkmoot.brokers.storage.retention import Retention
from folkmoot.coordination.partition_states import Answer, StateWrite, TopicIdPartition

logger = logging.getLogger(__name__)

_GRAIN: Final = 0.05
"""Seconds: produces that wait are looked through so often at most."""

Written = Callable[[Mapping[TopicIdPartition, Answer] | None], None]
WriteStates = Callable[[Mapping[TopicIdPartition, StateWrite], Written], None]
"""Writes states in ZooKeeper, on another thread; the answers come on the event loop, those to other
writes among them, None if they are not known: then the states are read again, behind that."""


class Tended(Protocol):
    """A partition, as far as it is looked after from time to time."""

    @property
    def is_at_rest(self) -> bool:
        """Whether time alone changes nothing."""

    def look_after_isr(self) -> None:
        """Have lagging followers leave the ISR, and others join."""

    def expire(self, now: float, /) -> float | None:
        """Refuse the produces that have waited too long → the earliest deadline of the others."""


@dataclass
class Counters:
    """What partitions count for metrics."""

    isr_shrinks: int = 0
    isr_expands: int = 0
    """In-sync replicas that left, and that came, where this broker led."""
    elected: int = 0
    elected_unclean: int = 0
    """How often this broker began to lead, and how often of these by an unclean election."""
    repaired: int = 0
    """How often a replica was cut in front of damage, to copy the rest anew."""
    unknown_outcomes: int = 0
    """How often it was not known what became of a write: what was read before settles none of them."""


@dataclass(kw_only=True)
class Shared:
    """Given to each partition. Owner: the event loop."""

    broker_id: int
    logs: LogManager
    flusher: Flusher
    retention: Retention
    fetcher: ReplicaFetcher
    write_states: WriteStates
    post: Callable[[Callable[[], None]], None]
    clock: Callable[[], float]
    counters: Counters = field(default_factory=Counters)
    registered: set[int] = field(default_factory=set)
    """Brokers that are registered; one set, which each partition's state reads."""
    staying: set[int] = field(default_factory=set)
    """Those of them that are not about to stop; the same."""
    is_replaced: bool = False
    """Others lead what this broker led, and ZooKeeper does not answer it: its view is of no use."""
    throttled_until: float = 0.0
    """By then what reassignments have brought is paid for, each byte at the rate of its partition: before
    that none of these asks for more. One answer may bring more than a second's worth."""
    restless: dict[Tended, None] = field(default_factory=dict)
    """Partitions whose ISR may change by time alone."""
    _waiting: dict[Tended, None] = field(default_factory=dict)
    _next_deadline: float = inf
    _timers: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    _numbers: "count[int]" = field(default_factory=count)

    def later(self, pause: float, work: Callable[[], None]) -> None:
        """Call `work` in so many seconds."""
        heapq.heappush(self._timers, (self.clock() + pause, next(self._numbers), work))

    def pause(self, seconds: float) -> Pending[None]:
        """For an operation: wait so long."""
        pending: Pending[None] = Pending()
        self.later(seconds, lambda: pending.finish(None))
        return pending

    def run_timers(self, now: float) -> bool:
        """Do what is due → whether something is left for later."""
        while self._timers and self._timers[0][0] <= now:
            call_guarded("what waits for its time", heapq.heappop(self._timers)[2])
        return bool(self._timers)

    @property
    def next_deadline(self) -> float:
        """When to call `expire_produces` at the latest."""
        return self._next_deadline

    def expire_by(self, partition: Tended, deadline: float) -> None:
        """A produce waits at this partition until then."""
        self._waiting[partition] = None
        self._next_deadline = min(self._next_deadline, deadline)

    def forget(self, partition: Tended) -> None:
        """The partition is closed."""
        for kept in (self.restless, self._waiting):
            kept.pop(partition, None)

    def expire_produces(self, now: float) -> None:
        """Refuse the produces that have waited too long."""
        if now < self._next_deadline:
            return
        earliest = inf
        for partition in list(self._waiting):
            deadline: float | None = now
            try:
                deadline = partition.expire(now)
            except Exception:
                logger.exception("produces that have waited too long could not be refused")
            if deadline is None:
                del self._waiting[partition]
            else:
                earliest = min(earliest, deadline)
        self._next_deadline = max(earliest, now + _GRAIN)
