"""The state of a broker at one moment, for metrics: immutable values that any thread may read."""

from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Final, NamedTuple

from folkmoot.brokers.replication.partitions import Partitions
from folkmoot.brokers.server.event_loop import EventLoop
from folkmoot.brokers.server.request_counters import ApiSnapshot
from folkmoot.brokers.server.request_handlers import RequestHandlers
from folkmoot.brokers.storage.log import Log
from folkmoot.brokers.storage.scrubber import Scrubber
from folkmoot.brokers.storage.segment import OpenSegments
from folkmoot.protocol.histogram import HistogramSnapshot

LOGS_PER_STEP: Final = 200
PARTITIONS_PER_STEP: Final = 5_000


class ReplicaSnapshot(NamedTuple):
    """One replica of a partition; the fields from `log_start` on are for replicas that lead."""

    topic: str
    partition: int
    is_led: bool
    is_failed: bool
    is_damaged: bool
    size: int
    segments: int
    log_start: int
    high_watermark: int
    replicas: int
    in_sync: int
    is_under_replicated: bool
    is_below_minimum: bool


@dataclass(frozen=True, kw_only=True)
class BrokerSnapshot:
    """`values` by the names of the table in `metrics/names.py`; `errors` by the error's name."""

    values: dict[str, float]
    replicas: list[ReplicaSnapshot]
    apis: dict[str, ApiSnapshot]
    errors: dict[str, int]
    flushes: HistogramSnapshot
    waiting: dict[str, int]
    """The number of requests in the purgatory, by kind."""


@dataclass(frozen=True, kw_only=True)
class BrokerHealth:
    """The health of a broker."""

    event_loop: bool
    """It moves, or has not begun: a start that recovers long logs needs no restart."""
    started: bool
    """All logs are open, and the event loop serves."""
    registered: bool
    zookeeper: bool
    """ZooKeeper answers. While it does not, the broker still serves the partitions that it leads."""
    view: bool
    """The broker has read topics and brokers, so that it can answer METADATA."""

    @property
    def is_ready(self) -> bool:
        return self.event_loop and self.started and self.registered and self.zookeeper and self.view


@dataclass(frozen=True, kw_only=True)
class Snapshots:
    """Takes snapshots on the event loop, LOGS_PER_STEP logs in a step, so that requests wait no longer than
    for another request."""

    loop: EventLoop
    handlers: RequestHandlers
    files: OpenSegments
    scrubber: Scrubber

    def take(self, timeout: float) -> BrokerSnapshot:
        """From any other thread. Raises RequestTimeout if the event loop does not answer in time."""
        call, metadata = self.loop.call, self.handlers.metadata
        logs = iter(call(lambda: list(self.handlers.logs), timeout))
        replicas: list[ReplicaSnapshot] = []
        while some := list(islice(logs, LOGS_PER_STEP)):
            replicas += call(partial(self._replicas, some), timeout)
        found = call(lambda: self._combine(replicas), timeout)
        topics = call(lambda: list(metadata.view.topics.values()), timeout)
        partitions = (
            (topic, number) for topic in topics for number in range(len(topic.partitions))
        )

        def count_leaderless() -> int:
            view = metadata.view
            return sum(
                view.leader_of(*partition)[0] not in view.brokers for partition in some_partitions
            )

        leaderless = 0
        while some_partitions := list(islice(partitions, PARTITIONS_PER_STEP)):
            leaderless += call(count_leaderless, timeout)
        found.values.update(
            partitions=len(replicas),
            leaders=sum(replica.is_led for replica in replicas),
            under_replicated=sum(replica.is_under_replicated for replica in replicas),
            below_minimum=sum(replica.is_below_minimum for replica in replicas),
            offline_replicas=sum(replica.is_failed for replica in replicas),
            damaged=sum(replica.is_damaged for replica in replicas),
            log_bytes=sum(replica.size for replica in replicas),
            brokers=call(lambda: len(metadata.view.brokers), timeout),
            topics=len(topics),
            cluster_partitions=sum(len(topic.partitions) for topic in topics),
            leaderless=leaderless,
        )
        return found

    def _replicas(self, logs: list[Log]) -> list[ReplicaSnapshot]:
        return [
            _replica(log, self.handlers.partitions) for log in logs if log.is_open or log.failed
        ]

    def _combine(self, replicas: list[ReplicaSnapshot]) -> BrokerSnapshot:
        loop, handlers = self.loop, self.handlers
        counters, partitions = handlers.counters, handlers.partitions
        values: dict[str, float] = {
            "repaired": partitions.counters.repaired,
            "scrubbed": self.scrubber.fraction_read,
            "open_segments": len(self.files),
            "records_in": counters.records_in,
            "bytes_in": counters.bytes_in,
            "isr_shrinks": partitions.counters.isr_shrinks,
            "isr_expands": partitions.counters.isr_expands,
            "elected": partitions.counters.elected,
            "elected_unclean": partitions.counters.elected_unclean,
            "slow_steps": loop.slow_steps,
            "longest_step": loop.longest_step,
            "busy": loop.busy,
        }
        return BrokerSnapshot(
            values=values,
            replicas=replicas,
            apis=counters.snapshot(),
            errors=dict(counters.errors),
            flushes=handlers.flusher.durations.snapshot(),
            waiting={
                "fetch": len(handlers.purgatory) - handlers.replica_fetches.waiting,
                "produce": sum(partition.waiting_produces for partition in partitions),
                "replica_fetch": handlers.replica_fetches.waiting,
            },
        )


def _replica(log: Log, partitions: Partitions) -> ReplicaSnapshot:
    partition = partitions.find(log.topic_id, log.name.partition)
    leader = None if partition is None else partition.leader
    replicas = 1 if partition is None else partition.replica_count
    return ReplicaSnapshot(
        topic=log.name.topic,
        partition=log.name.partition,
        is_led=log.is_led,
        is_failed=log.failed is not None,
        is_damaged=log.is_damaged,
        size=log.size,
        segments=len(log.segments),
        log_start=log.log_start,
        high_watermark=log.high_watermark,
        replicas=replicas,
        in_sync=1 if leader is None else len(leader.isr),
        is_under_replicated=leader is not None and len(leader.isr) < replicas,
        is_below_minimum=leader is not None and not leader.has_enough_replicas,
    )
