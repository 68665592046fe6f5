"""Notices of a member to its consumer, in the order of events."""

import msgspec

from folkmoot.protocol.records import TopicPartition


class Notice(msgspec.Struct, frozen=True):
    """A notice."""


class Assigned(Notice, frozen=True):
    """The partition is ours, from its committed offset on; with None the reset policy decides.

    `epoch` is the fencing token of this claim. `reset` marks the last reset of the offset: it shows
    consumers that store offsets elsewhere that these are outdated.
    """

    partition: TopicPartition
    topic_id: str
    offset: int | None
    epoch: int
    reset: str = ""


class Revoking(Notice, frozen=True):
    """Still ours: finish the work under way, and answer with `Member.drained`.

    `at` is the time of the notice, by the member's clock.
    """

    partition: TopicPartition
    at: float = 0.0


class Lost(Notice, frozen=True):
    """No longer ours: work under way will not be committed."""

    partition: TopicPartition
    reason: str


class Committed(Notice, frozen=True):
    """Outcome of a commit: the written offsets, and the partitions that we do not own."""

    token: int
    offsets: dict[TopicPartition, int]
    refused: frozenset[TopicPartition]


class Rebalanced(Notice, frozen=True):
    """The member read a new plan; for logs and displays."""

    generation: int
    members: int
    partitions: tuple[TopicPartition, ...]


class Left(Notice, frozen=True):
    """All partitions are released, and the member's node is removed."""


class Replaced(Notice, frozen=True):
    """Another process has this member's instance id: the member ends."""
