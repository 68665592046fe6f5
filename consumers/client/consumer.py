"""The consumer: records of a group's partitions, or of partitions assigned by hand."""

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable
from itertools import chain
from operator import index
from types import TracebackType
from typing import Any, Self, SupportsIndex

from folkmoot.consumers.client.subscription import Callbacks, Starts, Subscription, settings_of
from folkmoot.consumers.config import ConsumerConfig
from folkmoot.consumers.fetch.fetcher import Fetcher
from folkmoot.consumers.group.events import Rebalanced
from folkmoot.consumers.group.group_thread import Member
from folkmoot.consumers.group.membership import GroupPlace
from folkmoot.consumers.offsets.directory import Directory
from folkmoot.consumers.offsets.positions import Positions
from folkmoot.consumers.offsets.progress import OffsetControl
from folkmoot.consumers.records.batch_view import RecordBatchView
from folkmoot.consumers.records.iteration import RecordReading
from folkmoot.coordination.connector import connector
from folkmoot.coordination.wakeup import Wakeup
from folkmoot.network.client import Connections
from folkmoot.network.cluster import Cluster
from folkmoot.protocol.errors import (
    ClosedError,
    ConcurrentUse,
    ConfigError,
    UnknownTopicOrPartition,
)
from folkmoot.protocol.options import build
from folkmoot.protocol.records import Record, TopicPartition

CLOSE_TIMEOUT = 10.0

log = logging.getLogger(__name__)

OnAssign = Callable[["Consumer", list[TopicPartition]], Starts | None]
OnPartitions = Callable[["Consumer", list[TopicPartition]], None]
OnRebalance = Callable[["Consumer", Rebalanced], None]


class Consumer(RecordReading, OffsetControl, GroupPlace):
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

    `on_assign` runs before the first record is fetched: it may `seek`, or return where to go on, per
    partition. `on_revoke` runs while the partition is still ours: it may `commit`; also on close.
    `on_lost` runs when it no longer is. They run in the thread that polls, between two records, and
    may not poll or close themselves; what they raise comes out of `poll` or the iteration. After an
    `on_assign` that raised, nothing is handed out before it has succeeded: asking again calls it again.

    What makes reading one partition impossible (an illegible batch, no offset to start at, its topic
    deleted) is raised once, and stops that partition until a `seek`; the others go on.

    The thread that started the consumer owns it; only `stop` may be called from others, and from
    signal handlers. It does not survive a fork: in the child process it is closed. Options are those
    of `ConsumerConfig`; an unknown one raises ConfigError.
    """

    def __init__(
        self,
        *,
        on_assign: OnAssign | None = None,
        on_revoke: OnPartitions | None = None,
        on_lost: OnPartitions | None = None,
        on_rebalance: OnRebalance | None = None,
        **options: Any,
    ) -> None:
        self.config = config = build(ConsumerConfig, options)
        self._callbacks = Callbacks.of(self, on_assign, on_revoke, on_lost, on_rebalance)
        guarded = config.guardian and config.group is not None
        self._connect = connector(config.zookeeper, guarded=guarded)
        self._wakeup = Wakeup()
        self._stopped = False
        self._closing = False
        self._closed = False
        self._calling_back = False
        self._waited = True  # the wakeup may have ended that: it is to be cleared
        self._thread: int | None = None
        self._process: int | None = None
        self._directory = Directory(self._connect, config.session_timeout, config.listener)
        self._cluster = Cluster(
            Connections(config.client_id), self._directory.brokers, listener=config.listener
        )
        self._positions = Positions()
        self._fetcher = Fetcher(config, self._cluster, time.monotonic, self._positions.begin)
        self._subscription: Subscription | None = None

    # -- life -------------------------------------------------------------------------------------

    def start(self) -> Self:
        """Connect to ZooKeeper and join the group. Raises ZooKeeperUnreachable."""
        if self._closing:
            raise ClosedError("the consumer is closed: make another one")
        self._check_process()
        self._check_thread()
        if self._directory.is_open:
            return self
        if not (self.config.topics or self.config.pattern):
            self._directory.open()
        else:
            subscription = Subscription(
                self.config,
                Member(settings_of(self.config), self._connect, self._wake),
                self._fetcher,
                self._positions,
                self._callbacks,
                self._wakeup,
            )
            subscription.member.start()
            self._directory.borrow(lambda: subscription.member.session)
            self._subscription = subscription
        self._process = os.getpid()
        return self

    def stop(self) -> None:
        """End the iteration after the record under way. From any thread, or a signal handler."""
        self._stopped = True
        if not self._is_forked:
            self._wake()

    def close(self, timeout: float = CLOSE_TIMEOUT) -> None:
        """Leave the group, with `auto_commit` after committing what was handed out; disconnect.

        Ends within `timeout` seconds, whatever is dead; what could not be committed comes again.
        Raises what a callback raises, after all is closed. In a forked child it does nothing.
        """
        if not self._closed and not self._is_forked:
            self._check_thread()
            self._check_not_called_back()
            self._take_back()
            self._positions.process_all()
            self._close(timeout)

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
                self._close(CLOSE_TIMEOUT)
        except Exception as another:  # the first error is the one to be seen
            log.error("closing a consumer after an error: %s", another)

    # -- records ----------------------------------------------------------------------------------

    def poll(self, timeout: float = 1.0, max_records: int | None = None) -> list[Record]:
        """Up to `max_records` records; waits at most `timeout` seconds for the first.

        Asking says that everything handed out before is processed.
        """
        if max_records is not None and max_records < 1:
            raise ConfigError(f"max_records must be at least 1, not {max_records}")
        limit = max_records or self.config.max_poll_records
        found = self._read(timeout, limit, RecordBatchView.records)
        return found[0] if len(found) == 1 else list(chain.from_iterable(found))

    def _ask_for_more(self) -> None:
        """Everything handed out before is processed."""
        self._check_usable()
        self._check_not_called_back()
        self._take_back()
        self._positions.end_turn()

    def assignment(self) -> frozenset[TopicPartition]:
        """The partitions that this consumer reads now."""
        return frozenset(self._fetcher.partitions())

    def assign(self, partitions: Iterable[tuple[str, int]]) -> None:
        """Read exactly these partitions, without a group. Raises UnknownTopicOrPartition."""
        self._check_usable()
        if self._subscription is not None:
            raise ConfigError("a member gets its partitions by its group, not by assign()")
        wanted = {_pair(each) for each in partitions}
        for topic in {partition.topic for partition in wanted}:
            known = self.partitions_of(topic)
            unknown = sorted(each for each in wanted - {*known} if each.topic == topic)
            if unknown:
                raise UnknownTopicOrPartition(
                    f"partition {unknown[0].partition} does not exist: "
                    f"topic {topic} has {len(known)}, numbered from 0"
                )
        self._take_back()
        for partition in self.assignment() - wanted:
            self._fetcher.remove(partition)
            self._positions.forget(partition)
        for partition in sorted(wanted - self.assignment()):
            self._fetcher.add(partition, None)

    def partitions_of(self, topic: str) -> list[TopicPartition]:
        """All partitions of a topic. Raises UnknownTopicOrPartition, or why no broker told."""
        self._check_usable()
        return self._directory.partitions(topic, self._cluster, self._fetcher.poll)

    def metrics(self) -> dict[str, int]:
        """Counters since the start (see `ConsumerCounters`), and how things stand now."""
        member = self.member
        return {
            **super().metrics(),
            "fenced_commits": 0 if member is None else member.fenced_commits,
            "lost_partitions": 0 if member is None else member.lost_partitions,
        }

    # -- inside -----------------------------------------------------------------------------------

    def _serve(self) -> None:
        if self._attention or self._waited:  # what rings later wakes the next wait
            self._attention = self._waited = False
            self._wakeup.clear()
        if self._subscription is not None:
            self._calling_back = True
            try:
                self._subscription.serve()
            finally:
                self._calling_back = False

    def _fetch(self, timeout: float) -> None:
        self._waited = True
        self._fetcher.poll(0.0 if self._attention or self._is_wanted() else timeout, self._wakeup)
        self._fetcher.ask()  # so that it is on its way while what has come is handed out
        self._fetched_at = time.monotonic()

    def _close(self, timeout: float) -> None:
        self._closing = self._calling_back = True
        self._take_back()
        try:
            if self._subscription is not None:
                self._subscription.leave(time.monotonic() + timeout)
        finally:
            self._closed = True
            self._directory.close()
            self._cluster.close()
            self._wakeup.close()

    @property
    def _is_forked(self) -> bool:
        """This is a child of the process that started it: the threads are not here, and what the two
        have in common (sockets, the session, the wakeup) is the parent's."""
        return self._process is not None and self._process != os.getpid()

    def _check_process(self) -> None:
        if self._is_forked:
            raise ClosedError("the consumer was made before a fork: make one in each process")

    def _check_usable(self) -> None:
        self._check_process()
        if self._closed or not self._directory.is_open:
            raise ClosedError("the consumer is not open: use it in a with block, or call start()")
        self._check_thread()

    def _check_thread(self) -> None:
        """One thread owns the consumer: the one that started it."""
        here = threading.get_ident()
        if self._thread is None:
            self._thread = here
        elif self._thread != here:
            raise ConcurrentUse("a consumer belongs to the thread that started it: only stop() may")

    def _check_not_called_back(self) -> None:
        if self._calling_back:
            raise ConcurrentUse("a callback may not poll or close: call stop() to end")


def _pair(given: object) -> TopicPartition:
    match given:
        case (str(topic), SupportsIndex() as number) if not isinstance(number, bool):
            return TopicPartition(topic, index(number))
    raise TypeError(
        f"assign() takes a topic and a partition's number for each, like [('flights', 0)], not {given!r}"
    )
