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


class Task(msgspec.Struct, frozen=True):
    """An effect: a recipe of coordination/groups. It ends with one Finished, or with its session."""


class Join(Task, frozen=True):
    """Register this member. → its name, or Superseded.

    `last` is the name that it had before, and `why` it had to give that up.
    """

    last: str | None = None
    why: str = ""


class Leave(Task, frozen=True):
    """Remove this member's node. → None."""


class Read(Task, frozen=True):
    """Read a source as a whole and watch it.

    → whether the node of the member `name` is there (OWN, OLDER), names (MEMBERS), a VersionedPlan,
    or the topics that the group's members want (TOPICS).
    """

    source: Source
    name: str = ""
    watched: bool = True


class MakePlan(Task, frozen=True):
    """Write the next plan if one is due. → whether it was written, or TooLarge.

    `expired` are the static members that were away for longer than their rejoin timeout, by what was
    known under the plan of the identity `seen`: under a later one somebody may have been back.
    """

    expired: tuple[str, ...] = ()
    seen: tuple[int, int] | None = None


class ClaimPartitions(Task, frozen=True):
    """Claim partitions under the plan of that version. → Claim, Blocked, Stale or MalformedOffset of each."""

    wanted: dict[TopicPartition, ClaimRequest]
    plan_version: int


class ReleasePartitions(Task, frozen=True):
    """Commit an offset of each (None: nothing new) and let it go. → None."""

    held: dict[TopicPartition, tuple[Claim, int | None]]


class CommitOffsets(Task, frozen=True):
    """Write offsets, each under its claim. → Claim or Fenced per partition."""

    token: int
    offsets: dict[TopicPartition, tuple[Claim, int]]


class VerifyOwner(Task, frozen=True):
    """Look whether an owned partition's owner node is still ours, and watch it. → bool."""

    partition: TopicPartition
    held: Claim


class Notice(msgspec.Struct, frozen=True):
    """An effect: what the consumer is told."""


class Assigned(Notice, frozen=True):
    """The partition is ours, from its committed offset on (None: none was ever committed).

    `epoch` is the fencing token of this claim.
    """

    partition: TopicPartition
    topic_id: str
    offset: int | None
    epoch: int


class Revoking(Notice, frozen=True):
    """Still ours; finish what is under way and answer with Drained."""

    partition: TopicPartition


class Lost(Notice, frozen=True):
    """No longer ours; whatever is under way will not be committed."""

    partition: TopicPartition
    reason: str


class Committed(Notice, frozen=True):
    """Outcome of Commit `token`: what was written, and what was refused because we are not the owner."""

    token: int
    offsets: dict[TopicPartition, int]
    refused: frozenset[TopicPartition]


class Rebalanced(Notice, frozen=True):
    """A new plan was seen; for logs and displays."""

    generation: int
    members: int
    partitions: tuple[TopicPartition, ...]


class Left(Notice, frozen=True):
    """Everything is released and the member's node is gone."""


class Replaced(Notice, frozen=True):
    """Another process has this member's instance id now: this one is out, for good."""


class EndSession(msgspec.Struct, frozen=True):
    """Close the session, since nobody can tell what of it still stands; SessionLost follows."""

    why: str


Effect = Task | Notice | EndSession


class Event(msgspec.Struct, frozen=True):
    """What the machine is told."""


class Started(Event, frozen=True):
    """A session is open; `nonce` marks all that is done in it. Nothing of an earlier one counts.

    `session_timeout` (s) is what ZooKeeper granted, which may be less than what was asked for.
    """

    nonce: str
    session_timeout: float
    chroot: str = ""


class SessionLost(Event, frozen=True):
    """The session is over; Started follows when there is another."""


class Acknowledged(Event, frozen=True):
    """ZooKeeper answered something that was sent at `sent_at` (monotonic)."""

    sent_at: float


class Changed(Event, frozen=True):
    """A source may have changed."""

    source: Source


class OwnerChanged(Event, frozen=True):
    """The owner's node of a partition may have changed."""

    partition: TopicPartition


class Failed(msgspec.Struct, frozen=True):
    """The result of a task that ZooKeeper refused for a reason that nobody has foreseen."""

    reason: str


class Finished(Event, frozen=True):
    """A task ended with a result."""

    task: Task
    result: object


class Commit(Event, frozen=True):
    """The consumer wants these next offsets committed: per partition the epoch and the offset.

    The epoch is that of the Assigned under which the consumer did the work. The partition may have
    been lost and claimed again since, and the consumer not yet have heard of it.
    """

    token: int
    offsets: dict[TopicPartition, tuple[int, int]]


class Drained(Event, frozen=True):
    """The consumer is done with a partition being revoked; `offset` is to be committed, if any.

    `epoch` as in Commit: what was drained is the claim that the consumer knew.
    """

    partition: TopicPartition
    epoch: int
    offset: int | None


class Leaving(Event, frozen=True):
    """The consumer wants out."""


class Polled(Event, frozen=True):
    """The application asked for records at that time (monotonic)."""

    at: float


class Tick(Event, frozen=True):
    """Time has passed, or all that had happened was told: decide what follows."""
