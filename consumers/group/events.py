"""What the group machine is told, and what it asks for: plain values (see member_state.py)."""

from enum import Enum

import msgspec

from folkmoot.coordination.groups.ownership import Claim, ClaimRequest
from folkmoot.protocol.records import TopicPartition


class Source(Enum):
    """What may have changed; each is read as a whole, and watched."""

    OWN = "own"
    """The own node: somebody may remove it."""
    OLDER = "older"
    """The node of the next older member."""
    MEMBERS = "members"
    PLAN = "plan"
    TOPICS = "topics"


# -- tasks: each is a recipe of coordination/groups, and ends with one Finished, or with its session ---


class Join(msgspec.Struct, frozen=True):
    """Register this member. → its name, or Superseded.

    `last` is the name that it had before, and `why` it had to give that up.
    """

    last: str | None = None
    why: str = ""


class Leave(msgspec.Struct, frozen=True):
    """Remove this member's node. → None."""


class Read(msgspec.Struct, frozen=True):
    """Read a source as a whole and watch it.

    → whether the node of the member `name` is there (OWN, OLDER), names (MEMBERS), a VersionedPlan,
    or the topics that the group's members want (TOPICS).
    """

    source: Source
    name: str = ""
    watched: bool = True


class MakePlan(msgspec.Struct, frozen=True):
    """Write the next plan if one is due. → whether it was written, or TooLarge.

    `expired` are the static members that were away for longer than their rejoin timeout, by what was
    known under the plan of the identity `seen`: under a later one somebody may have been back.
    """

    expired: tuple[str, ...] = ()
    seen: tuple[int, int] | None = None


class ClaimPartitions(msgspec.Struct, frozen=True):
    """Claim partitions under the plan of that version. → Claim, Blocked, Stale or MalformedOffset of each."""

    wanted: dict[TopicPartition, ClaimRequest]
    plan_version: int


class ReleasePartitions(msgspec.Struct, frozen=True):
    """Commit an offset of each (None: nothing new) and let it go. → None."""

    held: dict[TopicPartition, tuple[Claim, int | None]]


class CommitOffsets(msgspec.Struct, frozen=True):
    """Write offsets, each under its claim. → Claim or Fenced per partition."""

    token: int
    offsets: dict[TopicPartition, tuple[Claim, int]]


class VerifyOwner(msgspec.Struct, frozen=True):
    """Look whether an owned partition's owner node is still ours, and watch it. → bool."""

    partition: TopicPartition
    held: Claim


Task = (
    Join
    | Leave
    | Read
    | MakePlan
    | ClaimPartitions
    | ReleasePartitions
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
    chroot: str = ""


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


class Failed(msgspec.Struct, frozen=True):
    """The result of a task that ZooKeeper refused for a reason that nobody has foreseen."""

    reason: str


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
