"""Where callers' threads leave records and the sender's thread takes them: the one place they share."""

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

MOST_WANTED: Final = 1000
"""So many topics are looked up at a time; who comes with another one waits in vain."""
FAILED_KEPT: Final = 100
PARTITION_PATIENCE: Final = 0.5
"""So long brokers may not know yet that a partition was added."""

Ring = Callable[[], None]


NOT_OPEN: Final = "the producer is not open: use it in a with block, or call start()"


class Taken(NamedTuple):
    """What the sender's thread has taken over: batches opened and filled, whether to send them without
    lingering, and the number of the purge that is asked for, or 0."""

    opened: list[Batch]
    filled: list[Batch]
    hurry: bool
    purge: int


class Listener(Protocol):
    """Who does not wait on a condition."""

    def ring(self) -> None: ...


class WouldBlock(Exception):
    """Where nobody may wait: there is no room, or the topic is not known, at this moment."""


class _Wanted:
    """A topic that is being looked up, until it is known to have `partition`; `error` is why it will not be.

    Brokers learn of a new partition a moment late: it is waited for as long as `patience`.
    """

    __slots__ = ("begun", "error", "partition", "patience")

    def __init__(self) -> None:
        self.error: FolkmootError | None = None
        self.partition = -1
        self.patience = 0.0
        self.begun: tuple[float, int] | None = (
            None  # the sender's: when, and after how many answers
        )


class Accumulator:
    """The producer's appender, the topics it may append to, the batches it has opened, and who waits.

    Callers' threads append records through `appender`, which comes here once per batch (`batch_opened`,
    `batch_full`) and when a record cannot be taken at once (`admit`). The sender's thread takes opened
    batches over, in the order of their first records, while callers go on appending to them.

    Waking. The sender's thread says until when it sleeps; a batch that may wait longer than that wakes
    nobody, and of all who want to wake it only the first does. While it is awake nobody does: it looks
    before it sleeps.

    Batches are numbered in the order of opening. A flush waits until every batch up to the last one
    opened is `settled`: done, and its callbacks called.

    A record counts against `buffer_bytes` from when it is appended until its batch is done. Of batches
    that failed FAILED_KEPT are kept, until a flush raises the error of one that nobody asked about.

    All is under `lock`, which is held briefly. Callers wait on `changed`, for whatever it is.
    """

    def __init__(
        self,
        config: ProducerConfig[Any, Any],
        ring: Ring,
        clock: Callable[[], float] | None = None,
        random: Random | None = None,
        delivery: type[Delivery] = Delivery,
    ) -> None:
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
        self.counts: dict[str, int] = {}  # partitions of the topics known
        self.wanted: dict[str, _Wanted] = {}
        self.trouble: FolkmootError | None = None
        self.settled = 0  # every batch up to this number is done, and told
        self.patience = config.linger
        """How long a batch that is opened now may wait until the sender's thread looks at it."""
        self.thread: int | None = None  # of the sender, which may not wait for itself
        self.look_up: Callable[[str, float], float] = lambda topic, wait: 0.0
        """Of the sender's thread: look a topic up, in at most so many seconds. → how many were waited."""
        self.blocks = True
        """Whether who is to be admitted waits; else WouldBlock."""
        self._max_block = config.max_block
        self._ring = ring
        self.listener: Listener | None = None
        """Is rung for whenever `changed` is notified, in any thread."""
        self._clock = clock or time.monotonic
        self._asleep = False
        self._sleeps_until = inf
        self._asked = False  # somebody wants the sender's thread to look
        self._opened: dict[Batch, None] = {}  # not taken over by the sender's thread
        self._unsettled: OrderedDict[Batch, None] = OrderedDict()  # opened, in order
        self._filled: list[Batch] = []
        self._number = 0
        self._flush_up_to = 0
        self._records_done = 0
        self._purges = 0
        self._purged = 0.0
        self._failed: list[Batch] = []
        self._closed: FolkmootError | None = ClosedError(NOT_OPEN)
        self._orphaned: FolkmootError | None = None  # why nobody here works on what was appended

    # -- the appender, in callers' threads ----------------------------------------------------------

    def batch_opened(self, batch: Batch) -> None:
        """It has got its first record. The second time means nothing.

        Whatever interrupts it (Ctrl-C, want of memory), the appender calls again until it has ended.
        Another thread may have told of it meanwhile, and the batch may be delivered by now.
        """
        with self.lock:
            if batch.state is not NEW or batch in self._opened:
                return
            now = batch.opened_at = self._clock()
            if not batch.number:
                self._number = batch.number = self._number + 1
            self._unsettled[batch] = self._opened[batch] = None
            if self._asleep and now + self.patience < self._sleeps_until:
                self._wake()

    def batch_full(self, batch: Batch) -> None:
        """It is closed, since it is as large as it may become."""
        with self.lock:
            self.batch_opened(batch)
            self._filled.append(batch)
            self._wake()

    def admit(self, topic: str, partition: int = -1) -> None:
        """Return when the topic is known, and that partition if one is named, and there is room, at most
        `max_block` seconds later.

        Raises ClosedError, BufferFull, UnknownTopicOrPartition, BrokerUnreachable, InvalidName,
        TypeError; WouldBlock at once where nobody may wait.
        """
        check_topic(topic)
        is_admitted, wait = self.admission(topic, partition), self._max_block
        if is_admitted():
            return
        if not self.blocks:
            raise WouldBlock
        if threading.get_ident() == self.thread:
            # In an on_delivery: it would wait for itself where there is no room. Topics it finds itself.
            wait = self.look_up(topic, wait)
            if is_admitted():
                return
        elif self.until(is_admitted, wait):
            return
        raise self.too_late(topic, wait, partition)

    def admission(self, topic: str, partition: int = -1) -> Callable[[], bool]:
        """→ whether a record of the topic may be appended by now; `changed` tells when to look again.

        It raises why none will be, as far as that became known since this call.
        """
        looked_up: _Wanted | None = None

        def is_admitted() -> bool:
            nonlocal looked_up
            with self.lock:
                if self._closed is not None:
                    raise self._closed
                if partition < self.counts.get(topic, -1):
                    if self.appender.used < self.appender.limit:
                        return True
                    self._wake()
                    return False
                if looked_up is not None and looked_up.error is not None:
                    raise looked_up.error
                looked_up = looked_up or self._want(topic, partition, PARTITION_PATIENCE)
                return False

        return is_admitted

    def recount(self, topic: str) -> Callable[[], bool]:
        """→ whether brokers have been asked again how many partitions a known topic has."""
        with self.lock:
            wanted = self._want(topic, self.counts.get(topic, 0), 0.0)
            is_over = wanted is None
            return lambda: (
                is_over or self._closed is not None or self.wanted.get(topic) is not wanted
            )

    def _want(self, topic: str, partition: int, patience: float) -> _Wanted | None:
        wanted = self.wanted.get(topic)
        if wanted is None and len(self.wanted) < MOST_WANTED:
            wanted = self.wanted[topic] = _Wanted()
            self._wake()
        if wanted is not None and partition >= 0:
            if partition > wanted.partition:
                wanted.partition, wanted.begun = partition, None
            wanted.patience = max(wanted.patience, patience)
        return wanted

    def too_late(self, topic: str, waited: float, partition: int = -1) -> FolkmootError:
        """Why waiting for so many seconds was in vain."""
        with self.lock:
            if partition < self.counts.get(topic, -1):
                return BufferFull(
                    f"{self.appender.used} bytes are not acknowledged yet, and no room came within "
                    f"{waited:g} s: send less, or raise buffer_bytes"
                )
            if self.trouble is not None:
                return BrokerUnreachable(f"topic {topic} could not be looked up: {self.trouble}")
            if topic in self.counts:
                return no_partition(topic, partition, self.counts[topic])
            return UnknownTopicOrPartition(f"topic {topic} was not found within {waited:g} s")

    # -- callers' threads ---------------------------------------------------------------------------

    def request_flush(self) -> int:
        """Ask for everything appended so far to be sent. Returns what `settled` must reach."""
        with self.lock:
            self.appender.place()
            self._flush_up_to = self._number
            self._wake()
            return self._number

    def request_purge(self) -> Callable[[], bool]:
        """Ask for everything that is not under way to be failed. → whether that was done."""
        with self.lock:
            self._purges += 1
            target = self._purges
            self._wake()
            return lambda: self._purged >= target

    def unacknowledged(self) -> int:
        """How many records are neither delivered nor failed."""
        with self.lock:
            return self.appender.records - self._records_done

    def wait_for(self, done: Callable[[], bool], timeout: float | None) -> bool:
        """Wait until records are done. → whether they are.

        Raises, unless they are, ConcurrentUse in the sender's thread, which would wait for itself, and
        ClosedError in a forked process, where nobody works on them.
        """
        with self.lock:
            if not done():
                if self._orphaned is not None:
                    raise self._orphaned
                if timeout != 0 and threading.get_ident() == self.thread:
                    raise ConcurrentUse("an on_delivery callback may not wait for a delivery")
        return self.until(done, timeout)

    def until(self, done: Callable[[], bool], timeout: float | None) -> bool:
        """Wait for what `changed` tells of. → whether it has come.

        Raises ValueError for a timeout that is no number of seconds.
        """
        check_timeout(timeout)
        # Of locks a wait may have an end, or none; both are longer than a process lives.
        limit = None if timeout is None or timeout > threading.TIMEOUT_MAX else timeout
        with self.lock:
            return self.changed.wait_for(done, limit)

    def take_failure(self) -> FolkmootError | None:
        """The first error, since the last call, of a record that nobody has asked about."""
        with self.lock:
            failed, self._failed = self._failed, []
        errors = (batch.error for batch in failed if batch.unobserved)
        return next(errors, None)

    def open(self) -> None:
        """From here on records are taken."""
        keep_freed_memory()
        with self.lock:
            self._closed = None

    def close(self, reason: FolkmootError) -> None:
        """Take nothing more; who waits to be admitted gets the reason, also if it is not the first."""
        with self.lock:
            self.appender.place()
            self.appender.close()
            if self._closed is None or str(self._closed) == NOT_OPEN:
                self._closed = reason
            self._notify()

    def forked(self, reason: FolkmootError) -> None:
        """This is a child process: the sender's thread is not here, and may hold the lock for ever."""
        self.lock = RLock()
        self.changed = Condition(self.lock)
        self.thread = None
        self._ring = lambda: None
        self._closed = self._orphaned = reason
        self.appender.close()

    # -- the sender's thread ------------------------------------------------------------------------

    def take(self) -> Taken:
        """What has come since the last call."""
        with self.lock:
            self._asleep = self._asked = False
            self.appender.place()
            hurry = self.flushing or self.appender.used >= self.appender.limit
            purge = self._purges if self._purges > self._purged else 0
            taken = Taken(list(self._opened), self._filled, hurry, purge)
            for batch in taken.opened:
                batch.state = WAITING
            self._opened, self._filled = {}, []
            return taken

    def unsettled(self) -> list[Batch]:
        """All that were opened and are not settled, taken over or not."""
        with self.lock:
            return list(self._unsettled)

    def sleep(self, until: float) -> float:
        """Until when the sender's thread may sleep; not at all if somebody has asked for it."""
        with self.lock:
            self.appender.place()  # nobody comes back for what was put beside a batch closed since
            if self._asked:
                return -inf
            if self._opened:
                until = min(until, next(iter(self._opened)).opened_at + self.patience)
            self._asleep, self._sleeps_until = True, until
            return until

    def awake(self) -> bool:
        """The sender's thread sleeps no more, and will `take` before it does; whether it was rung for."""
        self._asleep = False
        return self._asked

    @property
    def flushing(self) -> bool:
        return self._flush_up_to > self.settled

    def topic_known(self, topic: str, partitions: int, available: Iterable[int]) -> None:
        """`available` partitions have leaders."""
        with self.lock:
            if partitions < self.counts.get(topic, 0):
                # Records placed by the new number are in later batches than those placed by the old one.
                self.appender.forget(topic)
            self.appender.topic_known(topic, partitions, list(available))
            self.counts[topic] = partitions
            wanted = self.wanted.get(topic)
            if wanted is not None and wanted.partition < partitions:
                del self.wanted[topic]
            self._notify()

    def forget(self, topic: str) -> None:
        """The topic is looked up again when a record is sent to it."""
        with self.lock:
            self.appender.forget(topic)
            self.counts.pop(topic, None)

    def refuse(self, topic: str, error: FolkmootError) -> None:
        """Tell who waits for this topic that it will not be known."""
        with self.lock:
            wanted = self.wanted.pop(topic, None)
            if wanted is not None:
                wanted.error = error
            self._notify()

    def complete(self, batches: Sequence[Batch]) -> None:
        """These are done: there is room again, and all who wait for their records wake up.

        Those without callbacks are settled at once: a `flush` that follows their last record returns.
        """
        with self.lock:
            for batch in batches:
                self.appender.released(batch.size)
                self._records_done += batch.count
                if batch.error is not None and not isinstance(batch.error, RecordsPurged):
                    self._note_failed(batch)
            self.settle(batch for batch in batches if not batch.callbacks)

    def settle(self, batches: Iterable[Batch]) -> None:
        """These are done, and their callbacks were called."""
        with self.lock:
            for batch in batches:
                self._unsettled.pop(batch, None)
            oldest = next(iter(self._unsettled), None)
            self.settled = self._number if oldest is None else oldest.number - 1
            self._notify()

    def purged(self, number: float) -> None:
        """All purges up to this number are carried out."""
        with self.lock:
            self._purged = number
            self._notify()

    def _note_failed(self, batch: Batch) -> None:
        if len(self._failed) == FAILED_KEPT:
            self._failed = [each for each in self._failed if each.unobserved]
        if batch.unobserved and len(self._failed) < FAILED_KEPT:
            self._failed.append(batch)

    def _wake(self) -> None:
        """Have the sender's thread look: wake it, if it sleeps and nobody has yet."""
        if not self._asked:
            self._asked = True
            if self._asleep:
                self._ring()

    def _notify(self) -> None:
        self.changed.notify_all()
        if self.listener is not None:
            self.listener.ring()


def check_timeout(given: float | None) -> None:
    """Raises ValueError for what is no number of seconds."""
    if given is not None and isnan(given):
        raise ValueError(f"timeout={given} is no number of seconds")


def check_topic(given: object) -> None:
    """Raises TypeError for what is no str, InvalidName."""
    if not isinstance(given, str):
        raise TypeError(f"a topic is named by a str, not by {given!r}")
    check_name("topic", given)
