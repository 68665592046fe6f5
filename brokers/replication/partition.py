"""One partition on this broker: its log, its role, and the requests that wait for it."""

import errno
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from functools import partial
from math import inf
from pathlib import Path
from typing import Any, Final, NamedTuple

from folkmoot.brokers.jobs.jobs import Now, call_guarded, log_failure
from folkmoot.brokers.jobs.serial_queue import Pending
from folkmoot.brokers.replication.follower_state import Check, FollowerState, Truncate
from folkmoot.brokers.replication.leader_state import LeaderState, Position
from folkmoot.brokers.replication.replica_state import (
    NEXT_ROLES,
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
from folkmoot.brokers.storage.retention import Callback
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
"""Seconds after which a leader that refused a fetch is asked again."""
DELETED_WITHIN: Final = 10.0
"""Seconds for which a deletion of records waits for the in-sync replicas."""
DISK_AGAIN_AFTER: Final = 1.0
"""Seconds after which a disk that was full is tried again."""
_GRAIN: Final = 0.05
"""Seconds between two searches for produces that have waited too long, at least."""


_Change = Callable[[], Coroutine[Pending[Any], None, float]]
"""An operation on the log. It returns the seconds after which to try again; 0: ask the leader at once."""


class WaitingProduce(NamedTuple):
    """Batches that end at offset `end`: `callback` is called when they are committed, or never will be.

    Consumers can read `size` bytes more by then; `deadline` is in the event loop's clock.
    """

    end: int
    size: int
    deadline: float
    callback: Callback


class _Deletion(NamedTuple):
    """`callback` is called when no in-sync replica has records before `offset`, or at `deadline`."""

    offset: int
    deadline: float
    callback: Callback


class Session:
    """A consumer or a follower that waits for news of partitions."""

    __slots__ = ()

    def appended(self, partition: "Partition", /) -> None:
        """Batches were appended that are not committed yet."""

    def committed(self, partition: "Partition", size: float, /) -> None:
        """The high watermark has moved by `size` bytes, inf if that is not known."""

    def altered(self, partition: "Partition", /) -> None:
        """Another broker leads, a read has become possible, the log's start has moved, or it is closed."""
        self.committed(partition, inf)


class Partition:
    """One partition on this broker, with one replica or several.

    The state machines (ReplicaState, LeaderState, FollowerState) decide, by the partition's state as it
    was read last. That may be old: each decision is safe even so. This class carries the decisions out. It
    has epochs put on disk, states written, and the log flushed, cut and begun anew.

    **High watermark.** `advance` alone moves a leader's: after an append, a flush, a follower's fetch and
    a change of the ISR. It answers the producers whose records are committed by that, and wakes consumers
    and followers.

    **Disk.** All that changes files of the log is an operation in `log.queue`. An operation reads the
    state when its turn comes. So a cut never meets a flush, and an operation of a role that is over ends.

    **Follower.** It asks for one position at a time. It appends the answer, flushes it if the topic asks
    for that, and only then asks for the next position. So the leader counts only what is on disk.

    Crash story: see the state machines and the operations. Requests wait in memory: a leader that dies has
    acknowledged nothing that is not committed.

    Owner: the event loop.
    """

    def __init__(self, shared: Shared, key: TopicIdPartition, log: Log) -> None:
        self.id = key
        self.log = log
        self.replicas: list[int] = []
        self.replica_count = 0
        """The number of replicas; during a reassignment the smaller one (TopicInfo)."""
        self.throttle = 0
        """Bytes a second that it copies at most until it is in sync; 0: no limit."""
        self.state = ReplicaState(
            *(shared.broker_id, log.leader_epoch, shared.registered, shared.staying)
        )
        self.leader: LeaderState | None = None
        """`state.leader`, while this broker leads."""
        self.last_read: VersionedState | None = None
        """The partition's state as it was read last."""
        self.is_outdated = False
        """Another broker knows a newer leader, or an ISR without this replica."""
        self.is_restless = False
        """The ISR may change by time alone, or a deletion waits for it."""
        self.sessions: dict[Session, None] = {}
        self._shared = shared
        self._role = Role.WAITING
        self._in_flight: Position | None = None
        """The position that the leader was asked for and has not answered."""
        self._blocking = 0
        """Operations that are about to cut the log, begin it anew or prepare it: nothing is asked or
        appended."""
        self._produces: deque[WaitingProduce] = deque()
        self._expires_at = inf
        self._deletions: list[_Deletion] = []
        self._is_retrying = False
        self._delete_up_to = 0
        """The start of the leader's log. While this log begins earlier, one operation deletes up to there."""

    @property
    def counted_end(self) -> int:
        """The end of what counts as acked: of what is on disk, if the topic asks for that."""
        return self.log.recovery_point_offset if self.log.flushes else self.log.log_end

    @property
    def waiting_produces(self) -> int:
        return len(self._produces)

    def serves(self, epoch: int) -> bool:
        """Return whether this broker is an in-sync follower in that leader epoch. Consumers may then read
        here what is committed as far as it knows."""
        follower = self.state.follower
        return (
            follower is not None
            and not self.is_outdated
            and follower.epoch == epoch
            and self._counts_as_in_sync
        )

    @property
    def _counts_as_in_sync(self) -> bool:
        known = self.state.known
        return known is not None and self._shared.broker_id in known.state.isr

    # -- the view of the cluster --------------------------------------------------------------------

    def begin(self, topic: TopicInfo, current: VersionedState | None) -> None:
        """Take up a role, by what the log has and what the state says."""
        log, shared = self.log, self._shared
        self._assign(topic)
        # In sync since an epoch that this disk does not know: it is another disk. (Or it has never
        # followed, and nothing was committed.)
        is_blank = current is not None and current.state.leader_epoch > 0 and log.leader_epoch < 0
        # A machine that went down has lost what was only in its page cache, though it was acked.
        has_counted = not log.flushes or topic.had_page_cache
        is_suspect = log.directory.name in shared.logs.suspects and has_counted
        lacks = log.is_incomplete or is_blank or log.failed is not None
        has_lost = is_suspect or log.is_damaged
        self.state.may_lead = not (lacks or has_lost)
        # No other replica has what the only one lacks.
        self.state.may_lead_alone = log.failed is None and (
            log.is_alone or (has_lost and not lacks)
        )
        self.observe(current)

    def learn(self, topic: TopicInfo, current: VersionedState | None, *, settled: bool) -> None:
        """Take over a newer view, and try again what has failed meanwhile."""
        self._assign(topic)
        self.observe(current, settled=settled)
        self.is_outdated = False
        self.is_restless = True
        if self.counted_end < self.log.log_end:
            self._flush()  # its topic may ask for that from now on
        self.advance()

    def _assign(self, topic: TopicInfo) -> None:
        number, leader = self.id.partition, self.leader
        replicas, move = topic.partitions[number], topic.reassignments.get(number)
        if self.replicas != replicas:
            self.replicas = list(replicas)
            if leader is not None:
                leader.replicas_changed(replicas, self._shared.clock())
        self.replica_count = topic.replica_count(number)
        self.log.is_alone = len(replicas) == 1
        self.state.reassigned = topic.reassigned
        if leader is not None:
            leader.min_in_sync = self.log.config.least_in_sync(self.replica_count)
        is_added = move is not None and self._shared.broker_id not in move.original
        throttle = move.throttle if move is not None and is_added else 0
        if throttle != self.throttle:
            self.throttle = throttle
            self._shared.throttled_until = 0.0  # computed with the former rate

    def observe(self, current: VersionedState | None, *, settled: bool = False) -> None:
        """The state was read. `settled`: in a new session, before which every write has ended."""
        is_new, self.last_read = current != self.last_read, current
        self._carry_out(self.state.observe(current, settled=settled))
        if is_new and self.leader is None:
            self.wake_all()  # consumers may read from a follower that is in sync

    def observe_metadata(self, known: PartitionMetadata) -> None:
        """Another broker knows this, while ZooKeeper does not answer this one. A leader that was replaced
        resigns, and takes no role before its state was read again."""
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
        self._enter(Role.CLOSED)

    def _enter(self, role: Role) -> None:
        if role is not self._role:
            assert role in NEXT_ROLES[self._role], f"{self.log.name}: {self._role} to {role}"
            self._role = role

    # -- roles --------------------------------------------------------------------------------------

    def _carry_out(self, step: Step) -> None:
        """Take the step that the state machine asks for, and what a change of roles requires."""
        state, log = self.state, self.log
        former, self.leader = self.leader, state.leader
        log.is_led = self.leader is not None
        if self._role is not Role.CLOSED:
            if former is not None and self.leader is None:
                # If ZooKeeper was set back, another may lead in this epoch.
                self._enter(Role.WAITING)
            self._enter(state.role)
        if (former is None) is not (self.leader is None):
            if former is not None:
                logger.info("%s: not the leader any more", log.name)
                self._refuse(
                    NotEnoughReplicasAfterAppend(
                        f"{log.name}: another broker leads, or is about to, and may have the batch or not"
                    )
                )
            self._answer_deletions()
            self.wake_all()
        if state.follower is None and self._in_flight is not None:
            self._in_flight = None
            self._shared.fetcher.forget(log.name.topic, log.name.partition)
        self._judge_log()
        if isinstance(step, PersistEpoch):
            self._note_epoch(step.epoch)
        elif step is not None:
            self._claim(step)
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
        elif state.follower is not None and self._in_flight is None:
            self._fetch_next()

    def _judge_log(self) -> None:
        """Trust the disk of a replica that may lead, and note its log as complete: it has all that is
        committed."""
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
            return  # an earlier cut has lost something since
        try:
            await self.log.queue.job(partial(note_complete, self.log.directory))
        except OSError as error:
            log_failure(f"{self.log.name}: not noted as complete", error)

    def _note_epoch(self, epoch: int) -> None:
        """Have an epoch put on disk, before the replica acts in it.

        A log without any epoch counts as one that lacks something. It is noted as incomplete first, so that
        a death in between does not make it look complete.
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
            self._carry_out(self.state.confirm_epoch(epoch))
        else:
            self.state.fail_step()
            self._try_again(DISK_AGAIN_AFTER)

    def _claim(self, write: StateWrite) -> None:
        """Write in ZooKeeper that this broker leads, or that it cannot."""
        log = self.log
        if write.state.active and (log.failed is not None or self._blocking):
            self.state.fail_step()
            self._try_again()
            return
        if not (self.state.may_lead or write.state.active):
            logger.error("%s: this disk lacks records that counted; another must lead", log.name)
        self._write(write, self._finish_claim)

    def _finish_claim(self, answer: Answer | None) -> None:
        if self._role is Role.CLOSED:
            return
        state, log, counters = self.state, self.log, self._shared.counters
        step = state.finish_activation(answer, self._lead)
        if state.leader is not None:
            if not state.may_lead:
                is_usual = log.is_alone and log.directory.name in self._shared.logs.suspects
                logger.log(
                    logging.INFO if is_usual and not log.is_incomplete else logging.CRITICAL,
                    "%s: leads as the only one in sync, and lacks what this disk has lost",
                    log.name,
                )
                state.may_lead = True
            level = logging.DEBUG if log.is_alone else logging.INFO  # no other broker could lead
            logger.log(level, "%s: leader in epoch %d", log.name, state.leader.epoch)
            counters.elected += 1
            counters.elected_unclean += state.leader.known.state.unclean_epoch == state.leader.epoch
        self._carry_out(step)
        self.advance()
        self.look_after_isr()

    def _lead(self, current: VersionedState) -> LeaderState:
        log = self.log
        if log.flushes:
            self._flush()
        return LeaderState(
            *(self._shared.broker_id, current, self.replicas, log.epoch_starts),
            log_end=log.log_end,
            high_watermark=log.high_watermark,
            deleted_before=log.deleted_before,
            min_in_sync=log.config.least_in_sync(self.replica_count),
            max_lag=MAX_LAG,
            now=self._shared.clock(),
        )

    def _write(self, write: StateWrite, callback: Callable[[Answer | None], None]) -> None:
        def answered(answers: Mapping[TopicIdPartition, Answer] | None) -> None:
            self._shared.counters.unknown_outcomes += answers is None
            callback(None if answers is None else answers.get(self.id))

        self._shared.write_states({self.id: write}, answered)

    def resign(self) -> None:
        """Have another broker lead if one is in sync: nothing can be written here any more, or some of it is
        damaged."""
        state = self.state
        if state.leader is not None:
            if len(state.leader.isr) < 2:
                return  # reads are possible, at least
            state.leader.resigned = True
        state.may_lead, state.may_lead_alone = False, self.log.failed is None
        self._carry_out(state.observe(state.known))

    def _allow_leading(self) -> None:
        """The damaged part is gone, or the deletions of the leader are carried out. With that the replica may
        have all that is committed again."""
        state = self.state
        if state.follower is not None and state.follower.has_committed:
            state.may_lead |= not self.log.is_damaged and self.log.failed is None
            self._carry_out(state.observe(state.known))

    # -- high watermark -----------------------------------------------------------------------------

    def advance(self, appended: int = 0) -> None:
        """Move the leader's high watermark as far as it may go, and answer what waits for it.

        `appended` bytes were just appended; consumers can read them if they are committed by this.
        """
        leader, log = self.leader, self.log
        if leader is None or not log.is_open:
            return
        offset = min(leader.advance(self.counted_end), log.log_end)
        if offset > log.high_watermark:
            log.advance_high_watermark(offset)
            self._wake(appended if offset == log.log_end else 0)

    def _wake(self, appended: int = 0) -> None:
        """Answer the produces below the high watermark, which has moved, and wake the sessions."""
        end, size = self.log.high_watermark, float(appended)
        if not appended and (not self._produces or self._produces[0].end > end):
            size = inf  # acknowledged before, or appended by a former leader
        while self._produces and self._produces[0].end <= end:
            produce = self._produces.popleft()
            size += produce.size
            produce.callback(None)
        for session in self.sessions:
            session.committed(self, size)

    def wake_all(self) -> None:
        """Something other than the high watermark has changed: all sessions look again."""
        for session in self.sessions:
            session.altered(self)

    def _flush(self) -> None:
        self._shared.flusher.flush(self.log, self._finish_flush)

    def _finish_flush(self, error: FolkmootError | None) -> None:
        """A flush has ended. If the disk was full, or had no descriptor to spare, it is tried again."""
        log = self.log
        self._refuse_if_unusable()
        self.advance()
        if error is not None and log.is_open and log.failed is None:
            self._try_again(DISK_AGAIN_AFTER)
        elif self.counted_end == log.log_end or log.dirty:
            self._fetch_next()

    def fail(self, reason: str) -> None:
        """Write nothing to the log any more. It can be read."""
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
        """Answer all waiting produces: their batches may be committed later, or never."""
        waiting, self._produces = self._produces, deque()
        for produce in waiting:
            produce.callback(error)

    # -- producers ----------------------------------------------------------------------------------

    def require_replicas(self) -> None:
        """Raise NotEnoughReplicas if what is appended now could not be committed."""
        if self.leader is not None and not self.leader.has_enough_replicas:
            raise NotEnoughReplicas(f"{self.log.name}: {self.leader.missing(self.log.log_end)}")

    def note_append(self, size: int, before: int) -> None:
        """Count a producer's `size` bytes, appended from offset `before` on, where this broker leads."""
        was_committed = self.log.high_watermark >= before
        if self.leader is not None:
            self.leader.note_append(self._shared.clock())
            self.is_restless = True
        for session in self.sessions:
            session.appended(self)
        if self.log.flushes:
            self._flush()
        self.advance(size if was_committed else 0)

    def wait(self, produce: WaitingProduce) -> None:
        """Call `produce.callback` when the log is committed up to its end, never will be, or time is up."""
        self._produces.append(produce)
        self._expire_at(produce.deadline)

    def _expire_at(self, due: float) -> None:
        if due < self._expires_at:
            self._expires_at = due
            self._shared.at(due, self._expire)

    def _expire(self) -> None:
        """Refuse the produces that have waited too long. Their batches may be committed yet."""
        now = self._shared.clock()
        if now < self._expires_at:
            return  # an earlier timer has set another one
        late = [each for each in self._produces if each.deadline <= now]
        if late:
            self._produces = deque(each for each in self._produces if each.deadline > now)
        self._expires_at = inf
        if self._produces:
            self._expire_at(max(now + _GRAIN, min(each.deadline for each in self._produces)))
        for produce in late:
            missing = "" if self.leader is None else f" ({self.leader.missing(produce.end)})"
            error = RequestTimeout(
                f"{self.log.name}: the batch was appended, and not committed in time: it may be "
                f"later{missing}"
            )
            call_guarded(self.log.name, produce.callback, error)

    # -- followers, where this broker leads ---------------------------------------------------------

    def handle_fetch(
        self,
        follower: int,
        broker_epoch: int,
        position: Position,
        deleted_before: int,
        *,
        is_damaged: bool,
    ) -> EpochEnd | None:
        """Answer a fetch (LeaderState.handle_fetch). Raises NotLeader, FencedLeaderEpoch,
        UnknownLeaderEpoch, OffsetOutOfRange, OffsetNotAvailable."""
        leader, log = self.leader, self.log
        if leader is None or follower not in self.replicas:
            raise NotLeader(
                f"{log.name} is not led here, or broker {follower} has no replica of it"
            )
        try:
            end = leader.handle_fetch(
                *(follower, broker_epoch, position, log.log_end, self._shared.clock()),
                log_start=log.log_start,
                deleted_before=deleted_before,
                is_damaged=is_damaged,
            )
        except OffsetNotAvailable:
            self.look_after_isr()  # takes the follower out
            raise
        if end is None:
            self.advance()
            if self._deletions:
                self._answer_deletions()
            self.is_restless = True
            if follower not in leader.isr:
                self.look_after_isr()
        return end

    def latest(self) -> int:
        """Return the high watermark. Raises OffsetNotAvailable while it may be behind a former leader's."""
        if self.leader is not None and not self.leader.knows_committed:
            raise OffsetNotAvailable(f"{self.log.name} has a new leader: ask again")
        return self.log.high_watermark

    def when_deleted_before(self, offset: int, callback: Callback) -> None:
        """Call `callback` when all that this log has deleted before `offset` is deleted on each replica
        that may lead next."""
        if self.leader is not None:
            self.leader.deleted_before = max(self.leader.deleted_before, offset)
        self._deletions.append(_Deletion(offset, self._shared.clock() + DELETED_WITHIN, callback))
        self.is_restless = True
        self._answer_deletions()

    def _answer_deletions(self) -> None:
        waiting, self._deletions = self._deletions, []
        for deletion in waiting:
            if self.leader is None:
                deletion.callback(NotLeader(f"{self.log.name} is not led here any more"))
            elif self.leader.have_deleted_before(deletion.offset):
                deletion.callback(None)
            elif self._shared.clock() >= deletion.deadline:
                name = self.log.name
                deletion.callback(
                    RequestTimeout(f"{name}: a replica has not deleted the records yet")
                )
            else:
                self._deletions.append(deletion)

    def look_after_isr(self) -> None:
        """Propose another ISR if it should change: one write at a time (LeaderState)."""
        self._answer_deletions()
        leader, shared = self.leader, self._shared
        if leader is None:
            self.is_restless = False
            return
        wanted = leader.propose(shared.staying, shared.clock())
        self.is_restless = bool(self._deletions) or not leader.is_idle
        if wanted is not None:
            logger.info("%s: in sync are %s, not %s", self.log.name, wanted.state.isr, leader.isr)
            self._write(wanted, partial(self._isr_answered, leader))

    def _isr_answered(self, leader: LeaderState, answer: Answer | None) -> None:
        before, counters = set(leader.isr), self._shared.counters
        leader.finish_proposal(answer)
        counters.isr_shrinks += len(before.difference(leader.isr))
        counters.isr_expands += len(set(leader.isr) - before)
        if self._role is Role.CLOSED:
            return
        if isinstance(answer, Superseded):
            self._carry_out(self.state.handle_refusal(answer.current))
        elif isinstance(answer, VersionedState):
            self._carry_out(self.state.observe(answer))
        if self.leader is leader and not leader.has_enough_replicas:
            missing = leader.missing(self.log.log_end)
            self._refuse(NotEnoughReplicasAfterAppend(f"{self.log.name}: {missing}"))
        self.advance()
        self.look_after_isr()

    # -- as a follower ------------------------------------------------------------------------------

    def _fetch_next(self, *, again: bool = False) -> None:
        """Ask the leader for the next records, once all that is here counts. `again`: even if it has not
        answered yet."""
        follower, log, shared = self.state.follower, self.log, self._shared
        if follower is None or self._blocking or (self._in_flight is not None and not again):
            return
        if not log.is_open or log.failed is not None:
            return
        if log.prepare_append() is not None:
            self._change_log(self._prepare)
        elif self.counted_end < log.log_end:
            self._flush()
        elif self._is_throttled and (pause := shared.throttled_until - shared.clock()) > 0:
            self._try_again(pause)
        else:
            damaged_at = log.damaged_at
            follower.note_damage(damaged_at[0] if damaged_at else None, log.epoch_starts)
            self._in_flight = position = follower.position(log.epoch_starts, log.log_end)
            shared.fetcher.fetch(
                follower.leader,
                ReplicaFetchEntry(
                    *(log.name.topic, *self.id, position.leader_epoch),
                    *(position.last_epoch, position.log_end, log.deleted_before),
                    follower.damaged_at is not None,
                ),
            )

    @property
    def _is_throttled(self) -> bool:
        """A throttled reassignment adds this replica, and it is not in sync yet."""
        return bool(self.throttle and self.state.known) and not self._counts_as_in_sync

    def handle_result(self, result: ReplicaFetchResult, chunk: memoryview, now: Now) -> None:
        """Take the leader's answer to the position that was asked for last."""
        follower, requested, log = self.state.follower, self._in_flight, self.log
        if requested is None or follower is None:
            return
        self._in_flight = None
        if result.error:
            self._handle_refusal(follower, requested, result)
            return
        diverging = None
        if result.diverging_end >= 0:
            diverging = EpochEnd(result.diverging_epoch, result.diverging_end)
        todo = follower.handle_answer(*(requested, diverging, log.epoch_starts, log.log_end))
        try:
            if isinstance(todo, Truncate):
                self._change_log(partial(self._cut, follower, todo.offset))
            elif isinstance(todo, Check):
                self._check(follower, chunk)
            elif todo is not None:
                self._append(follower, result, chunk, now)
        except (RetriableError, CorruptBatch) as error:
            # The disk may be full. Or the leader's records are damaged; this log is as good as before.
            self._warn(error)
            if isinstance(error, CorruptBatch):
                self._report(follower.leader, requested.log_end, chunk)
            self._try_again(DISK_AGAIN_AFTER)
        except (FolkmootError, ValueError) as error:
            self.fail(f"it cannot follow its leader: {error}")
        else:
            self._fetch_next()

    def _append(
        self, follower: FollowerState, result: ReplicaFetchResult, chunk: memoryview, now: Now
    ) -> None:
        shared = self._shared
        try:
            if len(chunk):
                self.log.append_as_follower(chunk)
                shared.flusher.note_appended(self.log, len(chunk), now)
                if self._is_throttled:
                    start = max(shared.throttled_until, now.monotonic)
                    shared.throttled_until = start + len(chunk) / self.throttle
        finally:  # what the leader has deleted makes room on a disk that is full
            self._learn(follower, result)

    def _learn(self, follower: FollowerState, result: ReplicaFetchResult) -> None:
        """Take over the leader's high watermark and log start."""
        log = self.log
        follower.has_committed |= result.has_committed
        committed = min(result.high_watermark, log.log_end)
        if committed > log.high_watermark:
            log.advance_high_watermark(committed)
            self._wake()
        start = min(result.log_start, log.high_watermark)
        if start > log.deleted_before:
            is_deleting, self._delete_up_to = self._delete_up_to > log.deleted_before, start
            if not is_deleting:
                log.queue.add(self._delete_records())
        elif result.has_committed:
            self.state.may_lead = self.state.may_lead or not log.is_damaged
            self._judge_log()

    def _handle_refusal(
        self, follower: FollowerState, requested: Position, result: ReplicaFetchResult
    ) -> None:
        """The leader is none any more, or not yet: ask it again soon.

        Or its log begins at the follower's end or behind, and has nothing of the follower's last epoch: then
        the follower's log begins anew there.
        """
        is_out_of_range = result.error == OffsetOutOfRange.code
        if is_out_of_range and follower.damaged_at is not None:
            follower.note_checked(NO_EPOCH, result.log_start)
        elif is_out_of_range and result.log_start >= requested.log_end and not self._blocking:
            why = f"broker {follower.leader} has nothing before offset {result.log_start}"
            self._change_log(partial(self._begin_anew, follower, result.log_start, why))
            return
        self._try_again()

    async def _delete_records(self) -> None:
        """Delete what the leader has deleted. The next fetch reports it; from here on the replica may lead if
        it has all else."""
        log, is_tried_again = self.log, False
        try:
            while (start := self._delete_up_to) > log.deleted_before:
                if self.state.follower is None or start > log.high_watermark:
                    return
                await self._shared.retention.delete_before(log, start)
        except FolkmootError as error:
            if log.is_open and log.failed is None:  # the leader does not repeat it
                is_tried_again = True
                self._warn(error)
                self._shared.later(DISK_AGAIN_AFTER, lambda: log.queue.add(self._delete_records()))
            return
        finally:
            if not is_tried_again:  # a later cut may move this log's start back
                self._delete_up_to = 0
        self._allow_leading()
        self._fetch_next(again=True)

    def _report(self, leader: int, offset: int, chunk: memoryview) -> None:
        """Have the leader check the first bad batch of what it sent from `offset` on."""
        with suppress(CorruptBatch):
            for header, _ in batch_header.split(chunk):
                offset = header.next_offset
        entry = ReportDamageEntry(self.log.name.topic, *self.id, offset)
        request = ReportDamageRequest([entry])
        self._shared.fetcher.ask(leader, Api.REPORT_DAMAGE, request, lambda reply: None)

    # -- cutting the log ----------------------------------------------------------------------------

    def _change_log(self, change: _Change) -> None:
        """Run an operation during which nothing is asked or appended."""
        self._blocking += 1
        self.log.queue.add(self._while_blocked(change))

    async def _while_blocked(self, change: _Change) -> None:
        pause = await change()
        self._blocking -= 1
        if pause:
            self._try_again(pause)
        else:
            self._fetch_next()

    async def _prepare(self) -> float:
        """Load what the first append of a life needs."""
        job = self.log.prepare_append()
        if job is not None:
            job.finish(await self.log.queue.outcome_of(job.run))
        return 0.0

    async def _cut(self, follower: FollowerState, offset: int) -> float:
        """Give up what the leader's log does not have.

        A death before the recovery point is taken back: nothing has happened. A death behind that: the next
        start checks the whole log, until it is flushed again. A death in the cut leaves a log that is
        too long still, and is cut again.

        Compaction may have dropped records for the sake of later ones that an unclean election has
        lost. Such a log is given up whole: it begins anew, and copies all that its leader has.
        """
        log, logs = self.log, self._shared.logs
        if logs.is_removing(log):  # a cut of the segment that replaced these would bring them back
            await logs.remove(log, ())
        if logs.is_removing(log):
            return DISK_AGAIN_AFTER
        if offset < log.log_end and self._is_lost_by_election and log.is_compacted:
            compacted_for = await log.queue.outcome_of(partial(load_compacted_for, log.directory))
            if not isinstance(compacted_for, int) or compacted_for > offset:
                why = f"an unclean election has lost offsets from {offset} on, others were dropped for those"
                return await self._begin_anew(follower, log.log_end, why)
        try:
            await self._lower_recovery_point(offset)
        except OSError as error:
            self._warn(error)
            return DISK_AGAIN_AFTER
        if self.state.follower is not follower or not log.is_open:
            return 0.0
        try:
            self._uncommit_if_allowed(follower, offset)
            if offset < log.log_end:
                logger.warning(
                    "%s: cut from offset %d to %d, to continue there like the log of broker %d, which leads "
                    "in epoch %d",
                    *(log.name, log.log_end, offset, follower.leader, follower.epoch),
                )
                self._shared.counters.repaired += follower.damaged_at is not None
                await log.cut(offset, partial(self._shared.pause, DISK_AGAIN_AFTER))
                if log.is_incomplete:
                    self.state.may_lead = self.state.may_lead_alone = False
        except (FolkmootError, ValueError) as error:
            self.fail(f"it cannot follow its leader: {error}")
            self._report_disk(error)
        return 0.0

    def _report_disk(self, error: Exception) -> None:
        """End the broker if its disk is broken."""
        cause = error.__cause__
        if isinstance(cause, OSError) and cause.errno in (errno.EIO, errno.EROFS):
            self._shared.flusher.disk_failed(DiskFailed(f"a log could not be cut: {error}"))

    @property
    def _is_lost_by_election(self) -> bool:
        """An unclean election has lost the records behind the cut."""
        known = self.state.known
        return known is not None and self.log.epoch_starts.latest < known.state.unclean_epoch

    def _uncommit_if_allowed(self, follower: FollowerState, offset: int) -> None:
        """Allow a cut below the high watermark where that loses nothing that counts."""
        log = self.log
        if self._is_lost_by_election:
            log.uncommit(offset, "an unclean election has lost")
        elif follower.damaged_at is not None:
            log.uncommit(offset, "damage has taken")
        elif self.state.known is not None and not self._counts_as_in_sync:
            if (
                offset < log.high_watermark
            ):  # it has copied records that its leader has compacted since
                log.uncommit(offset, "the leader lacks")

    async def _lower_recovery_point(self, offset: int) -> None:
        """Note nothing behind `offset` as on disk. Raises OSError."""
        name, logs = self.log.directory.name, self._shared.logs
        saved = logs.saved_notes.recovery_points.get(name)
        end = max(self.log.recovery_point_offset, 0 if saved is None else saved.end_offset)
        if end <= offset:
            return
        logs.notes.recovery_points.pop(name, None)
        ended: Pending[None] = Pending()
        self._shared.flusher.note(ended.finish)
        await ended

    async def _begin_anew(self, follower: FollowerState, offset: int, why: str) -> float:
        """Continue at `offset`, where the leader's log begins, or at the log's end, without what is here.

        The new start is put on disk first. A death before: nothing has happened. After: the next start
        removes what lies before it, and continues there too. If the leader has changed by then, or the log
        cannot begin anew, the start is taken back, since a replica leads with what it has. A death before
        that loses nothing that was appended since: until then it neither leads nor follows.
        """
        log, logs, pause = self.log, self._shared.logs, TRY_AGAIN_AFTER
        if logs.is_removing(log):  # a new segment may have the name of a file that is to go
            await logs.remove(log, ())
        if logs.is_removing(log):
            return DISK_AGAIN_AFTER
        try:
            await log.queue.job(partial(_note_start, log.directory, offset))
            if self.state.follower is follower and log.log_end <= offset:
                if log.is_open:
                    logger.warning(
                        "%s: %s: this replica continues at %d, from %d, without what it had",
                        *(log.name, why, offset, log.log_end),
                    )
                    logs.notes.recovery_points.pop(log.directory.name, None)
                    await log.begin_anew(offset, partial(self._shared.pause, DISK_AGAIN_AFTER))
                return 0.0
        except (FolkmootError, OSError) as error:
            self._warn(error)
            pause = DISK_AGAIN_AFTER
            if log.failed is not None:
                self.wake_all()
                self._report_disk(error)
        log.epoch_starts.changed = True  # their file is gone
        while log.is_open:
            try:
                await log.queue.job(partial(save_log_start, log.directory, log.deleted_before))
                break
            except OSError as error:
                self._warn(error)
                await self._shared.pause(DISK_AGAIN_AFTER)
        return pause

    # -- damage -------------------------------------------------------------------------------------

    def look_after_damage(self) -> bool:
        """Resign as a leader if another replica can lead; as a follower, ask from the damage on. Return
        whether some damage is left."""
        log, leader, damaged_at = self.log, self.leader, self.log.damaged_at
        log.is_lost = False
        if not damaged_at:
            self._allow_leading()
        elif leader is not None and self._shared.staying.intersection(leader.others_in_sync):
            logger.warning("%s: damaged at offset %d, resigning", log.name, damaged_at[0])
            self.resign()
        elif leader is not None:  # a replica that has all of that may still join the ISR
            log.is_lost = leader.have_no_more(damaged_at[-1])
        elif self._in_flight is not None and self._in_flight.log_end == log.log_end:
            self._in_flight = None  # it asked from its end on
            self._fetch_next()
        return bool(damaged_at)

    def _check(self, follower: FollowerState, chunk: memoryview) -> None:
        """Check the leader's records that are to replace the damaged ones. When they have passed up to the
        log's end, cut it in front of the damage, even below the high watermark: this replica does not count
        as in sync. Raises CorruptBatch."""
        headers = [header for header, _ in batch_header.split(chunk)]
        if headers and headers[-1].next_offset < self.log.log_end:
            follower.note_checked(headers[-1].leader_epoch, headers[-1].next_offset)
        elif follower.damaged_at is not None:
            self._change_log(partial(self._cut, follower, follower.damaged_at))

    # -- trying again -------------------------------------------------------------------------------

    def _try_again(self, pause: float = TRY_AGAIN_AFTER) -> None:
        if not self._is_retrying:
            self._is_retrying = True
            self._shared.later(pause, self._retry)

    def _retry(self) -> None:
        self._is_retrying = False
        if self._role is Role.CLOSED:
            return
        if self.counted_end < self.log.log_end:
            self._flush()
        self._carry_out(self.state.observe(self.last_read))

    def _warn(self, error: Exception) -> None:
        if not self._shared.logs.room.is_missed(error):
            logger.warning("%s: %s", self.log.name, error)


def _note_start(directory: Path, offset: int) -> None:
    """A death between the two steps only leaves a log without its table of epochs."""
    (directory / EPOCH_STARTS_FILE).unlink(missing_ok=True)
    save_log_start(directory, offset, anew=True)
