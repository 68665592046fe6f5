"""A broker at one moment, for metrics: values that never change again, read by any thread."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Final, NamedTuple

from folkmoot.brokers.replication.partitions import Partitions
from folkmoot.brokers.server.event_loop import EventLoop
from folkmoot.brokers.server.metadata_cache import MetadataCache
from folkmoot.brokers.server.request_counters import ApiSnapshot
from folkmoot.brokers.server.request_handlers import RequestHandlers
from folkmoot.brokers.storage.log import Log
from folkmoot.brokers.storage.scrubber import Scrubber
from folkmoot.brokers.storage.segment import OpenSegments
from folkmoot.coordination.topics import TopicInfo
from folkmoot.protocol.histogram import HistogramSnapshot

LOGS_PER_STEP: Final = 200
PARTITIONS_PER_STEP: Final = 5_000


class ReplicaSnapshot(NamedTuple):
    """One replica of a partition; the fields from `log_start` on count where it `is_led`."""

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
    """How many requests wait in the purgatory, by what they wait for."""


@dataclass(frozen=True, kw_only=True)
class BrokerHealth:
    """Whether a broker lives and is ready."""

    event_loop: bool
    """It moves, or has not begun: a start that reads long logs is no reason to begin anew."""
    started: bool
    """All logs are open, and the event loop serves."""
    registered: bool
    zookeeper: bool
    """It answers. While it does not, the broker goes on serving what it leads."""
    view: bool
    """The broker has read of topics and brokers, so that it can tell clients."""

    @property
    def is_ready(self) -> bool:
        return self.event_loop and self.started and self.registered and self.zookeeper and self.view


@dataclass(frozen=True, kw_only=True)
class Snapshots:
    """Takes snapshots of what the event loop owns: on the event loop, LOGS_PER_STEP logs in a step, so
    that a request waits no longer for one than for another request."""

    loop: EventLoop
    handlers: RequestHandlers
    files: OpenSegments
    scrubber: Scrubber

    def take(self, timeout: float) -> BrokerSnapshot:
        """From any other thread. Raises RequestTimeout if the event loop stands still for so long."""
        logs = iter(self.loop.call(lambda: list(self.handlers.logs), timeout))
        replicas: list[ReplicaSnapshot] = []
        while some := list(islice(logs, LOGS_PER_STEP)):
            replicas += self.loop.call(partial(self._replicas, some), timeout)
        found = self.loop.call(lambda: self._whole(replicas), timeout)
        found.values.update(_sums(replicas))
        found.values.update(self._cluster_values(timeout))
        return found

    def _cluster_values(self, timeout: float) -> dict[str, float]:
        """What the view says of the whole cluster."""
        metadata, call = self.handlers.metadata, self.loop.call
        topics = call(lambda: list(metadata.view.topics.values()), timeout)
        places = ((topic, number) for topic in topics for number in range(len(topic.partitions)))
        leaderless = 0
        while some := list(islice(places, PARTITIONS_PER_STEP)):
            leaderless += call(partial(_count_leaderless, metadata, some), timeout)
        return {
            "brokers": call(lambda: len(metadata.view.brokers), timeout),
            "topics": len(topics),
            "cluster_partitions": sum(len(topic.partitions) for topic in topics),
            "leaderless": leaderless,
        }

    def _replicas(self, logs: list[Log]) -> list[ReplicaSnapshot]:
        return [
            _replica(log, self.handlers.partitions) for log in logs if log.is_open or log.failed
        ]

    def _whole(self, replicas: list[ReplicaSnapshot]) -> BrokerSnapshot:
        loop, handlers = self.loop, self.handlers
        counters, partitions = handlers.counters, handlers.partitions
        values: dict[str, float] = {
            "repaired": partitions.counters.repaired,
            "scrubbed": self.scrubber.share_read,
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
                "produce": sum(each.waiting_produces for each in partitions),
                "replica_fetch": handlers.replica_fetches.waiting,
            },
        )


def _sums(replicas: Sequence[ReplicaSnapshot]) -> dict[str, float]:
    """On any thread."""
    return {
        "partitions": len(replicas),
        "leaders": sum(each.is_led for each in replicas),
        "under_replicated": sum(each.is_under_replicated for each in replicas),
        "below_minimum": sum(each.is_below_minimum for each in replicas),
        "offline_replicas": sum(each.is_failed for each in replicas),
        "damaged": sum(each.is_damaged for each in replicas),
        "log_bytes": sum(each.size for each in replicas),
    }


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


def _count_leaderless(metadata: MetadataCache, places: Sequence[tuple[TopicInfo, int]]) -> int:
    view = metadata.view
    return sum(view.leader_of(*each)[0] not in view.brokers for each in places)
