"""All replicas of this broker: from partitions' states to roles, and from fetches to committed records."""

import errno
import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

from folkmoot.brokers.replication.follower_state import FollowerState, Truncate
from folkmoot.brokers.replication.leader_state import LeaderState, Position
from folkmoot.brokers.replication.replica_fetcher import ReplicaFetcher
from folkmoot.brokers.replication.replica_state import Activate, PersistEpoch, ReplicaState, Step
from folkmoot.brokers.storage.files.atomic_file import save_json
from folkmoot.brokers.storage.flusher import Flusher
from folkmoot.brokers.storage.jobs import Now, Submit, log_failure
from folkmoot.brokers.storage.leader_epochs import EPOCH_STARTS_FILE, LEADER_EPOCHS_FILE, EpochEnd
from folkmoot.brokers.storage.log import Log
from folkmoot.brokers.storage.log_manager import LogManager
from folkmoot.brokers.storage.partition_creation import PartitionCreation
from folkmoot.brokers.storage.recovery import (
    NOTES_SPARE_FILE,
    note_complete,
    note_incomplete,
    save_log_start,
)
from folkmoot.brokers.storage.retention import Retention
from folkmoot.coordination.brokers import Registration
from folkmoot.coordination.partition_states import (
    Answer,
    StateWrite,
    Superseded,
    TopicIdPartition,
    VersionedState,
)
from folkmoot.coordination.topics import TopicInfo
from folkmoot.protocol import batch_header
from folkmoot.protocol.errors import (
    CorruptBatch,
    DiskFailed,
    FolkmootError,
    NotEnoughReplicasAfterAppend,
    NotLeader,
    OffsetOutOfRange,
    Overloaded,
    RequestTimeout,
    RetriableError,
    StorageError,
)
from folkmoot.protocol.messages import (
    Api,
    PartitionMetadata,
    ReplicaFetchEntry,
    ReplicaFetchResult,
    ReportDamageEntry,
    ReportDamageRequest,
)

logger = logging.getLogger(__name__)

MAX_LAG: Final = 10.0
"""Seconds after which a follower that has not caught up leaves the ISR."""
LOOK_AFTER: Final = 0.5
LOOKED_AT: Final = 200
TRY_AGAIN_AFTER: Final = 0.1
"""A leader that has refused is asked again: it is one by then, it may be."""
DELETED_WITHIN: Final = 10.0
"""So long who deletes records waits for replicas in sync."""
DISK_AGAIN_AFTER: Final = 1.0
"""A disk that was full is tried again."""

Written = Callable[[Mapping[TopicIdPartition, Answer] | None], None]
WriteStates = Callable[[Mapping[TopicIdPartition, StateWrite], Written], None]
"""Writes states in ZooKeeper, on another thread; the answers come on the event loop, those to other
writes among them, None if they are not known: then the states are read again, behind that."""


class Replica:
    """One replica of a partition: its log, and what this broker is to do with it."""

    __slots__ = (
        *("asked", "deletions", "is_busy", "is_outdated", "is_rewritten", "log", "partition"),
        *("replica_count", "replicas", "state", "throttle", "__weakref__"),
    )

    def __init__(
        self, broker_id: int, partition: TopicIdPartition, log: Log, replicas: Sequence[int]
    ) -> None:
        self.partition = partition
        self.log = log
        self.replicas = list(replicas)
        self.replica_count = len(replicas)
        """So many it has, while they are being moved the fewest (TopicInfo)."""
        self.throttle = 0
        """Bytes a second that it copies at most until it is in sync; 0: as fast as it can."""
        self.state = ReplicaState(broker_id, log.leader_epoch)
        self.asked: Position | None = None
        """What the leader was asked last, as long as it has not answered."""
        self.deletions: list[tuple[int, float, Callable[[FolkmootError | None], None]]] = []
        """Who waits until all in sync have given up what lies before an offset, and until when."""
        self.is_busy = False
        """A job has to end before the log can be appended to, or asked for more."""
        self.is_outdated = False
        """Another broker knows a newer leader, or an ISR without this replica."""
        self.is_rewritten = False
        """A segment is being written anew: its name would bring back what is cut meanwhile."""

    @property
    def leader(self) -> LeaderState | None:
        """If this broker leads."""
        return self.state.leader

    def serves(self, epoch: int) -> bool:
        """Whether this broker is an in-sync follower in that leader epoch: then what is committed, as far
        as it has heard, may be read here as well."""
        follower, known = self.state.follower, self.state.known
        return (
            follower is not None
            and not self.is_outdated
            and follower.epoch == epoch
            and known is not None
            and self.state.broker_id in known.state.isr
        )

    @property
    def counted_end(self) -> int:
        """Up to where the log counts: what is on disk, if the topic asks for that."""
        return self.log.recovery_point_offset if self.log.flushes else self.log.log_end


class ReplicaManager:
    """The shell around the replicas' state machines: each partition has one here, also with one replica.

    It has logs made as soon as it reads of their partitions, beside the event loop. It has epochs put on
    disk (all that are wanted meanwhile by one flush), states written in ZooKeeper, logs flushed, and tells
    the state machines of the outcomes. What it learns of partitions is what the states said when they were
    read last: it may be old, and each decision is such that this does no harm (ReplicaState, LeaderState).

    Leader. `appended` and `fetched` move the high watermark; `committed` is called when it has moved,
    `refused` when what waits for that has to be told otherwise. Followers that lag, or whose broker is
    gone, leave the ISR, and those that have caught up join it.

    Follower. One position per partition is asked for at a time. What comes is appended, flushed if the
    topic asks for that, and only then is the next position sent: so what the leader counts is on disk.
    Before a cut goes below the recovery point, that is taken back on disk: else the next start would
    take what was cut for lost.

    A replica that is not one of the partition's any more, by the topic as by the state, is deleted: also
    if this broker was away when it was moved, since a topic's id is never given to another.

    Crash story: see the state machines; here is nothing that outlives the process.

    Owner: the event loop.
    """

    def __init__(
        self,
        broker_id: int,
        logs: LogManager,
        creation: PartitionCreation,
        flusher: Flusher,
        retention: Retention,
        fetcher: ReplicaFetcher,
        submit: Submit,
        post: Callable[[Callable[[], None]], None],
        clock: Callable[[], float],
    ) -> None:
        self.broker_id = broker_id
        self.live: Mapping[int, Registration] = {}
        self.nonce = ""
        """Of this process' own registration; "" while there is none."""
        self._own_nonce = ""
        self._staying: set[int] = set()
        self.fetcher = fetcher
        fetcher.answered, fetcher.failed = self.answered, self.fetch_failed
        self.is_replaced = False
        """Others lead what this broker led, and ZooKeeper does not answer it: its view is of no use."""
        self.write_states: WriteStates = _nobody_writes
        self.committed: Callable[[Log], None] = _ignore
        """The high watermark has moved, or the log has failed."""
        self.flush_ended: Callable[[Log], None] = _ignore
        """The log was flushed, or has failed, or is out of use."""
        self.appended_to: Callable[[Log], None] = _ignore
        """There is more for followers, or another leader."""
        self.refused: Callable[[Log, FolkmootError], None] = lambda log, error: None
        self.role_changed: Callable[[Log], None] = _ignore
        self.isr_shrinks = self.isr_expands = self.elected = self.elected_unclean = 0
        """In-sync replicas that left, and that came, where this broker led; how often it began to lead, and
        how often of these by an unclean election."""
        self._logs = logs
        self.creation = creation
        self._flusher = flusher
        flusher.advanced = self.flushed
        self._retention = retention
        self._submit = submit
        self._post = post
        self._clock = clock
        self._replicas: dict[TopicIdPartition, Replica] = {}
        self._by_log: dict[Log, Replica] = {}
        self._being_made: dict[TopicIdPartition, TopicInfo] = {}
        self._states: dict[TopicIdPartition, VersionedState | None] = {}
        self._unpersisted: dict[Replica, int] = {}
        self._persisting = False
        self._round: deque[Replica] = deque()
        self._next_round = 0.0
        self._restless: dict[Replica, None] = {}
        self._again: dict[object, tuple[float, Callable[[], None]]] = {}
        """What has failed and is tried again, by what it is about: when, and how."""
        self.unknown_outcomes = 0
        """How often it was not known what became of writes: what was read before settles none of them."""
        self._throttled_until = 0.0
        """By then what reassignments have brought is paid for, each byte at the rate of its replica: before
        that none of these asks for more. One answer may bring more than a second's worth."""

    # -- what the cluster says ----------------------------------------------------------------------

    def find(self, topic_id: str, partition: int) -> Replica | None:
        return self._replicas.get(TopicIdPartition(topic_id, partition))

    def of(self, log: Log) -> Replica | None:
        """The replica that has this log; None if its partition is not known (any more)."""
        return self._by_log.get(log)

    def brokers_are(self, live: Mapping[int, Registration], *, is_registered: bool) -> None:
        """These brokers are registered, and this process is among them if it `is_registered`. What
        another one has registered under this broker's id is not ours: who fetched with its nonce would
        be counted for what its disk lacks."""
        before, self.live = self._staying, live
        mine = live.get(self.broker_id)
        found = "" if mine is None else mine.nonce
        if is_registered:
            self._own_nonce = found
        self.nonce = found if found == self._own_nonce else ""
        self._staying = {number for number, found in live.items() if not found.leaving}
        if before != self._staying:
            # Who waits for a replica that is gone does not wait for the next round.
            self._round = deque(self._replicas.values())
            self._post(self._go_round)
        self.fetcher.brokers_are(live, self.nonce)

    def topic_is(
        self,
        name: str,
        topic: TopicInfo,
        states: Mapping[int, VersionedState],
        *,
        numbers: Iterable[int],
        settled: bool,
    ) -> None:
        """What some of a topic's partitions are, as of one view. `settled`: read in a new session."""
        for number in numbers:
            replicas = topic.partitions[number]
            key = TopicIdPartition(topic.topic_id, number)
            if self.broker_id not in replicas:
                if key in self._states:
                    self._drop(key)
                self._delete(key, states.get(number))
                continue
            self._states[key] = states.get(number)
            replica = self._replicas.get(key)
            if replica is not None:
                replica.is_outdated = False
                self._replicas_are(replica, topic)
                self._take(replica, replica.state.observed(states.get(number), settled=settled))
                if replica.counted_end < replica.log.log_end:
                    self._flusher.flush(replica.log)  # its topic may ask for that from now on
                self._commit(replica)
                self._restless[replica] = None
            elif (log := self._logs.find(*key)) is not None:
                self._begin(key, log, topic)
            else:
                is_new = key not in self._being_made
                self._being_made[key] = topic
                if is_new:
                    self._create(name, key)

    def topics(self) -> list[str]:
        """The topics of which this broker has replicas."""
        return sorted({replica.log.name.topic for replica in self._replicas.values()})

    def heard(self, topic_id: str, found: PartitionMetadata) -> None:
        """What another broker knows of a partition, while ZooKeeper does not answer this one.

        A leader that was replaced ends here, and is nothing before its state was read again.
        """
        key = TopicIdPartition(topic_id, found.partition)
        replica = self._replicas.get(key)
        if replica is None:
            return
        leader, follower = replica.leader, replica.state.follower
        if leader is not None and found.leader_epoch > leader.epoch:
            self._states[key] = None
            self._take(replica, replica.state.observed(None))
            self.is_replaced = True
        elif follower is not None:
            is_newer = found.leader_epoch > follower.epoch
            is_out = replica.serves(found.leader_epoch) and self.broker_id not in found.isr
            if (is_newer or is_out) and not replica.is_outdated:
                replica.is_outdated = self.is_replaced = True
                self.role_changed(replica.log)

    def topic_gone(self, topic_id: str) -> None:
        """Deleted, or lost: nothing of it is led or followed here any more."""
        for key in [key for key in self._states if key.topic_id == topic_id]:
            self._drop(key)

    def _create(self, name: str, key: TopicIdPartition) -> None:
        self.creation.when_created(name, *key, partial(self._created, name, key))

    def _created(self, name: str, key: TopicIdPartition, error: FolkmootError | None) -> None:
        log = self._logs.find(*key)
        if key in self._states and (error is not None or log is None):
            if not self._logs.room.is_missed(error):
                logger.warning(
                    "%s-%d: its replica here could not be created, trying again: %s",
                    *(name, key.partition, error),
                )
            self._do_again(key, DISK_AGAIN_AFTER, partial(self._create, name, key))
            return
        topic = self._being_made.pop(key)
        if log is None:
            return
        if key in self._states:
            self._begin(key, log, topic)
        else:  # it was moved away meanwhile
            self._logs.delete_partition(*key)

    def _begin(self, key: TopicIdPartition, log: Log, topic: TopicInfo) -> None:
        if not log.is_open and log.failed is None:
            return  # it was deleted
        replica = self._replicas[key] = Replica(
            self.broker_id, key, log, topic.partitions[key.partition]
        )
        self._replicas_are(replica, topic)
        self._by_log[log] = replica
        log.is_led = False
        found = self._states.get(key)
        # In sync since an epoch that this disk knows nothing of: it is another disk, or it has never
        # followed, and then nothing was committed.
        is_blank = found is not None and found.state.leader_epoch > 0 and log.leader_epoch < 0
        # What was only in the page cache when the machine went down is gone, though it was acked.
        has_counted = not log.flushes or topic.had_page_cache
        is_suspect = log.directory.name in self._logs.suspects and has_counted
        lacks = log.is_incomplete or is_blank or log.failed is not None
        replica.state.may_lead = not (lacks or is_suspect)
        # No other replica has what the only one lacks.
        replica.state.may_lead_alone = log.failed is None and (
            log.is_alone or (is_suspect and not lacks)
        )
        self._take(replica, replica.state.observed(found))

    def _drop(self, key: TopicIdPartition) -> None:
        """This broker has no replica of it (any more)."""
        self._states.pop(key, None)
        if self._again.pop(key, None) is not None:
            del self._being_made[key]
        replica = self._replicas.pop(key, None)
        if replica is not None:
            self._take(replica, replica.state.observed(None))
            self._by_log.pop(replica.log, None)
            self._unpersisted.pop(replica, None)

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

    def _replicas_are(self, replica: Replica, topic: TopicInfo) -> None:
        number = replica.partition.partition
        replicas, move = topic.partitions[number], topic.reassignments.get(number)
        if replica.replicas != replicas:
            replica.replicas = list(replicas)
            if replica.leader is not None:
                replica.leader.replicas_changed(replicas, self._clock())
        replica.replica_count = topic.replica_count(number)
        replica.log.is_alone = len(replicas) == 1
        replica.state.reassigned = topic.reassigned
        if replica.leader is not None:
            needed = replica.log.config.least_in_sync(replica.replica_count)
            replica.leader.min_in_sync = needed
        is_added = move is not None and self.broker_id not in move.original
        throttle = move.throttle if move is not None and is_added else 0
        if throttle != replica.throttle:
            replica.throttle = throttle
            self._throttled_until = 0.0  # what was taken at the old rate is forgotten

    # -- roles --------------------------------------------------------------------------------------

    def _take(self, replica: Replica, step: Step) -> None:
        """Do what a state machine wants next, and what a change of roles brings with it."""
        state, log = replica.state, replica.log
        was_led, log.is_led = log.is_led, state.leader is not None
        if was_led and not log.is_led:
            logger.info("%s: not the leader any more", log.name)
            self.refused(
                log,
                NotEnoughReplicasAfterAppend(
                    f"{log.name}: another broker leads, or is about to, and may have the batch or not"
                ),
            )
        if was_led is not log.is_led:
            self._answer_deletions(replica)
            self.role_changed(log)
            self.appended_to(log)
        if state.follower is None and replica.asked is not None:
            replica.asked = None
            self.fetcher.forget(log.name.topic, log.name.partition)
        if state.may_lead and self._logs.suspects:
            self._logs.trust(log)
        if state.may_lead and log.is_incomplete:
            # It is in sync again by what lies behind the damage: not before its repair has it all.
            state.may_lead = not log.is_damaged
        if state.may_lead and log.is_incomplete:
            log.is_incomplete = False
            work = partial(note_complete, log.directory)
            # In turns with cuts, one of which may say the opposite.
            self._submit(
                "truncation", work, partial(log_failure, f"{log.name}: not noted as complete")
            )
        if isinstance(step, PersistEpoch):
            self._unpersisted[replica] = step.epoch
            if len(self._unpersisted) == 1:
                self._post(self._persist)  # with all that this turn brings
        elif (
            isinstance(step, Activate)
            and step.write.state.active
            and (log.is_being_cut or log.failed is not None or replica.is_busy)
        ):
            state.failed()
            self._try_again(replica)
        elif isinstance(step, Activate):
            if not (state.may_lead or step.write.state.active):
                logger.error(
                    "%s: this disk lacks records that counted; another is to lead", log.name
                )
            self._write(replica, step.write, partial(self._activated, replica))
        elif (
            (known := state.known) is not None
            and known.state.leader == self.broker_id
            and known.state.leader_epoch + 1 < state.epoch
        ):
            logger.error(
                "%s: cannot lead: leader epoch %d, which ZooKeeper knows, is behind %d, which this disk "
                "knows: ZooKeeper was set back",
                *(log.name, known.state.leader_epoch, state.epoch),
            )
        elif state.follower is not None and replica.asked is None:
            self._follow(replica)

    def _persist(self) -> None:
        if self._persisting or not self._unpersisted:
            return
        wanted, self._unpersisted = self._unpersisted, {}
        epochs = self._logs.leader_epochs
        for replica, epoch in wanted.items():
            name = replica.log.directory.name
            epochs[name] = max(epoch, epochs.get(name, epoch))
        # From here on the log is no longer known by having no epoch.
        blank = [
            each.log
            for each in wanted
            if not (each.state.may_lead or each.state.may_lead_alone or each.log.is_incomplete)
            and each.log.is_open
        ]
        self._persisting = True
        path = self._logs.data / LEADER_EPOCHS_FILE
        work = partial(_save_epochs, path, dict(epochs), [log.directory for log in blank])
        self._submit("leader-epochs", work, partial(self._persisted, wanted, blank))

    def _persisted(
        self, wanted: Mapping[Replica, int], blank: Sequence[Log], outcome: Exception | None
    ) -> None:
        self._persisting = False
        for log in blank:
            log.is_incomplete = outcome is None
        for replica, epoch in wanted.items():
            if outcome is None:
                replica.log.leader_epoch = max(replica.log.leader_epoch, epoch)
                self._take(replica, replica.state.persisted(epoch))
            else:
                replica.state.failed()
                self._try_again(replica, DISK_AGAIN_AFTER)
        if isinstance(outcome, OSError) and outcome.errno in (errno.EIO, errno.EROFS):
            self._flusher.disk_failed(DiskFailed(f"leader epochs could not be noted: {outcome}"))
        elif outcome is not None and not self._logs.room.is_missed(outcome):
            logger.error("leader epochs were not noted, trying again: %s", outcome)
        self._persist()

    def _activated(self, replica: Replica, answer: Answer | None) -> None:
        if self._replicas.get(replica.partition) is not replica:
            return
        step = replica.state.activated(answer, partial(self._lead, replica))
        if replica.leader is not None:
            if not replica.state.may_lead:
                log = replica.log
                is_usual = log.is_alone and log.directory.name in self._logs.suspects
                logger.log(
                    logging.INFO if is_usual and not log.is_incomplete else logging.CRITICAL,
                    "%s: leads as the only one in sync, and lacks what this disk has lost",
                    log.name,
                )
                replica.state.may_lead = True
            level = logging.DEBUG if replica.log.is_alone else logging.INFO
            logger.log(level, "%s: leader in epoch %d", replica.log.name, replica.leader.epoch)
            self.elected += 1
            self.elected_unclean += replica.leader.state.unclean_epoch == replica.leader.epoch
        self._take(replica, step)
        self._commit(replica)
        self._look_after_isr(replica)

    def _lead(self, replica: Replica, found: VersionedState) -> LeaderState:
        log = replica.log
        if log.flushes:
            self._flusher.flush(log)
        self._restless[replica] = None
        return LeaderState(
            *(self.broker_id, found, replica.replicas, log.epoch_starts),
            log_end=log.log_end,
            high_watermark=log.high_watermark,
            given_up=log.given_up,
            min_in_sync=log.config.least_in_sync(replica.replica_count),
            max_lag=MAX_LAG,
            now=self._clock(),
        )

    # -- states -------------------------------------------------------------------------------------

    def _write(
        self, replica: Replica, write: StateWrite, done: Callable[[Answer | None], None]
    ) -> None:
        def answered(answers: Mapping[TopicIdPartition, Answer] | None) -> None:
            self.unknown_outcomes += answers is None
            done(None if answers is None else answers.get(replica.partition))

        self.write_states({replica.partition: write}, answered)

    # -- as the leader ------------------------------------------------------------------------------

    def appended(self, log: Log) -> bool:
        """A producer's batches were appended to a log that this broker leads → whether the high watermark
        has moved, which the caller takes care of."""
        replica = self._by_log[log]
        if replica.leader is not None:
            replica.leader.appended(self._clock())
            self._restless[replica] = None
        self.appended_to(log)
        return self._advance(replica)

    def fetched(
        self,
        replica: Replica,
        follower: int,
        broker_epoch: int,
        position: Position,
        given_up: int,
    ) -> EpochEnd | None:
        """A follower fetches. Raises NotLeader, FencedLeaderEpoch, UnknownLeaderEpoch,
        OffsetOutOfRange."""
        leader, log = replica.leader, replica.log
        if leader is None or follower not in replica.replicas:
            raise NotLeader(
                f"{log.name} is not led here, or broker {follower} has no replica of it"
            )
        end = leader.fetched(
            *(follower, broker_epoch, position, log.log_end, self._clock()),
            log_start=log.log_start,
            given_up=given_up,
        )
        if end is None:
            self._commit(replica)
            self._answer_deletions(replica)
            self._restless[replica] = None
            if follower not in leader.isr:
                self._look_after_isr(replica)
        return end

    def _commit(self, replica: Replica) -> None:
        if self._advance(replica):
            self.committed(replica.log)

    def _advance(self, replica: Replica) -> bool:
        """Move the high watermark, where this broker leads → whether it has moved."""
        leader, log = replica.leader, replica.log
        if leader is None or not log.is_open:
            return False
        offset = min(leader.advance(replica.counted_end), log.log_end)
        has_moved = offset > log.high_watermark
        if has_moved:
            log.advance_high_watermark(offset)
        return has_moved

    def when_given_up(
        self, log: Log, offset: int, done: Callable[[FolkmootError | None], None]
    ) -> None:
        """Call `done` when what this log has given up before `offset` is deleted wherever the next
        leader may come from."""
        replica = self._by_log.get(log)
        if replica is None:
            done(NotLeader(f"{log.name} has its replicas on other brokers now"))
            return
        if replica.leader is not None:
            replica.leader.given_up = max(replica.leader.given_up, offset)
        replica.deletions.append((offset, self._clock() + DELETED_WITHIN, done))
        self._restless[replica] = None
        self._answer_deletions(replica)

    def _answer_deletions(self, replica: Replica) -> None:
        waiting, replica.deletions = replica.deletions, []
        for each in waiting:
            offset, deadline, done = each
            if replica.leader is None:
                done(NotLeader(f"{replica.log.name} is not led here any more"))
            elif replica.leader.have_given_up(offset):
                done(None)
            elif self._clock() >= deadline:
                done(
                    RequestTimeout(f"{replica.log.name}: a replica has not deleted the records yet")
                )
            else:
                replica.deletions.append(each)

    def give_up(self, replica: Replica) -> None:
        """Nothing can be written here any more: another is to lead, if there is one in sync."""
        state = replica.state
        if state.leader is not None:
            if len(state.leader.isr) < 2:
                return  # what is here can be read, at least
            state.leader.resigned = True
        state.may_lead = state.may_lead_alone = False
        self._take(replica, state.observed(state.known))

    def is_whole(self, replica: Replica) -> None:
        """A segment was repaired, or records are deleted here, too: with that the replica may have all
        that is committed again, and nothing else."""
        state = replica.state
        if state.follower is not None and state.follower.has_committed:
            state.may_lead |= not replica.log.is_damaged and replica.log.failed is None
            self._take(replica, state.observed(state.known))

    def _look_after_isr(self, replica: Replica) -> None:
        self._answer_deletions(replica)
        leader = replica.leader
        wanted = None if leader is None else leader.propose(self._staying, self._clock())
        if leader is not None and wanted is not None:
            logger.info(
                "%s: in sync are %s, not %s", replica.log.name, wanted.state.isr, leader.isr
            )
            self._write(replica, wanted, partial(self._isr_answered, replica, leader))

    def _isr_answered(self, replica: Replica, leader: LeaderState, answer: Answer | None) -> None:
        before = set(leader.isr)
        leader.answered(answer)
        self.isr_shrinks += len(before.difference(leader.isr))
        self.isr_expands += len(set(leader.isr) - before)
        if self._replicas.get(replica.partition) is not replica:
            return
        if isinstance(answer, Superseded | VersionedState):
            found = answer.found if isinstance(answer, Superseded) else answer
            self._take(replica, replica.state.observed(found))
        if replica.leader is leader and not leader.has_enough_replicas:
            self.refused(
                replica.log,
                NotEnoughReplicasAfterAppend(
                    f"{replica.log.name}: {leader.missing(replica.log.log_end)}"
                ),
            )
        self._commit(replica)
        self._look_after_isr(replica)

    # -- as a follower ------------------------------------------------------------------------------

    def _follow(self, replica: Replica) -> None:
        """Ask the leader, once all that is here counts."""
        follower, log = replica.state.follower, replica.log
        if follower is None or replica.is_busy or replica.asked is not None:
            return
        if not log.is_open or log.failed is not None:
            return
        job = log.prepare_append()
        if job is not None:
            replica.is_busy = True
            self._submit("index", job.run, partial(self._prepared, replica, job.finish))
        elif replica.counted_end < log.log_end:
            self._flusher.flush(log)  # `flushed` tells of its end
        elif self._is_throttled(replica) and ((pause := self._throttled_until - self._clock()) > 0):
            self._try_again(replica, pause)
        else:
            position = follower.position(log.epoch_starts, log.log_end)
            replica.asked = position
            self.fetcher.fetch(
                follower.leader,
                ReplicaFetchEntry(
                    *(log.name.topic, *replica.partition, position.leader_epoch),
                    *(position.last_epoch, position.log_end, log.given_up),
                ),
            )

    def _is_throttled(self, replica: Replica) -> bool:
        """Whether it is being added, at a rate, and not in sync yet."""
        known = replica.state.known
        return (
            bool(replica.throttle) and known is not None and (self.broker_id not in known.state.isr)
        )

    def _prepared(self, replica: Replica, finish: Callable[..., None], result: object) -> None:
        replica.is_busy = False
        finish(result)
        self._follow(replica)

    def flushed(self, log: Log) -> None:
        """A log's recovery point has moved, or the log is out of use."""
        replica = self._by_log.get(log)
        if replica is not None:
            self._commit(replica)
            self._follow(replica)
        self.flush_ended(log)

    def answered(
        self, topic_id: str, result: ReplicaFetchResult, chunk: memoryview, now: Now
    ) -> None:
        """A leader's answer, without an error, perhaps to a question of long ago."""
        replica = self._replicas.get(TopicIdPartition(topic_id, result.partition))
        follower = None if replica is None else replica.state.follower
        if replica is None or follower is None or replica.asked is None:
            return
        asked, log = replica.asked, replica.log
        if (asked.leader_epoch, asked.log_end) != (result.leader_epoch, result.log_end):
            return
        replica.asked = None
        diverging = None
        if result.diverging_end >= 0:
            diverging = EpochEnd(result.diverging_epoch, result.diverging_end)
        todo = follower.answered(
            *(asked, diverging, result.high_watermark, log.epoch_starts, log.log_end)
        )
        try:
            if isinstance(todo, Truncate):
                self._truncate(replica, follower, todo.offset)
                return  # it goes on when that has ended, or is tried again
            if todo is not None:
                self._append(replica, chunk, result, now)
        except (RetriableError, CorruptBatch) as error:
            # The disk is full, it may be; or the leader's is damaged: then this log is as good as before.
            if not self._logs.room.is_missed(error):
                logger.warning("%s: %s", log.name, error)
            if isinstance(error, CorruptBatch):
                self._report(replica, follower.leader, chunk)
            self._try_again(replica, DISK_AGAIN_AFTER)
        except (FolkmootError, ValueError) as error:
            log.fail(f"it cannot follow its leader: {error}", readable=True)
            self.committed(log)
        else:
            self._follow(replica)

    def _append(
        self, replica: Replica, chunk: memoryview, result: ReplicaFetchResult, now: Now
    ) -> None:
        log = replica.log
        try:
            if len(chunk):
                log.append_as_follower(chunk)
                self._flusher.appended(log, len(chunk), now)
                if self._is_throttled(replica):
                    begun = max(self._throttled_until, now.monotonic)
                    self._throttled_until = begun + len(chunk) / replica.throttle
        finally:  # a disk that has no room for it gets some by what the leader has given up
            self._learn(replica, result)

    def _learn(self, replica: Replica, result: ReplicaFetchResult) -> None:
        """What the leader says of its log, besides the records."""
        log, follower = replica.log, replica.state.follower
        if follower is not None and result.has_committed:
            follower.has_committed = True
        committed = min(result.high_watermark, log.log_end)
        if committed > log.high_watermark:
            log.advance_high_watermark(committed)
            self.committed(log)
        start = min(result.log_start, log.high_watermark)
        if start > log.given_up:
            self._give_up_before(replica, start)
        elif result.has_committed:
            replica.state.may_lead |= not log.is_damaged

    def _give_up_before(self, replica: Replica, start: int) -> None:
        if replica.state.follower is None or start > replica.log.high_watermark:
            return
        done = partial(self._gave_up, replica, start)
        if replica.is_busy:
            done(Overloaded("it is being cut, or begins anew"))
            return
        try:
            self._retention.delete_records(replica.log, start, done)
        except Overloaded as error:
            done(error)

    def _gave_up(self, replica: Replica, start: int, error: FolkmootError | None) -> None:
        """The leader is to know; and who has all but what was deleted may lead from here on."""
        if error is None:
            replica.asked = None
            self.is_whole(replica)
            self._follow(replica)
        elif replica.log.is_open and replica.log.failed is None:  # the leader does not say it twice
            if not self._logs.room.is_missed(error):
                logger.warning("%s: what lies before %d stays: %s", replica.log.name, start, error)
            again = partial(self._give_up_before, replica, start)
            self._do_again((replica, "log start"), DISK_AGAIN_AFTER, again)

    def _report(self, replica: Replica, leader: int, chunk: memoryview) -> None:
        """Have the leader look at the first bad batch of what it sent."""
        offset = replica.log.log_end
        with suppress(CorruptBatch):
            for header, _ in batch_header.split(chunk):
                offset = header.next_offset
        entry = ReportDamageEntry(replica.log.name.topic, *replica.partition, offset)
        request = ReportDamageRequest([entry])
        self.fetcher.ask(leader, Api.REPORT_DAMAGE, request, lambda reply: None)

    def _truncate(self, replica: Replica, follower: FollowerState, offset: int) -> None:
        log = replica.log
        known = replica.state.known
        if known is not None and log.epoch_starts.latest < known.state.unclean_epoch:
            log.take_back_committed(offset, "an unclean election has lost")
        elif known is not None and self.broker_id not in known.state.isr:
            if offset < log.high_watermark:  # it has copied what compaction had left
                log.take_back_committed(offset, "the leader lacks")
        replica.is_busy = True
        noted = self._logs.checkpointed.get(log.directory.name)
        if max(log.recovery_point_offset, 0 if noted is None else noted.end_offset) <= offset:
            self._cut(replica, follower, offset, None)
        else:
            self._take_point_back(replica, follower, offset)

    def _take_point_back(self, replica: Replica, follower: FollowerState, offset: int) -> None:
        """The next start checks the whole log, until it is flushed again."""
        self._logs.recovery_points.pop(replica.log.directory.name, None)
        points = dict(self._logs.recovery_points)
        work = partial(self._logs.save_recovery_points, points)
        # Behind a checkpoint that may be under way, so that what it notes is not the last word.
        self._submit("checkpoint", work, partial(self._cut, replica, follower, offset))

    def _cut(
        self, replica: Replica, follower: FollowerState, offset: int, outcome: Exception | None
    ) -> None:
        log = replica.log
        is_deleting = self._retention.is_deleting(log)
        if outcome is not None or replica.is_rewritten or log.is_flushing or is_deleting:
            replica.is_busy = False
            why = outcome or "it is being repaired, or flushed, or records are deleted"
            if not self._logs.room.is_missed(outcome):
                logger.warning("%s: not cut yet: %s", log.name, why)
            self._try_again(replica, DISK_AGAIN_AFTER)
            return
        point = self._logs.recovery_points.get(log.directory.name)
        if point is not None and point.end_offset > offset:  # a flush has ended meanwhile
            self._take_point_back(replica, follower, offset)
            return
        job = None
        try:
            if replica.state.follower is follower and log.is_open:
                job = log.truncation(offset)
        except (FolkmootError, ValueError) as error:
            log.fail(f"it cannot follow its leader: {error}", readable=True)
            self.committed(log)
        if job is None:
            replica.is_busy = False
            self._follow(replica)
        else:
            logger.warning(
                "%s: cut from offset %d to %d, to go on there as the log of broker %d does, which leads in "
                "epoch %d",
                *(log.name, log.log_end, offset, follower.leader, follower.epoch),
            )
            self._submit("truncation", job.run, partial(self._was_cut, replica, job.finish))

    def _was_cut(self, replica: Replica, finish: Callable[..., None], result: object) -> None:
        replica.is_busy = False
        try:
            finish(result)
        except FolkmootError as error:
            replica.log.fail(f"it cannot follow its leader: {error}", readable=True)
            self.committed(replica.log)
            if isinstance(result, OSError) and result.errno in (errno.EIO, errno.EROFS):
                self._flusher.disk_failed(DiskFailed(f"a log could not be cut: {error}"))
        else:
            if replica.log.is_incomplete:
                replica.state.may_lead = replica.state.may_lead_alone = False
            self._follow(replica)

    def fetch_failed(self, topic_id: str, result: ReplicaFetchResult) -> None:
        """A leader has refused: it is not one any more, or not yet; it is asked again soon.

        Or its log begins behind the follower's end, or there, and has nothing of the follower's last epoch:
        then the follower's log goes on there.
        """
        replica = self._replicas.get(TopicIdPartition(topic_id, result.partition))
        if replica is None or replica.asked is None:
            return
        asked, replica.asked = replica.asked, None
        follower = replica.state.follower
        is_behind = result.error == OffsetOutOfRange.code and (
            (result.leader_epoch, result.log_end) == (asked.leader_epoch, asked.log_end)
            and result.log_start >= asked.log_end
        )
        is_deleting = self._retention.is_deleting(replica.log)
        if follower is None or not is_behind or replica.is_busy or is_deleting:
            self._try_again(replica)
            return
        replica.is_busy = True
        work = partial(_note_start, replica.log.directory, result.log_start)
        self._submit(
            "log starts", work, partial(self._begin_anew, replica, follower, result.log_start)
        )

    def _begin_anew(
        self, replica: Replica, follower: FollowerState, offset: int, outcome: Exception | None
    ) -> None:
        """The log starts at `offset`, and that is on disk. If another broker is followed by now, or none,
        or it cannot begin anew, that is taken back: a replica leads with what it has. A death before
        that loses nothing that it took since: meanwhile it neither leads nor follows."""
        log = replica.log
        if replica.state.follower is not follower or log.log_end > offset:
            self._take_start_back(replica, TRY_AGAIN_AFTER)
            return
        try:
            if outcome is not None:
                raise StorageError(str(outcome))
            if log.is_open:
                logger.warning(
                    "%s: broker %d has nothing before offset %d: this replica goes on there, from %d",
                    *(log.name, follower.leader, offset, log.log_end),
                )
                self._logs.recovery_points.pop(log.directory.name, None)
                self._logs.remove(log.begin_anew(offset))
                self._flusher.flush(log)
        except FolkmootError as error:
            if not self._logs.room.is_missed(outcome or error):
                logger.warning("%s: %s", log.name, error)
            self._take_start_back(replica, DISK_AGAIN_AFTER)
            return
        replica.is_busy = False
        self._follow(replica)

    def _take_start_back(self, replica: Replica, pause: float) -> None:
        log = replica.log
        if log.is_open:
            log.epoch_starts.changed = True  # their file is gone
            work = partial(save_log_start, log.directory, log.given_up)
            self._submit("log starts", work, partial(self._start_taken_back, replica, pause))

    def _start_taken_back(self, replica: Replica, pause: float, outcome: Exception | None) -> None:
        if outcome is None:
            replica.is_busy = False
            self._try_again(replica, pause)
        else:
            if not self._logs.room.is_missed(outcome):
                logger.warning("%s: where it starts is not noted: %s", replica.log.name, outcome)
            again = partial(self._take_start_back, replica, pause)
            self._do_again((replica, "its start"), DISK_AGAIN_AFTER, again)

    # -- from time to time --------------------------------------------------------------------------

    def _try_again(self, replica: Replica, pause: float = TRY_AGAIN_AFTER) -> None:
        self._do_again(replica, pause, partial(self._look_again, replica))

    def _look_again(self, replica: Replica) -> None:
        if self._replicas.get(replica.partition) is replica:
            found = self._states.get(replica.partition)
            self._take(replica, replica.state.observed(found))

    def _do_again(self, what: object, pause: float, work: Callable[[], None]) -> None:
        self._again[what] = self._clock() + pause, work

    def task(self, now: Now) -> float:
        """Look after some partitions, and try again what has failed."""
        for what in [each for each, (due, _) in self._again.items() if due <= now.monotonic]:
            _, work = self._again.pop(what)
            work()
        for replica in [each for each in self._by_log.values() if each.log.failed is not None]:
            self.give_up(replica)
        if not self._round and now.monotonic >= self._next_round:
            self._next_round = now.monotonic + LOOK_AFTER
            self._round.extend(self._restless)
            self._go_round()
        return TRY_AGAIN_AFTER if self._again else LOOK_AFTER

    def _go_round(self) -> None:
        """Look at some in-sync replicas, and later at the others: not at those that are at rest."""
        for _ in range(min(LOOKED_AT, len(self._round))):
            replica = self._round.popleft()
            self._look_after_isr(replica)
            if replica.leader is None or (replica.leader.is_at_rest and not replica.deletions):
                self._restless.pop(replica, None)
            else:
                self._restless[replica] = None
        if self._round:
            self._post(self._go_round)


def _save_epochs(path: Path, epochs: Mapping[str, int], incomplete: Sequence[Path]) -> None:
    """In this order: a death in between leaves replicas that are incomplete, as they are."""
    for directory in incomplete:
        with suppress(FileNotFoundError):  # it may have been deleted meanwhile
            note_incomplete(directory)
    save_json(path, epochs, path.with_name(NOTES_SPARE_FILE))


def _note_start(directory: Path, offset: int) -> None:
    """A death right behind this leaves nothing that tells of the epochs of what is given up."""
    (directory / EPOCH_STARTS_FILE).unlink(missing_ok=True)
    save_log_start(directory, offset, anew=True)


def _ignore(log: Log) -> None:
    pass


def _nobody_writes(writes: Mapping[TopicIdPartition, StateWrite], done: Written) -> None:
    raise AssertionError("there is nobody who writes states")
