"""The consumer: records of a group's partitions, or of partitions assigned by hand."""

import contextvars
import os
import signal
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from itertools import chain
from math import isnan
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, Final, Generic, Self, SupportsIndex, TypeVar, overload

from folkmoot.consumers.client.health import Health, health_of
from folkmoot.consumers.client.rebalance_listener import RebalanceListener, Starts, settings_of
from folkmoot.consumers.client.signals import Signalled
from folkmoot.consumers.config import ON_DECODE_ERROR, ConsumerConfig, OnDecodeError
from folkmoot.consumers.fetch.fetcher import Fetcher
from folkmoot.consumers.group.events import Rebalanced
from folkmoot.consumers.group.group_thread import Member
from folkmoot.consumers.lag import is_beyond
from folkmoot.consumers.offsets.offset_lookup import first_offsets, offsets_at
from folkmoot.consumers.offsets.progress import Positions
from folkmoot.consumers.offsets.seek_target import SeekTarget, go_on_at, place_of
from folkmoot.consumers.offsets.validation import offset_and_metadata, partition_of, whole
from folkmoot.consumers.records.batch_cursor import BatchCursor
from folkmoot.consumers.records.batch_view import RecordBatchView
from folkmoot.consumers.records.deserialization import Deserialization, Skipped
from folkmoot.coordination import topics
from folkmoot.coordination.connector import connector
from folkmoot.coordination.discovery import ZooKeeperDiscovery
from folkmoot.coordination.groups import ownership
from folkmoot.coordination.wakeup import Wakeup
from folkmoot.coordination.zookeeper.operations import Recipe
from folkmoot.coordination.zookeeper.session import Session
from folkmoot.network.bootstrap import Bootstrap
from folkmoot.network.client import Connections
from folkmoot.network.cluster import Cluster
from folkmoot.protocol.errors import (
    ClosedError,
    ConcurrentUse,
    ConfigError,
    DeserializationError,
    NotAssigned,
    NotOwner,
    OffsetOutOfRange,
    RequestTimeout,
    UnknownTopicOrPartition,
    ZooKeeperUnreachable,
)
from folkmoot.protocol.messages import EARLIEST, LATEST
from folkmoot.protocol.names import check_name
from folkmoot.protocol.options import configured
from folkmoot.protocol.process.thread_log import thread_log
from folkmoot.protocol.records import K, OffsetAndMetadata, Record, TopicPartition, V

if TYPE_CHECKING:
    import pyarrow as pa

    from folkmoot.consumers.records.typed import TypedColumns
    from folkmoot.schemas.columns.deserializer import ColumnDeserializer

_Made = TypeVar("_Made")

CLOSE_TIMEOUT: Final = 10.0
METADATA_WAIT: Final = 15.0
TOPIC_PATIENCE: Final = 3.0
"""Without ZooKeeper a topic, or a partition, that brokers do not know is looked for so long."""
LOOK_PAUSE: Final = 0.1
TURN: Final = 1.0
"""An iteration waits for so long at a time."""
FETCH_PAUSE: Final = 0.002
"""As long as there are records to hand out, the network is looked at this often at most."""
ITERATED_RECORDS: Final = 10_000
TABLE_RECORDS: Final = 100_000
ALL_RECORDS: Final = 2**31
ASKED_AT_ONCE: Final = 100
"""Of so many partitions, one after the other, ZooKeeper tells within the time of one answer."""
_READS_NOTHING: Final = (
    "this consumer reads nothing: give group=… and topics=…, or call subscribe() or assign()"
)
_CALLED_BACK: Final = "a callback may not poll, subscribe or close: call stop() to end"

log = thread_log(__name__)


@dataclass(frozen=True, kw_only=True)
class ConsumerOptions(ConsumerConfig[K, V]):
    """Options of a `Consumer`, with the types of its callbacks."""

    on_assign: Callable[["Consumer[K, V]", list[TopicPartition]], Starts | None] | None = None
    on_revoke: Callable[["Consumer[K, V]", list[TopicPartition]], None] | None = None
    on_lost: Callable[["Consumer[K, V]", list[TopicPartition]], None] | None = None
    on_rebalance: Callable[["Consumer[K, V]", Rebalanced], None] | None = None
    on_decode_error: (
        OnDecodeError | Callable[["Consumer[K, V]", DeserializationError], OnDecodeError | None]
    ) = "raise"


class Consumer(Generic[K, V]):
    """Reads records, as a member of a group (`group` and `topics`) or of what `assign` names.

    ```
    with Consumer(zookeeper="localhost:2181", group="billing", topics=["orders"]) as consumer:
        for record in consumer:
            handle(record)
    ```

    At least once: a record counts as processed when the next one (or the next `poll`) is asked for,
    or when `commit` is called; only what is processed is committed: every `commit_interval`, when a
    partition is given up, and on close. Leaving the `with` block by an exception commits nothing
    that was not processed.

    Records, batches and tables may be read in turns. A batch is the producer's, of one partition;
    partitions take turns. An iteration over records gets each batch as a C iterator (BatchCursor):
    nothing here runs between two records of a batch, and what has to be done there (the group wants
    something, a commit is due, `stop`) cuts the iterator first, by `_wake`.

    `on_assign` runs before the first record is fetched: it may `seek`, or return where to go on, per
    partition. `on_revoke` runs while the partition is still ours: it may `commit`; also on close.
    `on_lost` runs when it no longer is. They run in the thread that polls, between two records, and
    may not poll or close themselves; what they raise comes out of `poll` or the iteration. On close
    they run in a thread of their own, since `close` ends in time whatever they do: what is kept per
    thread is not there. After an `on_assign` that raised, nothing is handed out before it has
    succeeded: asking again calls it again.

    Records have the types that `key_deserializer` and `value_deserializer` make: a `Consumer[str, Order]`
    hands out `Record[str, Order]`. Key and value may be None all the same: no key, a tombstone.

    What makes reading one partition impossible (an illegible batch, no offset to start at, its topic
    deleted, bytes that cannot be deserialized) is raised once, behind the good records in front of it,
    and stops that partition until a `seek`; the others go on. `on_decode_error` says what else may become
    of records that cannot be deserialized.

    The thread that started the consumer owns it; only `stop` and `health` may be called from others,
    and `stop` from signal handlers. It does not survive a fork: in the child process it is closed.

    Options: docs/configuration.md.
    """

    @configured(ConsumerOptions[K, V])
    def __init__(self, config: ConsumerOptions[K, V]) -> None:
        self.config = config
        self._deserialization = Deserialization(config.key_deserializer, config.value_deserializer)
        guarded = config.guardian and config.group is not None
        self._connect = connector(config.zookeeper, guarded=guarded)
        self._wakeup = Wakeup()
        self._attention = False  # the group wants something, or a commit is due
        self._waited = True  # the wakeup may have ended that: it is to be silenced
        self._fetched_at = 0.0  # when the network was looked at last
        self._cursor: BatchCursor | None = None
        """What is being iterated over."""
        self._columns: tuple[object, ColumnDeserializer] | None = None
        """What `poll_arrow` was given as a schema last, and what makes its columns."""
        self._taken: RecordBatchView | None = None
        """What it was made of: bytes."""
        self._stopped = self._closed = self._calling_back = False
        self._signals = ExitStack()
        """What `leave_on_signals` has yet to undo."""
        self._call_back_by: float | None = None
        self._thread: int | None = None
        self._process: int | None = None
        self._group: RebalanceListener | None = None
        self._discovery: ZooKeeperDiscovery | Bootstrap
        if config.bootstrap:
            self._discovery = Bootstrap(config.bootstrap, config.client_id, config.request_timeout)
        else:
            self._discovery = ZooKeeperDiscovery(
                self._session, config.session_timeout, config.listener
            )
        self._cluster = Cluster(
            Connections(config.client_id), self._discovery, listener=config.listener
        )
        self._positions = Positions()
        self._fetcher = Fetcher(
            *(config, self._cluster, time.monotonic),
            *(self._begin, self._positions.cut),
        )

    # -- life -------------------------------------------------------------------------------------

    def start(self) -> Self:
        """Find the cluster and join the group.

        Raises ZooKeeperUnreachable, with `bootstrap` BrokerUnreachable.
        """
        if self._closed:
            raise ClosedError("the consumer is closed: make another one")
        self._check_thread()
        if self._process is not None:
            return self
        if not (self.config.topics or self.config.pattern):
            self._discovery.open()
        else:
            self._join(self.config)
        self._process = os.getpid()
        return self

    def _join(self, config: ConsumerOptions[K, V]) -> None:
        member = Member(settings_of(config), self._connect, self._wake)
        try:
            member.start()
            self._group = RebalanceListener(
                *(config, member, self._fetcher, self._positions),
                *(self._call_back, self._wakeup),
            )
        except BaseException:  # also Ctrl-C: no member is left behind
            member.stop(0.0)
            raise

    def stop(self) -> None:
        """End the iteration after the record under way, and have `poll` and its like return nothing.

        From any thread, or a signal handler.
        """
        self._stopped = True
        if not self._is_forked:
            self._wake()

    def close(self, timeout: float = CLOSE_TIMEOUT) -> None:
        """Leave the group, with `auto_commit` after committing what was handed out; disconnect.

        Ends within `timeout` seconds, whatever is dead or hangs; what could not be committed comes
        again. Raises what a callback raises, after all is closed. In a forked child it does nothing.
        """
        if not self._closed and not self._is_forked:
            self._check_thread()
            if self._calling_back:
                raise ConcurrentUse(_CALLED_BACK)
            self._close(timeout, processed=True)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
            return
        try:
            if not self._closed and not self._is_forked:
                self._close(CLOSE_TIMEOUT, processed=False)
        except Exception as another:  # the first error is the one to be seen
            log.error("closing a consumer after an error: %s", another)

    # -- records ----------------------------------------------------------------------------------

    def poll(self, timeout: float = 1.0, max_records: int | None = None) -> list[Record[K, V]]:
        """Up to `max_records` records; waits at most `timeout` seconds for the first.

        No more than `buffer_bytes`, decompressed, but for the last batch. Asking says that everything
        handed out before is processed.
        """
        limit = _limit(max_records, self.config.max_poll_records)
        take = self._take_records if self._deserialization.is_wanted else None
        found: list[list[Record[Any, Any]]]
        found = self._read(timeout, limit, RecordBatchView.records, take=take)
        return found[0] if len(found) == 1 else list(chain.from_iterable(found))

    def poll_batch(
        self, timeout: float = 1.0, max_records: int | None = None
    ) -> RecordBatchView | None:
        """The next batch, or the next `max_records` of it; None if none comes within `timeout`."""
        return self._read_one(timeout, max_records, _as_it_is)

    def poll_arrow(
        self,
        timeout: float = 1.0,
        max_records: int | None = None,
        *,
        headers: bool = False,
        schema: "ColumnDeserializer | str | Mapping[str, Any] | Sequence[Any] | int | type | None" = None,
    ) -> "pa.Table":
        """What is there, up to `max_records` (100,000) and as `poll` in bytes, as an Arrow table; waits for
        the first row.

        Its columns are those of Spark's Kafka source: key, value, topic, partition, offset,
        timestamp, timestampType, and headers if asked for. With a `schema`, they are the fields of
        that one, and `_topic`, `_partition`, `_offset`, `_timestamp` (`_headers`); a value that cannot
        be read is treated as `on_decode_error` says, where bytes ("raw") have no place. It is a
        ColumnDeserializer, or, for a consumer with `value_deserializer=AvroDeserializer(registry)`, a
        reader's schema: text, Python values, an id, or a class. Raises MissingExtra without pyarrow,
        ConfigError for a field that is named as what stands beside it.
        """
        limit = _limit(max_records, TABLE_RECORDS)
        if schema is not None:
            return self._poll_typed(timeout, limit, schema, headers)
        from folkmoot.consumers.records.arrow import table

        make = partial(RecordBatchView.arrow, headers=headers)
        return table(self._read(timeout, limit, make), headers=headers)

    def _poll_typed(self, timeout: float, limit: int, schema: object, headers: bool) -> "pa.Table":
        from folkmoot.consumers.records.typed import TypedColumns, columns_of

        if self._columns is None or self._columns[0] != schema:  # what it has looked up is kept
            self._columns = schema, columns_of(schema, self.config.value_deserializer)
        columns = TypedColumns(self._columns[1], headers, self.config.on_decode_error)
        take = partial(self._take_made, columns)
        made = self._read(timeout, limit, columns.batch_of, take=take)
        self._fetcher.counters.records_skipped += columns.skipped
        return columns.table(made)

    def __iter__(self) -> Iterator[Record[K, V]]:
        """Records one by one, until `stop` is called. It may be left and begun again at any record."""
        return chain.from_iterable(self._cursors())

    def batches(self, max_records: int | None = None) -> Iterator[RecordBatchView]:
        """Batch after batch, until `stop` is called; cut where they have more than `max_records`."""
        return self._iterate(max_records, _as_it_is)

    def arrow(
        self, max_records: int | None = None, *, headers: bool = False
    ) -> Iterator["pa.RecordBatch"]:
        """Batch after batch as Arrow, until `stop` is called. Raises MissingExtra without pyarrow."""
        return self._iterate(max_records, partial(RecordBatchView.arrow, headers=headers))

    # -- partitions and the group -----------------------------------------------------------------

    def assignment(self) -> frozenset[TopicPartition]:
        """The partitions that this consumer reads now."""
        return frozenset(self._fetcher.partitions())

    def subscribe(self, topics: Sequence[str] = (), pattern: str = "") -> None:
        """Have the group divide these topics, too; this member wants no others from now on.

        As `topics` and `pattern` of the constructor, which may leave them out. A member leaves its group
        in order (see `unsubscribe`) and joins it anew. Raises ConfigError, ZooKeeperUnreachable.
        """
        self._check_free()
        config = replace(self.config, topics=topics, pattern=pattern)
        if not (topics or pattern):
            raise ConfigError("there is nothing to subscribe to: name topics, or give a pattern")
        if self._group is None and self.assignment():
            raise ConfigError(
                "partitions were assigned by hand: take them back by assign([]) first"
            )
        self.unsubscribe()
        self._discovery.close()  # the member has a session of its own
        self._join(config)

    def unsubscribe(self, timeout: float = CLOSE_TIMEOUT) -> None:
        """Leave the group; with `auto_commit` after committing what was handed out.

        Without a group it changes nothing. What is not given up after `timeout` seconds others take.
        Raises what a callback raises, after the group is left.
        """
        self._check_free()
        if self._group is None:
            return
        self._take_back()
        self._positions.process_all()
        self._calling_back = True
        try:
            self._group.leave(time.monotonic() + timeout)
        finally:
            self._calling_back = False
            self._group.member.stop(0.0)
            for partition in self.assignment():  # what was not given up in time
                self._fetcher.give_up(partition)
                self._positions.release(partition)
            self._group = None

    def assign(
        self,
        partitions: Iterable[tuple[str, int]] | Mapping[tuple[str, int], SeekTarget | None],
    ) -> None:
        """Read exactly these partitions, without a group.

        Given as a mapping, from where it says, as by `seek`: `{("orders", 0): 17}`. Others, and what is
        None, go on where they are, or begin as `auto_offset_reset` says. Raises UnknownTopicOrPartition,
        ConfigError.
        """
        self._check_usable()
        if self._group is not None:
            raise ConfigError(
                "a member gets its partitions by its group: unsubscribe() before assign()"
            )
        wanted = {partition_of(each) for each in partitions}
        starts = partitions if isinstance(partitions, Mapping) else {}
        places = {
            partition_of(each): place_of(partition_of(each), target)
            for each, target in starts.items()
            if target is not None
        }
        self._check_exist(wanted)
        self._take_back()
        for partition in self.assignment() - wanted:
            self._fetcher.give_up(partition)
            self._positions.forget(partition)
        for partition in sorted(wanted - self.assignment()):
            self._fetcher.add(partition, None)
        for partition, place in places.items():
            go_on_at(self._fetcher, self._positions, partition, place)

    def _check_exist(self, wanted: Collection[TopicPartition]) -> None:
        """Raises UnknownTopicOrPartition, or why no broker told."""
        for topic in {partition.topic for partition in wanted}:
            numbers = {each.partition for each in wanted if each.topic == topic}
            count = len(self.partitions_of(topic))
            if not numbers <= {*range(count)}:
                count = self._count_anew(topic, max(numbers))  # some may have been added
            unknown = sorted(numbers - {*range(count)})
            if unknown:
                raise UnknownTopicOrPartition(
                    f"partition {unknown[0]} does not exist: "
                    f"topic {topic} has {count}, numbered from 0"
                )

    def _count_anew(self, topic: str, last: int) -> int:
        """How many partitions a topic has now, whatever was known of it: brokers may learn a moment late
        that there is a `last` one."""
        if isinstance(self._discovery, ZooKeeperDiscovery):
            found = self._discovery.ask(topics.read(topic), METADATA_WAIT)
            return 0 if found is None else len(found.partitions)
        until = time.monotonic() + TOPIC_PATIENCE
        while True:
            self._cluster.forget(topic)
            count = len(self.partitions_of(topic))
            if count > last or time.monotonic() >= until:
                return count
            self._fetcher.poll(LOOK_PAUSE)

    def partitions_of(self, topic: str, timeout: float = METADATA_WAIT) -> list[TopicPartition]:
        """All partitions of a topic. Raises UnknownTopicOrPartition, InvalidName, or why no broker told."""
        self._check_usable()
        check_name("topic", topic)
        began, cluster = time.monotonic(), self._cluster
        cluster.want(topic)
        while not (known := cluster.partitions(topic)):
            left = began + timeout - time.monotonic()
            if cluster.is_missing(topic) and self._is_gone(topic, began, max(LOOK_PAUSE, left)):
                cluster.forget(topic)
                raise UnknownTopicOrPartition(
                    f"topic {topic} does not exist: create it with `folkmoot topic create {topic}`"
                )
            if left <= 0:
                cluster.forget(topic)
                raise cluster.trouble or UnknownTopicOrPartition(
                    f"no broker told about topic {topic} within {timeout:g} s"
                )
            self._fetcher.poll(min(left, TURN))
        return [TopicPartition(topic, number) for number in known]

    def _is_gone(self, topic: str, since: float, timeout: float) -> bool:
        """Whether a topic that brokers do not know is none: they learn of a new one a moment late."""
        if isinstance(self._discovery, ZooKeeperDiscovery):
            return self._discovery.ask(topics.read(topic), timeout) is None
        return time.monotonic() - since > TOPIC_PATIENCE

    def fencing_token(self, partition: TopicPartition) -> int:
        """The epoch of our claim on a partition; it grows with every owner. Raises NotOwner.

        Whoever writes results elsewhere keeps the highest token it has seen beside them and refuses
        a lower one: so a member that lost the partition without knowing cannot write any more.
        """
        owned = {} if self._group is None else self._group.epochs
        if partition not in owned:
            raise NotOwner(f"{partition} is not owned by this consumer")
        return owned[partition]

    def health(self) -> Health:
        """How it stands. From any thread, and never waits: for probes."""
        return health_of(self._group, self._fetcher, self._closed)

    def metrics(self) -> dict[str, float]:
        """Counters since the start (see `ConsumerCounters`), and how things stand now. From any thread."""
        group = self._group  # read once: any thread may ask
        member = None if group is None else group.member
        return {
            **self._fetcher.metrics(),
            "rebalances": 0 if member is None else member.rebalances,
            "commits": 0 if member is None else member.commits,
            "commit_seconds": 0.0 if member is None else member.commit_seconds,
            "fenced_commits": 0 if member is None else member.state.owned.fenced_commits,
            "lost_partitions": 0 if member is None else member.state.owned.lost,
        }

    @contextmanager
    def leave_on_signals(self, *signals: signal.Signals) -> Iterator[Signalled]:
        """While it lasts, the first of these signals (SIGTERM and SIGINT) stops the consumer.

        ```
        with Consumer(…) as consumer, consumer.leave_on_signals() as signalled:
            for record in consumer:
                handle(record)
        ```

        The iteration ends after the record under way, and leaving the `with` block gives partitions
        up, commits, and leaves the group. What is yielded is true once a signal came, and called it tells
        which came first, if any. A second Ctrl-C interrupts at once, a second SIGTERM does nothing. What
        handled the signals before does so again afterwards: if one came, when the consumer is closed.
        Raises ConcurrentUse off the main thread, which alone may handle signals.
        """
        if threading.current_thread() is not threading.main_thread():
            raise ConcurrentUse(
                "only the main thread may handle signals: call leave_on_signals() there, or stop() from a "
                "handler of your own"
            )
        signalled = Signalled()

        def handle(number: int, frame: FrameType | None) -> None:
            signalled.came.append(signal.Signals(number))
            if signal.SIGINT in before:
                signal.signal(signal.SIGINT, signal.default_int_handler)
            self.stop()

        before = {each: signal.getsignal(each) for each in signals or _USUAL_SIGNALS}
        try:
            for each in before:
                signal.signal(each, handle)
            yield signalled
        finally:
            for each, handler in before.items():
                self._signals.callback(signal.signal, each, handler)
            # Some tell the process and then its group, as `timeout` does: that disturbs no close.
            if not signalled or self._closed:
                self._signals.close()

    # -- offsets ----------------------------------------------------------------------------------

    def commit(
        self,
        offsets: Mapping[TopicPartition, int | OffsetAndMetadata] | None = None,
        timeout: float = 30.0,
    ) -> None:
        """Commit the next offsets to process; without `offsets`, of everything handed out so far.

        An OffsetAndMetadata has a text beside the offset (at most 512 bytes), for `committed` to tell
        until the next commit of the partition. After a `seek` to an offset, of which nothing was handed
        out yet, that is the offset sought.

        Raises NotOwner if a partition is no longer ours, CommitBehind if more of it is committed
        already (the others are committed in both cases), RequestTimeout if ZooKeeper did not answer in
        time (then the commit may still come to pass), and InstanceReplaced. Nothing is committed where it
        raises ConfigError for what is no offset, OffsetOutOfRange for one that lies behind the log's end,
        or BrokerUnreachable if no broker tells that in time.
        """
        self._check_usable()
        began = time.monotonic()
        if self._group is None:
            raise ConfigError("there is no group to commit to: give group=… and topics=…")
        metadata: dict[TopicPartition, str] = {}
        if offsets is None:
            if not self._calling_back:  # else what is processed is known: nothing is under way
                if self._cursor is not None:
                    self._settle(self._cursor)
                self._positions.process_all()
            wanted = self._positions.uncommitted(self._group.epochs, sought=True)
        else:
            wanted = {}
            for each, offset in offsets.items():
                partition = partition_of(each)
                wanted[partition], text = offset_and_metadata(str(partition), offset)
                if text:
                    metadata[partition] = text
        self._check_within_logs(wanted, timeout)
        self._group.commit(wanted, max(0.0, began + timeout - time.monotonic()), metadata)

    def _check_within_logs(self, wanted: Mapping[TopicPartition, int], timeout: float) -> None:
        """Leaders are asked of what was not fetched here alone. Raises OffsetOutOfRange, or why none told."""
        owned = () if self._group is None else self._group.epochs
        beyond = {
            each: self._cluster.topic_id(each.topic) or ""
            for each, offset in wanted.items()
            if each in owned and offset > max(self._fetcher.end(each), self._positions.floor(each))
        }
        if not beyond:
            return
        known = self._cluster.addresses()

        def discover() -> Sequence[str] | None:
            """The brokers that are known first: the group's session may be over, which the commit says."""
            nonlocal known
            found, known = known, []
            return found or self._discovery()

        try:
            ends = offsets_at(LATEST, self.config, discover, beyond, timeout)[0]
        except ZooKeeperUnreachable:
            return  # the commit needs it as well
        for each, end in sorted(ends.items()):
            if is_beyond(wanted[each], end):
                raise OffsetOutOfRange(
                    f"nothing was committed: {wanted[each]} in {each} lies behind the log's end, which is "
                    f"{end}: commit what was handed out"
                )

    @overload
    def committed(self, partitions: TopicPartition) -> int | None: ...

    @overload
    def committed(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, OffsetAndMetadata | None]: ...

    def committed(
        self, partitions: TopicPartition | Iterable[TopicPartition]
    ) -> int | dict[TopicPartition, OffsetAndMetadata | None] | None:
        """The group's committed offset of a partition; of several, what was said beside each, too.

        None if there is none for the topic that has this name now. Raises ZooKeeperUnreachable.
        """
        self._check_usable()
        if self.config.group is None or isinstance(self._discovery, Bootstrap):
            raise ConfigError("without a group nothing is committed: give group=…")
        is_one, wanted = False, list[TopicPartition]()
        match partitions:
            case (str(), SupportsIndex()):
                is_one, wanted = True, [partition_of(partitions)]
            case _:
                wanted = [partition_of(each) for each in partitions]
        found: dict[TopicPartition, OffsetAndMetadata | None] = {}
        for first in range(0, len(wanted), ASKED_AT_ONCE):
            some = wanted[first : first + ASKED_AT_ONCE]
            found |= self._discovery.ask(self._committed(some))
        return next(each and each.offset for each in found.values()) if is_one else found

    def _committed(
        self, partitions: Iterable[TopicPartition]
    ) -> Recipe[dict[TopicPartition, OffsetAndMetadata | None]]:
        found: dict[TopicPartition, OffsetAndMetadata | None] = {}
        ids: dict[str, str | None] = {}
        for each in partitions:
            state = yield from ownership.committed(self.config.group or "", each)
            if each.topic not in ids:
                topic = yield from topics.read(each.topic)
                ids[each.topic] = None if topic is None else topic.topic_id
            found[each] = None
            if state is not None and state.offset is not None and ids[each.topic] is not None:
                if state.topic_id in ("", ids[each.topic]):
                    found[each] = OffsetAndMetadata(state.offset, state.metadata)
        return found

    def position(self, partition: TopicPartition) -> int | None:
        """The next offset to be handed out; None while it is looked up. Raises NotAssigned.

        In a group a start that was looked up counts once it is committed, whatever `auto_commit` is.
        """
        self._check_usable()
        cursor = self._cursor
        if cursor is not None and cursor.view.topic_partition == partition:
            if (offset := cursor.next_offset) is not None:
                return offset
        return self._fetcher.position(partition)

    def end_offset(self, partition: TopicPartition) -> int | None:
        """The partition's end as the last fetch saw it; None before the first. Raises NotAssigned."""
        self._check_usable()
        end = self._fetcher.end(partition)
        return None if end < 0 else end

    def beginning_offsets(
        self, partitions: Iterable[TopicPartition], timeout: float = 30.0
    ) -> dict[TopicPartition, int]:
        """Where the logs of these partitions begin, as their leaders say; assigned or not.

        Raises UnknownTopicOrPartition, BrokerUnreachable, or why no broker told.
        """
        return self._ends(partitions, EARLIEST, timeout)

    def end_offsets(
        self, partitions: Iterable[TopicPartition], timeout: float = 30.0
    ) -> dict[TopicPartition, int]:
        """Where they end: the offset behind the last record that consumers can read. As above."""
        return self._ends(partitions, LATEST, timeout)

    def _ends(
        self, partitions: Iterable[TopicPartition], place: int, timeout: float
    ) -> dict[TopicPartition, int]:
        wanted = [partition_of(each) for each in partitions]
        self._check_exist(wanted)
        ids = {each: self._cluster.topic_id(each.topic) or "" for each in wanted}
        return offsets_at(place, self.config, self._discovery, ids, timeout)[0]

    def offsets_for_times(
        self, times: Mapping[TopicPartition, datetime], timeout: float = 30.0
    ) -> dict[TopicPartition, int | None]:
        """The first offset at each time or later; None: none yet.

        Raises UnknownTopicOrPartition, RequestTimeout, ConfigError, or why no broker told.
        """
        self._check_usable()
        self._check_exist({partition_of(each) for each in times})
        return first_offsets(self.config, self._discovery, times, timeout)

    def seek(self, partition: TopicPartition, target: SeekTarget) -> None:
        """Go on at an offset, at "earliest" or "latest", or at a time. Raises NotAssigned, ConfigError.

        What the group has committed does not go back by that: what is read again is committed from
        where it goes beyond.
        """
        self._check_usable()
        self._take_back()
        go_on_at(self._fetcher, self._positions, partition, place_of(partition, target))

    def pause(self, *partitions: TopicPartition) -> None:
        """Hand out nothing of these partitions until `resume`. Raises NotAssigned."""
        self._pause(partitions, True)

    def resume(self, *partitions: TopicPartition) -> None:
        """Undo `pause`. Raises NotAssigned."""
        self._pause(partitions, False)

    def _pause(self, partitions: Iterable[TopicPartition], paused: bool) -> None:
        self._check_usable()
        self._take_back()
        for partition in partitions:
            self._fetcher.pause(partition_of(partition), paused)

    # -- handing out ------------------------------------------------------------------------------

    def _read(
        self,
        timeout: float,
        limit: int,
        make: Callable[[RecordBatchView], _Made | None],
        *,
        one: bool = False,
        take: Callable[[int], RecordBatchView | Skipped | None] | None = None,
    ) -> list[_Made]:
        """What `make` makes of batches of up to `limit` records in all, or of one; waits for the first.

        Together they have up to `buffer_bytes`, decompressed, but for the last one.
        Nothing counts as handed out before all that could raise is behind us.
        """
        deadline = time.monotonic() + timeout
        if isnan(deadline):  # that moment never comes
            raise ValueError(f"timeout={timeout} is no number of seconds")
        take, rotation = take or self._fetcher.take_view, self._fetcher.rotation
        most = self.config.buffer_bytes
        self._ask_for_more()
        while True:
            self._serve()
            rotation.begin()
            try:
                views: list[RecordBatchView | Skipped] = []
                left = limit
                while left > 0 and rotation.taken_bytes < most and not self._stopped:
                    if (view := take(left)) is None:
                        break
                    views.append(view)
                    # The group is looked at behind a record that is skipped: there may be many.
                    left = 0 if one or isinstance(view, Skipped) else left - len(view)
                all_made = (make(view) for view in views if isinstance(view, RecordBatchView))
                made = [each for each in all_made if each is not None]
                remaining = deadline - time.monotonic()
                is_over = bool(made) or remaining <= 0 or self._stopped or self._is_wanted()
                if views:
                    self._keep_fetching()
                else:
                    self._fetch(0.0 if is_over else min(remaining, TURN))
                for view in views:
                    self._hand_out(view.topic_partition, view.next_offset)
            except BaseException:
                rotation.read_again()
                raise
            if is_over:
                return made

    def _read_one(
        self, timeout: float, max_records: int | None, make: Callable[[RecordBatchView], _Made]
    ) -> _Made | None:
        found = self._read(timeout, _limit(max_records, ALL_RECORDS), make, one=True)
        return found[0] if found else None

    def _iterate(
        self, max_records: int | None, make: Callable[[RecordBatchView], _Made]
    ) -> Iterator[_Made]:
        while not self._stopped:
            found = self._read_one(TURN, max_records, make)
            if found is not None:
                yield found

    def _cursors(self) -> Iterator[Iterator[Record[Any, Any]]]:
        while not self._stopped:
            if (cursor := self._next_cursor()) is not None:
                yield cursor.records

    def _next_cursor(self) -> BatchCursor | None:
        """Records of one partition to be iterated over; None if none came within a turn.

        What the group wants is served between any two of them: `_wake` cuts the cursor. The rest
        is taken back by whoever looks at the consumer next: by the caller's next round, or by a
        method that the loop's body calls.
        """
        self._ask_for_more()
        self._serve()
        self._fetcher.rotation.begin()
        try:
            view = self._take_records(ITERATED_RECORDS)
            if view is None:
                self._fetch(TURN)
                return None
            self._keep_fetching()
            if isinstance(view, Skipped):
                self._positions.of(view.topic_partition).handed_out = view.next_offset
                return None
            self._cursor = cursor = BatchCursor(view)
        except BaseException:
            self._fetcher.rotation.read_again()
            raise
        if self._attention or self._stopped:  # it may have been said before there was this to cut
            cursor.cut()
        return cursor

    def _take_records(self, limit: int) -> RecordBatchView | Skipped | None:
        """The records whose turn it is, with what the application's deserializers make of their bytes.

        Those in front of one of which nothing can be made. That one comes next, alone: it is skipped,
        handed out in bytes, or its error is told.
        """
        if not self._deserialization.is_wanted:
            self._taken = self._fetcher.take_view(limit)
            return self._taken
        return self._take_made(self._deserialization, min(limit, self.config.max_poll_records))

    def _take_made(
        self, deserialization: "Deserialization | TypedColumns", limit: int
    ) -> RecordBatchView | Skipped | None:
        while (view := self._fetcher.take_view(limit)) is not None:
            made, failed = deserialization.rows_of(view)
            self._taken = view.part(0, max(1, len(made)))
            if failed is None:
                return made
            if not isinstance(failed, DeserializationError):
                raise failed  # it may have gone by the next time
            what = self._asked_about(failed) if len(made) == 0 else None
            if what == "raise":
                self._fetcher.stop_at(view.topic_partition, view.offsets[0], failed)
                continue
            self._fetcher.rotation.put_back(view, len(self._taken))
            if what is None:
                return made
            if what == "raw":
                return deserialization.raw(self._taken)
            self._fetcher.counters.records_skipped += 1
            return Skipped(view.topic_partition, view.offsets[0] + 1)
        return None

    def _asked_about(self, error: DeserializationError) -> OnDecodeError:
        """What is to become of a record of which nothing can be made. Raises what the callback raises."""
        what = self.config.on_decode_error
        if not callable(what):
            return what
        self._calling_back = True
        try:
            said = self._call_back("on_decode_error", error)
        finally:
            self._calling_back = False
        if said is not None and said not in ON_DECODE_ERROR:
            raise ConfigError(
                f"on_decode_error may return 'raise', 'skip', 'raw' or None, not {said!r:.80}"
            )
        return said or "skip"

    def _ask_for_more(self) -> None:
        """Everything handed out before is processed."""
        self._check_free()
        if self._group is None and not self._fetcher.partitions():
            raise NotAssigned(_READS_NOTHING)
        self._take_back()
        self._positions.end_turn()

    def _settle(self, cursor: BatchCursor) -> None:
        """Write down how far the iteration has come."""
        progress = self._positions.of(cursor.view.topic_partition)
        progress.advance(*cursor.progress())

    def _take_back(self) -> None:
        """End the iteration over a batch: what was not handed out of it goes back to the fetcher."""
        cursor = self._cursor
        if cursor is not None:
            cursor.cut()
            self._settle(cursor)
            if self._taken is not None:
                self._fetcher.rotation.put_back(self._taken, cursor.row)
            self._cursor = None

    def _hand_out(self, partition: TopicPartition, end: int) -> None:
        """What was taken of a partition, up to `end`, is the application's now."""
        self._positions.of(partition).handed_out = end

    def _keep_fetching(self) -> None:
        """Ask for what follows, and take what has come, so often that neither has to wait."""
        if time.monotonic() - self._fetched_at >= FETCH_PAUSE:
            self._fetch(0.0)

    def _fetch(self, timeout: float) -> None:
        self._waited = True
        is_urgent = self._attention or self._is_wanted() or self._fetcher.stopped() is not None
        self._fetcher.poll(0.0 if is_urgent else timeout, self._wakeup)
        if self._group is not None:
            self._group.commit_starts()
        self._fetcher.ask()  # so that it is on its way while what has come is handed out
        self._fetched_at = time.monotonic()

    def _begin(self, partition: TopicPartition, offset: int, by_policy: bool) -> bool:
        """Where to start was looked up; whether the group has to commit that before it is read."""
        self._positions.begin(partition, offset)
        return by_policy and self._group is not None and self._group.starts_at(partition, offset)

    def _is_wanted(self) -> bool:
        """Whether this thread has other things to do than to wait for records."""
        return False

    # -- the group --------------------------------------------------------------------------------

    def _session(self, session_timeout: float) -> Session | None:
        """What to ask ZooKeeper in: the member's session, if there is one, or another."""
        group = self._group  # read once: it is asked for on any thread
        return self._connect(session_timeout) if group is None else group.member.session

    def _serve(self) -> None:
        if self._attention or self._waited:  # what wakes us later ends the next wait
            self._attention = self._waited = False
            self._wakeup.clear()
        if self._group is not None:
            self._calling_back = True
            try:
                self._group.serve()
            finally:
                self._calling_back = False
        self._fetcher.check()

    def _call_back(self, name: str, notice: Any) -> Any:
        """What the application's callback returns; on close, RequestTimeout if it does not end in time.

        There it is called in another thread, which is the one that owns the consumer meanwhile, and is
        left to itself in the end.
        """
        callback: Callable[[Consumer[K, V], Any], Any] | None = getattr(self.config, name)
        if callback is None or self._call_back_by is None:
            return None if callback is None else callback(self, notice)
        owner, call, outcome = self._thread, callback, Future[Any]()

        def own_and_call() -> None:
            self._thread = threading.get_ident()
            try:
                outcome.set_result(call(self, notice))
            except BaseException as error:
                outcome.set_exception(error)

        here = contextvars.copy_context()
        thread = threading.Thread(target=here.run, args=(own_and_call,), name="folkmoot-callback")
        thread.daemon = True
        thread.start()
        try:
            return outcome.result(max(0.0, self._call_back_by - time.monotonic()))
        except TimeoutError:
            if outcome.done():  # the callback's own
                raise
            raise RequestTimeout(
                "a callback did not end before the consumer had to be closed"
            ) from None
        finally:
            self._thread = owner

    def _wake(self) -> None:
        """Have what the group wants served soon. From any thread, or a signal handler."""
        self._attention = True
        cursor = self._cursor
        if cursor is not None:
            cursor.cut()
        self._wakeup.wake()

    def _close(self, timeout: float, *, processed: bool) -> None:
        """Whatever interrupts it, nothing is left open; `processed`: so is all that was handed out."""
        deadline = time.monotonic() + timeout
        try:
            self._take_back()
            if processed:
                self._positions.process_all()
            self._calling_back = True
            # The rest of the time is the member's, to end its session.
            self._call_back_by = deadline - min(1.0, timeout / 4)
            if self._group is not None:
                self._group.leave(deadline)
        finally:
            self._closed = True
            if self._group is not None:  # whose session it is
                self._group.member.stop(0.0)
            else:
                self._discovery.close()
            self._cluster.close()
            self._wakeup.close()
            if threading.current_thread() is threading.main_thread():
                self._signals.close()

    # -- who may call -----------------------------------------------------------------------------

    @property
    def _is_forked(self) -> bool:
        """This is a child of the process that started it: the threads are not here, and what the two
        have in common (sockets, the session) is the parent's."""
        return self._process is not None and self._process != os.getpid()

    def _check_free(self) -> None:
        """Usable, and not within a callback, which would end what it is called by."""
        self._check_usable()
        if self._calling_back:
            raise ConcurrentUse(_CALLED_BACK)

    def _check_usable(self) -> None:
        if (self._process, self._thread) == (os.getpid(), threading.get_ident()):
            if not self._closed:
                return
        if not self._is_forked and (self._closed or self._process is None):
            raise ClosedError("the consumer is not open: use it in a with block, or call start()")
        self._check_thread()

    def _check_thread(self) -> None:
        """One thread owns the consumer: the one that started it."""
        if self._is_forked:
            raise ClosedError("the consumer was made before a fork: make one in each process")
        here = threading.get_ident()
        if self._thread is None:
            self._thread = here
        elif self._thread != here:
            raise ConcurrentUse("a consumer belongs to the thread that started it: only stop() may")


_USUAL_SIGNALS: Final[Sequence[signal.Signals]] = (signal.SIGTERM, signal.SIGINT)


def _limit(max_records: int | None, otherwise: int) -> int:
    return otherwise if max_records is None else whole("max_records", max_records, least=1)


def _as_it_is(view: RecordBatchView) -> RecordBatchView:
    return view
