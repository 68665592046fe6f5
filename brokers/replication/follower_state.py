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


class FollowerState:
    """What decides at a follower. No I/O, no clock.

    It exists only for an epoch that is on this broker's disk as the highest it has acted in (rule 3), and
    asks that epoch's leader alone. Its position says what its disk has (rule 5), so that what the leader
    counts survives it.

    A log is cut only on this leader's word, to what both have (rule 4), never to the high watermark:
    what lies behind that may be committed without this replica's knowing. An answer to a position that
    the log has left since, or of another epoch, is passed over.

    A death at any step leaves a log that is a leader's log up to some offset, perhaps with more behind
    it: the next fetch, in whatever epoch, finds that out.
    """

    def __init__(self, leader: int, epoch: int) -> None:
        self.leader = leader
        self.epoch = epoch
        self.has_committed = False
        """Whether the leader has said that this replica has all that was committed."""

    def position(self, starts: EpochStarts, log_end: int) -> Position:
        """What to ask the leader with."""
        return Position(self.epoch, starts.latest, log_end)

    def answered(
        self,
        asked: Position,
        diverging: EpochEnd | None,
        high_watermark: int,
        starts: EpochStarts,
        log_end: int,
    ) -> Truncate | Append | None:
        """What to do with the leader's answer; None: nothing, it is too late for it."""
        if asked != self.position(starts, log_end):
            return None
        if diverging is None:
            return Append(high_watermark)
        if diverging.epoch == NO_EPOCH:  # what the leader has before that it has given up
            return Truncate(min(diverging.offset, log_end))
        own = starts.end_of(diverging.epoch, log_end)
        return Truncate(min(own.offset, diverging.offset, log_end))
