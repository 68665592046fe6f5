"""The follower of one partition in one leader epoch: what it asks its leader, what it does with answers."""

from dataclasses import dataclass

from folkmoot.brokers.replication.leader_state import Position
from folkmoot.brokers.storage.leader_epochs import NO_EPOCH, EpochEnd, EpochStarts


@dataclass(frozen=True, slots=True)
class Truncate:
    """Cut the log to `offset`: the records behind it are not on the leader's log."""

    offset: int


@dataclass(frozen=True, slots=True)
class Append:
    """Append the batches, then take over the leader's high watermark, as far as the log goes."""


@dataclass(frozen=True, slots=True)
class Check:
    """Compare the batches with their checksums, then call `note_checked`: they will replace what is damaged
    here, and what follows it."""


class FollowerState:
    """The decisions of a follower. No I/O, no clock.

    It exists only for an epoch that is on this broker's disk as the highest it has acted in (rule 3), and
    asks that epoch's leader alone. Its position is what its disk has (rule 5), so that what the leader
    counts survives this broker.

    Only an answer of this leader cuts the log, to what both have (rule 4). It is never cut to the high
    watermark: later records may be committed too, and this replica may not know. An answer to a position
    that the log has left since, or of another epoch, is ignored.

    Damage (`damaged_at`). The log is cut in front of it, and copied anew, if the leader's is whole from
    there on. Until that is known the log stays, since it may hold the last copy of a record. The follower
    asks from the damage to the log's end, and checks and drops what the leader sends. The leader answers
    only once this replica does not count as in sync, so that the cut loses nothing that counts.

    A death at any step leaves a leader's log up to some offset, perhaps with more behind it. The next
    fetch, in whatever epoch, finds that out.
    """

    def __init__(self, leader: int, epoch: int) -> None:
        self.leader = leader
        self.epoch = epoch
        self.has_committed = False
        """The leader has confirmed that this replica has all committed records."""
        self.damaged_at: int | None = None
        self._checked: Position | None = None

    def note_damage(self, offset: int | None, starts: EpochStarts) -> None:
        """The log is damaged from there on, as far as is known; None: it is not."""
        if offset != self.damaged_at:
            self.damaged_at = offset
            self._checked = None
            if offset is not None:
                self.note_checked(starts.before(offset), offset)

    def note_checked(self, last_epoch: int, next_offset: int) -> None:
        """The leader's log is whole from the damage up to there, or has nothing before."""
        self._checked = Position(self.epoch, last_epoch, next_offset)

    def position(self, starts: EpochStarts, log_end: int) -> Position:
        """Return the position to ask the leader from."""
        return self._checked or Position(self.epoch, starts.latest, log_end)

    def handle_answer(
        self, requested: Position, diverging: EpochEnd | None, starts: EpochStarts, log_end: int
    ) -> Truncate | Append | Check | None:
        """Return what to do with the leader's answer; None: it is too late."""
        if requested != self.position(starts, log_end):
            return None
        if diverging is None:
            return Append() if self.damaged_at is None else Check()
        if diverging.epoch == NO_EPOCH:  # the leader has given up what it had before that
            return Truncate(min(diverging.offset, log_end))
        own = starts.end_of(diverging.epoch, log_end)
        return Truncate(min(own.offset, diverging.offset, log_end))
