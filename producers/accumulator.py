"""The one place that callers' threads and the sender's thread share: records come in, batches go out."""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from math import inf, isnan
from random import Random
from threading import Condition, RLock
from typing import Any, Final, NamedTuple, Protocol

from folkmoot.network.memory import keep_freed_memory
from folkmoot.producers.appender import Appender, Delivery
from folkmoot.producers.batch import NEW, WAITING, Batch
from folkmoot.producers.columns import no_partition
from folkmoot.producers.config import ProducerConfig
from folkmoot.protocol.errors import (
    BrokerUnreachable,
    BufferFull,
    ClosedError,
    ConcurrentUse,
    FolkmootError,
    RecordsPurged,
    UnknownTopicOrPartition,
)
from folkmoot.protocol.names import check_name
from folkmoot.schemas.values.serialization import writes_schema_id

MAX_LOOKUPS: Final = 1000
"""How many topic look-ups run at once; further ones time out after `max_block`."""
MAX_FAILED_BATCHES: Final = 100
PARTITION_PATIENCE: Final = 0.5
"""Seconds in which brokers may not know yet that a partition was added."""
NOT_OPEN: Final = "the producer is not open: use it in a with block, or call start()"


class SenderWork(NamedTuple):
    """The work of a round of the sender's thread: batches opened and filled, whether to send without
    lingering, and the number of a purge to carry out, or 0."""

    opened: list[Batch]
    filled: list[Batch]
    hurry: bool
    purge: int


class Listener(Protocol):
    """Called in place of a condition that is notified."""

    def notify(self) -> None: ...


class WouldBlock(Exception):
    """There is no room, or the topic is not known, and the caller may not wait."""


class TopicLookup:
    """A topic look-up: it ends when the topic is known to have `partition`, or with `error`.

    Brokers learn of a new partition a moment late: the look-up waits for it for `patience` seconds.
    """

    __slots__ = ("error", "partition", "patience", "started")

    def __init__(self) -> None:
        self.error: FolkmootError | None = None
        self.partition = -1
        self.patience = 0.0
        self.started: tuple[float, int] | None = None
        """The sender's: when it began to ask for the partition, and how many answers it had by then."""


class Accumulator:
    """The producer's appender, the topics that it may append to, the batches that it has opened, and waiters.

    Callers' threads append records through `appender`, which calls this once per batch (`register_batch`,
    `register_full_batch`) and when a record cannot be taken at once (`admit`). The sender's thread takes
    opened batches over, in the order of their first records, while callers continue to append to them.

    Waking. The sender's thread says until when it sleeps. A batch that may wait longer does not wake it,
    and of all calls that want to wake it only the first does. While it is awake it need not be woken: it
    looks before it sleeps.

    Batches are numbered in the order of opening. A flush waits until every batch up to the last one
    opened is `settled`: done, and its callbacks called.

    A record counts against `buffer_bytes` from when it is appended until its batch is done.
    MAX_FAILED_BATCHES failed batches are kept, until a flush raises the error of one that the application
    has not seen.

    `lock` guards everything and is held briefly. Callers wait on `changed`, for any change.
    """

    def __init__(
        self,
        config: ProducerConfig[Any, Any],
        wake_sender: Callable[[], None],
        clock: Callable[[], float] | None = None,
        random: Random | None = None,
        delivery: type[Delivery] = Delivery,
    ) -> None:
        """`wake_sender` wakes the sender's thread."""
        self.lock = RLock()
        self.changed = Condition(self.lock)
        self.appender = Appender(
            self,
            batch_bytes=config.batch_bytes,
            buffer_bytes=config.buffer_bytes,
            max_record_bytes=config.max_record_bytes,
            strategy=config.partitioner,
            random=random,
            delivery=delivery,
            batch=Batch,
            framed=writes_schema_id(config.value_serializer),
        )
        self.counts: dict[str, int] = {}
        """The number of partitions of each known topic."""
        self.lookups: dict[str, TopicLookup] = {}
        self.metadata_error: FolkmootError | None = None
        """Why the cluster cannot be asked for topics."""
        self.settled = 0
        """Every batch up to this number is settled."""
        self.patience = config.linger
        """Seconds that a batch opened now may wait until the sender's thread looks at it."""
        self.thread: int | None = None
        """The sender's thread, which may not wait for itself."""
        self.look_up: Callable[[str, float], float] = lambda topic, wait: 0.0
        """Look a topic up in the sender's thread, in at most this many seconds; return how many it took."""
        self.blocks = True
        """True if `admit` waits; else it raises WouldBlock."""
        self.listener: Listener | None = None
        """Rung whenever `changed` is notified, in any thread."""
        self._max_block = config.max_block
        self._wake_sender = wake_sender
        self._clock = clock or time.monotonic
        self._asleep = False
        self._sleeps_until = inf
        self._is_woken = False  # the sender's thread must look
        self._opened_batches: dict[Batch, None] = {}  # not taken over by the sender's thread
        self._unsettled: OrderedDict[Batch, None] = OrderedDict()  # in the order of opening
        self._filled: list[Batch] = []
        self._number = 0
        self._flush_up_to = 0
        self._records_done = 0
        self._purges = 0
        self._purged = 0.0
        self._failed: list[Batch] = []
        self._closed: FolkmootError | None = ClosedError(NOT_OPEN)
        self._orphaned: FolkmootError | None = None  # why no thread here sends what was appended

    # -- the appender, in callers' threads ----------------------------------------------------------

    def register_batch(self, batch: Batch) -> None:
        """Take note of a batch before, or just after, its first record.

        If this is interrupted (Ctrl-C, want of memory), the appender calls it again. By then another
        thread may have registered the batch, and it may be delivered: the second call does nothing.
        """
        with self.lock:
            if batch.state is not NEW or batch in self._opened_batches:
                return
            now = batch.opened_at = self._clock()
            if not batch.number:
                self._number = batch.number = self._number + 1
            self._unsettled[batch] = self._opened_batches[batch] = None
            if self._asleep and now + self.patience < self._sleeps_until:
                self._wake()

    def register_full_batch(self, batch: Batch) -> None:
        """Take note of a batch that was closed because it is full."""
        with self.lock:
            self.register_batch(batch)
            self._filled.append(batch)
            self._wake()

    def admit(self, topic: str, partition: int = -1) -> None:
        """Wait until the topic is known, and that partition if one is named, and there is room, for at
        most `max_block` seconds.

        Raises ClosedError, BufferFull, UnknownTopicOrPartition, BrokerUnreachable, InvalidName,
        TypeError; WouldBlock at once unless `blocks`.
        """
        check_topic(topic)
        is_admitted, wait = self.admission(topic, partition), self._max_block
        if is_admitted():
            return
        if not self.blocks:
            raise WouldBlock
        if threading.get_ident() == self.thread:
            # In an on_delivery: this thread makes room, so it cannot wait for that; it does find topics.
            wait = self.look_up(topic, wait)
            if is_admitted():
                return
        elif self.until(is_admitted, wait):
            return
        raise self.too_late(topic, wait, partition)

    def admission(self, topic: str, partition: int = -1) -> Callable[[], bool]:
        """Return a condition: whether a record of the topic may be appended now.

        It raises why no record will ever be, as far as that becomes known after this call.
        """
        lookup: TopicLookup | None = None

        def is_admitted() -> bool:
            nonlocal lookup
            with self.lock:
                if self._closed is not None:
                    raise self._closed
                if partition < self.counts.get(topic, -1):
                    if self.appender.used < self.appender.limit:
                        return True
                    self._wake()
                    return False
                if lookup is not None and lookup.error is not None:
                    raise lookup.error
                lookup = lookup or self._look_up_topic(topic, partition, PARTITION_PATIENCE)
                return False

        return is_admitted

    def recount(self, topic: str) -> Callable[[], bool]:
        """Ask brokers again how many partitions a known topic has. Return a condition: whether they
        have answered."""
        with self.lock:
            lookup = self._look_up_topic(topic, self.counts.get(topic, 0), 0.0)
            is_over = lookup is None
            return lambda: (
                is_over or self._closed is not None or self.lookups.get(topic) is not lookup
            )

    def _look_up_topic(self, topic: str, partition: int, patience: float) -> TopicLookup | None:
        lookup = self.lookups.get(topic)
        if lookup is None and len(self.lookups) < MAX_LOOKUPS:
            lookup = self.lookups[topic] = TopicLookup()
            self._wake()
        if lookup is not None and partition >= 0:
            if partition > lookup.partition:
                lookup.partition, lookup.started = partition, None
            lookup.patience = max(lookup.patience, patience)
        return lookup

    def too_late(self, topic: str, waited: float, partition: int = -1) -> FolkmootError:
        """Return the error for an admission that did not come in this many seconds."""
        with self.lock:
            if partition < self.counts.get(topic, -1):
                return BufferFull(
                    f"{self.appender.used} bytes are not acknowledged yet, and no room came within "
                    f"{waited:g} s: send less, or raise buffer_bytes"
                )
            if self.metadata_error is not None:
                return BrokerUnreachable(
                    f"topic {topic} could not be looked up: {self.metadata_error}"
                )
            if topic in self.counts:
                return no_partition(topic, partition, self.counts[topic])
            return UnknownTopicOrPartition(f"topic {topic} was not found within {waited:g} s")

    # -- callers' threads ---------------------------------------------------------------------------

    def request_flush(self) -> int:
        """Ask for everything appended so far to be sent. Return what `settled` must reach."""
        with self.lock:
            self.appender.register_interrupted()
            self._flush_up_to = self._number
            self._wake()
            return self._number

    def request_purge(self) -> Callable[[], bool]:
        """Ask for everything that is not in flight to be failed. Return a condition: whether it was."""
        with self.lock:
            self._purges += 1
            target = self._purges
            self._wake()
            return lambda: self._purged >= target

    def unacknowledged(self) -> int:
        """Return how many records are neither delivered nor failed."""
        with self.lock:
            return self.appender.records - self._records_done

    def wait_for(self, done: Callable[[], bool], timeout: float | None) -> bool:
        """Wait until records are done. Return whether they are.

        Raises, unless they are, ConcurrentUse in the sender's thread, which would wait for itself, and
        ClosedError in a forked process, where no thread sends them.
        """
        with self.lock:
            if not done():
                if self._orphaned is not None:
                    raise self._orphaned
                if timeout != 0 and threading.get_ident() == self.thread:
                    raise ConcurrentUse("an on_delivery callback may not wait for a delivery")
            return self.until(done, timeout)

    def until(self, condition: Callable[[], bool], timeout: float | None) -> bool:
        """Wait until `changed` makes the condition true. Return whether it is.

        Raises ValueError for a timeout that is NaN.
        """
        if timeout is not None:
            check_timeout(timeout)
            if (
                timeout > threading.TIMEOUT_MAX
            ):  # more than locks take, and longer than a process lives
                timeout = None
        with self.lock:
            return self.changed.wait_for(condition, timeout)

    def take_failure(self) -> FolkmootError | None:
        """Return the first error, since the last call, of a record whose outcome was not asked for."""
        with self.lock:
            failed, self._failed = self._failed, []
        errors = (batch.error for batch in failed if batch.unobserved)
        return next(errors, None)

    def open(self) -> None:
        """Begin to take records."""
        keep_freed_memory()
        with self.lock:
            self._closed = None

    def close(self, reason: FolkmootError) -> None:
        """Take nothing more; waiters for admission get the reason, also if it is not the first."""
        with self.lock:
            self.appender.register_interrupted()
            self.appender.close()
            if self._closed is None or str(self._closed) == NOT_OPEN:
                self._closed = reason
            self._notify()

    def forked(self, reason: FolkmootError) -> None:
        """Close in a child process: the sender's thread is not here, and may hold the lock for ever."""
        self.lock = RLock()
        self.changed = Condition(self.lock)
        self.thread = None
        self._wake_sender = lambda: None
        self._closed = self._orphaned = reason
        self.appender.close()

    # -- the sender's thread ------------------------------------------------------------------------

    def take(self) -> SenderWork:
        """Return what has come since the last call."""
        with self.lock:
            self._asleep = self._is_woken = False
            self.appender.register_interrupted()
            is_full = self.appender.used >= self.appender.limit
            hurry = is_full or self._flush_up_to > self.settled
            purge = self._purges if self._purges > self._purged else 0
            work = SenderWork(list(self._opened_batches), self._filled, hurry, purge)
            for batch in work.opened:
                batch.state = WAITING
            self._opened_batches, self._filled = {}, []
            return work

    def unsettled(self) -> list[Batch]:
        """Return all batches that were opened and are not settled, taken over or not."""
        with self.lock:
            return list(self._unsettled)

    def sleep(self, until: float) -> float:
        """Return until when the sender's thread may sleep; not at all if a caller needs it."""
        with self.lock:
            self.appender.register_interrupted()  # an interrupted registration is not tried again by a caller
            if self._is_woken:
                return -inf
            if self._opened_batches:
                until = min(until, next(iter(self._opened_batches)).opened_at + self.patience)
            self._asleep, self._sleeps_until = True, until
            return until

    def awake(self) -> bool:
        """Note that the sender's thread is awake, and will `take` before it sleeps. Return whether it was
        rung for."""
        self._asleep = False
        return self._is_woken

    def set_topic_partitions(self, topic: str, partitions: int, available: Iterable[int]) -> None:
        """Set a topic's number of partitions, and which are `available`: they have leaders."""
        with self.lock:
            if partitions < self.counts.get(topic, 0):
                # Records placed by the new number are in later batches than those placed by the old one.
                self.appender.forget(topic)
            self.appender.set_topic_partitions(topic, partitions, list(available))
            self.counts[topic] = partitions
            lookup = self.lookups.get(topic)
            if lookup is not None and lookup.partition < partitions:
                del self.lookups[topic]
            self._notify()

    def forget(self, topic: str) -> None:
        """Look the topic up again when a record is sent to it."""
        with self.lock:
            self.appender.forget(topic)
            self.counts.pop(topic, None)

    def refuse(self, topic: str, error: FolkmootError) -> None:
        """End a topic's look-up with an error."""
        with self.lock:
            lookup = self.lookups.pop(topic, None)
            if lookup is not None:
                lookup.error = error
            self._notify()

    def complete(self, batches: Sequence[Batch]) -> None:
        """Make room for batches that are done, and wake all waiters.

        Those without callbacks are settled at once: a `flush` that follows their last record returns.
        """
        with self.lock:
            for batch in batches:
                self.appender.released(batch.size)
                self._records_done += batch.count
                if batch.error is None or isinstance(batch.error, RecordsPurged):
                    continue
                if len(self._failed) == MAX_FAILED_BATCHES:
                    self._failed = [failed for failed in self._failed if failed.unobserved]
                if batch.unobserved and len(self._failed) < MAX_FAILED_BATCHES:
                    self._failed.append(batch)
            self.settle(batch for batch in batches if not batch.callbacks)

    def settle(self, batches: Iterable[Batch]) -> None:
        """Note that these batches are done and their callbacks were called."""
        with self.lock:
            for batch in batches:
                self._unsettled.pop(batch, None)
            oldest = next(iter(self._unsettled), None)
            self.settled = self._number if oldest is None else oldest.number - 1
            self._notify()

    def purged(self, number: float) -> None:
        """Note that all purges up to this number are carried out."""
        with self.lock:
            self._purged = number
            self._notify()

    def _wake(self) -> None:
        """Have the sender's thread look: wake it, if it sleeps and was not woken yet."""
        if not self._is_woken:
            self._is_woken = True
            if self._asleep:
                self._wake_sender()

    def _notify(self) -> None:
        self.changed.notify_all()
        if self.listener is not None:
            self.listener.notify()


def check_timeout(timeout: float | None) -> None:
    """Raise ValueError for NaN."""
    if timeout is not None and isnan(timeout):
        raise ValueError(f"timeout={timeout} is no number of seconds")


def check_topic(topic: object) -> None:
    """Raise TypeError if it is no str, InvalidName."""
    if not isinstance(topic, str):
        raise TypeError(f"a topic is named by a str, not by {topic!r}")
    check_name("topic", topic)
