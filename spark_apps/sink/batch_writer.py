"""Writes epochs of rows, each row once, whichever process runs an epoch again."""

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
from folkmoot.spark_apps.sink.written_rows import RowsDigest, WrittenRows, digest_records
from folkmoot.spark_apps.tasks.reading import ReadOptions
from folkmoot.spark_apps.tasks.worker_process import borrow

TOPIC_PATIENCE: Final = 3.0

log = logging.getLogger(__name__)


@dataclass
class _Topic:
    """A topic in this attempt; `written` has partitions in which an earlier one was."""

    partitions: int
    placement: Placement
    written: dict[int, WrittenRows] = field(default_factory=dict)


def borrow_writer(
    zookeeper: str, options: Mapping[str, Any], *, named: bool
) -> AbstractContextManager["IdempotentBatchWriter"]:
    """Lend a writer to a task, as worker_process.borrow says."""
    kind = ("writer", zookeeper, named, *sorted(options.items()))
    return borrow(kind, lambda: IdempotentBatchWriter(zookeeper, named=named, **options))


class IdempotentBatchWriter:
    """Writes one epoch after another: `begin`, any number of `write`, and `end`, which returns when all is
    acknowledged. With a name, as coordination.producer_takeovers says: an epoch that runs again adds
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
        """`options` are the producer's, `named` says whether its epochs will have names.

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

    def begin(self, name: str = "", epoch: int = 0) -> None:
        """Raises ProducerFenced if a later epoch has begun, ZooKeeperUnreachable."""
        for topic in self._topics:
            self._cluster.forget(topic)  # it may have changed since the epoch before
        self._topics = {}
        self._name = name
        self._attempt = Attempt(name, epoch, self._finder) if self._is_named else None

    def write(self, topic: str, rows: Rows) -> None:
        """Send what is not written yet. Raises what `Producer.send_batch` does, RowsChanged."""
        topic_state = self._topics.get(topic)
        if topic_state is None:
            topic_state = self._topics[topic] = self._begin_topic(topic)
        row_partitions = rows.named_partitions()
        if len(row_partitions) and row_partitions.max() >= topic_state.partitions:
            self._find_added_partitions(topic, topic_state)
        partitions = topic_state.placement.partitions(rows, topic_state.partitions)
        if topic_state.written:
            unwritten = self._unwritten_rows(topic, topic_state, rows, partitions)
            if len(unwritten) < len(rows):
                rows, partitions = rows.at(unwritten), partitions[unwritten]
        if len(rows):
            self._producer.send(topic, rows, partitions)

    def end(self) -> None:
        """Wait until all is acknowledged. Raises RowsChanged, and what records have failed with."""
        for topic, topic_state in self._topics.items():
            if topic_state.written:
                raise self._rows_changed(topic)
        self._producer.flush()

    def _unwritten_rows(
        self, topic: str, topic_state: _Topic, rows: Rows, partitions: Int64s
    ) -> Int64s:
        """Return the numbers of rows that no earlier attempt has written. Raises RowsChanged."""
        is_unwritten = np.ones(len(rows), np.bool_)
        for partition, written in list(topic_state.written.items()):
            matching = np.flatnonzero(partitions == partition)[: written.remaining]
            if not len(matching):
                continue
            is_unwritten[matching] = False
            written.compare(rows.at(matching))
            if not written.remaining:
                if not written.is_same():
                    raise self._rows_changed(topic)
                del topic_state.written[partition]
        return np.flatnonzero(is_unwritten)

    def _rows_changed(self, topic: str) -> RowsChanged:
        assert self._attempt is not None
        self._attempt.forget_starts()
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
                topic_state = self._prepare_topic(topic)
            except StaleTopicId:
                if time.monotonic() > deadline:
                    raise
                self._cluster.forget(topic)
                continue
            self._producer.update_topic(
                topic, (self._cluster.topic_id(topic), topic_state.partitions)
            )
            return topic_state

    def _prepare_topic(self, topic: str) -> _Topic:
        partitions = self._partitions(topic)
        if self._attempt is None:
            return _Topic(partitions, Placement(topic, self._name, partitions))
        recorded = self._attempt.claim.topics.get(self._cluster.topic_id(topic) or "")
        if recorded is not None:
            partitions = max(partitions, len(recorded.starts))
        written, initial_count = self._continue(topic, range(partitions))
        return _Topic(partitions, Placement(topic, self._name, initial_count), written)

    def _find_added_partitions(self, topic: str, topic_state: _Topic) -> None:
        """Look for partitions that rows name, and that may have been added a moment ago."""
        topic_id, before = self._cluster.topic_id(topic), topic_state.partitions
        self._cluster.forget(topic)
        count = self._partitions(topic)
        if count > before and self._cluster.topic_id(topic) == topic_id:
            topic_state.partitions = count
            if self._attempt is not None:
                topic_state.written |= self._continue(topic, range(before, count))[0]
            self._producer.update_topic(topic, (topic_id, count))

    def _partitions(self, topic: str) -> int:
        started_at = time.monotonic()
        while not (count := len(self._cluster.partitions(topic))):
            waited = time.monotonic() - started_at
            if self._cluster.is_missing(topic) and waited > TOPIC_PATIENCE:
                raise UnknownTopicOrPartition(
                    f"topic {topic} does not exist: create it with `folkmoot topic create {topic}`"
                )
            if waited > PATIENCE:
                raise self._cluster.metadata_error or RequestTimeout(
                    f"no broker has answered for topic {topic}"
                )
            self._cluster.poll(PAUSE)
        return count

    # -- earlier attempts -----------------------------------------------------------------------------

    def _continue(self, topic: str, partitions: range) -> tuple[dict[int, WrittenRows], int]:
        """Continue in these partitions where earlier attempts have stopped.

        Returns what these have written, and how many partitions there were when the epoch began.
        """
        assert self._attempt is not None
        claim = self._attempt.claim
        states = written_rows.describe_producer(
            self._cluster, topic, partitions.stop, claim.producer_id, PATIENCE
        )
        starts = [PartitionStart(each.next_sequence, each.log_end) for each in states]
        recorded = self._attempt.note_starts(self._cluster.topic_id(topic) or "", starts)
        written_rows_by_partition: dict[int, WrittenRows] = {}
        identities: dict[TopicPartition, Identity] = {}
        for number in partitions:
            partition, state = TopicPartition(topic, number), states[number]
            identities[partition] = Identity(claim.producer_id, claim.epoch, state.next_sequence)
            written = self._written(partition, state, recorded.starts[number])
            if written is not None and not written.is_complete:
                raise self._rows_changed(topic)
            if written is not None:
                written_rows_by_partition[number] = written
        self._producer.continue_at(identities)
        return written_rows_by_partition, recorded.partitions

    def _written(
        self, partition: TopicPartition, state: DescribeProducersResult, begin: PartitionStart
    ) -> WrittenRows | None:
        """Return what earlier attempts at the epoch have written to a partition, None for nothing."""
        assert self._attempt is not None
        claim = self._attempt.claim
        count = (state.next_sequence - begin.sequence) & MAX_SEQUENCE
        if state.producer_epoch < 0 and begin.sequence:
            log.warning("%s has forgotten this producer: its rows may come twice", partition)
            return None
        if not count:
            return None
        if count > state.log_end - begin.offset:  # a leader that was not in sync has lost some
            return WrittenRows(count, RowsDigest())
        # Compaction or retention may have removed some.
        batches = written_rows.read_batches(self._cluster, partition, begin.offset, state.log_end)
        return WrittenRows(count, digest_records(batches, claim.producer_id, claim.since, count))
