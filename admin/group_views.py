"""Groups as `Admin` describes them: plain values, made of what ZooKeeper and the brokers answer."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from folkmoot.consumers.lag import is_beyond, lag
from folkmoot.consumers.offsets.offset_lookup import no_answer
from folkmoot.coordination.groups.inspection import GroupState
from folkmoot.coordination.groups.membership import MemberInfo, instance_of
from folkmoot.network.leaderless import Waiting, describe_waiting
from folkmoot.protocol.quantities import counted
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
    """A partition of a group. None stands for what is not known, or was not answered in time."""

    partition: TopicPartition
    owner: str | None
    epoch: int | None
    committed: int | None
    latest: int | None
    lag: int | None
    """Records of the log behind the committed offset; None where nothing is committed, or the log ends below
    that offset."""
    behind: float | None
    """The age of the first of these records, in seconds; 0 if there is none."""
    state: str


@dataclass(frozen=True, kw_only=True)
class MemberView:
    """A live member; durations in seconds."""

    name: str
    instance_id: str | None
    info: MemberInfo
    """Its host, its subscription and its release timeout, as it publishes them."""
    partitions: tuple[TopicPartition, ...]
    """The partitions that it owns."""
    age: float
    """Time since it joined, by the clocks of the server and of this machine."""


@dataclass(frozen=True, kw_only=True)
class GroupView:
    """A group, read piece by piece while it changes.

    `state` is empty (no members), rebalancing or stable. The states of a partition:

    - stable: owned as planned
    - draining: its owner must give it up
    - claiming: its next owner is about to take it
    - reserved: for a static member
    - malformed: its offset cannot be read; a reset repairs it
    - truncated: its log ends below the committed offset; a reset repairs it
    - deleted: its topic does not exist any more
    - unsubscribed: no member subscribes to its topic any more
    - unowned

    `notes` are sentences: what is not known, and why.
    """

    name: str
    state: str
    generation: int
    assignor: str
    protocol: int
    members: tuple[MemberView, ...]
    partitions: tuple[Progress, ...]
    notes: tuple[str, ...] = ()


class PartitionEnds(NamedTuple):
    """The brokers' answers about the partitions of groups."""

    ids: Mapping[TopicPartition, str]
    """The topics' ids; partitions of deleted topics are missing."""
    earliest: Mapping[TopicPartition, int]
    """Missing where every group has read to the end."""
    latest: Mapping[TopicPartition, int]
    leaderless: Waiting
    stamps: Mapping[tuple[TopicPartition, int], int]
    """The timestamp (ms) of the first record at an offset or behind it."""


def view_of(
    state: GroupState, committed: Mapping[TopicPartition, int], ends: PartitionEnds, now: float
) -> GroupView:
    """Make the view of a group at `now`, in seconds since the epoch.

    `committed` has its offsets in topics that exist.
    """
    rows = []
    for status in state.partitions:
        at, end = committed.get(status.partition), ends.latest.get(status.partition)
        start = ends.earliest.get(status.partition, 0)
        stamp = None if at is None else ends.stamps.get((status.partition, max(at, start)))
        behind = None if stamp is None else round(max(0.0, now - stamp / 1000), 3)
        missing = lag(at, start, end)
        is_there = status.partition in ends.ids
        partition_state = "truncated" if is_beyond(at, end) else state.state_of(status)
        rows.append(
            Progress(
                partition=status.partition,
                owner=status.owner,
                epoch=None if status.offset is None else status.offset.epoch,
                committed=at,
                latest=end,
                lag=missing,
                behind=0.0 if missing == 0 else behind,
                state=partition_state if is_there else "deleted",
            )
        )
    wanted = {row.partition for row in rows} & ends.ids.keys()
    leaderless = {partition: at for partition, at in ends.leaderless.items() if partition in wanted}
    unknown = sorted(wanted - ends.latest.keys() - leaderless.keys())
    return GroupView(
        name=state.name,
        state=state.state,
        generation=state.plan.generation,
        assignor=state.plan.assignor,
        protocol=state.plan.protocol,
        members=tuple(_member(state, assignee, now) for assignee in state.members),
        partitions=tuple(rows),
        notes=tuple(_notes(rows, leaderless, unknown)),
    )


def describe_truncation(partition: TopicPartition, committed: int, end: int) -> str:
    """Return the sentence about a log that ends below the committed offset."""
    return (
        f"{partition} ends at {end}, below {committed}, which is committed: it has lost records, and how "
        "many are unread is not known. `folkmoot group reset` gives the group a new offset"
    )


def _member(state: GroupState, assignee: str, now: float) -> MemberView:
    member = state.members[assignee]
    return MemberView(
        name=member.name,
        instance_id=instance_of(assignee),
        info=member.info,
        partitions=tuple(
            status.partition for status in state.partitions if status.owner == assignee
        ),
        age=round(max(0.0, now - member.joined_ms / 1000), 1),
    )


def _notes(
    rows: Sequence[Progress], leaderless: Waiting, unanswered: Sequence[TopicPartition]
) -> Iterator[str]:
    """Yield a sentence for each thing that is not known of a group's progress."""
    if leaderless:
        yield f"{describe_waiting(leaderless)}; what is unread there is not known"
    if unanswered:
        yield f"{no_answer(unanswered)}; what is unread there is not known"
    deleted = sorted({row.partition.topic for row in rows if row.state == "deleted"})
    if deleted:
        yield f"offsets are left of topics that do not exist any more: {', '.join(deleted)}"
    unsubscribed = sorted({row.partition.topic for row in rows if row.state == "unsubscribed"})
    if unsubscribed:
        yield (
            f"no member subscribes to {', '.join(unsubscribed)} any more, and what is committed of it stays: "
            "`folkmoot group delete-offsets` forgets it"
        )
    for row in rows:
        if row.state == "truncated" and row.committed is not None and row.latest is not None:
            yield describe_truncation(row.partition, row.committed, row.latest)
    uncommitted = sum(
        row.committed is None and row.lag is None and bool(row.latest) for row in rows
    )
    if uncommitted:
        what = counted(uncommitted, "partition")
        its = "its" if uncommitted == 1 else "their"
        yield (
            f"nothing is committed in {what} with records: {its} lag is not known. Members that keep "
            "offsets with their results can commit as well, for this view alone"
        )
