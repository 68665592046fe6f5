"""What the group machine is told, and what it asks for: plain values (see group.py)."""

from enum import Enum

import msgspec

from folkmoot.coordination.groups.ownership import Claim, Owner
from folkmoot.protocol.records import TopicPartition


class Source(Enum):
    """What may have changed; each is read as a whole."""

    MEMBERS = "members"
    PLAN = "plan"
    TOPICS = "topics"


# -- effects that read or write ZooKeeper; each ends with one Finished, or with its session -----------


class Join(msgspec.Struct, frozen=True):
    """Register this member; `last` is the name it had before. → its name, or Superseded."""

    last: str | None = None


class Leave(msgspec.Struct, frozen=True):
    """Remove this member's node. → None."""


class Heartbeat(msgspec.Struct, frozen=True):
    """Ask for the own node, as a sign of life in both directions. → whether it is there."""


class Read(msgspec.Struct, frozen=True):
    """Read one source as a whole and watch it. → names, a VersionedPlan, or topics."""

    source: Source


class MakePlan(msgspec.Struct, frozen=True):
    """Write the next plan if one is due. → whether it was written, or TooLarge.

    `expired` are the seats that were empty for longer than their grace, by what was known under the
    plan of the identity `seen`: under a later one somebody may have been back.
    """

    expired: tuple[str, ...] = ()
    seen: tuple[int, int] | None = None


class ClaimPartition(msgspec.Struct, frozen=True):
    """Claim a partition under the plan of that version. → Claim, Blocked or Stale."""

    partition: TopicPartition
    topic_id: str
    plan_version: int
    steal_from: Owner | None


class ReleasePartition(msgspec.Struct, frozen=True):
    """Commit `offset` (None: nothing new) and let the partition go. → None."""

    partition: TopicPartition
    held: Claim
    offset: int | None


class CommitOffsets(msgspec.Struct, frozen=True):
    """Write offsets, each under its claim. → Claim or Fenced per partition."""

    token: int
    offsets: dict[TopicPartition, tuple[Claim, int]]


class VerifyOwner(msgspec.Struct, frozen=True):
    """Look whether a held partition's owner node is still ours. → bool."""

    partition: TopicPartition
    held: Claim


Task = (
    Join
    | Leave
    | Heartbeat
    | Read
    | MakePlan
    | ClaimPartition
    | ReleasePartition
    | CommitOffsets
    | VerifyOwner
)


# -- effects for the consumer --------------------------------------------------------------------------


class Assigned(msgspec.Struct, frozen=True):
    """The partition is ours, from its committed offset on (None: none was ever committed).

    `epoch` is the fencing token of this claim.
    """

    partition: TopicPartition
    topic_id: str
    offset: int | None
    epoch: int


class Revoking(msgspec.Struct, frozen=True):
    """Still ours; finish what is under way and answer with Drained."""

    partition: TopicPartition


class Lost(msgspec.Struct, frozen=True):
    """No longer ours; whatever is under way will not be committed."""

    partition: TopicPartition
    reason: str


class Committed(msgspec.Struct, frozen=True):
    """Outcome of Commit `token`: what was written, and what was refused because we are not the owner."""

    token: int
    offsets: dict[TopicPartition, int]
    refused: frozenset[TopicPartition]


class Rebalanced(msgspec.Struct, frozen=True):
    """A new plan was seen; for logs and displays."""

    generation: int
    members: int
    partitions: tuple[TopicPartition, ...]


class Left(msgspec.Struct, frozen=True):
    """Everything is released and the member's node is gone."""


class Replaced(msgspec.Struct, frozen=True):
    """Another process has this member's instance id now: this one is out, for good."""


Notice = Assigned | Revoking | Lost | Committed | Rebalanced | Left | Replaced


# -- an effect for the shell -----------------------------------------------------------------------------


class EndSession(msgspec.Struct, frozen=True):
    """Close the session, since nobody can tell what of it still stands; SessionLost follows."""

    why: str


Effect = Task | Notice | EndSession


# -- events --------------------------------------------------------------------------------------------


class Started(msgspec.Struct, frozen=True):
    """A session is open; `nonce` marks all that is done in it. Nothing of an earlier one counts.

    `session_timeout` (s) is what ZooKeeper granted, which may be less than what was asked for.
    """

    nonce: str
    session_timeout: float


class SessionLost(msgspec.Struct, frozen=True):
    """The session is over; Started follows when there is another."""


class Acknowledged(msgspec.Struct, frozen=True):
    """ZooKeeper answered something that was sent at `sent_at` (monotonic)."""

    sent_at: float


class Changed(msgspec.Struct, frozen=True):
    """A source may have changed."""

    source: Source


class OwnerChanged(msgspec.Struct, frozen=True):
    """The owner's node of a partition may have changed."""

    partition: TopicPartition


class Finished(msgspec.Struct, frozen=True):
    """A task ended with a result."""

    task: Task
    result: object


class Commit(msgspec.Struct, frozen=True):
    """The consumer wants these next offsets committed: per partition the epoch and the offset.

    The epoch is that of the Assigned under which the consumer did the work. The partition may have
    been lost and claimed again since, and the consumer not yet have heard of it.
    """

    token: int
    offsets: dict[TopicPartition, tuple[int, int]]


class Drained(msgspec.Struct, frozen=True):
    """The consumer is done with a partition being revoked; `offset` is to be committed, if any.

    `epoch` as in Commit: what was drained is the claim that the consumer knew.
    """

    partition: TopicPartition
    epoch: int
    offset: int | None


class Leaving(msgspec.Struct, frozen=True):
    """The consumer wants out."""


class Polled(msgspec.Struct, frozen=True):
    """The application asked for records at that time (monotonic)."""

    at: float


class Tick(msgspec.Struct, frozen=True):
    """Time has passed, or all that had happened was told: decide what follows."""


Event = (
    Started
    | SessionLost
    | Acknowledged
    | Changed
    | OwnerChanged
    | Finished
    | Commit
    | Drained
    | Leaving
    | Polled
    | Tick
)


def is_quiet(event: Event) -> bool:
    """Whether nothing is to be decided for the whole of a member, unless something was lost by it.

    It may start a task, whose answer is another event.
    """
    if isinstance(event, Finished):
        return isinstance(event.task, CommitOffsets | VerifyOwner)
    return isinstance(event, Commit | Drained | Changed | Polled)
