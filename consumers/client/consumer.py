"""The consumer: records of a group's partitions, or of partitions assigned by hand."""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from itertools import chain
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar, overload

from folkmoot.consumers.client.callbacks import call_in_thread, call_now
from folkmoot.consumers.client.core import CLOSE_TIMEOUT, MAX_WAIT, METADATA_WAIT, ConsumerCore
from folkmoot.consumers.client.face import ConsumerFace
from folkmoot.consumers.client.rebalance_listener import Starts
from folkmoot.consumers.client.signals import SignalHandlers
from folkmoot.consumers.client.steps import Answer, BlockingWork, Steps
from folkmoot.consumers.config import ConsumerConfig, OnDecodeError
from folkmoot.consumers.group.events import Rebalanced
from folkmoot.consumers.offsets.seek_target import SeekTarget
from folkmoot.consumers.records.batch_view import RecordBatchView
from folkmoot.protocol.errors import ClosedError, ConcurrentUse, DeserializationError
from folkmoot.protocol.options import configured
from folkmoot.protocol.process.thread_log import thread_log
from folkmoot.protocol.records import K, OffsetAndMetadata, Record, TopicPartition, V

if TYPE_CHECKING:
    import pyarrow as pa

    from folkmoot.schemas.columns.deserializer import ColumnDeserializer

_Result = TypeVar("_Result")
_T = TypeVar("_T")

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


class Consumer(ConsumerFace[K, V]):
    """Reads records, as a member of a group (`group` and `topics`) or of what `assign` names.

    ```
    with Consumer(zookeeper="localhost:2181", group="billing", topics=["orders"]) as consumer:
        for record in consumer:
            handle(record)
    ```

    Delivery is at least once. A record counts as processed at the next one, the next `poll`, or `commit`.
    Processed offsets are committed every `commit_interval`, with a partition's release, and on close.
    Leaving the `with` block by an exception commits nothing that was not processed.

    Records, batches and tables may be read in turns. A batch is the producer's, of one partition;
    partitions take turns. An iteration over records gets each batch as a C iterator (BatchCursor): no
    Python runs between two of its records. The group, a due commit and `stop` cut it first.

    `on_assign` runs before the first record is fetched: it may `seek`, or return a start per partition.
    `on_revoke` runs while the partition is still ours, also on close: it may `commit`. `on_lost` runs
    after a loss. They run in the thread that polls, between two records, and may not poll or close; what
    they raise comes out of `poll` or the iteration. On close they run in a thread of their own, without
    the owner's thread-local data, because `close` must end in time. After an `on_assign` that raised,
    nothing is handed out: the next poll calls it again.

    Records have the types that `key_deserializer` and `value_deserializer` make: a `Consumer[str, Order]`
    hands out `Record[str, Order]`. Key and value may still be None: no key, a tombstone.

    An error of one partition (an illegible batch, no offset to start at, a deleted topic, bytes that
    cannot be deserialized) is raised once, after the good records before it. It stops that partition until
    a `seek`; the others continue. `on_decode_error` has other ways for the last kind.

    The thread that started the consumer owns it. Others may call `stop`, `health` and `metrics`, and
    `commit` with offsets; signal handlers only `stop`. In a forked child it is closed.

    Options: docs/configuration.md.
    """

    @configured(ConsumerOptions[K, V])
    def __init__(self, config: ConsumerOptions[K, V]) -> None:
        self.config = config
        self._core = ConsumerCore[K, V](config, self._call_back)
        self._signals = SignalHandlers(self.stop)
        self._thread: int | None = None
        self._is_closing = False

    # -- life -------------------------------------------------------------------------------------

    def start(self) -> Self:
        """Find the cluster and join the group.

        Raises ZooKeeperUnreachable, with `bootstrap` BrokerUnreachable.
        """
        if self._core.life.is_closed:
            raise ClosedError("the consumer is closed: make another one")
        self._core.life.check_process()
        self._check_thread()
        if self._core.life.is_new:
            self._core.open()
        return self

    def close(self, timeout: float = CLOSE_TIMEOUT) -> None:
        """Leave the group, with `auto_commit` after a commit of all that was handed out; disconnect.

        Ends within `timeout` seconds in any case; uncommitted records come again. Raises what a callback
        raises, after all is closed. In a forked child it does nothing.
        """
        if not self._core.life.is_closed and not self._core.life.is_forked:
            self._check_thread()
            if self._core.in_callback:
                raise ConcurrentUse(_CALLED_BACK)
            self._close(timeout, processed=True)

    def _close(self, timeout: float, *, processed: bool) -> None:
        owner, self._is_closing = self._thread, True
        try:
            self._run(self._core.close(timeout, processed=processed))
        finally:
            self._thread = owner
            if threading.current_thread() is threading.main_thread():
                self._signals.close()

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
            if not self._core.life.is_closed and not self._core.life.is_forked:
                self._close(CLOSE_TIMEOUT, processed=False)
        except Exception as another:  # raise the first error
            log.error("closing a consumer after an error: %s", another)

    # -- records ----------------------------------------------------------------------------------

    def poll(self, timeout: float = 1.0, max_records: int | None = None) -> list[Record[K, V]]:
        """Return up to `max_records` records; wait at most `timeout` seconds for the first.

        Without the last batch they have at most `buffer_bytes`, decompressed. All that was handed out before
        counts as processed.
        """
        return self._run_alone(self._core.poll(timeout, max_records))

    def poll_batch(
        self, timeout: float = 1.0, max_records: int | None = None
    ) -> RecordBatchView | None:
        """Return the next batch, or the next `max_records` of it; None if none comes within `timeout`."""
        view: RecordBatchView | None = self._run_alone(self._core.poll_batch(timeout, max_records))
        return view

    def poll_arrow(
        self,
        timeout: float = 1.0,
        max_records: int | None = None,
        *,
        headers: bool = False,
        schema: "ColumnDeserializer | str | Mapping[str, Any] | Sequence[Any] | int | type | None" = None,
    ) -> "pa.Table":
        """Return the next records as an Arrow table, at most `max_records` (100,000), with `poll`'s limit in
        bytes; wait for the first.

        Its columns are those of Spark's Kafka source: key, value, topic, partition, offset, timestamp,
        timestampType, and with `headers` headers. With a `schema` they are its fields, and `_topic`,
        `_partition`, `_offset`, `_timestamp` (`_headers`). `on_decode_error` decides about values that
        cannot be read; "raw" is not possible. The schema is a ColumnDeserializer, or, for a consumer with
        `value_deserializer=AvroDeserializer(registry)`, a reader's schema: text, Python values, an id, or a
        class. Raises MissingExtra without pyarrow, ConfigError if a field has the name of another column.
        """
        return self._run_alone(
            self._core.poll_arrow(timeout, max_records, headers=headers, schema=schema)
        )

    def __iter__(self) -> Iterator[Record[K, V]]:
        """Yield records until `stop` is called. The loop may be left and begun again at any record."""
        return chain.from_iterable(self._cursors())

    def _cursors(self) -> Iterator[Iterator[Record[Any, Any]]]:
        while not self._core.life.stopped:
            if (cursor := self._run_alone(self._core.next_cursor())) is not None:
                yield cursor.records

    def batches(self, max_records: int | None = None) -> Iterator[RecordBatchView]:
        """Yield batches until `stop` is called; longer ones in parts of `max_records`."""
        return self._iterate(max_records, lambda view: view)

    def arrow(
        self, max_records: int | None = None, *, headers: bool = False
    ) -> Iterator["pa.RecordBatch"]:
        """Yield batches as Arrow until `stop` is called. Raises MissingExtra without pyarrow."""
        return self._iterate(max_records, partial(RecordBatchView.arrow, headers=headers))

    def _iterate(
        self, max_records: int | None, make: Callable[[RecordBatchView], _Result]
    ) -> Iterator[_Result]:
        while not self._core.life.stopped:
            item = self._run_alone(self._core.poll_batch(MAX_WAIT, max_records, make))
            if item is not None:
                yield item

    # -- partitions and the group -----------------------------------------------------------------

    def subscribe(self, topics: Sequence[str] = (), pattern: str = "") -> None:
        """Subscribe to these topics, in place of those before.

        As `topics` and `pattern` of the constructor, where they may be omitted. A member first leaves its
        group (see `unsubscribe`), and joins again. Raises ConfigError, ZooKeeperUnreachable.
        """
        self._run_alone(self._core.subscribe(topics, pattern))

    def unsubscribe(self, timeout: float = CLOSE_TIMEOUT) -> None:
        """Leave the group, with `auto_commit` after a commit of all that was handed out.

        Without a group it does nothing. Ends within `timeout` seconds. Raises what a callback raises, after
        the group is left.
        """
        self._run_alone(self._core.unsubscribe(timeout))

    def assign(
        self,
        partitions: Iterable[tuple[str, int]] | Mapping[tuple[str, int], SeekTarget | None],
    ) -> None:
        """Read exactly these partitions, without a group.

        A mapping gives starts, as for `seek`: `{("orders", 0): 17}`. The others, and those with None,
        continue where they are, or begin by `auto_offset_reset`. Raises UnknownTopicOrPartition, ConfigError.
        """
        self._run_anywhere(self._core.assign(partitions))

    def partitions_of(self, topic: str, timeout: float = METADATA_WAIT) -> list[TopicPartition]:
        """Return a topic's partitions. Raises UnknownTopicOrPartition, InvalidName, or why none answers."""
        return self._run_anywhere(self._core.partitions_of(topic, timeout))

    # -- offsets ----------------------------------------------------------------------------------

    def commit(
        self,
        offsets: Mapping[TopicPartition, int | OffsetAndMetadata] | None = None,
        timeout: float = 30.0,
        *,
        wait: bool = True,
    ) -> None:
        """Commit the next offsets to process; without `offsets`, of all that was handed out.

        An OffsetAndMetadata has a text beside the offset (at most 512 bytes), which `committed` returns
        until the partition's next commit. After a `seek` to an offset, and before its first record, that
        offset is committed.

        With `offsets` any thread may commit, such as the one that processed the records. `wait=False`
        returns before ZooKeeper answers: a refusal is then a warning in the log, and the records come again
        to the partition's next owner.

        Raises NotOwner if a partition is no longer ours, CommitBehind if more of it is committed already
        (the others are committed in both cases), RequestTimeout if ZooKeeper does not answer in time (the
        commit may still complete), and InstanceReplaced. Raises ConfigError for an invalid offset,
        OffsetOutOfRange for one after the log's end, BrokerUnreachable if no broker answers where that is;
        then nothing is committed.
        """
        if offsets is None:
            return self._run_anywhere(self._core.commit(None, timeout, wait=wait))
        self._core.life.check_open()
        return self._run(self._core.commit(offsets, timeout, wait=wait))

    @overload
    def committed(self, partitions: TopicPartition) -> int | None: ...

    @overload
    def committed(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, OffsetAndMetadata | None]: ...

    def committed(
        self, partitions: TopicPartition | Iterable[TopicPartition]
    ) -> int | dict[TopicPartition, OffsetAndMetadata | None] | None:
        """Return the group's committed offset of a partition; for several, each with its metadata.

        None if there is none for the current topic of this name. Raises ZooKeeperUnreachable.
        """
        return self._run_anywhere(self._core.committed(partitions))

    def position(self, partition: TopicPartition) -> int | None:
        """Return the next offset to hand out; None while it is looked up. Raises NotAssigned.

        In a group a start that was looked up counts once it is committed, even without `auto_commit`.
        """
        self._check_usable()
        return self._core.position(partition)

    def end_offset(self, partition: TopicPartition) -> int | None:
        """Return the partition's end at the last fetch; None before the first. Raises NotAssigned."""
        self._check_usable()
        return self._core.end_offset(partition)

    def beginning_offsets(
        self, partitions: Iterable[TopicPartition], timeout: float = 30.0
    ) -> dict[TopicPartition, int]:
        """Return the first offset of each partition, assigned or not, by its leader.

        Raises UnknownTopicOrPartition, BrokerUnreachable, or why no broker answers.
        """
        return self._run_anywhere(self._core.beginning_offsets(partitions, timeout))

    def end_offsets(
        self, partitions: Iterable[TopicPartition], timeout: float = 30.0
    ) -> dict[TopicPartition, int]:
        """Return the offset after the last readable record of each partition, as `beginning_offsets`."""
        return self._run_anywhere(self._core.end_offsets(partitions, timeout))

    def offsets_for_times(
        self, times: Mapping[TopicPartition, datetime], timeout: float = 30.0
    ) -> dict[TopicPartition, int | None]:
        """Return the first offset at each time or later; None: none yet.

        Raises UnknownTopicOrPartition, RequestTimeout, ConfigError, or why no broker answers.
        """
        return self._run_anywhere(self._core.offsets_for_times(times, timeout))

    def seek(self, partition: TopicPartition, target: SeekTarget) -> None:
        """Continue at an offset, at "earliest" or "latest", or at a time. Raises NotAssigned, ConfigError.

        The group's offset does not go back: records that are read again are not committed again.
        """
        self._check_usable()
        self._core.seek(partition, target)

    def pause(self, *partitions: TopicPartition) -> None:
        """Hand out no records of these partitions until `resume`. Raises NotAssigned."""
        self._check_usable()
        self._core.pause(*partitions)

    def resume(self, *partitions: TopicPartition) -> None:
        """Undo `pause`. Raises NotAssigned."""
        self._check_usable()
        self._core.resume(*partitions)

    # -- waiting ----------------------------------------------------------------------------------

    def _run_alone(self, steps: Steps[_T]) -> _T:
        """Run what callbacks may not call."""
        self._check_usable()
        if self._core.in_callback:
            raise ConcurrentUse(_CALLED_BACK)
        return self._run(steps)

    def _run_anywhere(self, steps: Steps[_T]) -> _T:
        self._check_usable()
        return self._run(steps)

    def _run(self, steps: Steps[_T]) -> _T:
        """Take the steps; wait and work in this thread."""
        answer: Any = None
        error: BaseException | None = None
        while True:
            try:
                step = steps.send(answer) if error is None else steps.throw(error)
            except StopIteration as end:
                result: _T = end.value
                return result
            answer = error = None
            try:
                match step:
                    case BlockingWork(work):
                        answer = work()
                    case Answer(future, timeout):
                        answer = future.result(timeout)
                    case _:
                        self._core.poll_brokers(step)
            except BaseException as raised:
                error = raised

    def _call_back(self, name: str, notice: Any) -> "Future[Any]":
        """Call the application; on close in another thread, which owns the consumer meanwhile."""
        callback: Callable[[Consumer[K, V], Any], Any] | None = getattr(self.config, name)
        if callback is None:
            return call_now(lambda: None)
        call = partial(callback, self, notice)
        if not self._is_closing:
            return call_now(partial(self._within_callback, call))
        owner = self._thread

        def own_and_call() -> Any:
            self._thread = threading.get_ident()
            return self._within_callback(call)

        def ended() -> None:
            self._thread = owner
            self._core.wake()

        return call_in_thread(own_and_call, ended)

    def _within_callback(self, call: Callable[[], Any]) -> Any:
        self._core.in_callback = True
        try:
            return call()
        finally:
            self._core.in_callback = False

    # -- who may call -----------------------------------------------------------------------------

    def _check_usable(self) -> None:
        self._core.life.check_open()
        self._check_thread()

    def _check_thread(self) -> None:
        here = threading.get_ident()
        if self._thread is None:
            self._thread = here
        elif self._thread != here:
            raise ConcurrentUse(
                "a consumer belongs to the thread that started it: others may stop it, and commit offsets "
                "that they name"
            )
