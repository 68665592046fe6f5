"""What a member tells its consumer: plain values, in the order in which things happened."""

import msgspec

from folkmoot.protocol.records import TopicPartition


class Notice(msgspec.Struct, frozen=True):
    """What the consumer is told."""


class Assigned(Notice, frozen=True):
    """The partition is ours, from its committed offset on (None: none was ever committed, and the policy
    says where to start).

    `epoch` is the fencing token of this claim, `reset` the mark of the last reset of that offset: who
    keeps offsets of its own beside the group's knows by it that they are out of date.
    """

    partition: TopicPartition
    topic_id: str
    offset: int | None
    epoch: int
    reset: str = ""


class Revoking(Notice, frozen=True):
    """Still ours; finish what is under way and answer with `Member.drained`.

    `at` is when the group wanted it, by the member's clock; the group thread notes that.
    """

    partition: TopicPartition
    at: float = 0.0


class Lost(Notice, frozen=True):
    """No longer ours; whatever is under way will not be committed."""

    partition: TopicPartition
    reason: str


class Committed(Notice, frozen=True):
    """Outcome of the commit `token`: what was written, and what was refused since we are not the owner.

    `Member.commit` returns a future of it.
    """

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
