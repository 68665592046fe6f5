"""The partitions of which this broker has replicas: created, updated and closed by the cluster's view."""

import logging
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Final

from folkmoot.brokers.jobs.jobs import Now, call_guarded
from folkmoot.brokers.replication.partition import DISK_AGAIN_AFTER, Partition
from folkmoot.brokers.replication.shared import Shared
from folkmoot.brokers.storage.log import Log
from folkmoot.brokers.storage.partition_creation import PartitionCreation
from folkmoot.coordination.brokers import Registration
from folkmoot.coordination.partition_states import TopicIdPartition, VersionedState
from folkmoot.coordination.topics import TopicInfo
from folkmoot.protocol.errors import FolkmootError

logger = logging.getLogger(__name__)

LOOK_AFTER: Final = 0.5
"""Seconds between two rounds of `Partitions.task`."""
CHECKS_PER_STEP: Final = 200
"""Partitions whose ISR is checked in one step, at most."""


class Partitions:
    """All partitions of this broker, by topic id and number.

    A log is created in the background as soon as a view of the cluster shows its partition. A replica is
    deleted once both the topic and the state place the partition on other brokers. That includes one that
    was moved while this broker was away: a topic's id is never used again.

    Owner: the event loop.
    """

    def __init__(self, shared: Shared, creation: PartitionCreation) -> None:
        self.shared = shared
        self.broker_id = shared.broker_id
        self.fetcher = shared.fetcher
        self.counters = shared.counters
        self.creation = creation
        self.live: Mapping[int, Registration] = {}
        self._own_nonce = ""
        self._logs = shared.logs
        self._partitions: dict[TopicIdPartition, Partition] = {}
        self._creating: dict[TopicIdPartition, tuple[TopicInfo, VersionedState | None]] = {}
        """Partitions whose logs are being created, or are not idle, with what was read of them last."""
        self._isr_checks: deque[Partition] = deque()

    def __iter__(self) -> Iterator[Partition]:
        return iter(self._partitions.values())

    def find(self, topic_id: str, partition: int) -> Partition | None:
        """Return the partition if this broker has a replica of it; called for each entry of each request."""
        return self._partitions.get(TopicIdPartition(topic_id, partition))

    def topics(self) -> list[str]:
        """Return the topics of which this broker has replicas."""
        return sorted({each.log.name.topic for each in self._partitions.values()})

    # -- the view of the cluster --------------------------------------------------------------------

    def update_brokers(self, live: Mapping[int, Registration], *, is_registered: bool) -> None:
        """Take over the registered brokers; `is_registered`: this process is one of them.

        Another process may have registered under this broker's id. A fetch with that one's nonce would
        count for records that this disk lacks, so this broker uses its own nonce alone.
        """
        self.live = live
        mine, shared = live.get(self.broker_id), self.shared
        nonce = "" if mine is None else mine.nonce
        if is_registered:
            self._own_nonce = nonce
        shared.registered.clear()
        shared.registered.update(live)
        staying = {number for number, each in live.items() if not each.leaving}
        if staying != shared.staying:
            # Producers that wait for a replica which is gone do not wait for the next round.
            shared.staying.clear()
            shared.staying.update(staying)
            self._isr_checks = deque(self._partitions.values())
            shared.post(self._check_isrs)
        self.fetcher.update_brokers(live, nonce if nonce == self._own_nonce else "")

    def update_topic(
        self,
        name: str,
        topic: TopicInfo,
        states: Mapping[TopicIdPartition, VersionedState],
        *,
        numbers: Iterable[int],
        settled: bool,
    ) -> None:
        """Take over some of a topic's partitions, as of one view. `settled`: read in a new session."""
        for number in numbers:
            key = TopicIdPartition(topic.topic_id, number)
            partition, current = self._partitions.get(key), states.get(key)
            if self.broker_id not in topic.partitions[number]:
                self._drop(key)
                self._delete(key, current)
            elif partition is not None:
                partition.learn(topic, current, settled=settled)
            elif (log := self._logs.find(*key)) is not None and log.queue.is_idle:
                self._begin(key, log, topic, current)
            else:
                is_new = key not in self._creating
                self._creating[key] = topic, current
                if is_new and log is not None:
                    log.queue.add(self._begin_when_idle(key, log))
                elif is_new:
                    self._create(name, key)

    def drop_topic(self, topic_id: str) -> None:
        """Close all partitions of a topic: it was deleted, or lost."""
        for key in [*self._partitions, *self._creating]:
            if key.topic_id == topic_id:
                self._drop(key)

    def _create(self, name: str, key: TopicIdPartition) -> None:
        if key in self._creating:
            self.creation.when_created(name, *key, partial(self._finish_creation, name, key))

    def _finish_creation(
        self, name: str, key: TopicIdPartition, error: FolkmootError | None
    ) -> None:
        log, wanted = self._logs.find(*key), self._creating.get(key)
        if wanted is None:
            if key not in self._partitions:  # it was moved away meanwhile
                self._logs.delete_partition(*key)
        elif error is None and log is not None:
            del self._creating[key]
            self._begin(key, log, *wanted)
        else:
            if not self._logs.room.is_missed(error):
                logger.warning(
                    "%s-%d: its replica here could not be created, trying again: %s",
                    *(name, key.partition, error),
                )
            self.shared.later(DISK_AGAIN_AFTER, partial(self._create, name, key))

    def _begin(
        self, key: TopicIdPartition, log: Log, topic: TopicInfo, current: VersionedState | None
    ) -> None:
        if not log.is_open and log.failed is None:
            return  # it was deleted
        partition = self._partitions[key] = Partition(self.shared, key, log)
        if log.is_damaged:
            self._logs.files.damaged.add(log.directory)
        partition.begin(topic, current)

    async def _begin_when_idle(self, key: TopicIdPartition, log: Log) -> None:
        """Begin once the operations of the log's former partition have ended: one may cut the log or begin
        it anew, and its result says whether the replica may lead."""
        if self._logs.find(*key) is log and key in self._creating:
            self._begin(key, log, *self._creating.pop(key))

    def _drop(self, key: TopicIdPartition) -> None:
        self._creating.pop(key, None)
        partition = self._partitions.pop(key, None)
        if partition is not None:
            partition.close()

    def _delete(self, key: TopicIdPartition, current: VersionedState | None) -> None:
        """Delete a replica that was moved away. One that still counts as in sync stays until its leader has
        taken it out."""
        log = self._logs.find(*key)
        if (
            log is None
            or current is None
            or self.broker_id in (current.state.leader, *current.state.isr)
        ):
            return
        if log.leader_epoch > current.state.leader_epoch:
            # A replica that left acted in no later epoch. ZooKeeper was set back: this may be the only copy.
            logger.error(
                "%s: kept, though its replicas are on other brokers in ZooKeeper: leader epoch %d there is "
                "behind %d, which this disk knows",
                *(log.name, current.state.leader_epoch, log.leader_epoch),
            )
            return
        logger.info("%s: deleted here: its replicas are on other brokers now", log.name)
        self._logs.delete_partition(*key)

    # -- answers of leaders -------------------------------------------------------------------------

    def replicate(self, events: Mapping[Any, int], now: Now) -> None:
        """Take what leaders have answered, and ask for more. A fault puts one partition out of use."""
        for topic_id, result, chunk in self.fetcher.receive(events, now):
            partition = self.find(topic_id, result.partition)
            if partition is None:
                continue
            try:
                partition.handle_result(result, chunk, now)
            except Exception as error:
                logger.exception("%s: a fault of this broker's own", partition.log.name)
                partition.fail(f"its leader's answer could not be taken: {error!r}")
        self.fetcher.send(now)

    # -- from time to time --------------------------------------------------------------------------

    def task(self, now: Now) -> float:
        """Begin a round of ISR checks, and look after failed and damaged logs."""
        is_new_round = not self._isr_checks
        for partition in list(self._partitions.values()):
            if partition.log.failed is not None:
                call_guarded(partition.log.name, partition.resign)
            if is_new_round and partition.is_restless:
                self._isr_checks.append(partition)
        self._look_after_damage()
        if is_new_round:
            self.shared.post(self._check_isrs)
        return LOOK_AFTER

    def _look_after_damage(self) -> None:
        damaged = self._logs.files.damaged
        for directory in list(damaged):
            damaged.discard(directory)  # before the look: more may be found meanwhile
            topic_id, _, number = directory.name.rpartition("-")
            partition = self.find(topic_id, int(number))
            if partition is None:
                continue
            if call_guarded(directory.name, partition.look_after_damage) is not False:
                damaged.add(directory)

    def _check_isrs(self) -> None:
        """Check the in-sync replicas of some partitions now, and of the others later."""
        try:
            for _ in range(min(CHECKS_PER_STEP, len(self._isr_checks))):
                self._isr_checks.popleft().look_after_isr()
        finally:  # a fault of one partition does not end the round
            if self._isr_checks:
                self.shared.post(self._check_isrs)
