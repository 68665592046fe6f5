"""A producer's identity in each partition: its id, its epoch there, and the next sequence."""

from collections import deque
from collections.abc import Iterable, Mapping
from typing import ClassVar, Final, NamedTuple

from folkmoot.protocol.batch_header import MAX_PRODUCER_EPOCH, NO_PRODUCER_ID, following_sequence
from folkmoot.protocol.errors import ProducerFenced
from folkmoot.protocol.records import TopicPartition

LONGEST_SILENCE: Final = 600.0
"""Seconds without a batch after which a partition begins its next epoch. Brokers keep a producer for
15 minutes, unless a topic's options say less."""


class Identity(NamedTuple):
    """The signature of a batch, by which brokers recognise it."""

    producer_id: int
    epoch: int
    sequence: int
    continues: bool = False
    """True if sequences continue from one epoch to the next."""


NO_IDENTITY: Final = Identity(NO_PRODUCER_ID, -1, -1)
"""The identity of producers that are not idempotent."""


class _Position:
    """The next identity of a partition. `producer_id` None: the next batch begins under a new id."""

    __slots__ = ("epoch", "producer_id", "sequence", "signed_at")

    def __init__(self) -> None:
        self.producer_id: int | None = None
        self.epoch = self.sequence = 0
        self.signed_at = 0.0


class Sequences:
    """Identities for batches, in order, partition by partition; kept as long as the producer lives.

    An id belongs to one producer for ever, so the producer may choose its epochs, one count for each
    partition. A partition whose sequences are broken begins its next epoch at sequence 0; the others
    continue. It also does so after a silence in which its broker may have forgotten the producer: a later
    sequence would be refused, and a batch whose answer was lost could not be recognised. A new id is taken
    after the last epoch, or if another producer turns out to have the id as well. Partitions without an
    id begin under it.

    Used only by the sender's thread.
    """

    chooses_epochs: ClassVar[bool] = True

    def __init__(self) -> None:
        self._ids: deque[int] = deque()
        self._current: int | None = None
        self._positions: dict[TopicPartition, _Position] = {}

    @property
    def wants_ids(self) -> bool:
        """Return whether nothing new can begin without another id."""
        return self._current is None

    def grant(self, ids: Iterable[int]) -> None:
        """Take ids that no other producer has."""
        self._ids.extend(ids)
        if self._current is None and self._ids:
            self._current = self._ids.popleft()

    def next(
        self, partition: TopicPartition, now: float = 0.0, *, is_idle: bool = False
    ) -> Identity | None:
        """Return the identity of the next batch; None if there is no id.

        `is_idle`: no batch of the partition is in flight, so that it may begin its next epoch.
        """
        position = self._positions.get(partition)
        if position is None:
            position = self._positions[partition] = _Position()
        elif is_idle and position.producer_id is not None:
            if now - position.signed_at > LONGEST_SILENCE:
                self.restart(partition)
        if position.producer_id is None:
            if self._current is None:
                return None
            position.producer_id, position.epoch, position.sequence = self._current, 0, 0
        return Identity(position.producer_id, position.epoch, position.sequence)

    def advance(self, partition: TopicPartition, records: int, now: float) -> None:
        """Note that a batch of this many records was signed with what `next` returned."""
        position = self._positions[partition]
        position.signed_at = now
        position.sequence = following_sequence(position.sequence, records)

    def restart(self, partition: TopicPartition, *, new_id: bool = False) -> None:
        """Begin the partition's next epoch."""
        position = self._positions[partition]
        if position.epoch < MAX_PRODUCER_EPOCH and not new_id:
            position.epoch += 1
            position.sequence = 0
            return
        if position.producer_id == self._current:
            self._current = self._ids.popleft() if self._ids else None
        position.producer_id = None

    def forget(self, partition: TopicPartition) -> None:
        """Drop a partition. If it comes back, its batches get a new id."""
        if partition in self._positions:
            self.restart(partition, new_id=True)
            del self._positions[partition]


class ClaimedSequences(Sequences):
    """Identities of a named producer (coordination.producer_takeovers), as its owner sets them.

    It chooses no epochs. If a batch is refused for its sequence, another producer has taken over, or an
    earlier batch is missing. The owner then asks again how far the name got.
    """

    chooses_epochs: ClassVar[bool] = False

    def __init__(self) -> None:
        super().__init__()
        self._pending: deque[Mapping[TopicPartition, Identity]] = deque()

    @property
    def wants_ids(self) -> bool:
        return False

    def resume_at(self, identities: Mapping[TopicPartition, Identity]) -> None:
        """Set the next identities. From any thread, while these partitions have nothing to send."""
        self._pending.append(identities)

    def forget(self, partition: TopicPartition) -> None:
        """Do nothing: only the owner sets identities."""

    def next(
        self, partition: TopicPartition, now: float = 0.0, *, is_idle: bool = False
    ) -> Identity | None:
        """Raises ProducerFenced for a partition that the owner has not set."""
        while self._pending:
            for partition_key, identity in self._pending.popleft().items():
                position = self._positions[partition_key] = _Position()
                position.producer_id, position.epoch, position.sequence = identity[:3]
        if partition not in self._positions:
            raise ProducerFenced(f"the progress of this producer in {partition} was never read")
        following = super().next(partition)
        return None if following is None else following._replace(continues=True)
