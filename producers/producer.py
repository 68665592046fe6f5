"""The producer that applications hold: `send`, `flush`, `close`."""

import atexit
import os
import sys
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import cached_property
from math import inf
from types import TracebackType
from typing import Any, ClassVar, Final, Generic, Self
from weakref import WeakSet

from folkmoot.coordination.connector import connector
from folkmoot.coordination.discovery import ZooKeeperDiscovery
from folkmoot.coordination.wakeup import Wakeup
from folkmoot.network.bootstrap import Bootstrap
from folkmoot.producers.accumulator import NOT_OPEN, Accumulator, check_topic
from folkmoot.producers.appender import Delivery
from folkmoot.producers.claims import Claims
from folkmoot.producers.columns import (
    HeadersArgument,
    RecordColumns,
    TableSerializer,
    is_table,
    table_serializer,
)
from folkmoot.producers.config import ProducerConfig
from folkmoot.producers.futures import BatchDelivery
from folkmoot.producers.idempotence import Sequences
from folkmoot.producers.sender import Sender
from folkmoot.protocol.compression import Codec, require
from folkmoot.protocol.errors import (
    BufferFull,
    ClosedError,
    ConcurrentUse,
    FlushTimeout,
    FolkmootError,
    RequestTimeout,
    RetriableError,
    UnknownTopicOrPartition,
)
from folkmoot.protocol.options import configured
from folkmoot.protocol.process.thread_log import thread_log, wait_until_written
from folkmoot.protocol.quantities import counted
from folkmoot.protocol.records import K, RecordMetadata, V
from folkmoot.schemas.values.serialization import KEY, VALUE, serializer, writes_schema_id

CLOSE_GRACE: Final = 1.0
RECOUNT_WAIT: Final = 5.0
"""Seconds to ask brokers how many partitions a topic has; then the last known number is returned."""
CLOSE_AFTER_ERROR: Final = 5.0

_log = thread_log(__name__)
_open_producers: "WeakSet[Producer[Any, Any]]" = WeakSet()


class Producer(Generic[K, V]):
    """Sends records to topics, in batches, from a thread of its own.

    ```python
    with Producer(zookeeper="localhost:2181") as producer:
        delivery = producer.send("orders", b"one coffee", key=b"table 4")
        print(delivery.result(timeout=10))
    ```

    `send` may be called from any number of threads; it appends the record to its partition's batch and
    returns. It blocks, for at most `max_block`, while the buffer is full and when a topic is used for the
    first time; within an `on_delivery` it does not wait for room. The outcome of a record is in its
    `Delivery`, and is passed to its `on_delivery`. `flush` and `close` raise the first failure that
    neither of them has reported.

    Records of one partition are written in the order of their `send`, also when they are sent again.
    Each is written once, also when an answer was lost, unless `idempotent` is off; if that is not
    certain, the record fails and its error says so. Leaving the `with` block flushes.

    A producer does not survive a fork: in the child process it is closed.

    Options: docs/configuration.md.
    """

    _delivery: ClassVar[type[Delivery]] = Delivery
    """The type that `send` returns."""
    _sequences: Sequences | None = None
    """The identities of batches; None: as `idempotent` says."""

    @configured(ProducerConfig[K, V])
    def __init__(self, config: ProducerConfig[K, V]) -> None:
        self.config = config
        self._wakeup = Wakeup()
        self._accumulator = Accumulator(self.config, self._wakeup.wake, delivery=self._delivery)
        self._appender = self._accumulator.appender
        self._key_bytes = serializer(KEY, self.config.key_serializer, self._may_wait)
        self._value_bytes = serializer(VALUE, self.config.value_serializer, self._may_wait)
        self._discovery = discovery_of(self.config)
        self._claims: Claims | None = None
        if self.config.transactional_id is not None:
            self._claims = Claims(self.config, self._wakeup.wake)
            self._sequences = self._claims.sequences
        self._sender = Sender(
            *(self.config, self._accumulator, self._wakeup, self._discovery, self._sequences),
            claims=self._claims,
        )
        self._thread: threading.Thread | None = None
        self._closed: ClosedError | None = None
        self.serializes = bool(self._key_bytes or self._value_bytes)
        if type(self).send is _SEND and not self.serializes:
            # The appender's method itself: one call less for each record.
            vars(self)["send"] = self._appender.send

    # -- life ---------------------------------------------------------------------------------------

    def start(self) -> None:
        """Find the cluster and begin to work.

        With a `transactional_id` this fences the producer that had it before. Raises
        ZooKeeperUnreachable, with `bootstrap` BrokerUnreachable; NoCluster, ConfigError for a listener that
        no broker has; MissingExtra; with a `transactional_id` also the error of a leader that does not say
        how far the id got.
        """
        if self._closed is not None:
            raise self._closed
        require(Codec.named(self.config.compression))
        if self._thread is None:
            try:
                self._discovery.open()
                with suppress(RetriableError):
                    while (addresses := self._discovery()) is None:
                        pass  # each call waits a little itself, and ends
                    self._sender.initial_addresses = addresses
                if self._claims is not None:
                    self._claims.claim_id()
                self._accumulator.open()
                name = f"folkmoot-{self.config.client_id}"
                self._thread = threading.Thread(target=self._sender.run, name=name, daemon=True)
                self._thread.start()
                _open_producers.add(self)
                interval = self.config.switch_interval
                if interval is not None and sys.getswitchinterval() > interval:
                    sys.setswitchinterval(interval)
            except FolkmootError:
                raise  # nothing was opened, and it may be tried again
            except BaseException:  # Ctrl-C
                self._closed = ClosedError("the producer's start was interrupted")
                self._release(CLOSE_GRACE)
                raise

    def close(self, timeout: float | None = None) -> None:
        """Flush, then release everything, within `timeout` seconds even if the cluster is dead.

        Without a timeout it waits until every record is delivered or has failed, which
        `delivery_timeout` bounds. Raises as `flush` does, after all is closed; ConcurrentUse within
        an `on_delivery`, before anything is closed.
        """
        if self._closed is not None:
            return
        self._check_not_called_back()
        self._closed = ClosedError("the producer is closed")
        timeout = min(inf if timeout is None else timeout, self.config.longest_wait)
        deadline = time.monotonic() + timeout
        self._accumulator.close(self._closed)
        try:
            if self._thread is not None:
                self._flush(timeout)
        except FlushTimeout as error:
            _log.error("closing a producer: %s; they are lost", error)
            raise
        finally:
            self._release(max(CLOSE_GRACE, deadline - time.monotonic()))

    def _release(self, timeout: float) -> None:
        _open_producers.discard(self)
        if self._claims is not None:
            self._claims.stop()
        self._sender.stop()
        if self._thread is not None:
            with suppress(RuntimeError):  # it has not begun yet, and stops when it does
                self._thread.join(timeout)
            wait_until_written()
        self._discovery.close()
        if self._thread is None or not self._thread.is_alive():
            self._wakeup.close()

    def __del__(self) -> None:
        thread = vars(self).get("_thread")
        if thread is None or self._closed is not None or sys.is_finalizing():
            return
        warnings.warn(
            f"unclosed producer {self.config.client_id}: use it in a with block, or call close()",
            ResourceWarning,
            stacklevel=2,
            source=self,
        )
        ending = (self._accumulator, self._sender, thread, self._discovery, self._wakeup)
        threading.Thread(target=_end, args=ending, name="folkmoot-errand", daemon=True).start()

    def __enter__(self) -> Self:
        self.start()
        return self

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
            self.close(CLOSE_AFTER_ERROR)
        except FolkmootError as another:
            _log.error("closing a producer after an error: %s", another)

    # -- records ------------------------------------------------------------------------------------

    def send(
        self,
        topic: str,
        value: V | None,
        key: K | None = None,
        partition: int | None = None,
        headers: HeadersArgument | None = None,
        timestamp: int | None = None,
        on_delivery: Callable[[Delivery], object] | None = None,
    ) -> Delivery:
        """Append a record. `value` None is a tombstone; `timestamp` is in ms since the epoch.

        `value` and `key` are bytes, or what the producer's serialisers take. `on_delivery` is
        called in the producer's thread, with the delivery, when it is done; it must be quick and may
        not wait. Raises UnknownTopicOrPartition, BufferFull, RecordTooLarge, BrokerUnreachable,
        ClosedError, InvalidName, PartitionerFailed, SerializationError, and errors of a registry;
        then the record was not taken.
        """
        value_bytes, key_bytes = self._serialized(topic, value, key)
        return self._appender.send(
            *(topic, value_bytes, key_bytes, partition), *(headers, timestamp, on_delivery)
        )

    def _serialized(self, topic: str, value: Any, key: Any) -> tuple[Any, Any]:
        if self._value_bytes is not None:
            value = self._value_bytes(topic, value)
        return value, key if self._key_bytes is None else self._key_bytes(topic, key)

    def send_and_wait(
        self,
        topic: str,
        value: V | None,
        key: K | None = None,
        partition: int | None = None,
        headers: HeadersArgument | None = None,
        timestamp: int | None = None,
        *,
        timeout: float | None = None,
    ) -> RecordMetadata:
        """`send`, and wait for the outcome. Raises as `send`, and as `Delivery.result`."""
        return self.send(topic, value, key, partition, headers, timestamp).result(timeout)

    def send_batch(
        self,
        topic: str,
        values: Any,
        keys: Any = None,
        *,
        timestamps: Any = None,
        headers: Sequence[HeadersArgument] | None = None,
        partition: int | None = None,
        serializer: TableSerializer | None = None,
    ) -> BatchDelivery:
        """Append many records, given as columns: lists of bytes and None, or Arrow arrays.

        `values` and `keys` may be Arrow arrays or chunked arrays of binary or string. `timestamps`
        is one for all or one per row, in ms since the epoch (a list, numpy, or Arrow, also of a
        timestamp type); `headers` has those of each row. All rows go to `partition`, or the partitioner
        places each row. Rows keep their order, among themselves and with `send`.
        Serialisers are called for each cell of a list; Arrow arrays are bytes already. With a
        `serializer`, `values` is what that takes as a whole: an Arrow table, for a ColumnSerializer or an
        AvroSerializer. If the producer's `value_serializer` is an AvroSerializer, it writes tables, too.

        Rows that do not fit into the buffer wait for room, part by part: after BufferFull the rows before
        have been taken, and the error's `delivery` is theirs. Raises as `send` does, TypeError and
        ValueError for columns that are none or differ in length.
        """
        columns = self._columns(topic, values, keys, timestamps, headers, partition, serializer)
        runs: list[Any] = []
        delivery = BatchDelivery(runs, self._accumulator)
        row = 0
        try:
            self._accumulator.admit(topic)
            while row < len(columns):
                row, some = self._appender.send_columns(topic, columns, row)
                runs += some
        except BufferFull as error:
            error.delivery = delivery
            raise
        return delivery

    def _columns(
        self,
        topic: str,
        values: Any,
        keys: Any,
        timestamps: Any,
        headers: Any,
        partition: Any,
        table: TableSerializer | None = None,
    ) -> RecordColumns:
        """Raises TypeError, ValueError, InvalidName, SerializationError."""
        framed = False
        if table is None and is_table(values):
            table = self._of_tables
        if table is not None:
            framed = writes_schema_id(table)
            values = table_serializer(table).serialize(topic, values)
        elif self._value_bytes is not None and isinstance(values, list | tuple):
            framed = writes_schema_id(self.config.value_serializer)
            values = [self._value_bytes(topic, value) for value in values]
        if self._key_bytes is not None and isinstance(keys, list | tuple):
            keys = [self._key_bytes(topic, key) for key in keys]
        return RecordColumns(values, keys, timestamps, headers, partition, framed=framed)

    @cached_property
    def _of_tables(self) -> TableSerializer | None:
        """The serialiser of tables that matches an AvroSerializer of values; None if there is none."""
        serializer = table_serializer(self.config.value_serializer)
        return None if serializer is self.config.value_serializer else serializer

    def flush(self, timeout: float | None = None) -> None:
        """Wait until all that was sent before is delivered or has failed, and callbacks were called.

        Raises FlushTimeout if that takes longer, and the first failure that neither a Delivery nor an
        `on_delivery` has reported; ConcurrentUse within an `on_delivery`, ClosedError.
        """
        self._check_not_called_back()
        self._check_open()
        self._flush(timeout)

    def _flush(self, timeout: float | None) -> None:
        accumulator = self._accumulator
        target = accumulator.request_flush()
        done = accumulator.until(lambda: accumulator.settled >= target, timeout)
        self._check_flushed(done, timeout)

    def _check_flushed(self, done: bool, timeout: float | None) -> None:
        """Raise the errors of `flush`."""
        if not done:
            left = counted(self.unacknowledged(), "record")
            raise FlushTimeout(f"not acknowledged after {timeout:g} s: {left}")
        error = self._accumulator.take_failure()
        if error is not None:
            raise error

    def purge(self, timeout: float | None = None) -> None:
        """Fail all records that are not in flight, with RecordsPurged.

        Their callbacks have been called when it returns; `flush` does not raise these errors.
        Raises RequestTimeout, ConcurrentUse within an `on_delivery`, ClosedError.
        """
        self._check_not_called_back()
        self._check_open()
        if not self._accumulator.until(self._accumulator.request_purge(), timeout):
            raise RequestTimeout(f"purge() timed out after {timeout:g} s; it may still complete")

    def partitions_of(self, topic: str) -> list[int]:
        """Return the topic's partitions, as brokers know them now; may block as the first `send` does."""
        accumulator = self._accumulator
        check_topic(topic)
        if topic not in accumulator.counts:
            accumulator.admit(topic)
        elif threading.get_ident() == accumulator.thread:
            accumulator.recount(topic)
            accumulator.look_up(topic, RECOUNT_WAIT)
        else:
            accumulator.until(accumulator.recount(topic), RECOUNT_WAIT)
        return self._partitions_known(topic)

    def _partitions_known(self, topic: str) -> list[int]:
        if topic not in self._accumulator.counts:
            raise UnknownTopicOrPartition(f"topic {topic} does not exist any more")
        return list(range(self._accumulator.counts[topic]))

    def unacknowledged(self) -> int:
        """Return how many records are neither delivered nor failed."""
        return self._accumulator.unacknowledged()

    def metrics(self) -> dict[str, float]:
        """Return counters since the start (see `ProducerCounters`), and what is buffered. From any thread."""
        return {
            **asdict(self._sender.counters),
            "buffered_records": self.unacknowledged(),
            "buffered_bytes": self._appender.used,
        }

    def _check_open(self) -> None:
        """Raise ClosedError if there is no thread to wait for."""
        if self._thread is None:
            raise self._closed or ClosedError(NOT_OPEN)

    def _may_wait(self) -> bool:
        """Return whether a serialiser may ask a registry: the sender's thread, in an on_delivery, may not."""
        return threading.get_ident() != self._accumulator.thread

    def _check_not_called_back(self) -> None:
        """Raise ConcurrentUse in the sender's thread, which would wait for itself."""
        if threading.current_thread() is self._thread:
            raise ConcurrentUse("an on_delivery callback may not flush or close the producer")

    def _forked(self) -> None:
        """Close in a child process, where the sender's thread is not."""
        self._closed = ClosedError("the producer was made before a fork: make one in each process")
        self._thread = None
        self._accumulator.forked(self._closed)


_SEND: Final = Producer.send


def discovery_of(config: ProducerConfig[Any, Any]) -> ZooKeeperDiscovery | Bootstrap:
    """Return a callable that finds addresses of brokers; open it before, and close it."""
    if config.bootstrap:
        return Bootstrap(config)
    connect = connector(config.zookeeper)
    return ZooKeeperDiscovery(connect, config.session_timeout, config.listener)


def _end(
    accumulator: Accumulator,
    sender: Sender,
    thread: threading.Thread,
    discovery: ZooKeeperDiscovery | Bootstrap,
    wakeup: Wakeup,
) -> None:
    """Deliver what a producer has left that was dropped without `close`, and release everything."""
    accumulator.close(ClosedError("the producer was dropped without close()"))
    target = accumulator.request_flush()
    with suppress(FolkmootError):
        accumulator.until(lambda: accumulator.settled >= target, None)
    sender.stop()
    thread.join()
    discovery.close()
    wakeup.close()


def _warn_at_exit() -> None:
    for producer in list(_open_producers):
        lost = producer.unacknowledged()
        if lost:
            _log.error(
                "the process ends with %d records of producer %s that were never acknowledged: "
                "use the producer in a with block, or call close()",
                lost,
                producer.config.client_id,
            )


def _forget_after_fork() -> None:
    for producer in list(_open_producers):
        producer._forked()
    _open_producers.clear()


atexit.register(_warn_at_exit)
os.register_at_fork(after_in_child=_forget_after_fork)
