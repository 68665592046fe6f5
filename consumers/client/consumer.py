"""The consumer: records of a group's partitions, or of partitions assigned by hand."""

import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from itertools import chain
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Generic, Self, TypeVar, overload

from folkmoot.consumers.client.callbacks import CallbackRun, Called, call_in_thread
from folkmoot.consumers.client.core import CLOSE_TIMEOUT, METADATA_WAIT, TURN, ConsumerCore
from folkmoot.consumers.client.health import Health
from folkmoot.consumers.client.rebalance_listener import Starts
from folkmoot.consumers.client.signals import SignalHandlers, Signalled
from folkmoot.consumers.client.steps import Answer, Beside, Steps
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

_Made = TypeVar("_Made")
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

    The thread that started the consumer owns it. Others may call `stop`, `health` and `metrics`, and
    `commit` with offsets; signal handlers only `stop`. It does not survive a fork: in the child process
    it is closed.

    Options: docs/configuration.md.
    """

    @configured(ConsumerOptions[K, V])
    def __init__(self, config: ConsumerOptions[K, V]) -> None:
        self.config = config
        self._core = ConsumerCore[K, V](config, self._call_back)
        self._signals = SignalHandlers(self._core.stop)
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

    def stop(self) -> None:
        """End the iteration after the record under way, and have `poll` and its like return nothing.

        From any thread, or a signal handler.
        """
        self._core.stop()

    def close(self, timeout: float = CLOSE_TIMEOUT) -> None:
        """Leave the group, with `auto_commit` after committing what was handed out; disconnect.

        Ends within `timeout` seconds, whatever is dead or hangs; what could not be committed comes
        again. Raises what a callback raises, after all is closed. In a forked child it does nothing.
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
        except Exception as another:  # the first error is the one to be seen
            log.error("closing a consumer after an error: %s", another)

    # -- records ----------------------------------------------------------------------------------

    def poll(self, timeout: float = 1.0, max_records: int | None = None) -> list[Record[K, V]]:
        """Up to `max_records` records; waits at most `timeout` seconds for the first.

        No more than `buffer_bytes`, decompressed, but for the last batch. Asking says that everything
        handed out before is processed.
        """
        return self._take(self._core.poll(timeout, max_records))

    def poll_batch(
        self, timeout: float = 1.0, max_records: int | None = None
    ) -> RecordBatchView | None:
        """The next batch, or the next `max_records` of it; None if none comes within `timeout`."""
        return self._take(self._core.poll_batch(timeout, max_records))

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
        return self._take(
            self._core.poll_arrow(timeout, max_records, headers=headers, schema=schema)
        )

    def __iter__(self) -> Iterator[Record[K, V]]:
        """Records one by one, until `stop` is called. It may be left and begun again at any record."""
        return chain.from_iterable(self._cursors())

    def _cursors(self) -> Iterator[Iterator[Record[Any, Any]]]:
        while not self._core.life.stopped:
            if (cursor := self._take(self._core.next_cursor())) is not None:
                yield cursor.records

    def batches(self, max_records: int | None = None) -> Iterator[RecordBatchView]:
        """Batch after batch, until `stop` is called; cut where they have more than `max_records`."""
        return self._iterate(max_records, lambda view: view)

    def arrow(
        self, max_records: int | None = None, *, headers: bool = False
    ) -> Iterator["pa.RecordBatch"]:
        """Batch after batch as Arrow, until `stop` is called. Raises MissingExtra without pyarrow."""
        return self._iterate(max_records, partial(RecordBatchView.arrow, headers=headers))

    def _iterate(
        self, max_records: int | None, make: Callable[[RecordBatchView], _Made]
    ) -> Iterator[_Made]:
        while not self._core.life.stopped:
            found = self._take(self._core.poll_one(TURN, max_records, make))
            if found is not None:
                yield found

    # -- partitions and the group -----------------------------------------------------------------

    def assignment(self) -> frozenset[TopicPartition]:
        """The partitions that this consumer reads now."""
        return self._core.assignment()

    def subscribe(self, topics: Sequence[str] = (), pattern: str = "") -> None:
        """Have the group divide these topics, too; this member wants no others from now on.

        As `topics` and `pattern` of the constructor, which may leave them out. A member leaves its group
        in order (see `unsubscribe`) and joins it anew. Raises ConfigError, ZooKeeperUnreachable.
        """
        self._take(self._core.subscribe(topics, pattern))

    def unsubscribe(self, timeout: float = CLOSE_TIMEOUT) -> None:
        """Leave the group; with `auto_commit` after committing what was handed out.

        Without a group it changes nothing. What is not given up after `timeout` seconds others take.
        Raises what a callback raises, after the group is left.
        """
        self._take(self._core.unsubscribe(timeout))

    def assign(
        self,
        partitions: Iterable[tuple[str, int]] | Mapping[tuple[str, int], SeekTarget | None],
    ) -> None:
        """Read exactly these partitions, without a group.

        Given as a mapping, from where it says, as by `seek`: `{("orders", 0): 17}`. Others, and what is
        None, go on where they are, or begin as `auto_offset_reset` says. Raises UnknownTopicOrPartition,
        ConfigError.
        """
        self._ask(self._core.assign(partitions))

    def partitions_of(self, topic: str, timeout: float = METADATA_WAIT) -> list[TopicPartition]:
        """All partitions of a topic. Raises UnknownTopicOrPartition, InvalidName, or why no broker told."""
        return self._ask(self._core.partitions_of(topic, timeout))

    def fencing_token(self, partition: TopicPartition) -> int:
        """The epoch of our claim on a partition; it grows with every owner. Raises NotOwner.

        Whoever writes results elsewhere keeps the highest token it has seen beside them and refuses
        a lower one: so a member that lost the partition without knowing cannot write any more.
        """
        return self._core.fencing_token(partition)

    def health(self) -> Health:
        """How it stands. From any thread, and never waits: for probes."""
        return self._core.health()

    def metrics(self) -> dict[str, float]:
        """Counters since the start (see `ConsumerCounters`), and how things stand now. From any thread."""
        return self._core.metrics()

    def leave_on_signals(self, *signals: signal.Signals) -> AbstractContextManager[Signalled]:
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
        return self._signals.handled(signals, lambda: self._core.life.is_closed)

    # -- offsets ----------------------------------------------------------------------------------

    def commit(
        self,
        offsets: Mapping[TopicPartition, int | OffsetAndMetadata] | None = None,
        timeout: float = 30.0,
        *,
        wait: bool = True,
    ) -> None:
        """Commit the next offsets to process; without `offsets`, of everything handed out so far.

        An OffsetAndMetadata has a text beside the offset (at most 512 bytes), for `committed` to tell
        until the next commit of the partition. After a `seek` to an offset, of which nothing was handed
        out yet, that is the offset sought.

        With `offsets` any thread may commit, such as the one that has processed the records. `wait=False`
        returns before ZooKeeper has answered: a commit that is refused then is a warning in the log, and
        its records come again to the partition's next owner.

        Raises NotOwner if a partition is no longer ours, CommitBehind if more of it is committed
        already (the others are committed in both cases), RequestTimeout if ZooKeeper did not answer in
        time (then the commit may still come to pass), and InstanceReplaced. Nothing is committed where it
        raises ConfigError for what is no offset, OffsetOutOfRange for one that lies behind the log's end,
        or BrokerUnreachable if no broker tells that in time.
        """
        if offsets is None:
            return self._ask(self._core.commit(None, timeout, wait=wait))
        self._core.life.check_open()
        return self._run(self._core.commit(offsets, timeout, wait=wait))

    def done(self, what: Record[K, V] | RecordBatchView) -> None:
        """A record, or a batch, is processed. From any thread, in any order; with `explicit_done`.

        What is committed ends in front of the first record that is not done. Of a partition that is no
        longer ours it changes nothing: its records come to its next owner from what was committed.
        Raises ConfigError without `explicit_done`, or for anything else than a record or a batch.
        """
        self._core.life.check_open()
        self._core.done(what)

    def revoking(self) -> dict[TopicPartition, float]:
        """With `explicit_done`: partitions that others are to have, and the seconds that are left for them.

        Nothing more is handed out of these. A partition is given up as soon as all of its records that
        were handed out are done, and at the latest after `max_processing_time` (at once if that is None,
        with `revoke_timeout` for `on_revoke`); the others are read on meanwhile. From any thread.
        """
        self._core.life.check_open()
        return self._core.revoking()

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
        return self._ask(self._core.committed(partitions))

    def position(self, partition: TopicPartition) -> int | None:
        """The next offset to be handed out; None while it is looked up. Raises NotAssigned.

        In a group a start that was looked up counts once it is committed, whatever `auto_commit` is.
        """
        self._check_usable()
        return self._core.position(partition)

    def end_offset(self, partition: TopicPartition) -> int | None:
        """The partition's end as the last fetch saw it; None before the first. Raises NotAssigned."""
        self._check_usable()
        return self._core.end_offset(partition)

    def beginning_offsets(
        self, partitions: Iterable[TopicPartition], timeout: float = 30.0
    ) -> dict[TopicPartition, int]:
        """Where the logs of these partitions begin, as their leaders say; assigned or not.

        Raises UnknownTopicOrPartition, BrokerUnreachable, or why no broker told.
        """
        return self._ask(self._core.beginning_offsets(partitions, timeout))

    def end_offsets(
        self, partitions: Iterable[TopicPartition], timeout: float = 30.0
    ) -> dict[TopicPartition, int]:
        """Where they end: the offset behind the last record that consumers can read. As above."""
        return self._ask(self._core.end_offsets(partitions, timeout))

    def offsets_for_times(
        self, times: Mapping[TopicPartition, datetime], timeout: float = 30.0
    ) -> dict[TopicPartition, int | None]:
        """The first offset at each time or later; None: none yet.

        Raises UnknownTopicOrPartition, RequestTimeout, ConfigError, or why no broker told.
        """
        return self._ask(self._core.offsets_for_times(times, timeout))

    def seek(self, partition: TopicPartition, target: SeekTarget) -> None:
        """Go on at an offset, at "earliest" or "latest", or at a time. Raises NotAssigned, ConfigError.

        What the group has committed does not go back by that: what is read again is committed from
        where it goes beyond.
        """
        self._check_usable()
        self._core.seek(partition, target)

    def pause(self, *partitions: TopicPartition) -> None:
        """Hand out nothing of these partitions until `resume`. Raises NotAssigned."""
        self._check_usable()
        self._core.pause(*partitions)

    def resume(self, *partitions: TopicPartition) -> None:
        """Undo `pause`. Raises NotAssigned."""
        self._check_usable()
        self._core.resume(*partitions)

    # -- waiting ----------------------------------------------------------------------------------

    def _take(self, steps: Steps[_T]) -> _T:
        """Their result, for what a callback may not ask for: it would end what it is called by."""
        self._check_usable()
        if self._core.in_callback:
            raise ConcurrentUse(_CALLED_BACK)
        return self._run(steps)

    def _ask(self, steps: Steps[_T]) -> _T:
        self._check_usable()
        return self._run(steps)

    def _run(self, steps: Steps[_T]) -> _T:
        """Take the steps, waiting for brokers in this thread."""
        answer: Any = None
        error: BaseException | None = None
        while True:
            try:
                step = steps.send(answer) if error is None else steps.throw(error)
            except StopIteration as end:
                found: _T = end.value
                return found
            answer = error = None
            try:
                match step:
                    case Beside(work):
                        answer = work()
                    case Answer(future, timeout):
                        answer = future.result(timeout)
                    case _:
                        self._core.turn(step)
            except BaseException as raised:
                error = raised

    def _call_back(self, name: str, notice: Any) -> CallbackRun:
        """Call the application; on close in another thread, which owns the consumer meanwhile."""
        callback: Callable[[Consumer[K, V], Any], Any] | None = getattr(self.config, name)
        if callback is None:
            return Called(lambda: None)
        call = partial(callback, self, notice)
        if not self._is_closing:
            return Called(partial(self._within_callback, call))
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
        """One thread owns the consumer: the one that started it."""
        here = threading.get_ident()
        if self._thread is None:
            self._thread = here
        elif self._thread != here:
            raise ConcurrentUse(
                "a consumer belongs to the thread that started it: others may stop it, and commit offsets "
                "that they name"
            )
