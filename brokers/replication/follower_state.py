"""The follower of one partition in one leader epoch: what it asks its leader, what it does with answers."""

from dataclasses import dataclass

from folkmoot.brokers.replication.leader_state import Position
from folkmoot.brokers.storage.leader_epochs import NO_EPOCH, EpochEnd, EpochStarts


@dataclass(frozen=True, slots=True)
class Truncate:
    """Cut the log to `offset`: what lies behind is not on the leader's log."""

    offset: int


@dataclass(frozen=True, slots=True)
class Append:
    """Append the batches that came, then take the leader's high watermark, as far as the log goes."""

    high_watermark: int


@dataclass(frozen=True, slots=True)
class Check:
    """Compare the batches that came with their checksums, then call `checked`: they are to replace
    what is damaged here, and what follows it."""


class FollowerState:
    """What decides at a follower. No I/O, no clock.

    It exists only for an epoch that is on this broker's disk as the highest it has acted in (rule 3), and
    asks that epoch's leader alone. Its position says what its disk has (rule 5), so that what the leader
    counts survives it.

    A log is cut only on this leader's word, to what both have (rule 4), never to the high watermark:
    what lies behind that may be committed without this replica's knowing. An answer to a position that
    the log has left since, or of another epoch, is passed over.

    Damage (`damaged_at`). The log is cut in front of it, and copied anew, if the leader's is whole from
    there on. Until that is known the log stays: it may be all that is left of a record. Position by
    position, from the damage to the log's end, the leader is asked, and what it sends is checked and
    dropped. It answers only once this replica does not count as in sync, so that the cut loses nothing
    that anybody counts on.

    A death at any step leaves a log that is a leader's log up to some offset, perhaps with more behind
    it: the next fetch, in whatever epoch, finds that out.
    """

    def __init__(self, leader: int, epoch: int) -> None:
        self.leader = leader
        self.epoch = epoch
        self.has_committed = False
        """Whether the leader has said that this replica has all that was committed."""
        self.damaged_at: int | None = None
        self._checked: Position | None = None

    def found_damage(self, offset: int | None, starts: EpochStarts) -> None:
        """The log is damaged from there on, as far as is known; None: it is not."""
        if offset != self.damaged_at:
            self.damaged_at = offset
            self._checked = None
            if offset is not None:
                self.checked(starts.before(offset), offset)

    def checked(self, last_epoch: int, next_offset: int) -> None:
        """The leader's log is whole from the damage up to there, or has nothing before."""
        self._checked = Position(self.epoch, last_epoch, next_offset)

    def position(self, starts: EpochStarts, log_end: int) -> Position:
        """What to ask the leader with."""
        return self._checked or Position(self.epoch, starts.latest, log_end)

    def answered(
        self,
        asked: Position,
        diverging: EpochEnd | None,
        high_watermark: int,
        starts: EpochStarts,
        log_end: int,
    ) -> Truncate | Append | Check | None:
        """What to do with the leader's answer; None: nothing, it is too late for it."""
        if asked != self.position(starts, log_end):
            return None
        if diverging is None:
            return Append(high_watermark) if self.damaged_at is None else Check()
        if diverging.epoch == NO_EPOCH:  # what the leader has before that it has given up
            return Truncate(min(diverging.offset, log_end))
        own = starts.end_of(diverging.epoch, log_end)
        return Truncate(min(own.offset, diverging.offset, log_end))
