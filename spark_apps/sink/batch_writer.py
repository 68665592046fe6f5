"""Writes rounds of rows, each row once, whichever process runs a round again."""

import logging
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from folkmoot.coordination.connector import connector
from folkmoot.coordination.discovery import ZooKeeperDiscovery
from folkmoot.coordination.producer_takeovers import PartitionStart
from folkmoot.coordination.zookeeper.session import Connect
from folkmoot.network.cluster import Cluster
from folkmoot.producers.idempotence import Identity
from folkmoot.protocol.batch_header import MAX_SEQUENCE
from folkmoot.protocol.errors import (
    RequestTimeout,
    RowsChanged,
    StaleTopicId,
    UnknownTopicOrPartition,
)
from folkmoot.protocol.messages import DescribeProducersResult
from folkmoot.protocol.records import TopicPartition
from folkmoot.spark_apps.sink import written_rows
from folkmoot.spark_apps.sink.attempt import PATIENCE, PAUSE, SESSION_TIMEOUT, Attempt
from folkmoot.spark_apps.sink.row_producer import RowProducer
from folkmoot.spark_apps.sink.rows import Int64s, Placement, Rows
from folkmoot.spark_apps.sink.written_rows import RowsDigest, WrittenRows, written_by
from folkmoot.spark_apps.tasks.reading import ReadOptions
from folkmoot.spark_apps.tasks.worker_process import kept

TOPIC_PATIENCE: Final = 3.0

log = logging.getLogger(__name__)


@dataclass
class _Topic:
    """A topic in this attempt; `written` has partitions in which an earlier one was."""

    partitions: int
    placement: Placement
    written: dict[int, WrittenRows] = field(default_factory=dict)


def kept_writer(
    zookeeper: str, options: Mapping[str, Any], *, named: bool
) -> AbstractContextManager["IdempotentBatchWriter"]:
    """Lend a writer to a task, as worker_process.kept says."""
    kind = ("writer", zookeeper, named, *sorted(options.items()))
    return kept(kind, lambda: IdempotentBatchWriter(zookeeper, named=named, **options))


class IdempotentBatchWriter:
    """Writes one round after another: `begin`, any number of `write`, and `end`, which returns when all is
    acknowledged. With a name, as coordination.producer_takeovers says: a round that runs again adds
    what is missing, if it has the same rows in the same order. Without one rows are written at least once.

    A task that fails leaves it in an unknown state: close it then. One thread.
    """

    def __init__(
        self,
        zookeeper: str | Connect,
        *,
        client_id: str,
        listener: str,
        named: bool,
        **options: Any,
    ) -> None:
        """`options` are the producer's, `named` says whether its rounds will have names.

        Raises ConfigError, ZooKeeperUnreachable.
        """
        self._is_named = named
        self._finder = ZooKeeperDiscovery(connector(zookeeper), SESSION_TIMEOUT, listener)
        self._finder.open()
        self._cluster = Cluster.of(ReadOptions(client_id, listener), self._finder)
        options |= {"zookeeper": zookeeper, "client_id": client_id, "listener": listener}
        try:
            self._producer = RowProducer(named=named, **options)
        except BaseException:  # the caller has no writer yet that could be closed
            self._finder.close()
            raise
        self._name = ""
        self._attempt: Attempt | None = None
        self._topics: dict[str, _Topic] = {}

    def close(self) -> None:
        """Let go of everything; what was not acknowledged fails."""
        self._producer.close()
        self._cluster.close()
        self._finder.close()

    def begin(self, name: str = "", round_: int = 0) -> None:
        """Raises ProducerFenced if a later round has begun, ZooKeeperUnreachable."""
        for topic in self._topics:
            self._cluster.forget(topic)  # it may have changed since the round before
        self._topics = {}
        self._name = name
        self._attempt = Attempt(name, round_, self._finder) if self._is_named else None

    def write(self, topic: str, rows: Rows) -> None:
        """Send what is not written yet. Raises what `Producer.send_batch` does, RowsChanged."""
        known = self._topics.get(topic)
        if known is None:
            known = self._topics[topic] = self._begin_topic(topic)
        named = rows.named_partitions()
        if len(named) and named.max() >= known.partitions:
            self._find_added_partitions(topic, known)
        partitions = known.placement.partitions(rows, known.partitions)
        if known.written:
            left = self._not_written(topic, known, rows, partitions)
            if len(left) < len(rows):
                rows, partitions = rows.at(left), partitions[left]
        if len(rows):
            self._producer.send(topic, rows, partitions)

    def end(self) -> None:
        """Wait until all is acknowledged. Raises RowsChanged, and what records have failed with."""
        for topic, known in self._topics.items():
            if known.written:
                raise self._rows_changed(topic)
        self._producer.flush()

    def _not_written(self, topic: str, known: _Topic, rows: Rows, partitions: Int64s) -> Int64s:
        """Return the numbers of rows that no earlier attempt has written. Raises RowsChanged."""
        is_left = np.ones(len(rows), np.bool_)
        for partition, written in list(known.written.items()):
            met = np.flatnonzero(partitions == partition)[: written.left]
            if not len(met):
                continue
            is_left[met] = False
            written.meet(rows.at(met))
            if not written.left:
                if not written.are_the_same():
                    raise self._rows_changed(topic)
                del known.written[partition]
        return np.flatnonzero(is_left)

    def _rows_changed(self, topic: str) -> RowsChanged:
        assert self._attempt is not None
        self._attempt.begin_again()
        return RowsChanged(
            f"this task has other rows for topic {topic} than its attempt before has written: the next "
            "attempt writes all of them, so that those come twice (rows must come in the same order "
            "when a batch runs again)"
        )

    # -- topics ---------------------------------------------------------------------------------------

    def _begin_topic(self, topic: str) -> _Topic:
        """Find out how far an earlier attempt got, and have the producer continue there.

        A broker may still describe a topic that was created anew since: it is asked again for PATIENCE.
        Raises RowsChanged, UnknownTopicOrPartition, RequestTimeout, StaleTopicId.
        """
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                known = self._begun(topic)
            except StaleTopicId:
                if time.monotonic() > deadline:
                    raise
                self._cluster.forget(topic)
                continue
            self._producer.know(topic, (self._cluster.topic_id(topic), known.partitions))
            return known

    def _begun(self, topic: str) -> _Topic:
        partitions = self._partitions(topic)
        if self._attempt is None:
            return _Topic(partitions, Placement(topic, self._name, partitions))
        noted = self._attempt.taken.topics.get(self._cluster.topic_id(topic) or "")
        if noted is not None:
            partitions = max(partitions, len(noted.starts))
        written, placed = self._continue(topic, range(partitions))
        return _Topic(partitions, Placement(topic, self._name, placed), written)

    def _find_added_partitions(self, topic: str, known: _Topic) -> None:
        """Look for partitions that rows name, and that may have been added a moment ago."""
        topic_id, before = self._cluster.topic_id(topic), known.partitions
        self._cluster.forget(topic)
        count = self._partitions(topic)
        if count > before and self._cluster.topic_id(topic) == topic_id:
            known.partitions = count
            if self._attempt is not None:
                known.written |= self._continue(topic, range(before, count))[0]
            self._producer.know(topic, (topic_id, count))

    def _partitions(self, topic: str) -> int:
        begun = time.monotonic()
        while not (count := len(self._cluster.partitions(topic))):
            waited = time.monotonic() - begun
            if self._cluster.is_missing(topic) and waited > TOPIC_PATIENCE:
                raise UnknownTopicOrPartition(
                    f"topic {topic} does not exist: create it with `folkmoot topic create {topic}`"
                )
            if waited > PATIENCE:
                raise self._cluster.trouble or RequestTimeout(
                    f"no broker has answered for topic {topic}"
                )
            self._cluster.poll(PAUSE)
        return count

    # -- earlier attempts -----------------------------------------------------------------------------

    def _continue(self, topic: str, partitions: range) -> tuple[dict[int, WrittenRows], int]:
        """Continue in these partitions where earlier attempts have stopped.

        Returns what these have written, and how many partitions there were when the round began.
        """
        assert self._attempt is not None
        taken = self._attempt.taken
        states = written_rows.describe_producer(
            self._cluster, topic, partitions.stop, taken.producer_id, PATIENCE
        )
        here = [PartitionStart(each.next_sequence, each.log_end) for each in states]
        noted = self._attempt.begin_in(self._cluster.topic_id(topic) or "", here)
        found: dict[int, WrittenRows] = {}
        places: dict[TopicPartition, Identity] = {}
        for number in partitions:
            partition, state = TopicPartition(topic, number), states[number]
            places[partition] = Identity(taken.producer_id, taken.epoch, state.next_sequence)
            written = self._written(partition, state, noted.starts[number])
            if written is not None and not written.is_whole:
                raise self._rows_changed(topic)
            if written is not None:
                found[number] = written
        self._producer.continue_at(places)
        return found, noted.partitions

    def _written(
        self, partition: TopicPartition, state: DescribeProducersResult, begun: PartitionStart
    ) -> WrittenRows | None:
        """Return what earlier attempts at the round have written to a partition, None for nothing."""
        assert self._attempt is not None
        taken = self._attempt.taken
        count = (state.next_sequence - begun.sequence) & MAX_SEQUENCE
        if state.producer_epoch < 0 and begun.sequence:
            log.warning("%s has forgotten this producer: its rows may come twice", partition)
            return None
        if not count:
            return None
        if count > state.log_end - begun.offset:  # a leader that was not in sync has lost some
            return WrittenRows(count, RowsDigest())
        # Compaction or retention may have removed some.
        batches = written_rows.read_batches(self._cluster, partition, begun.offset, state.log_end)
        return WrittenRows(count, written_by(batches, taken.producer_id, taken.since, count))
