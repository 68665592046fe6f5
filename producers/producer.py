"""What applications hold: `send`, `flush`, `close`."""

import atexit
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from types import TracebackType
from typing import Any, Final, Self
from weakref import WeakSet

from folkmoot.coordination.connector import connector
from folkmoot.coordination.wakeup import Wakeup
from folkmoot.producers.accumulator import Accumulator
from folkmoot.producers.batches import headers_size
from folkmoot.producers.chunks import Delivery
from folkmoot.producers.column_chunks import BatchDelivery, ColumnChunk
from folkmoot.producers.config import ProducerConfig
from folkmoot.producers.discovery import Discovery
from folkmoot.producers.given import HeadersArgument, as_bytes, as_headers, as_int, check_topic
from folkmoot.producers.loop import Loop
from folkmoot.producers.staging import MAX_RECORD_TIMESTAMP, Staging
from folkmoot.protocol import compression
from folkmoot.protocol.errors import (
    ClosedError,
    ConcurrentUse,
    FlushTimeout,
    FolkmootError,
    RecordTooLarge,
)
from folkmoot.protocol.options import build

SMALL_CELL_BYTES: Final = 4096
COLUMNS_BYTES: Final = 2 * 1024 * 1024
CLOSE_GRACE: Final = 1.0
CLOSE_AFTER_ERROR: Final = 5.0

_log = logging.getLogger(__name__)
_now = time.time
_open_producers: "WeakSet[Producer]" = WeakSet()


class Producer:
    """Sends records to topics, in batches, from a thread of its own.

    ```python
    with Producer(zookeeper="localhost:2181") as producer:
        delivery = producer.send("orders", b"one coffee", key=b"table 4")
        print(delivery.result(timeout=10))
    ```

    Options: see `ProducerConfig`. `send` may be called from any number of threads; it stages the
    record and returns. It blocks, for at most `max_block`, while the buffer is full and when a topic
    is used for the first time. What became of a record is told by its `Delivery`, or to its
    `on_delivery`; a failure that was asked about in neither way is raised by `flush` or `close`, so
    that none passes unseen.

    Records of one partition are written in the order of their `send`, also when they are sent again.
    Each is written once, also when an answer was lost, unless `idempotent` is off; where it cannot be
    known, the record fails and its error says so. Leaving the `with` block flushes.

    A producer does not survive a fork: in the child process it is closed.
    """

    def __init__(self, **options: Any) -> None:
        self.config = build(ProducerConfig, options)
        self._wakeup = Wakeup()
        self._accumulator = Accumulator(
            self.config.buffer_bytes,
            self.config.batch_bytes,
            self._wakeup.wake,
            by_key=self.config.partitioner == "key-hash",
        )
        self._small = min(SMALL_CELL_BYTES, self.config.max_record_bytes // 2)
        self._lock = self._accumulator.lock
        self._chunks = self._accumulator.chunks
        self._discovery = Discovery(
            connector(self.config.zookeeper), self.config.session_timeout, self.config.listener
        )
        self._loop = Loop(self.config, self._accumulator, self._wakeup, self._discovery)
        self._thread: threading.Thread | None = None
        self._closed = False

    # -- life ---------------------------------------------------------------------------------------

    def start(self) -> None:
        """Connect to ZooKeeper and begin to work. Raises ZooKeeperUnreachable, MissingExtra."""
        if self._closed:
            raise ClosedError("the producer is closed")
        compression.require(self.config.codec)
        if self._thread is None:
            self._discovery.open()
            name = f"folkmoot-{self.config.client_id}"
            self._thread = threading.Thread(target=self._loop.run, name=name, daemon=True)
            self._thread.start()
            _open_producers.add(self)
            _let_others_run(self.config.switch_interval)

    def close(self, timeout: float | None = None) -> None:
        """Flush, then let go of everything, within `timeout` seconds whatever is dead.

        Without a timeout it waits until every record is delivered or has failed, which
        `delivery_timeout` bounds. Raises as `flush` does, after all is closed; ConcurrentUse within
        an `on_delivery`, before anything is.
        """
        if self._closed:
            return
        self._check_not_called_back()
        self._closed = True
        if timeout is None:
            timeout = self.config.longest_wait
        deadline = time.monotonic() + timeout
        self._accumulator.close(ClosedError("the producer is closed"))
        try:
            if self._thread is not None:
                self.flush(timeout)
        except FlushTimeout as error:
            _log.error("closing a producer: %s; they are lost", error)
            raise
        finally:
            self._let_go(max(CLOSE_GRACE, deadline - time.monotonic()))

    def _let_go(self, timeout: float) -> None:
        _open_producers.discard(self)
        self._loop.stop()
        if self._thread is not None:
            self._thread.join(timeout)
        self._discovery.close()
        if self._thread is None or not self._thread.is_alive():
            self._wakeup.close()

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
        value: bytes | None,
        key: bytes | None = None,
        partition: int | None = None,
        headers: HeadersArgument | None = None,
        timestamp: int | None = None,
        on_delivery: Callable[[Delivery], None] | None = None,
    ) -> Delivery:
        """Stage a record. `value` None is a tombstone; `timestamp` is in ms since the epoch.

        `on_delivery` is called in the producer's thread, with the delivery, when it is done; it must
        be quick and may not wait. Raises UnknownTopicOrPartition, BufferFull, RecordTooLarge,
        BrokerUnreachable, ClosedError, InvalidName; then the record was not taken.
        """
        # The fast way: nothing unusual about the record, topic known, room left. Every line here is
        # paid for every record; whatever is not plain goes through _send_any. Why it is right without
        # a lock, see Chunk.
        if (
            type(value) is bytes
            and len(value) <= self._small
            and (key is None or (type(key) is bytes and len(key) <= self._small))
            and (
                timestamp is None
                or (type(timestamp) is int and 0 <= timestamp <= MAX_RECORD_TIMESTAMP)
            )
            and partition is None
            and headers is None
            and on_delivery is None
        ):
            try:
                chunk = self._chunks[topic]
            except KeyError:
                pass
            else:
                stamp = _now() if timestamp is None else timestamp / 1000
                rows = chunk.rows
                rows += (key, value, stamp)
                if len(rows) >= chunk.check_at:
                    return self._accumulator.staged(chunk, rows, stamp, self.config.max_block)
                return Delivery(chunk, stamp)
        return self._send_any(topic, value, key, partition, headers, timestamp, on_delivery)

    def _send_any(
        self,
        topic: str,
        value: object,
        key: object,
        partition: int | None,
        headers: HeadersArgument | None,
        timestamp: int | None,
        on_delivery: Callable[[Delivery], None] | None,
    ) -> Delivery:
        """`send` for records of every kind, in any state of the producer."""
        if self._thread is None:
            raise ClosedError("the producer is not open: use it in a with block, or call start()")
        value_bytes, key_bytes = as_bytes("value", value), as_bytes("key", key)
        rows = as_headers(headers) if headers else ()
        extra = headers_size([rows])
        size = len(value_bytes or b"") + len(key_bytes or b"") + extra
        if size > self.config.max_record_bytes:
            raise RecordTooLarge(
                f"a record of {size} bytes is larger than max_record_bytes="
                f"{self.config.max_record_bytes}"
            )
        if timestamp is None:
            stamp = _now()
        elif -MAX_RECORD_TIMESTAMP <= as_int("timestamp", timestamp) <= MAX_RECORD_TIMESTAMP:
            stamp = timestamp / 1000
        else:
            raise ValueError(f"timestamp {timestamp} is not one in milliseconds since the epoch")
        if partition is not None:
            partition = as_int("partition", partition)
        if topic not in self._accumulator.counts:
            check_topic(topic)
        return self._accumulator.stage(
            *(topic, value_bytes, key_bytes, stamp, self.config.max_block),
            partition=partition,
            headers=rows,
            on_delivery=on_delivery,
            large=size > self._small,
        )

    def send_batch(
        self,
        topic: str,
        values: Any,
        keys: Any = None,
        *,
        timestamps: Any = None,
        headers: Sequence[HeadersArgument] | None = None,
        partition: int | None = None,
    ) -> BatchDelivery:
        """Stage many records, given as columns: lists of bytes and None, or Arrow arrays.

        `values` and `keys` may be Arrow arrays or chunked arrays of binary or string. `timestamps`
        is one for all or one per row, in ms since the epoch (a list, numpy, or Arrow, also of a
        timestamp type); `headers` has those of each row. All of it goes to `partition`, or each row
        where the partitioner says. Rows keep their order, among themselves and with `send`.

        Nothing is done per record in Python. What does not fit into the buffer waits for room, part
        by part: after BufferFull the rows before have been taken. Raises as `send` does, TypeError
        and ValueError for columns that are none or differ in length.
        """
        if self._thread is None:
            raise ClosedError("the producer is not open: use it in a with block, or call start()")
        columns = Staging(values, keys, timestamps, headers, partition)
        chunks: list[ColumnChunk] = []
        for chunk in self._parts(columns, topic):
            with self._lock:
                self._accumulator.hand_in(chunk, self.config.max_block)
            chunks.append(chunk)
        return BatchDelivery(chunks, self._accumulator.completed)

    def _parts(self, columns: Staging, topic: str) -> Iterator[ColumnChunk]:
        """What is handed in one by one, each when there is room."""
        count = self._partition_count(topic)
        config, accumulator = self.config, self._accumulator
        if columns.partition is not None:
            accumulator.check_partition(topic, columns.partition)
        most = min(count * config.batch_bytes, config.buffer_bytes // 8, COLUMNS_BYTES)
        for chunk in columns.chunks(topic, accumulator.completed, most, config.max_record_bytes):
            if accumulator.by_key:
                accumulator.divide(chunk)  # here, while it is in the cache, as for `send`
            yield chunk

    def _partition_count(self, topic: str) -> int:
        with self._lock:
            if topic not in self._accumulator.counts:
                if self._thread is None:
                    raise ClosedError("the producer is not open: use it in a with block")
                check_topic(topic)
                self._accumulator.admit(topic, self.config.max_block)
            return self._accumulator.counts[topic]

    def flush(self, timeout: float | None = None) -> None:
        """Wait until all that was sent before is delivered or has failed.

        Raises FlushTimeout if that takes longer, and the first error of a record that has failed
        without anybody asking for its Delivery; ConcurrentUse within an `on_delivery`.
        """
        self._check_not_called_back()
        accumulator = self._accumulator
        target = accumulator.request_flush()
        with self._lock:
            done = accumulator.completed.wait_for(lambda: accumulator.settled >= target, timeout)
        self._check_flushed(done, timeout)

    def _check_flushed(self, done: bool, timeout: float | None) -> None:
        """Raise what `flush` has to raise."""
        if not done:
            left = self.unacknowledged()
            raise FlushTimeout(f"{left} records are not acknowledged after {timeout:g} s")
        failed = self._accumulator.take_failed()
        if failed and failed[0].error is not None:
            raise failed[0].error

    def partitions_of(self, topic: str) -> list[int]:
        """The topic's partitions; the first time it may block as `send` does."""
        return list(range(self._partition_count(topic)))

    def unacknowledged(self) -> int:
        """How many records are neither delivered nor failed."""
        return self._accumulator.unacknowledged()

    def metrics(self) -> dict[str, int]:
        """Counters since the start (see `ProducerCounters`), and what is buffered now."""
        return {
            **asdict(self._loop.counters),
            "buffered_records": self.unacknowledged(),
            "buffered_bytes": self._accumulator.buffered,
        }

    def _check_not_called_back(self) -> None:
        """The producer's thread would wait for itself."""
        if threading.current_thread() is self._thread:
            raise ConcurrentUse("an on_delivery callback may not flush or close the producer")

    def _forked(self) -> None:
        """This is a child process: the thread is not here, and the lock may be held for ever."""
        self._closed = True
        self._lock = threading.Lock()
        self._chunks = {}
        reason = ClosedError("the producer was made before a fork: make one in each process")
        self._accumulator = Accumulator(1, 1, lambda: None)
        self._accumulator.close(reason)


def _let_others_run(interval: float | None) -> None:
    """The sender's thread gives Python up at every call that waits, and gets it back from a busy
    application only after this long: several times for each request."""
    if interval is not None and sys.getswitchinterval() > interval:
        sys.setswitchinterval(interval)


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
