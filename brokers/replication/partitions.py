"""The partitions of which this broker has replicas: made, taken up and given up as the cluster says."""

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Final

from folkmoot.brokers.jobs.jobs import Now, call_guarded
from folkmoot.brokers.replication.partition import DISK_AGAIN_AFTER, TRY_AGAIN_AFTER, Partition
from folkmoot.brokers.replication.replica_fetcher import ReplicaFetcher
from folkmoot.brokers.replication.shared import Counters, Shared, Tended, WriteStates
from folkmoot.brokers.storage.flusher import Flusher
from folkmoot.brokers.storage.log import Log
from folkmoot.brokers.storage.log_manager import LogManager
from folkmoot.brokers.storage.partition_creation import PartitionCreation
from folkmoot.brokers.storage.retention import Retention
from folkmoot.coordination.brokers import Registration
from folkmoot.coordination.partition_states import TopicIdPartition, VersionedState
from folkmoot.coordination.topics import TopicInfo
from folkmoot.protocol.errors import FolkmootError
from folkmoot.protocol.messages import PartitionMetadata

logger = logging.getLogger(__name__)

LOOK_AFTER: Final = 0.5
LOOKED_AT: Final = 200


class Partitions:
    """All partitions of this broker, by topic id and number.

    Logs are made as soon as a view of the cluster shows their partitions, beside the event loop. A replica
    that is not one of the partition's any more, by the topic as by the state, is deleted: also if this
    broker was away when it was moved, since a topic's id is never given to another.

    Owner: the event loop.
    """

    def __init__(
        self,
        broker_id: int,
        logs: LogManager,
        flusher: Flusher,
        retention: Retention,
        creation: PartitionCreation,
        fetcher: ReplicaFetcher,
        write_states: WriteStates,
        post: Callable[[Callable[[], None]], None],
        clock: Callable[[], float],
    ) -> None:
        self.broker_id = broker_id
        self.live: Mapping[int, Registration] = {}
        self.nonce = ""
        """Of this process' own registration; "" while there is none."""
        self.fetcher = fetcher
        self._own_nonce = ""
        self._logs = logs
        self.creation = creation
        self._post = post
        self.shared = Shared(
            broker_id=broker_id,
            logs=logs,
            flusher=flusher,
            retention=retention,
            fetcher=fetcher,
            write_states=write_states,
            post=post,
            clock=clock,
        )
        self._partitions: dict[TopicIdPartition, Partition] = {}
        self._by_log: dict[Log, Partition] = {}
        self._damaged: dict[Partition, None] = {}
        self._being_made: dict[TopicIdPartition, tuple[TopicInfo, VersionedState | None]] = {}
        """Partitions whose logs are being made, or are not idle, with what was read of them last."""
        self._round: deque[Tended] = deque()
        self._next_round = 0.0

    def __iter__(self) -> Iterator[Partition]:
        return iter(self._partitions.values())

    @property
    def counters(self) -> Counters:
        return self.shared.counters

    def find(self, topic_id: str, partition: int) -> Partition | None:
        """The partition, if this broker has a replica of it; asked for each entry of each request."""
        return self._partitions.get(TopicIdPartition(topic_id, partition))

    def of(self, log: Log) -> Partition | None:
        """The partition that has this log; None if it is not known (any more)."""
        return self._by_log.get(log)

    # -- what the cluster says ----------------------------------------------------------------------

    def brokers_are(self, live: Mapping[int, Registration], *, is_registered: bool) -> None:
        """These brokers are registered, and this process is among them if it `is_registered`. What
        another one has registered under this broker's id is not ours: who fetched with its nonce would
        be counted for what its disk lacks."""
        self.live = live
        mine = live.get(self.broker_id)
        found = "" if mine is None else mine.nonce
        if is_registered:
            self._own_nonce = found
        self.nonce = found if found == self._own_nonce else ""
        self.shared.registered.clear()
        self.shared.registered.update(live)
        staying = {number for number, each in live.items() if not each.leaving}
        if staying != self.shared.staying:
            # Who waits for a replica that is gone does not wait for the next round.
            self.shared.staying.clear()
            self.shared.staying.update(staying)
            self._round = deque(self._partitions.values())
            self._post(self._go_round)
        self.fetcher.brokers_are(live, self.nonce)

    def topic_is(
        self,
        name: str,
        topic: TopicInfo,
        states: Mapping[TopicIdPartition, VersionedState],
        *,
        numbers: Iterable[int],
        settled: bool,
    ) -> None:
        """What some of a topic's partitions are, as of one view. `settled`: read in a new session."""
        for number in numbers:
            key = TopicIdPartition(topic.topic_id, number)
            partition, found = self._partitions.get(key), states.get(key)
            if self.broker_id not in topic.partitions[number]:
                self._drop(key)
                self._delete(key, found)
            elif partition is not None:
                partition.assign(topic)
                partition.observe(found, settled=settled)
                partition.look_again()
                self.shared.restless[partition] = None
            elif (log := self._logs.find(*key)) is not None and log.queue.is_idle:
                self._begin(key, log, topic, found)
            else:
                is_new = key not in self._being_made
                self._being_made[key] = topic, found
                if is_new and log is not None:
                    log.queue.add(self._begin_again(key, log))
                elif is_new:
                    self._create(name, key)

    def topics(self) -> list[str]:
        """The topics of which this broker has replicas."""
        return sorted({each.log.name.topic for each in self._partitions.values()})

    def heard(self, topic_id: str, known: PartitionMetadata) -> None:
        """What another broker knows of a partition, while ZooKeeper does not answer this one."""
        partition = self.find(topic_id, known.partition)
        if partition is not None:
            partition.heard(known)

    def topic_gone(self, topic_id: str) -> None:
        """Deleted, or lost: nothing of it is led or followed here any more."""
        for key in [*self._partitions, *self._being_made]:
            if key.topic_id == topic_id:
                self._drop(key)

    def _create(self, name: str, key: TopicIdPartition) -> None:
        self.creation.when_created(name, *key, partial(self._created, name, key))

    def _created(self, name: str, key: TopicIdPartition, error: FolkmootError | None) -> None:
        log, wanted = self._logs.find(*key), self._being_made.get(key)
        if wanted is None:
            if key not in self._partitions:  # it was moved away meanwhile
                self._logs.delete_partition(*key)
        elif error is None and log is not None:
            del self._being_made[key]
            self._begin(key, log, *wanted)
        else:
            if not self._logs.room.is_missed(error):
                logger.warning(
                    "%s-%d: its replica here could not be created, trying again: %s",
                    *(name, key.partition, error),
                )
            self.shared.later(DISK_AGAIN_AFTER, partial(self._create_again, name, key))

    def _create_again(self, name: str, key: TopicIdPartition) -> None:
        if key in self._being_made:
            self._create(name, key)

    def _begin(
        self, key: TopicIdPartition, log: Log, topic: TopicInfo, found: VersionedState | None
    ) -> None:
        if not log.is_open and log.failed is None:
            return  # it was deleted
        partition = Partition(self.shared, key, log, topic.partitions[key.partition])
        self._partitions[key] = self._by_log[log] = partition
        if log.is_damaged:
            self._damaged[partition] = None
        partition.begin(topic, found)

    async def _begin_again(self, key: TopicIdPartition, log: Log) -> None:
        """Behind what the log's former partition has begun: that may cut the log, or have it begin anew, and
        what it finds says whether the replica may lead."""
        if self._logs.find(*key) is log and key in self._being_made:
            self._begin(key, log, *self._being_made.pop(key))

    def _drop(self, key: TopicIdPartition) -> None:
        """This broker has no replica of it (any more)."""
        self._being_made.pop(key, None)
        partition = self._partitions.pop(key, None)
        if partition is not None:
            partition.close()
            self._by_log.pop(partition.log, None)
            self._damaged.pop(partition, None)

    def _delete(self, key: TopicIdPartition, found: VersionedState | None) -> None:
        """Delete a replica that was moved away; one that counts as in sync waits for its leader to see it."""
        log = self._logs.find(*key)
        if log is None or found is None or self.broker_id in (found.state.leader, *found.state.isr):
            return
        if log.leader_epoch > found.state.leader_epoch:
            # Who leaves has acted in no later epoch. ZooKeeper was set back: this may be the only copy.
            logger.error(
                "%s: kept, though its replicas are said to be on other brokers: leader epoch %d, which "
                "ZooKeeper knows, is behind %d, which this disk knows",
                *(log.name, found.state.leader_epoch, log.leader_epoch),
            )
            return
        logger.info("%s: deleted here: its replicas are on other brokers now", log.name)
        self._logs.delete_partition(*key)

    # -- what comes from the disk and from leaders --------------------------------------------------

    def turn(self, events: Mapping[Any, int], now: Now) -> None:
        """Take what leaders have answered, and ask for more. A fault puts one partition out of use."""
        for topic_id, result, chunk in self.fetcher.receive(events, now):
            partition = self.find(topic_id, result.partition)
            if partition is None:
                continue
            try:
                partition.take(result, chunk, now)
            except Exception as error:
                logger.exception("%s: a fault of this broker's own", partition.log.name)
                partition.fail(f"its leader's answer could not be taken: {error!r}")
        self.fetcher.send(now)

    # -- from time to time --------------------------------------------------------------------------

    def task(self, now: Now) -> float:
        """Look after some partitions, and try again what has failed."""
        shared = self.shared
        is_waiting = shared.run_timers(now.monotonic)
        for partition in [
            each for each in self._partitions.values() if each.log.failed is not None
        ]:
            call_guarded(partition.log.name, partition.resign)
        self._look_after_damage()
        if not self._round and now.monotonic >= self._next_round:
            self._next_round = now.monotonic + LOOK_AFTER
            self._round.extend(shared.restless)
            self._post(self._go_round)
        return TRY_AGAIN_AFTER if is_waiting else LOOK_AFTER

    def _look_after_damage(self) -> None:
        found = self._logs.files.damaged
        while found:
            topic_id, _, number = found.pop().name.rpartition("-")
            partition = self.find(topic_id, int(number))
            if partition is not None:
                self._damaged[partition] = None
        for partition in list(self._damaged):
            if call_guarded(partition.log.name, partition.look_after_damage) is False:
                del self._damaged[partition]

    def _go_round(self) -> None:
        """Look at some in-sync replicas, and later at the others: not at those that are at rest."""
        try:
            for _ in range(min(LOOKED_AT, len(self._round))):
                partition = self._round.popleft()
                partition.look_after_isr()
                if partition.is_at_rest:
                    self.shared.restless.pop(partition, None)
                else:
                    self.shared.restless[partition] = None
        finally:  # a fault of one partition does not end the round
            if self._round:
                self._post(self._go_round)
