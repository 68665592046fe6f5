"""Rounds of rows, each row written once, whichever process runs a round again."""

import logging
import time
from collections.abc import Collection, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final
from uuid import uuid4
from zlib import crc32

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from folkmoot.consumers.fetch.range_reader import OffsetRange, RangeReader
from folkmoot.coordination.connector import connector
from folkmoot.coordination.discovery import ZooKeeperDiscovery
from folkmoot.coordination.producer_takeovers import (
    Begin,
    Takeover,
    begin,
    begin_again,
    begun_by_others,
    take_over,
)
from folkmoot.coordination.zookeeper.session import Connect
from folkmoot.network.ask_leaders import ask_leaders
from folkmoot.network.cluster import Cluster
from folkmoot.producers.appender import by_key
from folkmoot.producers.columns import RecordColumns, no_partition
from folkmoot.producers.idempotence import Identity, TakenOver
from folkmoot.producers.producer import Producer
from folkmoot.protocol.batch_header import MAX_SEQUENCE, BatchHeader
from folkmoot.protocol.errors import (
    FolkmootError,
    ProducerFenced,
    RequestTimeout,
    RowsChanged,
    StaleTopicId,
    UnknownTopicOrPartition,
    ZooKeeperUnreachable,
)
from folkmoot.protocol.messages import (
    Api,
    DescribeProducersEntry,
    DescribeProducersRequest,
    DescribeProducersResult,
)
from folkmoot.protocol.records import TopicPartition
from folkmoot.spark_apps.reading import ReadOptions
from folkmoot.spark_apps.sink.prefix import RowsDigest, written_by

SESSION_TIMEOUT: Final = 10.0
PATIENCE: Final = 60.0
"""So long brokers and ZooKeeper may be out of reach before a task fails, in seconds."""
TOPIC_PATIENCE: Final = 3.0
PAUSE: Final = 0.1
SPREAD: Final = 4096
"""So many rows without a key go to one partition, then as many to the next."""

log = logging.getLogger(__name__)
Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Columns of equal length for one topic: Arrow arrays of binary or string, `timestamps` of int64 in
    ms, `partitions` of int32; headers as `Producer.send_batch` takes them. `framed`: each value begins
    with its schema's id."""

    values: Any
    keys: Any = None
    timestamps: Any = None
    headers: list[Any] | None = None
    partitions: Any = None
    framed: bool = False

    def __len__(self) -> int:
        return len(self.values)

    def at(self, rows: Any) -> "Rows":
        """Some of them, by number."""
        index = pa.array(rows)
        return Rows(
            **{
                name: None if column is None else column.take(index)
                for name, column in (
                    *(("values", self.values), ("keys", self.keys)),
                    *(("timestamps", self.timestamps), ("partitions", self.partitions)),
                )
            },
            headers=None if self.headers is None else [self.headers[row] for row in rows],
            framed=self.framed,
        )


@dataclass
class _Written:
    """What an earlier attempt has written to a partition, and how much of it this one has met again."""

    left: int
    expected: RowsDigest
    met: RowsDigest = field(default_factory=RowsDigest)


@dataclass
class _Topic:
    """A topic in this attempt. Rows go to the first `count` of its partitions, unless they say where;
    `spread` counts those without a key."""

    count: int
    partitions: int
    spread: int = 0
    written: dict[int, _Written] = field(default_factory=dict)


class _Framed:
    """Of values that begin with their schema's id already."""

    writes_schema_id: Final = True

    def serialize(self, topic: str, rows: Any, /) -> Any:
        return rows


_FRAMED: Final = _Framed()


class _Taking(Producer[Any, Any]):
    """A producer that is told who it is, in each partition."""

    def __init__(self, sequences: TakenOver | None, **options: Any) -> None:
        self._sequences = sequences
        super().__init__(**options)


class RoundWriter:
    """Writes one round after another: `begin`, any number of `write`, and `end`, which returns when all is
    acknowledged. With a name, as coordination.producer_takeovers says: a round that runs again adds
    what is missing, if it has the same rows in the same order. Without one rows are written at least once,
    by a producer of this writer's own.

    A task that fails leaves it in an unknown state: it is to be closed then. One thread.
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
        self._reading = ReadOptions(client_id, listener)
        self._discovery = ZooKeeperDiscovery(connector(zookeeper), SESSION_TIMEOUT, listener)
        self._discovery.open()
        self._cluster = Cluster.of(self._reading, self._discovery)
        self._sequences = TakenOver() if named else None
        self._places: Any = None  # of the rows that are sent at the moment
        self._options = options | {
            "zookeeper": zookeeper,
            "client_id": client_id,
            "listener": listener,
            "partitioner": lambda *_: self._places,
        }
        try:
            self._producer = self._opened()
        except BaseException:  # nobody has the writer yet who would close it
            self._discovery.close()
            raise
        self._shapes: dict[str, tuple[str | None, int]] = {}
        """Id and number of partitions of each topic that the producer knows."""
        self._name = ""
        self._attempt = ""
        self._taken: Takeover | None = None
        self._topics: dict[str, _Topic] = {}

    def _opened(self) -> _Taking:
        producer = _Taking(self._sequences, **self._options)
        producer.start()
        return producer

    def close(self) -> None:
        """Let go of everything; what was not acknowledged fails."""
        with suppress(FolkmootError):  # which those who wait for the rows have been told
            self._producer.close(0.0)
        self._cluster.close()
        self._discovery.close()

    def begin(self, name: str = "", round_: int = 0) -> None:
        """Raises ProducerFenced if a later round has begun, ZooKeeperUnreachable."""
        self._name, self._attempt = name, uuid4().hex
        for topic in self._topics:
            self._cluster.forget(topic)  # it may have changed since the round before
        self._topics = {}
        if self._sequences is not None:
            self._taken = self._ask(partial(take_over, name, round_, self._attempt))

    def write(self, topic: str, rows: Rows) -> None:
        """Send what is not written yet. Raises what `Producer.send_batch` does, RowsChanged."""
        known = self._topics.get(topic)
        if known is None:
            known = self._topics[topic] = self._known(topic)
        places = self._placed(topic, known, rows)
        if known.written:
            left = self._not_written(topic, known, rows, places)
            if len(left) < len(rows):
                rows, places = rows.at(left), places[left]
        if len(rows):
            self._places = places
            self._producer.send_batch(
                *(topic, rows.values, rows.keys),
                timestamps=rows.timestamps,
                headers=rows.headers,
                serializer=_FRAMED if rows.framed else None,
            )

    def end(self) -> None:
        """Wait until all is acknowledged. Raises RowsChanged, and what records have failed with."""
        for topic, known in self._topics.items():
            if known.written:
                raise self._changed(topic)
        self.flush()

    def flush(self) -> None:
        """Wait until what was written is acknowledged. Raises what records have failed with."""
        self._producer.flush()

    # -- where rows go ------------------------------------------------------------------------------

    def _placed(self, topic: str, known: _Topic, rows: Rows) -> Int64s:
        """The partition of each row: as given, by its key, or by turns, the same when it runs again.

        Raises UnknownTopicOrPartition.
        """
        count = len(rows)
        places = np.full(count, -1, np.int64)
        if rows.partitions is not None:
            given = rows.partitions.fill_null(-1)
            places = np.asarray(given.to_numpy(zero_copy_only=False), np.int64).copy()
            is_given = rows.partitions.is_valid().to_numpy(False)
            if len(places) and places.max() >= known.partitions:
                self._look_again(topic, known)
            wrong = places[is_given & ((places < 0) | (places >= known.partitions))]
            if len(wrong):
                raise no_partition(topic, int(wrong[0]), known.partitions)
        if rows.keys is not None:
            keyed = np.flatnonzero((places < 0) & rows.keys.is_valid().to_numpy(False))
            if len(keyed):
                keys = rows.keys.take(pa.array(keyed))
                cells: Any = RecordColumns(keys).values  # without nils
                places[keyed] = by_key(cells, known.count)
        unplaced = np.flatnonzero(places < 0)
        first = crc32(self._name.encode())
        turns = (known.spread + np.arange(len(unplaced))) // SPREAD
        places[unplaced] = (first + turns) % known.count
        known.spread += len(unplaced)
        return places

    # -- what is written already --------------------------------------------------------------------

    def _not_written(self, topic: str, known: _Topic, rows: Rows, places: Int64s) -> Int64s:
        """The numbers of rows that no earlier attempt has written. Raises RowsChanged."""
        is_left = np.ones(len(rows), np.bool_)
        for partition, written in list(known.written.items()):
            met = np.flatnonzero(places == partition)[: written.left]
            if not len(met):
                continue
            is_left[met] = False
            columns = rows.at(met)
            cells = RecordColumns(columns.values, columns.keys, headers=columns.headers)
            written.met.add(cells.keys, cells.values, cells.headers)
            written.left -= len(met)
            if not written.left:
                if written.met.digest() != written.expected.digest():
                    raise self._changed(topic)
                del known.written[partition]
        return np.flatnonzero(is_left)

    def _changed(self, topic: str) -> RowsChanged:
        self._ask(partial(begin_again, self._name, self._attempt))
        return RowsChanged(
            f"this task has other rows for topic {topic} than its attempt before has written: the next "
            "attempt writes all of them, so that those come twice (rows must come in the same order "
            "when a batch runs again)"
        )

    def _known(self, topic: str) -> _Topic:
        """As `_prepared`; a broker may have told of a topic that was created anew since. Raises StaleTopicId
        where that goes on."""
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                known = self._prepared(topic)
            except StaleTopicId:
                if time.monotonic() > deadline:
                    raise
                self._cluster.forget(topic)
                continue
            self._have_producer_know(topic, known)
            return known

    def _have_producer_know(self, topic: str, known: _Topic) -> None:
        """It would look for partitions that there are not any more, or not know others."""
        shape = self._cluster.topic_id(topic), known.partitions
        if self._shapes.setdefault(topic, shape) != shape:
            self._producer.close()
            self._producer, self._shapes = self._opened(), {topic: shape}

    def _look_again(self, topic: str, known: _Topic) -> None:
        """Partitions that rows name, and that are not known, may have been added a moment ago."""
        topic_id, before = self._cluster.topic_id(topic), known.partitions
        self._cluster.forget(topic)
        count = self._partitions(topic)
        if count > before and self._cluster.topic_id(topic) == topic_id:
            known.partitions = count
            if self._taken is not None:
                self._begin_in(topic, known, self._taken, before)
            self._have_producer_know(topic, known)

    def _prepared(self, topic: str) -> _Topic:
        """Find out how far an earlier attempt got, and tell the producer. Raises RowsChanged,
        UnknownTopicOrPartition, RequestTimeout."""
        taken, partitions = self._taken, self._partitions(topic)
        if taken is None or self._sequences is None:
            return _Topic(partitions, partitions)
        topic_id = self._cluster.topic_id(topic) or ""
        if (noted := taken.topics.get(topic_id)) is not None:
            partitions = max(partitions, len(noted.begins))
        known = _Topic(partitions, partitions)
        known.count = self._begin_in(topic, known, taken, 0)
        return known

    def _begin_in(self, topic: str, known: _Topic, taken: Takeover, first: int) -> int:
        """In its partitions from the `first` on; returns how many it had when the round began there."""
        topic_id = self._cluster.topic_id(topic) or ""
        found = self._described(topic, known.partitions, taken.producer_id)
        here = [Begin(each.next_sequence, each.log_end) for each in found]
        noted = self._ask(partial(begin, self._name, self._attempt, topic_id, here))
        places = {}
        for number, (each, begun) in enumerate(zip(found, noted.begins, strict=True)):
            if number < first:
                continue
            partition = TopicPartition(topic, number)
            places[partition] = Identity(taken.producer_id, taken.epoch, each.next_sequence)
            count = (each.next_sequence - begun.sequence) & MAX_SEQUENCE
            if each.producer_epoch < 0 and begun.sequence:
                log.warning("%s has forgotten this producer: its rows may come twice", partition)
            elif count > each.log_end - begun.offset:
                raise self._changed(topic)  # a leader that was not in sync has lost some
            elif count:
                batches = self._batches(partition, begun.offset, each.log_end)
                expected = written_by(batches, taken.producer_id, taken.since, count)
                if expected.count < count:
                    raise self._changed(topic)  # compaction or retention was faster
                known.written[number] = _Written(count, expected)
        assert self._sequences is not None
        self._sequences.go_on(places)
        return int(noted.partitions)

    def _described(self, topic: str, count: int, producer_id: int) -> list[DescribeProducersResult]:
        topic_id = self._cluster.topic_id(topic) or ""
        entries = {
            TopicPartition(topic, number): partial(
                _asked, topic, topic_id, number, producer_id=producer_id
            )
            for number in range(count)
        }
        requests = ask_leaders(
            *(self._cluster, Api.DESCRIBE_PRODUCERS, entries),
            *(lambda some, timeout: DescribeProducersRequest(timeout, some), PATIENCE),
        )
        for error in requests.failed.values():
            raise error
        return [requests.results[each] for each in entries]

    def _batches(
        self, partition: TopicPartition, first: int, end: int
    ) -> Iterator[tuple[BatchHeader, memoryview]]:
        topic, number = partition
        topic_id = self._cluster.topic_id(topic) or ""
        leader = self._cluster.leader_address(partition)
        part = OffsetRange(topic, number, topic_id, first, end, leader, ())
        reader = RangeReader(part, self._cluster, {}, fail_on_data_loss=False)
        for chunk in reader.chunks():
            yield from chunk

    # -- the cluster --------------------------------------------------------------------------------

    def _partitions(self, topic: str) -> int:
        begun = time.monotonic()
        while not (count := len(self._cluster.partitions(topic))):
            waited = time.monotonic() - begun
            if self._cluster.is_missing(topic) and waited > TOPIC_PATIENCE:
                raise UnknownTopicOrPartition(
                    f"topic {topic} does not exist: create it with `folkmoot topic create {topic}`"
                )
            if waited > PATIENCE:
                raise self._cluster.trouble or RequestTimeout(f"nobody answers for topic {topic}")
            self._cluster.poll(PAUSE)
        return count

    def _ask(self, recipe: Any) -> Any:
        return _answer(self._discovery, recipe)


def check_tasks(
    zookeeper: str | Connect, listener: str, prefix: str, round_: int, tasks: Collection[int]
) -> None:
    """Raises RowsChanged, once, if a round was written by other tasks than these, too, in an attempt before;
    names are `prefix` and a task's number. Raises ZooKeeperUnreachable.

    All of these have ended. Who dies before the last name is put right raises it as the batch runs again;
    who dies behind that, and before it raises, has logged it.
    """
    finder = ZooKeeperDiscovery(connector(zookeeper), SESSION_TIMEOUT, listener)
    with closing(finder):
        others = _answer(finder, partial(begun_by_others, prefix, round_, tasks))
        if not others:
            return
        changed = RowsChanged(
            f"an attempt before has written this batch in other tasks, too ({', '.join(others)}): their "
            "rows are there twice (a batch must be divided in the same way when it runs again)"
        )
        log.warning("%s", changed)
        for name, attempt in others.items():
            with suppress(ProducerFenced):  # it still runs: the next attempt finds it once more
                _answer(finder, partial(begin_again, name, attempt))
    raise changed


def _answer(finder: ZooKeeperDiscovery, recipe: Any) -> Any:
    """What a recipe returns that may be begun anew. Raises ZooKeeperUnreachable."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            return finder.ask(recipe())
        except ZooKeeperUnreachable:
            if time.monotonic() > deadline:
                raise
            time.sleep(PAUSE)


def _asked(
    topic: str, topic_id: str, number: int, epoch: int, *, producer_id: int
) -> DescribeProducersEntry:
    return DescribeProducersEntry(topic, topic_id, number, epoch, producer_id)
