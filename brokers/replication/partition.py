"""One partition on this broker: its log, its role, and all that waits for it."""

import errno
import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from math import inf
from pathlib import Path
from typing import Final, NamedTuple

from folkmoot.brokers.jobs.jobs import Now, log_failure
from folkmoot.brokers.jobs.serial_queue import Pending
from folkmoot.brokers.replication.follower_state import Check, FollowerState, Truncate
from folkmoot.brokers.replication.leader_state import LeaderState, Position
from folkmoot.brokers.replication.replica_state import (
    NEXT_ROLES,
    Activate,
    PersistEpoch,
    ReplicaState,
    Role,
    Step,
)
from folkmoot.brokers.replication.shared import Shared
from folkmoot.brokers.storage.leader_epochs import EPOCH_STARTS_FILE, NO_EPOCH, EpochEnd
from folkmoot.brokers.storage.log import Log
from folkmoot.brokers.storage.recovery import (
    load_compacted_for,
    note_complete,
    note_incomplete,
    save_log_start,
)
from folkmoot.brokers.storage.retention import Done
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
    ClosedError,
    CorruptBatch,
    DiskFailed,
    FolkmootError,
    NotEnoughReplicas,
    NotEnoughReplicasAfterAppend,
    NotLeader,
    OffsetNotAvailable,
    OffsetOutOfRange,
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
TRY_AGAIN_AFTER: Final = 0.1
"""Seconds after which a leader that has refused is asked again."""
DELETED_WITHIN: Final = 10.0
"""Seconds for which a deletion of records waits for the in-sync replicas."""
DISK_AGAIN_AFTER: Final = 1.0
"""Seconds after which a disk that was full is tried again."""


class WaitingProduce(NamedTuple):
    """Batches that end at offset `end`: `done` is called when they are committed, or never will be.

    `size` in bytes is what consumers can read then; `deadline` is in the event loop's clock.
    """

    end: int
    size: int
    deadline: float
    done: Done


class _Deletion(NamedTuple):
    """`done` is called when no in-sync replica has records before `offset`, or at `deadline`."""

    offset: int
    deadline: float
    done: Done


class Session:
    """What a consumer or a follower has named, and waits for news of."""

    __slots__ = ()

    def appended(self, partition: "Partition", /) -> None:
        """Batches that are not committed yet were appended."""

    def committed(self, partition: "Partition", size: float, /) -> None:
        """The high watermark has moved by so many bytes, inf if that is not known."""

    def altered(self, partition: "Partition", /) -> None:
        """Another broker leads, a read has become possible, the log's start has moved, or it is closed."""
        self.committed(partition, inf)


class Partition:
    """One partition on this broker, also if it has one replica alone.

    Its role (`Role`) follows from the partition's state as it was read last, which may be old; each
    decision is such that this does no harm (ReplicaState, LeaderState, FollowerState). This class carries
    their decisions out: it has epochs put on disk, states written, the log flushed, cut and begun anew.

    **High watermark.** A leader's moves in `advance` alone: after an append, a flush, a follower's fetch
    and a change of the ISR. It answers the producers whose records are committed by that, and wakes
    consumers and followers.

    **Disk.** What changes the files of the log is an operation in `log.queue`: flushes, cuts, deletions. An
    operation reads the state when its turn comes; so a cut never meets a flush, and a role that has
    ended meanwhile ends the operation.

    **Leader.** Followers that lag, or whose broker is gone, leave the ISR, and those that have caught up
    join it.

    **Follower.** One position is asked for at a time. What comes is appended, flushed if the topic asks for
    that, and only then is the next position sent: so what the leader counts is on disk.

    Crash story: see the state machines and the operations. What waits here is memory: a leader that dies has
    acknowledged nothing that is not committed.

    Owner: the event loop.
    """

    __slots__ = (
        *("_again", "_asked", "_deletions", "_is_blocked", "_produces", "_role", "_shared"),
        "_to_give_up",
        *(
            "found",
            "id",
            "is_outdated",
            "log",
            "replica_count",
            "replicas",
        ),
        *("sessions", "state", "throttle", "__weakref__"),
    )

    def __init__(
        self, shared: Shared, key: TopicIdPartition, log: Log, replicas: Sequence[int]
    ) -> None:
        self.id = key
        self.log = log
        self.replicas = list(replicas)
        self.replica_count = len(replicas)
        """So many it has; while they are being moved, the fewest (TopicInfo)."""
        self.throttle = 0
        """Bytes a second that it copies at most until it is in sync; 0: as fast as it can."""
        self.state = ReplicaState(
            *(shared.broker_id, log.leader_epoch, shared.registered, shared.staying)
        )
        self.found: VersionedState | None = None
        """The partition's state as it was read last."""
        self.is_outdated = False
        """Another broker knows a newer leader, or an ISR without this replica."""
        self.sessions: dict[Session, None] = {}
        """Those who have named it, and were not answered yet."""
        self._shared = shared
        self._role = Role.WAITING
        self._asked: Position | None = None
        self._is_blocked = False
        """The log is about to be cut, to begin anew, or to be prepared: nothing is asked or appended."""
        self._produces: deque[WaitingProduce] = deque()
        self._deletions: list[_Deletion] = []
        self._again = False
        self._to_give_up = 0
        """Where the leader's log begins. Behind this log's start: one operation deletes up to there."""

    @property
    def leader(self) -> LeaderState | None:
        """If this broker leads."""
        return self.state.leader

    @property
    def counted_end(self) -> int:
        """Up to where the log counts: what is on disk, if the topic asks for that."""
        return self.log.recovery_point_offset if self.log.flushes else self.log.log_end

    @property
    def waiting_produces(self) -> int:
        """How many parts of produces wait to be committed."""
        return len(self._produces)

    @property
    def is_at_rest(self) -> bool:
        """Whether time alone changes nothing."""
        leader = self.leader
        return leader is None or (leader.is_at_rest and not self._deletions)

    def serves(self, epoch: int) -> bool:
        """Whether this broker is an in-sync follower in that leader epoch: then what is committed, as far
        as it knows, may be read here as well."""
        follower, known = self.state.follower, self.state.known
        return (
            follower is not None
            and not self.is_outdated
            and follower.epoch == epoch
            and known is not None
            and self.state.broker_id in known.state.isr
        )

    # -- what the cluster says ----------------------------------------------------------------------

    def begin(self, topic: TopicInfo, found: VersionedState | None) -> None:
        """Take up a role, by what the log has and what the state says."""
        log, shared = self.log, self._shared
        self.assign(topic)
        log.is_led = False
        # In sync since an epoch that this disk knows nothing of: it is another disk, or it has never
        # followed, and then nothing was committed.
        is_blank = found is not None and found.state.leader_epoch > 0 and log.leader_epoch < 0
        # What was only in the page cache when the machine went down is gone, though it was acked.
        has_counted = not log.flushes or topic.had_page_cache
        is_suspect = log.directory.name in shared.logs.suspects and has_counted
        lacks = log.is_incomplete or is_blank or log.failed is not None
        has_lost = is_suspect or log.is_damaged
        self.state.may_lead = not (lacks or has_lost)
        # What the only replica lacks no other has.
        self.state.may_lead_alone = log.failed is None and (
            log.is_alone or (has_lost and not lacks)
        )
        self.observe(found)

    def assign(self, topic: TopicInfo) -> None:
        """The partition's replicas, as the topic says."""
        number = self.id.partition
        replicas, move = topic.partitions[number], topic.reassignments.get(number)
        if self.replicas != replicas:
            self.replicas = list(replicas)
            if self.leader is not None:
                self.leader.replicas_changed(replicas, self._shared.clock())
        self.replica_count = topic.replica_count(number)
        self.log.is_alone = len(replicas) == 1
        self.state.reassigned = topic.reassigned
        if self.leader is not None:
            self.leader.min_in_sync = self.log.config.least_in_sync(self.replica_count)
        is_added = move is not None and self._shared.broker_id not in move.original
        throttle = move.throttle if move is not None and is_added else 0
        if throttle != self.throttle:
            self.throttle = throttle
            self._shared.throttled_until = 0.0  # what was taken at the old rate is forgotten

    def observe(self, found: VersionedState | None, *, settled: bool = False) -> None:
        """The state was read. `settled`: in a new session, in which nothing was written before."""
        is_new, self.found = found != self.found, found
        self._take(self.state.observed(found, settled=settled))
        if is_new and self.leader is None:
            self.wake_all()  # consumers may read of a follower that is in sync

    def look_again(self) -> None:
        """A view of the cluster was shown: what has failed meanwhile is tried again."""
        self.is_outdated = False
        if self.counted_end < self.log.log_end:
            self._flush()  # its topic may ask for that from now on
        self.advance()

    def heard(self, known: PartitionMetadata) -> None:
        """What another broker knows, while ZooKeeper does not answer this one. A leader that was replaced
        ends here, and is nothing before its state was read again."""
        leader, follower, shared = self.leader, self.state.follower, self._shared
        if leader is not None and known.leader_epoch > leader.epoch:
            shared.is_replaced = True
            self.observe(None)
        elif follower is not None:
            is_newer = known.leader_epoch > follower.epoch
            is_out = self.serves(known.leader_epoch) and shared.broker_id not in known.isr
            if (is_newer or is_out) and not self.is_outdated:
                self.is_outdated = shared.is_replaced = True
                self.wake_all()

    def close(self) -> None:
        """This broker has no replica of it any more, or the topic is gone."""
        self.observe(None)
        self._shared.forget(self)
        self._enter(Role.CLOSED)

    def _enter(self, role: Role) -> None:
        if role is not self._role:
            assert role in NEXT_ROLES[self._role], f"{self.log.name}: {self._role} to {role}"
            self._role = role

    # -- roles --------------------------------------------------------------------------------------

    def _take(self, step: Step) -> None:
        """Do what the state machine wants next, and what a change of roles brings with it."""
        state, log = self.state, self.log
        if self._role is not Role.CLOSED:
            self._enter(state.role)
        was_led, log.is_led = log.is_led, state.leader is not None
        if was_led is not log.is_led:
            self._change_leadership(was_led)
        if state.follower is None and self._asked is not None:
            self._asked = None
            self._shared.fetcher.forget(log.name.topic, log.name.partition)
        self._judge_log()
        if isinstance(step, PersistEpoch):
            self._note_epoch(step.epoch)
        elif isinstance(step, Activate):
            self._claim(step.write)
        elif (
            (known := state.known) is not None
            and known.state.leader == self._shared.broker_id
            and known.state.leader_epoch + 1 < state.epoch
        ):
            logger.error(
                "%s: cannot lead: leader epoch %d, which ZooKeeper knows, is behind %d, which this disk "
                "knows: ZooKeeper was set back",
                *(log.name, known.state.leader_epoch, state.epoch),
            )
        elif state.follower is not None and self._asked is None:
            self._ask()

    def _change_leadership(self, was_led: bool) -> None:
        log = self.log
        if was_led:
            logger.info("%s: not the leader any more", log.name)
            self._refuse(
                NotEnoughReplicasAfterAppend(
                    f"{log.name}: another broker leads, or is about to, and may have the batch or not"
                )
            )
        self._answer_deletions()
        self.wake_all()

    def _judge_log(self) -> None:
        """A replica that may lead has all that is committed: its disk is trusted, and it is complete."""
        state, log = self.state, self.log
        if state.may_lead and self._shared.logs.suspects:
            self._shared.logs.trust(log)
        if state.may_lead and log.is_incomplete:
            if log.is_damaged:
                # It is in sync by what lies behind the damage, where a leader epoch may begin.
                state.may_lead = False
                return
            log.is_incomplete = False
            log.queue.add(self._note_complete())

    async def _note_complete(self) -> None:
        if self.log.is_incomplete:
            return  # a cut that came before has taken that back
        try:
            await self.log.queue.job(partial(note_complete, self.log.directory))
        except OSError as error:
            log_failure(f"{self.log.name}: not noted as complete", error)

    def _note_epoch(self, epoch: int) -> None:
        """Have an epoch on disk, before the replica acts in it.

        A log that has no epoch is known by that to lack something. So one that does is noted as incomplete
        first: a death in between leaves it incomplete, as it is.
        """
        state, log = self.state, self.log
        if log.is_open and not (state.may_lead or state.may_lead_alone or log.is_incomplete):
            log.queue.add(self._note_incomplete(epoch))
            return
        epochs, name = self._shared.logs.notes.leader_epochs, log.directory.name
        epochs[name] = max(epoch, epochs.get(name, epoch))
        self._shared.flusher.note(partial(self._epoch_noted, epoch))

    async def _note_incomplete(self, epoch: int) -> None:
        try:
            await self.log.queue.job(partial(note_incomplete, self.log.directory))
        except OSError as error:
            self._epoch_noted(epoch, error)
        else:
            self.log.is_incomplete = True
            self._note_epoch(epoch)

    def _epoch_noted(self, epoch: int, error: Exception | None) -> None:
        if self._role is Role.CLOSED:
            return
        if error is None:
            self.log.leader_epoch = max(self.log.leader_epoch, epoch)
            self._take(self.state.persisted(epoch))
        else:
            self.state.failed()
            self._try_again(DISK_AGAIN_AFTER)

    def _claim(self, write: StateWrite) -> None:
        """Have it written that this broker leads, or that it cannot."""
        log = self.log
        if write.state.active and (log.failed is not None or self._is_blocked):
            self.state.failed()
            self._try_again()
            return
        if not (self.state.may_lead or write.state.active):
            logger.error("%s: this disk lacks records that counted; another is to lead", log.name)
        self._write(write, self._claimed)

    def _claimed(self, answer: Answer | None) -> None:
        if self._role is Role.CLOSED:
            return
        state, log = self.state, self.log
        step = state.activated(answer, self._lead)
        if state.leader is not None:
            if not state.may_lead:
                is_usual = log.is_alone and log.directory.name in self._shared.logs.suspects
                logger.log(
                    logging.INFO if is_usual and not log.is_incomplete else logging.CRITICAL,
                    "%s: leads as the only one in sync, and lacks what this disk has lost",
                    log.name,
                )
                state.may_lead = True
            level = logging.DEBUG if log.is_alone else logging.INFO  # who else
            logger.log(level, "%s: leader in epoch %d", log.name, state.leader.epoch)
            self._shared.counters.elected += 1
            is_unclean = state.leader.state.unclean_epoch == state.leader.epoch
            self._shared.counters.elected_unclean += is_unclean
        self._take(step)
        self.advance()
        self.look_after_isr()

    def _lead(self, found: VersionedState) -> LeaderState:
        log = self.log
        if log.flushes:
            self._flush()
        self._shared.restless[self] = None
        return LeaderState(
            *(self._shared.broker_id, found, self.replicas, log.epoch_starts),
            log_end=log.log_end,
            high_watermark=log.high_watermark,
            given_up=log.given_up,
            min_in_sync=log.config.least_in_sync(self.replica_count),
            max_lag=MAX_LAG,
            now=self._shared.clock(),
        )

    def _write(self, write: StateWrite, done: Callable[[Answer | None], None]) -> None:
        def answered(answers: Mapping[TopicIdPartition, Answer] | None) -> None:
            self._shared.counters.unknown_outcomes += answers is None
            done(None if answers is None else answers.get(self.id))

        self._shared.write_states({self.id: write}, answered)

    def resign(self) -> None:
        """Nothing can be written here any more, or some of it is damaged: another is to lead, if there is
        one in sync."""
        state = self.state
        if state.leader is not None:
            if len(state.leader.isr) < 2:
                return  # what is here can be read, at least
            state.leader.resigned = True
        state.may_lead, state.may_lead_alone = False, self.log.failed is None
        self._take(state.observed(state.known))

    def is_whole(self) -> None:
        """What is damaged is gone, or records are deleted here, too: with that the replica may have all
        that is committed again, and nothing else."""
        state = self.state
        if state.follower is not None and state.follower.has_committed:
            state.may_lead |= not self.log.is_damaged and self.log.failed is None
            self._take(state.observed(state.known))

    # -- high watermark -----------------------------------------------------------------------------

    def advance(self, appended: int = 0) -> None:
        """Move the leader's high watermark as far as it may go, and answer what waits for it.

        `appended` bytes have just come, which consumers can read if they are committed by that.
        """
        leader, log = self.leader, self.log
        if leader is None or not log.is_open:
            return
        offset = min(leader.advance(self.counted_end), log.log_end)
        if offset > log.high_watermark:
            log.advance_high_watermark(offset)
            self._wake(appended if offset == log.log_end else 0)

    def _wake(self, appended: int = 0) -> None:
        """The high watermark has moved."""
        end, size = self.log.high_watermark, float(appended)
        if not appended and (not self._produces or self._produces[0].end > end):
            size = inf  # by what was acknowledged before, or is of a former leader
        while self._produces and self._produces[0].end <= end:
            produce = self._produces.popleft()
            size += produce.size
            produce.done(None)
        for session in self.sessions:
            session.committed(self, size)

    def _flush(self) -> None:
        """Have all that is here now put on disk."""
        self._shared.flusher.flush(self.log, self._flushed)

    def _flushed(self, error: FolkmootError | None) -> None:
        """A flush has ended. Where the disk was full, or had no descriptor to spare, it is tried again."""
        log = self.log
        self._refuse_if_unusable()
        self.advance()
        if error is not None and log.is_open and log.failed is None:
            self._try_again(DISK_AGAIN_AFTER)
        elif self.counted_end == log.log_end or log.dirty:
            self._ask()

    def fail(self, reason: str) -> None:
        """Nothing is written to the log any more. It can be read."""
        self.log.fail(reason, readable=True)
        self.wake_all()
        self._refuse_if_unusable()

    def _refuse_if_unusable(self) -> None:
        if not self._produces:
            return
        try:
            self.log.require_writable()
        except ClosedError:
            self._refuse(StorageError(f"{self.log.name} was deleted before it was flushed"))
        except FolkmootError as error:
            self._refuse(error)

    def _refuse(self, error: FolkmootError) -> None:
        """Answer all produces that wait: what was appended may be committed later, or never."""
        waiting, self._produces = self._produces, deque()
        for each in waiting:
            each.done(error)

    # -- producers ----------------------------------------------------------------------------------

    def require_replicas(self) -> None:
        """Raises NotEnoughReplicas: what is appended now could not be committed."""
        if self.leader is not None and not self.leader.has_enough_replicas:
            raise NotEnoughReplicas(f"{self.log.name}: {self.leader.missing(self.log.log_end)}")

    def appended(self, size: int, before: int) -> None:
        """A producer's batches of so many bytes were appended from offset `before` on, where this broker
        leads."""
        was_committed = self.log.high_watermark >= before
        if self.leader is not None:
            self.leader.appended(self._shared.clock())
            self._shared.restless[self] = None
        for session in self.sessions:
            session.appended(self)
        if self.log.flushes:
            self._flush()
        self.advance(size if was_committed else 0)

    def wait(self, produce: WaitingProduce) -> None:
        """Call `produce.done` when the log is committed up to its end, never will be, or time is up."""
        self._produces.append(produce)
        self._shared.expire_by(self, produce.deadline)

    def expire(self, now: float) -> float | None:
        """Refuse the produces that have waited too long → the earliest deadline of the others. What they
        appended stays, and may be committed yet."""
        late = [each for each in self._produces if each.deadline <= now]
        if late:
            self._produces = deque(each for each in self._produces if each.deadline > now)
        for each in late:
            missing = "" if self.leader is None else f" ({self.leader.missing(each.end)})"
            each.done(
                RequestTimeout(
                    f"{self.log.name}: the batch was appended, and not committed in time: it may be "
                    f"later{missing}"
                )
            )
        return min((each.deadline for each in self._produces), default=None)

    # -- followers, where this broker leads ---------------------------------------------------------

    def fetched(
        self,
        follower: int,
        broker_epoch: int,
        position: Position,
        given_up: int,
        *,
        gives_up: bool,
    ) -> EpochEnd | None:
        """A follower fetches. Raises NotLeader, FencedLeaderEpoch, UnknownLeaderEpoch, OffsetOutOfRange,
        OffsetNotAvailable."""
        leader, log = self.leader, self.log
        if leader is None or follower not in self.replicas:
            raise NotLeader(
                f"{log.name} is not led here, or broker {follower} has no replica of it"
            )
        try:
            end = leader.fetched(
                *(follower, broker_epoch, position, log.log_end, self._shared.clock()),
                log_start=log.log_start,
                given_up=given_up,
                gives_up=gives_up,
            )
        except OffsetNotAvailable:
            self.look_after_isr()  # it is to leave
            raise
        if end is None:
            self.advance()
            self._answer_deletions()
            self._shared.restless[self] = None
            if follower not in leader.isr:
                self.look_after_isr()
        return end

    def latest(self) -> int:
        """The high watermark. Raises OffsetNotAvailable while that may be behind a former leader's."""
        if self.leader is not None and not self.leader.knows_committed:
            raise OffsetNotAvailable(f"{self.log.name} has a new leader: ask again")
        return self.log.high_watermark

    def wake_all(self) -> None:
        """Something has changed other than by an append: all who wait look again."""
        for session in self.sessions:
            session.altered(self)

    def when_given_up(self, offset: int, done: Done) -> None:
        """Call `done` when what this log has given up before `offset` is deleted wherever the next
        leader may come from."""
        if self.leader is not None:
            self.leader.given_up = max(self.leader.given_up, offset)
        self._deletions.append(_Deletion(offset, self._shared.clock() + DELETED_WITHIN, done))
        self._shared.restless[self] = None
        self._answer_deletions()

    def _answer_deletions(self) -> None:
        waiting, self._deletions = self._deletions, []
        for each in waiting:
            if self.leader is None:
                each.done(NotLeader(f"{self.log.name} is not led here any more"))
            elif self.leader.have_given_up(each.offset):
                each.done(None)
            elif self._shared.clock() >= each.deadline:
                name = self.log.name
                each.done(RequestTimeout(f"{name}: a replica has not deleted the records yet"))
            else:
                self._deletions.append(each)

    def look_after_isr(self) -> None:
        """Have the ISR of this moment written, if it differs: one write at a time (LeaderState)."""
        self._answer_deletions()
        leader, shared = self.leader, self._shared
        wanted = None if leader is None else leader.propose(shared.staying, shared.clock())
        if leader is not None and wanted is not None:
            logger.info("%s: in sync are %s, not %s", self.log.name, wanted.state.isr, leader.isr)
            self._write(wanted, partial(self._isr_answered, leader))

    def _isr_answered(self, leader: LeaderState, answer: Answer | None) -> None:
        before, counters = set(leader.isr), self._shared.counters
        leader.answered(answer)
        counters.isr_shrinks += len(before.difference(leader.isr))
        counters.isr_expands += len(set(leader.isr) - before)
        if self._role is Role.CLOSED:
            return
        if isinstance(answer, Superseded):
            self._take(self.state.refused(answer.found))
        elif isinstance(answer, VersionedState):
            self._take(self.state.observed(answer))
        if self.leader is leader and not leader.has_enough_replicas:
            missing = leader.missing(self.log.log_end)
            self._refuse(NotEnoughReplicasAfterAppend(f"{self.log.name}: {missing}"))
        self.advance()
        self.look_after_isr()

    # -- as a follower ------------------------------------------------------------------------------

    def _ask(self, *, again: bool = False) -> None:
        """Ask the leader for what follows, once all that is here counts; `again`: also if that is asked."""
        follower, log, shared = self.state.follower, self.log, self._shared
        if follower is None or self._is_blocked or (self._asked is not None and not again):
            return
        if not log.is_open or log.failed is not None:
            return
        if log.prepare_append() is not None:
            self._is_blocked = True
            log.queue.add(self._prepare())
        elif self.counted_end < log.log_end:
            self._flush()
        elif self._is_throttled and (pause := shared.throttled_until - shared.clock()) > 0:
            self._try_again(pause)
        else:
            damaged_at = log.damaged_at
            follower.found_damage(damaged_at[0] if damaged_at else None, log.epoch_starts)
            self._asked = position = follower.position(log.epoch_starts, log.log_end)
            shared.fetcher.fetch(
                follower.leader,
                ReplicaFetchEntry(
                    *(log.name.topic, *self.id, position.leader_epoch),
                    *(position.last_epoch, position.log_end, log.given_up),
                    follower.damaged_at is not None,
                ),
            )

    async def _prepare(self) -> None:
        """Load what the first append of a life needs."""
        job = self.log.prepare_append()
        if job is not None:
            job.finish(await self.log.queue.outcome_of(job.run))
        self._is_blocked = False
        self._ask()

    @property
    def _is_throttled(self) -> bool:
        """Whether it is being added, at a rate, and not in sync yet."""
        known = self.state.known
        return (
            bool(self.throttle)
            and known is not None
            and self._shared.broker_id not in known.state.isr
        )

    def take(self, result: ReplicaFetchResult, chunk: memoryview, now: Now) -> None:
        """The leader's answer to the position that was asked for last."""
        follower, asked, log = self.state.follower, self._asked, self.log
        if asked is None or follower is None:
            return
        self._asked = None
        if result.error:
            self._refused(follower, asked, result)
            return
        diverging = None
        if result.diverging_end >= 0:
            diverging = EpochEnd(result.diverging_epoch, result.diverging_end)
        todo = follower.answered(
            *(asked, diverging, result.high_watermark, log.epoch_starts, log.log_end)
        )
        try:
            if isinstance(todo, Truncate):
                self._cut(follower, todo.offset)
                return
            if isinstance(todo, Check):
                self._check(follower, chunk)
                return
            if todo is not None:
                self._append(follower, result, chunk, now)
        except (RetriableError, CorruptBatch) as error:
            # The disk is full, it may be; or the leader's is damaged: then this log is as good as before.
            self._warn(error)
            if isinstance(error, CorruptBatch):
                self._report(follower.leader, asked.log_end, chunk)
            self._try_again(DISK_AGAIN_AFTER)
        except (FolkmootError, ValueError) as error:
            self.fail(f"it cannot follow its leader: {error}")
        else:
            self._ask()

    def _append(
        self, follower: FollowerState, result: ReplicaFetchResult, chunk: memoryview, now: Now
    ) -> None:
        shared = self._shared
        try:
            if len(chunk):
                self.log.append_as_follower(chunk)
                shared.flusher.appended(self.log, len(chunk), now)
                if self._is_throttled:
                    begun = max(shared.throttled_until, now.monotonic)
                    shared.throttled_until = begun + len(chunk) / self.throttle
        finally:  # a disk that has no room for it gets some by what the leader has given up
            self._learn(follower, result)

    def _learn(self, follower: FollowerState, result: ReplicaFetchResult) -> None:
        """What the leader says of its log, besides the records."""
        log = self.log
        follower.has_committed |= result.has_committed
        committed = min(result.high_watermark, log.log_end)
        if committed > log.high_watermark:
            log.advance_high_watermark(committed)
            self._wake()
        start = min(result.log_start, log.high_watermark)
        if start > log.given_up:
            is_under_way, self._to_give_up = self._to_give_up > log.given_up, start
            if not is_under_way:
                log.queue.add(self._give_up())
        elif result.has_committed:
            self.state.may_lead = self.state.may_lead or not log.is_damaged
            self._judge_log()

    def _refused(
        self, follower: FollowerState, asked: Position, result: ReplicaFetchResult
    ) -> None:
        """The leader is not one any more, or not yet; it is asked again soon.

        Or its log begins behind the follower's end, or there, and has nothing of the follower's last epoch:
        then the follower's log goes on there.
        """
        is_out_of_range = result.error == OffsetOutOfRange.code
        if follower.damaged_at is not None:
            if is_out_of_range:
                follower.checked(NO_EPOCH, result.log_start)
            self._try_again()
            return
        if is_out_of_range and result.log_start >= asked.log_end and not self._is_blocked:
            self._is_blocked = True
            why = f"broker {follower.leader} has nothing before offset {result.log_start}"
            self.log.queue.add(self._begin_anew(follower, result.log_start, why))
        else:
            self._try_again()

    async def _give_up(self) -> None:
        """Delete what the leader has deleted: it learns of that with the next position, and a replica that
        has all but what was deleted may lead from here on."""
        log, is_tried_again = self.log, False
        try:
            while (start := self._to_give_up) > log.given_up:
                if self.state.follower is None or start > log.high_watermark:
                    return
                await self._shared.retention.give_up_before(log, start)
        except FolkmootError as error:
            if log.is_open and log.failed is None:  # the leader does not say it twice
                is_tried_again = True
                self._warn(error)
                self._shared.later(DISK_AGAIN_AFTER, lambda: log.queue.add(self._give_up()))
            return
        finally:
            if not is_tried_again:  # a cut may take this log's start back later
                self._to_give_up = 0
        self.is_whole()
        self._ask(again=True)

    def _report(self, leader: int, offset: int, chunk: memoryview) -> None:
        """Have the leader look at the first bad batch of what it sent from `offset` on."""
        with suppress(CorruptBatch):
            for header, _ in batch_header.split(chunk):
                offset = header.next_offset
        entry = ReportDamageEntry(self.log.name.topic, *self.id, offset)
        request = ReportDamageRequest([entry])
        self._shared.fetcher.ask(leader, Api.REPORT_DAMAGE, request, lambda reply: None)

    # -- cutting the log ----------------------------------------------------------------------------

    def _cut(self, follower: FollowerState, offset: int) -> None:
        self._is_blocked = True
        self.log.queue.add(self._carry_out_cut(follower, offset))

    async def _carry_out_cut(self, follower: FollowerState, offset: int) -> None:
        """Give up what the leader's log does not have.

        A death before the recovery point is taken back: nothing has happened. Behind that the next start
        checks the whole log, until it is flushed again. A death in the cut leaves a log that is too long
        still, and is cut again.

        A log that compaction has taken earlier records from, for the sake of later ones that an unclean
        election has lost, is given up whole: it begins anew, and copies all that its leader has.
        """
        log, logs = self.log, self._shared.logs
        if logs.is_removing(log):  # what replaced a segment may be cut, and would hide it no more
            await logs.remove(log, ())
        if logs.is_removing(log):
            self._is_blocked = False
            self._try_again(DISK_AGAIN_AFTER)
            return
        if offset < log.log_end and self._is_lost_by_election and log.is_compacted:
            found = await log.queue.outcome_of(partial(load_compacted_for, log.directory))
            if not isinstance(found, int) or found > offset:
                why = f"an unclean election has lost offsets from {offset} on, others were dropped for those"
                await self._begin_anew(follower, log.log_end, why)
                return
        try:
            await self._take_point_back(offset)
        except OSError as error:
            self._is_blocked = False
            self._warn(error)
            self._try_again(DISK_AGAIN_AFTER)
            return
        try:
            if self.state.follower is follower and log.is_open:
                self._take_back_committed(follower, offset)
                if offset < log.log_end:
                    logger.warning(
                        "%s: cut from offset %d to %d, to go on there as the log of broker %d does, which "
                        "leads in epoch %d",
                        *(log.name, log.log_end, offset, follower.leader, follower.epoch),
                    )
                    self._shared.counters.repaired += follower.damaged_at is not None
                    await log.cut(offset, partial(self._shared.pause, DISK_AGAIN_AFTER))
                    if log.is_incomplete:
                        self.state.may_lead = self.state.may_lead_alone = False
        except (FolkmootError, ValueError) as error:
            self.fail(f"it cannot follow its leader: {error}")
            cause = error.__cause__
            if isinstance(cause, OSError) and cause.errno in (errno.EIO, errno.EROFS):
                self._shared.flusher.disk_failed(DiskFailed(f"a log could not be cut: {error}"))
        self._is_blocked = False
        self._ask()

    @property
    def _is_lost_by_election(self) -> bool:
        """Whether an unclean election has lost what is to be cut."""
        known = self.state.known
        return known is not None and self.log.epoch_starts.latest < known.state.unclean_epoch

    def _take_back_committed(self, follower: FollowerState, offset: int) -> None:
        log, known = self.log, self.state.known
        if self._is_lost_by_election:
            log.take_back_committed(offset, "an unclean election has lost")
        elif follower.damaged_at is not None:
            log.take_back_committed(offset, "damage has taken")
        elif known is not None and self._shared.broker_id not in known.state.isr:
            if offset < log.high_watermark:  # it has copied what compaction had left
                log.take_back_committed(offset, "the leader lacks")

    async def _take_point_back(self, offset: int) -> None:
        """Have nothing behind `offset` noted as on disk. Raises OSError."""
        name, logs = self.log.directory.name, self._shared.logs
        noted = logs.noted.recovery_points.get(name)
        end = max(self.log.recovery_point_offset, 0 if noted is None else noted.end_offset)
        if end <= offset:
            return
        logs.notes.recovery_points.pop(name, None)
        ended: Pending[None] = Pending()
        self._shared.flusher.note(ended.finish)
        await ended

    async def _begin_anew(self, follower: FollowerState, offset: int, why: str) -> None:
        """Go on at `offset`, where the leader's log begins, or at the log's end, without what is here.

        That start is on disk first. A death before: nothing has happened. After: the next start removes
        what lies before it, and goes on there too. If another broker is followed by then, or none, or the
        start cannot be noted, it is taken back: a replica leads with what it has. A death before
        that loses nothing that it took since: meanwhile it neither leads nor follows.
        """
        log, logs, pause = self.log, self._shared.logs, TRY_AGAIN_AFTER
        if logs.is_removing(log):  # a new segment may have the name of a file that is to go
            await logs.remove(log, ())
        if logs.is_removing(log):
            self._is_blocked = False
            self._try_again(DISK_AGAIN_AFTER)
            return
        try:
            await log.queue.job(partial(_note_start, log.directory, offset))
            if self.state.follower is follower and log.log_end <= offset:
                if log.is_open:
                    logger.warning(
                        "%s: %s: this replica goes on at %d, from %d, without what it had",
                        *(log.name, why, offset, log.log_end),
                    )
                    logs.notes.recovery_points.pop(log.directory.name, None)
                    await log.begin_anew(offset, partial(self._shared.pause, DISK_AGAIN_AFTER))
                self._is_blocked = False
                self._ask()
                return
        except (FolkmootError, OSError) as error:
            self._warn(error)
            pause = DISK_AGAIN_AFTER
        log.epoch_starts.changed = True  # their file is gone
        while log.is_open:
            try:
                await log.queue.job(partial(save_log_start, log.directory, log.given_up))
                break
            except OSError as error:
                self._warn(error)
                await self._shared.pause(DISK_AGAIN_AFTER)
        self._is_blocked = False
        self._try_again(pause)

    # -- damage -------------------------------------------------------------------------------------

    def look_after_damage(self) -> bool:
        """A leader resigns if another replica can lead; a follower asks from the damage on → whether
        some is left."""
        log, leader, damaged_at = self.log, self.leader, self.log.damaged_at
        log.is_lost = False
        if not damaged_at:
            self.is_whole()
        elif leader is not None and self._shared.staying.intersection(leader.others_in_sync):
            logger.warning("%s: damaged at offset %d, resigning", log.name, damaged_at[0])
            self.resign()
        elif leader is not None:  # who has all that is damaged comes into the ISR
            log.is_lost = leader.have_no_more(damaged_at[-1])
        elif self._asked is not None and self._asked.log_end == log.log_end:
            self._asked = None  # from its end on
            self._ask()
        return bool(damaged_at)

    def _check(self, follower: FollowerState, chunk: memoryview) -> None:
        """This replica does not count as in sync, and the leader's log is whole as far as this goes: once
        all was looked at it is cut, below the high watermark, too. Raises CorruptBatch."""
        headers = [header for header, _ in batch_header.split(chunk)]
        if headers and headers[-1].next_offset < self.log.log_end:
            follower.checked(headers[-1].leader_epoch, headers[-1].next_offset)
            self._ask()
        elif follower.damaged_at is not None:
            self._cut(follower, follower.damaged_at)

    # -- trying again -------------------------------------------------------------------------------

    def _try_again(self, pause: float = TRY_AGAIN_AFTER) -> None:
        if not self._again:
            self._again = True
            self._shared.later(pause, self._is_due)

    def _is_due(self) -> None:
        self._again = False
        if self._role is Role.CLOSED:
            return
        if self.counted_end < self.log.log_end:
            self._flush()
        self._take(self.state.observed(self.found))

    def _warn(self, error: Exception) -> None:
        if not self._shared.logs.room.is_missed(error):
            logger.warning("%s: %s", self.log.name, error)


def _note_start(directory: Path, offset: int) -> None:
    """A death right behind this leaves nothing that tells of the epochs of what is given up."""
    (directory / EPOCH_STARTS_FILE).unlink(missing_ok=True)
    save_log_start(directory, offset, anew=True)
