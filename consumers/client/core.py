"""A consumer without a face: reading, its place in the group, offsets."""

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from datetime import datetime
from functools import partial
from itertools import chain
from math import isnan
from typing import TYPE_CHECKING, Any, Final, Generic, SupportsIndex, TypeVar

from folkmoot.consumers.client.attention import Attention
from folkmoot.consumers.client.hand_out import HandOut, TakeRecords
from folkmoot.consumers.client.life import Life, Stage
from folkmoot.consumers.client.rebalance_listener import RebalanceListener, settings_of
from folkmoot.consumers.client.steps import BlockingWork, Steps
from folkmoot.consumers.config import ConsumerConfig
from folkmoot.consumers.fetch.fetcher import Fetcher, Reader
from folkmoot.consumers.group.group_thread import Member
from folkmoot.consumers.lag import is_beyond
from folkmoot.consumers.offsets.offset_lookup import first_offsets, offsets_at
from folkmoot.consumers.offsets.progress import Positions
from folkmoot.consumers.offsets.seek_target import SeekTarget, resolve_target, seek_to
from folkmoot.consumers.offsets.validation import check_int, offset_and_metadata, partition_of
from folkmoot.consumers.records.batch_cursor import BatchCursor
from folkmoot.consumers.records.batch_view import RecordBatchView
from folkmoot.coordination import topics
from folkmoot.coordination.connector import connector
from folkmoot.coordination.discovery import ZooKeeperDiscovery
from folkmoot.coordination.groups import ownership
from folkmoot.coordination.zookeeper.operations import Recipe
from folkmoot.coordination.zookeeper.session import Session
from folkmoot.network.bootstrap import Bootstrap
from folkmoot.network.cluster import Cluster
from folkmoot.protocol import errors
from folkmoot.protocol.messages import EARLIEST, LATEST
from folkmoot.protocol.names import check_name
from folkmoot.protocol.records import K, OffsetAndMetadata, Record, TopicPartition, V

if TYPE_CHECKING:
    import pyarrow as pa

    from folkmoot.schemas.columns.deserializer import ColumnDeserializer

_Result = TypeVar("_Result")

CLOSE_TIMEOUT: Final = 10.0
METADATA_WAIT: Final = 15.0
TOPIC_PATIENCE: Final = 3.0
"""Without ZooKeeper, a topic that brokers do not know is missing after this long."""
LOOK_PAUSE: Final = 0.1
MAX_WAIT: Final = 1.0
"""The longest wait of an iteration, in seconds."""
TABLE_RECORDS: Final = 100_000
ALL_RECORDS: Final = 2**31
LOOKUPS_AT_ONCE: Final = 100
"""Partitions per look-up: ZooKeeper answers these in about the time of one."""
READS_NOTHING: Final = (
    "this consumer reads nothing: give group=… and topics=…, or call subscribe() or assign()"
)


class ConsumerCore(Reader, Generic[K, V]):
    """A consumer without a thread: one owner at a time takes its steps (steps.py).

    A method that can wait returns `Steps`; apart from these only `open` and `poll_brokers` wait. Any thread
    may call `wake`, and take the steps of a `commit` with offsets.
    """

    def __init__(
        self,
        config: ConsumerConfig[K, V],
        call_back: Callable[[str, Any], "Future[Any]"],
        poller: Any = None,
    ) -> None:
        self.config = config
        self.life = Life()
        self.in_callback = False
        """A callback calls: nothing that was handed out counts as processed by that."""
        self.attention = Attention(has_poller=poller is not None)
        self.group: RebalanceListener | None = None
        self._call_back = call_back
        guarded = config.guardian and config.group is not None
        self._connect = connector(config.zookeeper, guarded=guarded)
        self.discovery: ZooKeeperDiscovery | Bootstrap
        if config.bootstrap:
            self.discovery = Bootstrap(config)
        else:
            self.discovery = ZooKeeperDiscovery(
                *(self._session, config.session_timeout, config.listener),
                look_wait=None if poller is None else 0.0,
            )
        self.cluster = Cluster.of(config, self.discovery, poller=poller)
        self.positions = Positions(explicit_done=config.explicit_done)
        self.fetcher = Fetcher(config, self.cluster, time.monotonic, self)
        self.hand_out = HandOut[K, V](
            *(config, self.fetcher, self.positions, call_back, self.poll_brokers)
        )

    # -- life -------------------------------------------------------------------------------------

    def open(self) -> None:
        """Find the cluster and join the group; blocks. Raises ZooKeeperUnreachable, BrokerUnreachable."""
        if not (self.config.topics or self.config.pattern):
            self.discovery.open()
        else:
            self._join(self.config)
        if self.life.is_ending:  # by another task, before there was something to close
            self._disconnect()
            raise errors.ClosedError("the consumer was closed while it was being opened")
        self.life.enter(Stage.OPEN)

    def _join(self, config: ConsumerConfig[K, V]) -> None:
        member = Member(settings_of(config), self._connect, self.wake)
        try:
            member.start()
            self.group = RebalanceListener(
                config, member, self.fetcher, self.positions, self._call_back
            )
        except BaseException:  # also Ctrl-C
            member.stop(0.0)
            raise

    def wake(self) -> None:
        """Have the group served soon. From any thread, or a signal handler."""
        self.attention.want()
        cursor = self.positions.cursor
        if cursor is not None:
            cursor.cut()

    def close(self, timeout: float, *, processed: bool) -> Steps[None]:
        """Leave nothing open, even when interrupted; `processed`: count all that was handed out."""
        self.life.enter(Stage.CLOSING)
        try:
            self.hand_out.take_back()
            if processed:
                self.positions.process_all()
            if self.group is not None:
                yield from self.group.leave(time.monotonic() + timeout)
        finally:
            self.life.enter(Stage.CLOSED)
            self._disconnect()
            self.cluster.close()
            self.attention.close()

    def _disconnect(self) -> None:
        if self.group is not None:  # whose session it is
            self.group.member.stop(0.0)
        else:
            self.discovery.close()

    # -- brokers ----------------------------------------------------------------------------------

    @property
    def is_urgent(self) -> bool:
        """Return whether the owner has work besides waiting for records."""
        is_wanted = self.attention.is_wanted or self.fetcher.rotation.stopped() is not None
        return is_wanted and not self.life.is_leaving

    def due(self) -> float:
        """When a turn is due without news (monotonic)."""
        return min(self.cluster.due(), self.fetcher.retry_at)

    def poll_brokers(self, timeout: float = 0.0) -> None:
        """Take the brokers' answers and send the next requests; wait at most `timeout` s for news."""
        self.attention.has_waited = True
        wakeup = self.attention.waits_for
        if self.life.is_leaving:
            if wakeup is not None:
                wakeup.wait(timeout)
            return
        self.fetcher.poll(0.0 if self.is_urgent else timeout, wakeup)
        if self.group is not None:
            self.group.commits.commit_starts()
        self.fetcher.ask()  # in flight while the last answers are handed out
        self.hand_out.polled_at = time.monotonic()

    def begins(self, partition: TopicPartition, offset: int, by_policy: bool) -> bool:
        self.positions.begin(partition, offset)
        return (
            by_policy and self.group is not None and self.group.commits.starts_at(partition, offset)
        )

    def is_cut(self, partition: TopicPartition, end: int, parts_at: int | None) -> None:
        self.positions.cut(partition, end, parts_at)

    def _serve(self) -> bool:
        """Serve the group, and raise errors. Return whether records may be handed out."""
        self.attention.take()
        if self.group is not None:
            self.group.serve()
        self.fetcher.check()
        return self.group is None or not self.group.callbacks.is_held

    def _session(self, session_timeout: float) -> Session | None:
        """The member's session, if there is one, or a new one."""
        group = self.group  # read once: any thread may call
        return self._connect(session_timeout) if group is None else group.member.sessions.current

    # -- records ----------------------------------------------------------------------------------

    def poll(
        self, timeout: float = 1.0, max_records: int | None = None
    ) -> Steps[list[Record[K, V]]]:
        limit = _limit(max_records, self.config.max_poll_records)
        make: Callable[[RecordBatchView], list[Any]] = RecordBatchView.records
        batches = yield from self._read(timeout, limit, make, take=self.hand_out.record_source)
        return batches[0] if len(batches) == 1 else list(chain.from_iterable(batches))

    def poll_batch(
        self,
        timeout: float = 1.0,
        max_records: int | None = None,
        make: Callable[[RecordBatchView], Any] = lambda view: view,
    ) -> Steps[Any]:
        """Return `make` of the next batch, None if none comes in time."""
        limit = _limit(max_records, ALL_RECORDS)
        batches = yield from self._read(timeout, limit, make, one=True)
        return batches[0] if batches else None

    def poll_arrow(
        self,
        timeout: float = 1.0,
        max_records: int | None = None,
        *,
        headers: bool = False,
        schema: "ColumnDeserializer | str | Mapping[str, Any] | Sequence[Any] | int | type | None" = None,
    ) -> "Steps[pa.Table]":
        limit = _limit(max_records, TABLE_RECORDS)
        if schema is None:
            from folkmoot.consumers.records.arrow import table

            make = partial(RecordBatchView.arrow, headers=headers)
            return table((yield from self._read(timeout, limit, make)), headers=headers)
        columns = self.hand_out.columns_of(schema, headers=headers)
        take = partial(self.hand_out.take_deserialized, columns)
        batches = yield from self._read(timeout, limit, columns.batch_of, take=take)
        self.fetcher.counters.records_skipped += columns.skipped
        return columns.table(batches)

    def _read(
        self,
        timeout: float,
        limit: int,
        make: Callable[[RecordBatchView], _Result | None],
        *,
        one: bool = False,
        take: TakeRecords | None = None,
    ) -> Steps[list[_Result]]:
        """Return `make` of the next batches, of up to `limit` records in all, or of one; wait for the first.

        Without the last one they have at most `buffer_bytes`, decompressed.
        """
        deadline = time.monotonic() + timeout
        if isnan(deadline):
            raise ValueError(f"timeout={timeout} is no number of seconds")
        self._ask_for_more()
        while not self.life.is_ending:
            results, is_empty = list[_Result](), True
            if may_read := self._serve():
                results, is_empty = self.hand_out.batches(
                    limit, make, self.life, one=one, take=take
                )
            remaining = deadline - time.monotonic()
            if results or remaining <= 0 or self.life.stopped:
                if is_empty and may_read:
                    self.poll_brokers()
                return results
            if is_empty:
                yield min(remaining, MAX_WAIT)
        return []

    def next_cursor(self) -> Steps[BatchCursor | None]:
        """Return an iteration over records of one partition; None if none came within a turn.

        `wake` cuts it between two records, to serve the group. The caller's next round takes the rest back,
        and so does a method that the loop's body calls.
        """
        self._ask_for_more()
        if self.life.is_ending:
            return None
        cursor, is_empty = None, True
        if self._serve():
            cursor, is_empty = self.hand_out.begin_iteration(self.life, self.attention)
        if is_empty:
            yield MAX_WAIT
        return cursor

    def _ask_for_more(self) -> None:
        """Everything handed out before is processed."""
        if self.group is None and not self.fetcher.partitions():
            raise errors.NotAssigned(READS_NOTHING)
        self.hand_out.take_back()
        self.positions.end_poll()

    # -- partitions and the group -----------------------------------------------------------------

    def assignment(self) -> frozenset[TopicPartition]:
        return frozenset(self.fetcher.partitions())

    def subscribe(self, topics: Sequence[str] = (), pattern: str = "") -> Steps[None]:
        config = replace(self.config, topics=topics, pattern=pattern)
        if not (topics or pattern):
            raise errors.ConfigError(
                "there is nothing to subscribe to: name topics, or give a pattern"
            )
        if self.group is None and self.assignment():
            raise errors.ConfigError(
                "partitions were assigned by hand: take them back by assign([]) first"
            )
        yield from self.unsubscribe()
        self.discovery.close()  # the member has a session of its own
        yield BlockingWork(partial(self._join, config))

    def unsubscribe(self, timeout: float = CLOSE_TIMEOUT) -> Steps[None]:
        group = self.group
        if self.life.is_ending:
            raise errors.ClosedError("the consumer is being closed")
        if group is None:
            return
        self.hand_out.take_back()
        self.positions.process_all()
        self.life.enter(Stage.LEAVING)
        try:
            yield from group.leave(time.monotonic() + timeout)
        finally:
            if self.life.stage is Stage.LEAVING:
                self.life.enter(Stage.OPEN)
            group.member.stop(0.0)
            for partition in self.assignment():  # what was not given up in time
                self.fetcher.forget(partition)
                self.positions.release(partition)
            self.group = None

    def assign(
        self,
        partitions: Iterable[tuple[str, int]] | Mapping[tuple[str, int], SeekTarget | None],
    ) -> Steps[None]:
        if self.group is not None:
            raise errors.ConfigError(
                "a member gets its partitions by its group: unsubscribe() before assign()"
            )
        wanted = {partition_of(partition) for partition in partitions}
        starts = partitions if isinstance(partitions, Mapping) else {}
        start_positions = {
            partition_of(partition): resolve_target(partition_of(partition), target)
            for partition, target in starts.items()
            if target is not None
        }
        yield from self._check_exist(wanted)
        self.hand_out.take_back()
        for partition in self.assignment() - wanted:
            self.fetcher.forget(partition)
            self.positions.forget(partition)
        for partition in sorted(wanted - self.assignment()):
            self.fetcher.add(partition, None)
        for partition, start in start_positions.items():
            seek_to(self.fetcher, self.positions, partition, start)

    def _check_exist(self, wanted: Collection[TopicPartition]) -> Steps[None]:
        """Raises UnknownTopicOrPartition, or why no broker answered."""
        for topic in {partition.topic for partition in wanted}:
            numbers = {partition.partition for partition in wanted if partition.topic == topic}
            count = len((yield from self.partitions_of(topic)))
            if not numbers <= {*range(count)}:
                count = yield from self._count_anew(topic, max(numbers))
            unknown = sorted(numbers - {*range(count)})
            if unknown:
                raise errors.UnknownTopicOrPartition(
                    f"partition {unknown[0]} does not exist: "
                    f"topic {topic} has {count}, numbered from 0"
                )

    def _count_anew(self, topic: str, last: int) -> Steps[int]:
        """Count a topic's partitions without the cache: brokers learn of a new `last` one a moment late."""
        if isinstance(self.discovery, ZooKeeperDiscovery):
            topic_info = yield from _read_topic(self.discovery, topic, METADATA_WAIT)
            return 0 if topic_info is None else len(topic_info.partitions)
        until = time.monotonic() + TOPIC_PATIENCE
        while True:
            self.cluster.forget(topic)
            count = len((yield from self.partitions_of(topic)))
            if count > last or time.monotonic() >= until:
                return count
            yield LOOK_PAUSE

    def partitions_of(
        self, topic: str, timeout: float = METADATA_WAIT
    ) -> Steps[list[TopicPartition]]:
        check_name("topic", topic)
        began, cluster = time.monotonic(), self.cluster
        cluster.want(topic)
        while not (known := cluster.partitions(topic)):
            left = began + timeout - time.monotonic()
            if cluster.is_missing(topic):  # or new: brokers learn of it a moment late
                if isinstance(self.discovery, ZooKeeperDiscovery):
                    wait = max(LOOK_PAUSE, left)
                    is_missing = (yield from _read_topic(self.discovery, topic, wait)) is None
                else:
                    is_missing = time.monotonic() - began > TOPIC_PATIENCE
                if is_missing:
                    cluster.forget(topic)
                    raise errors.UnknownTopicOrPartition(
                        f"topic {topic} does not exist: create it with `folkmoot topic create {topic}`"
                    )
            if left <= 0:
                cluster.forget(topic)
                raise cluster.metadata_error or errors.UnknownTopicOrPartition(
                    f"no broker answered about topic {topic} within {timeout:g} s"
                )
            yield min(left, MAX_WAIT)
        return [TopicPartition(topic, number) for number in known]

    # -- offsets ----------------------------------------------------------------------------------

    def commit(
        self,
        offsets: Mapping[TopicPartition, int | OffsetAndMetadata] | None = None,
        timeout: float = 30.0,
        *,
        wait: bool = True,
    ) -> Steps[None]:
        """With `offsets` any thread may take these steps."""
        deadline, group = time.monotonic() + timeout, self.group
        if group is None:
            raise errors.ConfigError("there is no group to commit to: give group=… and topics=…")
        wanted, metadata = dict[TopicPartition, int](), dict[TopicPartition, str]()
        if offsets is None:
            if not self.in_callback:  # else the processed records are known: none is under way
                self.positions.settle()
                self.positions.process_all()
            wanted = self.positions.uncommitted(group.epochs, sought=True)
        else:
            for key, value in offsets.items():
                partition = partition_of(key)
                wanted[partition], text = offset_and_metadata(str(partition), value)
                if text:
                    metadata[partition] = text
        beyond: dict[TopicPartition, str] = {}
        for partition, offset in wanted.items():
            topic_id, end = self.fetcher.topic_id_and_end(partition)
            known = max(end, self.positions.group.floor(partition))
            if partition in group.epochs and offset > known:
                beyond[partition] = topic_id
        if beyond:
            yield BlockingWork(partial(self._check_within_logs, wanted, beyond, timeout))
        until = min(deadline, group.leave_by) if wait else None
        yield from group.commits.commit(wanted, metadata, until)

    def _check_within_logs(
        self,
        wanted: Mapping[TopicPartition, int],
        beyond: Mapping[TopicPartition, str],
        timeout: float,
    ) -> None:
        """Ask the leaders. Raises OffsetOutOfRange, or why none answered."""
        # The known brokers first: the group's session may have ended, which the commit reports.
        known = [self.cluster.addresses()]

        def discover() -> Sequence[str] | None:
            return (known.pop() if known else ()) or self.discovery()

        try:
            ends = offsets_at(LATEST, self.config, discover, beyond, timeout)[0]
        except errors.ZooKeeperUnreachable:
            return  # the commit needs it as well
        for partition, end in sorted(ends.items()):
            if is_beyond(wanted[partition], end):
                raise errors.OffsetOutOfRange(
                    f"nothing was committed: {wanted[partition]} in {partition} lies behind the log's end, "
                    f"which is {end}: commit what was handed out"
                )

    def committed(
        self, partitions: TopicPartition | Iterable[TopicPartition]
    ) -> Steps[int | dict[TopicPartition, OffsetAndMetadata | None] | None]:
        discovery = self.discovery
        if self.config.group is None or isinstance(discovery, Bootstrap):
            raise errors.ConfigError("without a group nothing is committed: give group=…")
        is_single, wanted = False, list[TopicPartition]()
        match partitions:
            case (str(), SupportsIndex()):
                is_single, wanted = True, [partition_of(partitions)]
            case _:
                wanted = [partition_of(partition) for partition in partitions]
        offsets: dict[TopicPartition, OffsetAndMetadata | None] = {}
        for first in range(0, len(wanted), LOOKUPS_AT_ONCE):
            chunk = wanted[first : first + LOOKUPS_AT_ONCE]
            offsets |= yield BlockingWork(partial(discovery.ask, self._committed(chunk)))
        return (
            next(offset and offset.offset for offset in offsets.values()) if is_single else offsets
        )

    def _committed(
        self, partitions: Iterable[TopicPartition]
    ) -> Recipe[dict[TopicPartition, OffsetAndMetadata | None]]:
        offsets: dict[TopicPartition, OffsetAndMetadata | None] = {}
        ids: dict[str, str | None] = {}
        for partition in partitions:
            state = yield from ownership.committed(self.config.group or "", partition)
            if partition.topic not in ids:
                topic = yield from topics.read(partition.topic)
                ids[partition.topic] = None if topic is None else topic.topic_id
            offsets[partition] = None
            if state is not None and state.offset is not None and ids[partition.topic] is not None:
                if state.topic_id in ("", ids[partition.topic]):
                    offsets[partition] = OffsetAndMetadata(state.offset, state.metadata)
        return offsets

    def position(self, partition: TopicPartition) -> int | None:
        cursor = self.positions.cursor
        if cursor is not None and cursor.view.topic_partition == partition:
            if (offset := cursor.next_offset) is not None:
                return offset
        return self.fetcher.position(partition)

    def end_offset(self, partition: TopicPartition) -> int | None:
        end = self.fetcher.end(partition)
        return None if end < 0 else end

    def beginning_offsets(
        self, partitions: Iterable[TopicPartition], timeout: float = 30.0
    ) -> Steps[dict[TopicPartition, int]]:
        return self._ends(partitions, EARLIEST, timeout)

    def end_offsets(
        self, partitions: Iterable[TopicPartition], timeout: float = 30.0
    ) -> Steps[dict[TopicPartition, int]]:
        return self._ends(partitions, LATEST, timeout)

    def _ends(
        self, partitions: Iterable[TopicPartition], timestamp: int, timeout: float
    ) -> Steps[dict[TopicPartition, int]]:
        wanted = [partition_of(partition) for partition in partitions]
        yield from self._check_exist(wanted)
        ids = {partition: self.cluster.topic_id(partition.topic) or "" for partition in wanted}
        look_up = partial(offsets_at, timestamp, self.config, self.discovery, ids, timeout)
        offsets: dict[TopicPartition, int] = (yield BlockingWork(look_up))[0]
        return offsets

    def offsets_for_times(
        self, times: Mapping[TopicPartition, datetime], timeout: float = 30.0
    ) -> Steps[dict[TopicPartition, int | None]]:
        yield from self._check_exist({partition_of(partition) for partition in times})
        look_up = partial(first_offsets, self.config, self.discovery, times, timeout)
        offsets: dict[TopicPartition, int | None] = yield BlockingWork(look_up)
        return offsets

    def seek(self, partition: TopicPartition, target: SeekTarget) -> None:
        self.hand_out.take_back()
        seek_to(self.fetcher, self.positions, partition, resolve_target(partition, target))

    def pause(self, *partitions: TopicPartition, paused: bool = True) -> None:
        self.hand_out.take_back()
        revoked = () if self.group is None else self.group.finishing
        for partition in map(partition_of, partitions):
            self.fetcher.pause(partition, paused or partition in revoked)

    def resume(self, *partitions: TopicPartition) -> None:
        self.pause(*partitions, paused=False)


def _limit(max_records: int | None, otherwise: int) -> int:
    return otherwise if max_records is None else check_int("max_records", max_records, least=1)


def _read_topic(
    discovery: ZooKeeperDiscovery, topic: str, timeout: float
) -> Steps[topics.TopicInfo | None]:
    info: topics.TopicInfo | None = yield BlockingWork(
        partial(discovery.ask, topics.read(topic), timeout)
    )
    return info
