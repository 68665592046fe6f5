"""The leader of one partition in one leader epoch: high watermark, in-sync replicas, when to resign."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf

from folkmoot.brokers.storage.leader_epochs import EpochEnd, EpochStarts
from folkmoot.coordination.partition_states import Answer, StateWrite, Superseded, VersionedState
from folkmoot.protocol.errors import (
    FencedLeaderEpoch,
    OffsetNotAvailable,
    OffsetOutOfRange,
    UnknownLeaderEpoch,
)
from folkmoot.protocol.quantities import counted


@dataclass(frozen=True, slots=True)
class Position:
    """The position of a replica: the leader epoch that it follows, the epoch of its last record (-1: it
    has none), and its log end. All before it is on that replica's disk, if the topic asks for that."""

    leader_epoch: int
    last_epoch: int
    log_end: int


@dataclass(slots=True)
class _Follower:
    """A replica as the leader knows it, from fetches in this leader epoch."""

    behind_since: float | None
    """None: it has all of the leader's log."""
    log_end: int = -1
    """Acked in this epoch."""
    deleted_before: int = 0
    broker_epoch: int = -1
    fetched_at: float = -inf
    leader_end_then: int = -1
    damaged_at: int | None = None
    """The lowest position from which it has asked to copy anew what is damaged on its disk."""
    last_position: tuple[int, int] | None = None
    """The epoch of its last record and its log's end; None while that is not known."""


class LeaderState:
    """The decisions of a leader. No I/O, no clock: its owner passes events in and carries writes out.

    It exists from the answer to the activation on (rule 2), with exactly the ISR and partition epoch of
    that write. It knows of its followers only what they sent in this leader epoch.

    - **Fetch** (rule 4). A fetch of another epoch is refused. If its position is not on this log, the
      answer is where the records of that epoch end here, and nothing is acked. Any other position is
      *acked in this epoch*.
    - **High watermark** (rule 6): the lowest end acked in this epoch over the *maximal ISR*. That is the
      known ISR together with one that was proposed and not known to have failed. It stands while the
      known ISR has fewer than `min_in_sync` members, and never falls.
    - **Shrink and expand** (rule 7): by compare-and-set. A replica that leaves counts until that has
      succeeded; one that joins counts before it is sent. It may join once it has acked all that is
      committed, and all that this log held when the epoch began (`epoch_start`). Records that an earlier
      epoch committed lie below that; the high watermark may not cover them yet. Nor may it have records
      that were deleted (`deleted_before`). The write is refused if the replica's broker has registered again
      since it fetched.
    - **Damage**. A follower whose log is damaged asks with `is_damaged` from there on, as if it was cut. It
      is answered once it is not in the maximal ISR: from then on it may cut. Its earlier acks count no
      more. It counts again when a fetch from there, or before, without `is_damaged` is acked. A
      fetch from further on was sent earlier, and is refused.
    - **Doubt**. In a part of this log it may be unknown where epochs begin (`EpochStarts.may_begin`). No
      follower is cut by that part: it may have the only copy of a committed record. Once all followers
      have asked, the one with the latest epoch, and the most records of it, is accepted. A leader of
      that epoch had all that was committed, so this follower lacks nothing that another one has.
    - **Refused or unknown** (rule 8). A refusal comes with the state as it is now. If this leader is
      active there in this epoch, its ISR counts from here on; else it has `resigned`. While an outcome is
      unknown both ISRs count; a read after it (`settled`) says which.

    If its broker dies, all of this is forgotten, and the next activation begins a new epoch: the state shows
    whether a proposal was written. A leader that does not know of the next one does no harm: its ISR
    follows that one before it activates. So no one acks here any more, and its writes are refused.
    """

    def __init__(
        self,
        broker_id: int,
        current: VersionedState,
        replicas: Iterable[int],
        starts: EpochStarts,
        *,
        log_end: int,
        high_watermark: int,
        deleted_before: int,
        min_in_sync: int,
        max_lag: float,
        now: float,
    ) -> None:
        """`current` is the activation as it was written. A follower that lacks something for more than
        `max_lag` seconds leaves the ISR. One that lacks nothing stays without further fetches."""
        self.broker_id = broker_id
        self.epoch = current.state.leader_epoch
        self.epoch_start = log_end
        self.high_watermark = high_watermark
        self.deleted_before = deleted_before
        """A replica that joins the ISR has no records before it any more."""
        self.min_in_sync = min_in_sync
        self.max_lag = max_lag
        self.resigned = False
        self.proposed: StateWrite | None = None
        self.known = current
        """The partition's state as far as it is known, with this leader in it."""
        self._is_unsettled = False
        self._starts = starts
        self._own_end = -1
        self._followers = {each: _Follower(behind_since=now) for each in replicas}
        self._followers.pop(broker_id, None)

    @property
    def isr(self) -> tuple[int, ...]:
        return self.known.state.isr

    @property
    def others_in_sync(self) -> frozenset[int]:
        return frozenset(self.isr) - {self.broker_id}

    @property
    def maximal_isr(self) -> frozenset[int]:
        """The known ISR, with the proposed one."""
        proposed = () if self.proposed is None else self.proposed.state.isr
        return frozenset((*self.isr, *proposed))

    @property
    def has_enough_replicas(self) -> bool:
        """The ISR is large enough to commit new records."""
        return len(self.known.state.isr) >= self.min_in_sync

    @property
    def knows_committed(self) -> bool:
        """The high watermark has passed all that earlier epochs may have committed."""
        return self.high_watermark >= self.epoch_start

    @property
    def is_idle(self) -> bool:
        """Time alone changes nothing: all replicas are in sync, and lack nothing."""
        return (
            self.proposed is None
            and len(self.isr) > len(self._followers)
            and all(each.behind_since is None for each in self._followers.values())
        )

    # -- records ------------------------------------------------------------------------------------

    def handle_fetch(
        self,
        replica: int,
        broker_epoch: int,
        position: Position,
        log_end: int,
        now: float,
        *,
        log_start: int = 0,
        deleted_before: int = 0,
        is_damaged: bool = False,
    ) -> EpochEnd | None:
        """A follower fetches from `position`. Return None if it is acked: the follower reads on there.

        Otherwise the position is not on this log, and the follower has to cut its own to what both have.
        `broker_epoch` is of its registration; it has deleted all before `deleted_before`. Raises
        FencedLeaderEpoch, UnknownLeaderEpoch; OffsetOutOfRange if it ends before this log begins, or there
        with an epoch that ends before it here; OffsetNotAvailable while it counts as in sync and
        `is_damaged` what it has behind `position`.
        """
        if position.leader_epoch < self.epoch:
            raise FencedLeaderEpoch(f"leader epoch {position.leader_epoch} is over: {self.epoch}")
        if position.leader_epoch > self.epoch:
            raise UnknownLeaderEpoch(f"leader epoch {position.leader_epoch} is not known here yet")
        follower = self._followers[replica]
        if is_damaged or follower.damaged_at is not None:
            self._note_damage(follower, broker_epoch, position.log_end, log_start, is_damaged)
            if is_damaged and replica in self.maximal_isr:
                raise OffsetNotAvailable(f"broker {replica} counts as in sync still: ask again")
        follower.last_position = None if is_damaged else (position.last_epoch, position.log_end)
        end = self._starts.end_of(position.last_epoch, log_end)
        if position.log_end > (earliest := self._starts.earliest(end.offset)) < end.offset:
            self._require_best(follower, earliest)
            end = EpochEnd(position.last_epoch, end.offset)
        # Records before this log cannot be compared: a follower that ends there may have another leader's.
        is_known = end.epoch == position.last_epoch and position.log_end <= end.offset
        if position.log_end < log_start + (position.last_epoch >= 0 and not is_known):
            raise OffsetOutOfRange(f"the leader's log begins with offset {log_start}")
        # A log without records may begin behind some that were appended since an unclean election.
        counts = position.last_epoch >= 0 or self.known.state.unclean_epoch > 0
        has_records = counts and position.log_end > log_start
        if has_records and end.epoch != position.last_epoch:
            # Compaction may have removed all that is older: then the first record lies behind a gap.
            return end if end.epoch >= 0 else end._replace(offset=log_start)
        if position.log_end > (end.offset if has_records else log_end):
            return end
        if is_damaged:
            return None
        if position.log_end >= log_end:
            follower.behind_since = None
        elif position.log_end >= follower.leader_end_then >= 0:
            follower.behind_since = follower.fetched_at
        elif follower.behind_since is None:
            follower.behind_since = now
        follower.log_end, follower.broker_epoch = position.log_end, broker_epoch
        follower.deleted_before = deleted_before
        follower.fetched_at, follower.leader_end_then = now, log_end
        return None

    def _note_damage(
        self, follower: _Follower, broker_epoch: int, log_end: int, log_start: int, is_damaged: bool
    ) -> None:
        """Raises OffsetNotAvailable for a fetch that was sent before the follower found its damage."""
        known = follower.damaged_at if broker_epoch == follower.broker_epoch else None
        if is_damaged:
            follower.broker_epoch, follower.log_end = broker_epoch, -1
            known = log_end if known is None else min(known, log_end)
        elif known is not None and log_start <= known < log_end:
            raise OffsetNotAvailable(f"what it has from offset {known} on is damaged")
        else:
            known = None
        follower.damaged_at = known

    def _require_best(self, follower: _Follower, earliest: int) -> None:
        """Raises OffsetNotAvailable unless all followers have asked, and none has more than this one."""
        positions = [each.last_position for each in self._followers.values()]
        if follower.last_position is None or any(
            each is None or each > follower.last_position for each in positions
        ):
            raise OffsetNotAvailable(
                f"where leader epochs begin behind offset {earliest} cannot be read: a cut might lose the "
                "only copy, until all replicas have asked"
            )

    def note_append(self, now: float) -> None:
        """The log has grown: followers that had all of it are behind from now on."""
        for follower in self._followers.values():
            if follower.behind_since is None:
                follower.behind_since = now

    def advance(self, own_end: int) -> int:
        """Return the high watermark, when the leader's own log counts up to `own_end`."""
        self._own_end = own_end
        if self.has_enough_replicas:
            is_alone = self.proposed is None and len(self.known.state.isr) == 1
            lowest = own_end if is_alone else min(map(self._end_of, self.maximal_isr))
            self.high_watermark = max(self.high_watermark, lowest)
        return self.high_watermark

    def missing(self, offset: int) -> str:
        """Describe what uncommitted records before `offset` wait for."""
        if not self.has_enough_replicas:
            return (
                f"it has {counted(len(self.isr), 'replica')} in sync, and needs {self.min_in_sync}"
            )
        behind = [str(each) for each in sorted(self.maximal_isr) if self._end_of(each) < offset]
        return f"it waits for the in-sync replicas of broker {' and '.join(behind)}"

    def have_deleted_before(self, offset: int) -> bool:
        """Return whether no other replica that may lead next has records before `offset`."""
        others = (self._followers.get(each) for each in self.maximal_isr - {self.broker_id})
        return all(each is not None and each.deleted_before >= offset for each in others)

    def have_no_more(self, offset: int) -> bool:
        """Return whether all followers have asked, and none has the record at `offset`."""
        return all(
            each.damaged_at == offset or (each.damaged_at is None and 0 <= each.log_end <= offset)
            for each in self._followers.values()
        )

    def _end_of(self, replica: int) -> int:
        if replica == self.broker_id:
            return self._own_end
        follower = self._followers.get(replica)
        return -1 if follower is None else follower.log_end

    # -- in-sync replicas ---------------------------------------------------------------------------

    def propose(self, live: Iterable[int], now: float) -> StateWrite | None:
        """Return the write that changes the ISR, if it should change. It counts from here on;
        `finish_proposal` takes its outcome: one at a time.

        `live` are the registered brokers that are not about to stop: no producer waits for one of those.
        """
        if self.proposed is not None or self.resigned:
            return None
        state, alive = self.known.state, frozenset(live)
        keep_up = {each for each in self._followers if self._keeps_up(each, alive, now)}
        stay = [each for each in state.isr if each == self.broker_id or each in keep_up]
        come = {
            each: follower.broker_epoch
            for each, follower in self._followers.items()
            if each in keep_up
            and each not in state.isr
            and self._has_caught_up(follower)
            and follower.deleted_before >= self.deleted_before
        }
        if len(stay) < len(state.isr):
            self.proposed = StateWrite(state.with_isr(stay), self.known.partition_epoch)
        elif come:
            isr = [
                each
                for each in (self.broker_id, *self._followers)
                if each in come or each in state.isr
            ]
            self.proposed = StateWrite(state.with_isr(isr), self.known.partition_epoch, come)
        return self.proposed

    def _keeps_up(self, replica: int, live: frozenset[int], now: float) -> bool:
        follower = self._followers[replica]
        has_lost = follower.damaged_at is not None or (0 <= follower.log_end < self.high_watermark)
        since = follower.behind_since
        return replica in live and not has_lost and (since is None or now - since <= self.max_lag)

    def has_committed(self, replica: int) -> bool:
        """Return whether a replica has all that earlier epochs may have committed."""
        follower = self._followers.get(replica)
        return follower is not None and self._has_caught_up(follower)

    def _has_caught_up(self, follower: _Follower) -> bool:
        return follower.log_end >= max(self.high_watermark, self.epoch_start)

    def finish_proposal(self, answer: Answer | None) -> None:
        """The proposed write has ended; None: its outcome is unknown."""
        proposed, self.proposed = self.proposed, None
        if answer is None:
            self.proposed, self._is_unsettled = proposed, True
        elif isinstance(answer, VersionedState):
            self._adopt(answer)
        elif isinstance(answer, Superseded):
            if answer.current is not None and answer.current.order < self.known.order:
                self.resigned = True  # ZooKeeper was set back: what refuses a write is no old read
            self.observe(answer.current)
        elif answer.broker_id in self._followers and proposed is not None:
            follower = self._followers[answer.broker_id]
            # Its next incarnation may have fetched meanwhile, and that counts.
            if follower.broker_epoch == proposed.in_sync.get(answer.broker_id):
                follower.log_end = -1

    def observe(self, current: VersionedState | None, *, settled: bool = False) -> None:
        """The state was read, now or a while ago. `settled`: when no write was under way."""
        if current is None:
            self.resigned = True
            return
        self._adopt(current)
        if settled and self._is_unsettled and current.order >= self.known.order:
            self.proposed, self._is_unsettled = None, False

    def _adopt(self, current: VersionedState) -> None:
        if current.order <= self.known.order:
            return
        state = current.state
        if (state.leader, state.leader_epoch, state.active) != (self.broker_id, self.epoch, True):
            self.resigned = True
            return
        self.known = current

    def replicas_changed(self, replicas: Sequence[int], now: float) -> None:
        """The partition is assigned to other brokers. A replica that is gone counts for nothing; if it is
        still in the ISR, it leaves."""
        for each in self._followers.keys() - set(replicas):
            del self._followers[each]
        for each in set(replicas) - self._followers.keys() - {self.broker_id}:
            self._followers[each] = _Follower(behind_since=now)
