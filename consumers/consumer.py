"""The consumer: records of a group's partitions, or of partitions assigned by hand."""

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any, Literal, Self

from folkmoot.consumers.config import ConsumerConfig
from folkmoot.consumers.events import Rebalanced
from folkmoot.consumers.fetcher import Fetcher
from folkmoot.consumers.member import Member, MemberSettings
from folkmoot.consumers.positions import Positions
from folkmoot.consumers.subscription import Callbacks, Subscription
from folkmoot.coordination.bell import Bell
from folkmoot.coordination.brokers import live
from folkmoot.coordination.connector import connector
from folkmoot.coordination.ownership import committed
from folkmoot.coordination.store import Connect, SessionState, Store, run
from folkmoot.network.client import Connections
from folkmoot.network.cluster import Cluster
from folkmoot.protocol.errors import (
    ClosedError,
    ConcurrentUse,
    ConfigError,
    NotOwner,
    UnknownTopicOrPartition,
    ZooKeeperUnreachable,
)
from folkmoot.protocol.options import build
from folkmoot.protocol.records import Record, TopicPartition
from folkmoot.protocol.requests import EARLIEST, LATEST

METADATA_WAIT = 15.0
CLOSE_TIMEOUT = 10.0
_TURN = 1.0

OnPartitions = Callable[["Consumer", list[TopicPartition]], None]
OnRebalance = Callable[["Consumer", Rebalanced], None]
Place = int | Literal["beginning", "end"]


class Consumer:
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

    `on_assign` runs when the start offset is known and before the first record is fetched,
    `on_revoke` while the partition is still ours (it may commit), `on_lost` when it no longer is.
    They run in the thread that polls. That one thread owns the consumer; only `stop` may be called
    from others. Options are those of `ConsumerConfig`; an unknown one raises ConfigError.
    """

    def __init__(
        self,
        *,
        on_assign: OnPartitions | None = None,
        on_revoke: OnPartitions | None = None,
        on_lost: OnPartitions | None = None,
        on_rebalance: OnRebalance | None = None,
        **options: Any,
    ) -> None:
        self.config = build(ConsumerConfig, options)
        self._callbacks = Callbacks(
            on_assign=_bound(self, on_assign),
            on_revoke=_bound(self, on_revoke),
            on_lost=_bound(self, on_lost),
            on_rebalance=_bound(self, on_rebalance),
        )
        self._connect: Connect = connector(self.config.zookeeper)
        self._bell = Bell()
        self._attention = False
        self._stopped = False
        self._closed = False
        self._thread: int | None = None
        self._store: Store | None = None
        self._cluster = Cluster(
            Connections(self.config.client_id), self._discover, listener=self.config.listener
        )
        self._fetcher = Fetcher(self.config, self._cluster, time.monotonic)
        self._positions = Positions()
        self._subscription: Subscription | None = None

    # -- life -------------------------------------------------------------------------------------

    def start(self) -> Self:
        """Connect to ZooKeeper and join the group. Raises ZooKeeperUnreachable."""
        self._check_thread()
        config = self.config
        if config.group is None or not config.topics:
            self._store = self._connect(config.session_timeout)
        else:
            settings = MemberSettings(
                group=config.group,
                topics=tuple(config.topics),
                client_id=config.client_id,
                hand_over=config.hand_over,
                session_timeout=config.session_timeout,
            )
            member = Member(settings, self._connect, self._wake)
            member.start()
            self._subscription = Subscription(
                config, member, self._fetcher, self._positions, self._callbacks, self._bell
            )
        return self

    def stop(self) -> None:
        """End the iteration after the record under way. From any thread, or a signal handler."""
        self._stopped = True
        self._wake()

    def close(self, timeout: float = CLOSE_TIMEOUT) -> None:
        """Leave the group, with `auto_commit` after committing what was handed out; disconnect.

        Ends within `timeout` seconds, whatever is dead; what could not be committed comes again.
        """
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
        else:
            self._close(CLOSE_TIMEOUT)

    # -- records ----------------------------------------------------------------------------------

    def poll(self, timeout: float = 1.0, max_records: int | None = None) -> list[Record]:
        """Up to `max_records` records; waits at most `timeout` seconds for the first.

        Asking says that everything handed out before is processed.
        """
        self._check_usable()
        self._positions.process_all()
        limit = max_records or self.config.max_poll_records
        deadline = time.monotonic() + timeout
        while True:
            self._serve()
            records = self._fetcher.take(limit)
            while records and len(records) < limit:
                more = self._fetcher.take(limit - len(records))
                if not more:
                    break
                records += more
            remaining = deadline - time.monotonic()
            if records or remaining <= 0 or self._stopped:
                self._positions.hand_out(records)
                self._fetch(0.0)
                return records
            self._fetch(min(remaining, _TURN))

    def __iter__(self) -> Iterator[Record]:
        """Records one by one, until `stop` is called."""
        while not self._stopped:
            self._check_usable()
            self._serve()
            records = self._fetcher.take(self.config.max_poll_records)
            self._fetch(0.0 if records else _TURN)
            yield from self._one_by_one(records)

    def _one_by_one(self, records: list[Record]) -> Iterator[Record]:
        """Records of one partition; what the group wants is served between any two of them."""
        for position, record in enumerate(records, 1):
            self._positions.hand_out((record,))
            yield record
            self._positions.process_all()
            due = self._subscription is not None and self._subscription.due
            if self._attention or due or self._stopped:
                self._fetcher.put_back(record.topic_partition, records[position:])
                return

    def assignment(self) -> frozenset[TopicPartition]:
        """The partitions that this consumer reads now."""
        return frozenset(self._fetcher.partitions())

    def epoch(self, partition: TopicPartition) -> int:
        """The fencing token of our claim on a partition: it grows with every owner. Raises NotOwner."""
        owned = {} if self._subscription is None else self._subscription.epochs
        if partition not in owned:
            raise NotOwner(f"{partition} is not owned by this consumer")
        return owned[partition]

    @property
    def member(self) -> Member | None:
        """This consumer's place in its group; None without one."""
        return None if self._subscription is None else self._subscription.member

    # -- offsets ----------------------------------------------------------------------------------

    def commit(
        self, offsets: Mapping[TopicPartition, int] | None = None, timeout: float = 30.0
    ) -> None:
        """Commit the next offsets to process; without `offsets`, of everything handed out so far.

        Raises NotOwner if a partition is no longer ours (the others are committed), RequestTimeout
        if ZooKeeper did not answer in time (then the commit may still come to pass).
        """
        self._check_usable()
        if self._subscription is None:
            raise ConfigError("there is no group to commit to: give group=… and topics=…")
        if offsets is None:
            self._positions.process_all()
            offsets = self._positions.uncommitted(self._subscription.epochs)
        if offsets:
            self._subscription.commit(dict(offsets), timeout)

    def committed(self, partition: TopicPartition) -> int | None:
        """The group's committed offset, read from ZooKeeper; None if there is none."""
        self._check_usable()
        if self.config.group is None:
            raise ConfigError("without a group nothing is committed: give group=…")
        state = run(self._session(), committed(self.config.group, partition))
        return None if state is None else state.offset

    def position(self, partition: TopicPartition) -> int | None:
        """The next offset to be handed out; None while it is looked up. Raises NotAssigned."""
        return self._fetcher.position(partition)

    def end_offset(self, partition: TopicPartition) -> int | None:
        """The partition's end as the last fetch saw it; None before the first. Raises NotAssigned."""
        end = self._fetcher.end(partition)
        return None if end < 0 else end

    def seek(self, partition: TopicPartition, place: Place) -> None:
        """Go on at an offset, at the beginning or at the end. Raises NotAssigned, ConfigError."""
        self._check_usable()
        if isinstance(place, int) and place < 0:
            raise ConfigError(f"offset {place} does not exist: offsets start at 0")
        special = {"beginning": EARLIEST, "end": LATEST}
        offset = place if isinstance(place, int) else special[place]
        self._fetcher.seek(partition, offset)
        self._positions.forget(partition)

    def pause(self, *partitions: TopicPartition) -> None:
        """Hand out nothing of these partitions until `resume`. Raises NotAssigned."""
        for partition in partitions:
            self._fetcher.pause(partition, True)

    def resume(self, *partitions: TopicPartition) -> None:
        """Undo `pause`. Raises NotAssigned."""
        for partition in partitions:
            self._fetcher.pause(partition, False)

    def assign(self, partitions: Iterable[tuple[str, int]]) -> None:
        """Read exactly these partitions, without a group. Raises UnknownTopicOrPartition."""
        self._check_usable()
        if self._subscription is not None:
            raise ConfigError(
                "a member of a group gets its partitions by the group, not by assign()"
            )
        wanted = [TopicPartition(*partition) for partition in partitions]
        for partition in wanted:
            if partition not in self.partitions_of(partition.topic):
                known = len(self._cluster.partitions(partition.topic))
                raise UnknownTopicOrPartition(
                    f"{partition} does not exist: topic {partition.topic} has {known} partitions"
                )
        for partition in self.assignment() - frozenset(wanted):
            self._fetcher.remove(partition)
            self._positions.forget(partition)
        for partition in wanted:
            if partition not in self.assignment():
                self._fetcher.add(partition, None)

    def partitions_of(self, topic: str) -> list[TopicPartition]:
        """All partitions of a topic. Raises UnknownTopicOrPartition."""
        self._check_usable()
        deadline = time.monotonic() + METADATA_WAIT
        self._cluster.want(topic)
        while not self._cluster.partitions(topic):
            remaining = deadline - time.monotonic()
            if self._cluster.is_missing(topic):
                raise UnknownTopicOrPartition(
                    f"topic {topic} does not exist: create it with `folkmoot topic create {topic}`"
                )
            if remaining <= 0:
                raise self._cluster.trouble or UnknownTopicOrPartition(
                    f"no broker told about topic {topic} within {METADATA_WAIT:g} s"
                )
            self._fetcher.poll(min(remaining, _TURN), self._bell)
        return [TopicPartition(topic, number) for number in self._cluster.partitions(topic)]

    # -- inside -----------------------------------------------------------------------------------

    def _serve(self) -> None:
        self._attention = False
        self._bell.silence()
        if self._subscription is not None:
            self._subscription.serve()

    def _fetch(self, timeout: float) -> None:
        self._fetcher.poll(0.0 if self._attention else timeout, self._bell)

    def _wake(self) -> None:
        self._attention = True
        self._bell.ring()

    def _close(self, timeout: float) -> None:
        if self._closed:
            return
        self._check_thread()
        self._closed = True
        if self._subscription is not None:
            self._subscription.leave(time.monotonic() + timeout)
        if self._store is not None:
            self._store.close()
        self._cluster.close()
        self._bell.close()

    def _discover(self) -> list[str]:
        """Addresses of live brokers, from ZooKeeper, for the listener that we use."""
        brokers = run(self._session(), live())
        listener = self.config.listener
        return [each.listeners[listener] for each in brokers.values() if listener in each.listeners]

    def _session(self) -> Store:
        """The ZooKeeper session of the moment. Raises ZooKeeperUnreachable while there is none."""
        member = self.member
        if member is None and (self._store is None or self._store.state is SessionState.LOST):
            self._store = self._connect(self.config.session_timeout)
        store = self._store if member is None else member.store
        if store is None or store.state is not SessionState.CONNECTED:
            raise ZooKeeperUnreachable("ZooKeeper does not answer at the moment")
        return store

    def _check_usable(self) -> None:
        if self._closed or (self._subscription is None and self._store is None):
            raise ClosedError("the consumer is not open: use it in a with block, or call start()")
        self._check_thread()

    def _check_thread(self) -> None:
        """One thread owns the consumer: the one that started it."""
        here = threading.get_ident()
        if self._thread is None:
            self._thread = here
        elif self._thread != here:
            raise ConcurrentUse("a consumer belongs to the thread that started it")


def _bound(consumer: Consumer, callback: Callable[[Consumer, Any], None] | None) -> Any:
    """The application's callback, or nothing, with the consumer as its first argument."""
    if callback is None:
        return lambda notice: None
    return lambda notice: callback(consumer, notice)
