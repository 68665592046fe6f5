"""What `Admin` tells of groups: plain values, made of what ZooKeeper and the brokers say."""

from dataclasses import dataclass

from folkmoot.coordination.groups.membership import MemberInfo
from folkmoot.protocol.records import TopicPartition


@dataclass(frozen=True, kw_only=True)
class GroupSummary:
    """A group in a list."""

    name: str
    state: str
    members: int
    partitions: int
    generation: int


@dataclass(frozen=True, kw_only=True)
class Progress:
    """A partition of a group. What is not known, or was not answered in time, is None."""

    partition: TopicPartition
    owner: str | None
    epoch: int | None
    committed: int | None
    latest: int | None
    lag: int | None
    """Records on the log that are not processed, or not committed yet; None where nothing is committed, or
    the log ends below that."""
    behind: float | None
    """The age of the first of them, in seconds; 0 if there is none."""
    state: str


@dataclass(frozen=True, kw_only=True)
class MemberView:
    """A live member; durations in seconds."""

    name: str
    instance_id: str | None
    info: MemberInfo
    """What it publishes: its host, what it wants, how long it may take to let go."""
    partitions: tuple[TopicPartition, ...]
    """What it owns."""
    age: float
    """Since it joined; by the clocks of the server and of this machine."""


@dataclass(frozen=True, kw_only=True)
class GroupView:
    """A group, read piece by piece while it goes on.

    `state` is empty (nobody is there), rebalancing or stable. A partition is stable (owned as
    planned), draining (its owner is to give it up), claiming (its next owner is about to take it),
    kept (it waits for a static member), malformed (its offset cannot be read: a reset mends it), truncated
    (its log ends below what is committed: a reset mends it), deleted (its topic does not exist any more),
    unsubscribed (no member wants its topic any more) or unowned. `notes` say in sentences what is not known,
    and why.
    """

    name: str
    state: str
    generation: int
    assignor: str
    protocol: int
    members: tuple[MemberView, ...]
    partitions: tuple[Progress, ...]
    notes: tuple[str, ...] = ()


def truncated_said(partition: TopicPartition, committed: int, end: int) -> str:
    """What is said of a log that ends below what a group has committed."""
    return (
        f"{partition} ends at {end}, below {committed}, which is committed: it has lost records, and how "
        "many are unread is not known. `folkmoot group reset` sets the group to where it is to go on"
    )
