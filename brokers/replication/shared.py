"""The parts that all partitions of a broker share: logs, disk, connections, timers, known brokers."""

import heapq
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import count
from math import inf

from folkmoot.brokers.jobs.jobs import call_guarded
from folkmoot.brokers.jobs.serial_queue import Pending
from folkmoot.brokers.replication.replica_fetcher import ReplicaFetcher
from folkmoot.brokers.storage.flusher import Flusher
from folkmoot.brokers.storage.log_manager import LogManager
from folkmoot.brokers.storage.retention import Retention
from folkmoot.coordination.partition_states import Answer, StateWrite, TopicIdPartition

Written = Callable[[Mapping[TopicIdPartition, Answer] | None], None]
WriteStates = Callable[[Mapping[TopicIdPartition, StateWrite], Written], None]
"""Writes states in ZooKeeper, on another thread. The answers come on the event loop; they may include
those to other writes. None: the outcome is unknown, and the states are read again afterwards."""


@dataclass
class Counters:
    """Counts for metrics."""

    isr_shrinks: int = 0
    isr_expands: int = 0
    """In-sync replicas that left, and that joined, where this broker led."""
    elected: int = 0
    elected_unclean: int = 0
    """How often this broker began to lead, and how often of these by an unclean election."""
    repaired: int = 0
    """How often a replica was cut in front of damage, to copy the rest anew."""
    unknown_outcomes: int = 0
    """How many writes had an unknown outcome: a state that was read earlier settles none of them."""


@dataclass
class Shared:
    """Passed to each partition. Owner: the event loop."""

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
    """Registered brokers that are not about to stop; the same."""
    is_replaced: bool = False
    """Other brokers lead what this one led, and ZooKeeper does not answer it: its metadata is useless."""
    throttled_until: float = 0.0
    """Partitions that a throttled reassignment brings here send no fetch before this time. Each byte
    that they receive moves it on, at the partition's rate; one response may bring more than a second's."""
    next_due: float = inf
    """When `run_timers` must be called at the latest."""
    _timers: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    _numbers: "count[int]" = field(default_factory=count)

    def at(self, due: float, work: Callable[[], None]) -> None:
        """Call `work` at this time of the clock."""
        heapq.heappush(self._timers, (due, next(self._numbers), work))
        self.next_due = self._timers[0][0]

    def later(self, pause: float, work: Callable[[], None]) -> None:
        """Call `work` in `pause` seconds."""
        self.at(self.clock() + pause, work)

    def pause(self, seconds: float) -> Pending[None]:
        """For an operation of a queue: wait."""
        pending: Pending[None] = Pending()
        self.later(seconds, lambda: pending.finish(None))
        return pending

    def run_timers(self, now: float) -> None:
        """Call what is due. Timers that are set meanwhile wait for the next call."""
        due = []
        while self.next_due <= now:
            due.append(heapq.heappop(self._timers)[2])
            self.next_due = self._timers[0][0] if self._timers else inf
        for work in due:
            call_guarded("a timer", work)
