"""Who a producer is to each partition: its id, its epoch there, and the next sequence."""

from collections import deque
from collections.abc import Iterable, Mapping
from typing import ClassVar, Final, NamedTuple

from folkmoot.protocol.batch_header import MAX_PRODUCER_EPOCH, NO_PRODUCER_ID, following_sequence
from folkmoot.protocol.errors import ProducerFenced
from folkmoot.protocol.records import TopicPartition

LONGEST_SILENCE: Final = 600.0
"""A partition that was silent for longer goes on with its next epoch. A broker forgets nobody before
15 minutes, unless a topic asks for less."""


class Identity(NamedTuple):
    """What a batch is signed with: brokers know it again by this."""

    producer_id: int
    epoch: int
    sequence: int
    continues: bool = False
    """Whether sequences go on from one epoch to the next."""


NOBODY: Final = Identity(NO_PRODUCER_ID, -1, -1)
"""Of producers that are not idempotent."""


class _Place:
    """Where a partition is. `producer_id` None: with the next batch it begins under a new id."""

    __slots__ = ("epoch", "producer_id", "sequence", "signed_at")

    def __init__(self) -> None:
        self.producer_id: int | None = None
        self.epoch = 0
        self.sequence = 0
        self.signed_at = 0.0


class Sequences:
    """Identities for batches, in order, partition by partition; kept as long as the producer lives.

    An id is this producer's alone, for ever, so it gives itself epochs. They are counted per
    partition: a partition whose sequences are broken begins its next epoch at sequence 0, and the
    others go on undisturbed. So it does after a silence in which its broker may have forgotten it:
    with a later sequence it would be refused, and if the answer to the first attempt was lost, nobody
    could tell what became of that. After the last epoch, or when an id turns out to be another's as
    well, a new id is taken, under which all partitions begin that are not under one yet.

    Owner: the sender.
    """

    gives_epochs: ClassVar[bool] = True

    def __init__(self) -> None:
        self._ids: deque[int] = deque()
        self._current: int | None = None
        self._places: dict[TopicPartition, _Place] = {}

    @property
    def wants_ids(self) -> bool:
        """Whether nothing new can begin until there are ids."""
        return self._current is None

    def grant(self, ids: Iterable[int]) -> None:
        """Ids that nobody else has."""
        self._ids.extend(ids)
        if self._current is None and self._ids:
            self._current = self._ids.popleft()

    def break_silence(self, partition: TopicPartition, now: float) -> None:
        """Nothing of the partition is under way, and something is about to be signed."""
        place = self._places.get(partition)
        if place is None or place.producer_id is None:
            return
        if now - place.signed_at > LONGEST_SILENCE:
            self.restart(partition)

    def next(self, partition: TopicPartition) -> Identity | None:
        """What the next batch is to be signed with; None if an id is wanting."""
        place = self._places.get(partition)
        if place is None:
            place = self._places[partition] = _Place()
        if place.producer_id is None:
            if self._current is None:
                return None
            place.producer_id, place.epoch, place.sequence = self._current, 0, 0
        return Identity(place.producer_id, place.epoch, place.sequence)

    def advance(self, partition: TopicPartition, records: int, now: float) -> None:
        """A batch of so many records was signed with `next`."""
        place = self._places[partition]
        place.signed_at = now
        place.sequence = following_sequence(place.sequence, records)

    def restart(self, partition: TopicPartition, *, new_id: bool = False) -> None:
        """Begin the partition's next epoch."""
        place = self._places[partition]
        if place.epoch < MAX_PRODUCER_EPOCH and not new_id:
            place.epoch += 1
            place.sequence = 0
            return
        if place.producer_id == self._current:
            self._current = self._ids.popleft() if self._ids else None
        place.producer_id = None

    def forget(self, partition: TopicPartition) -> None:
        """What is sent to it from here on is not known by what was sent before."""
        if partition in self._places:
            self.restart(partition, new_id=True)
            del self._places[partition]


class TakenOver(Sequences):
    """Identities of a producer with a name (coordination.producer_takeovers), as its holder was told them.

    It gives itself no epochs: whoever is refused for its sequence was taken over, or has lost what came
    before, and asks again how far it got.
    """

    gives_epochs: ClassVar[bool] = False

    def __init__(self) -> None:
        super().__init__()
        self._given: deque[Mapping[TopicPartition, Identity]] = deque()

    @property
    def wants_ids(self) -> bool:
        return False

    def go_on(self, places: Mapping[TopicPartition, Identity]) -> None:
        """These are the next ones, from any thread while nothing of these partitions is under way or waits
        to be sent."""
        self._given.append(places)

    def break_silence(self, partition: TopicPartition, now: float) -> None:
        pass

    def forget(self, partition: TopicPartition) -> None:
        pass

    def next(self, partition: TopicPartition) -> Identity | None:
        """Raises ProducerFenced for a partition that nobody has told of."""
        while self._given:
            for each, identity in self._given.popleft().items():
                place = self._places[each] = _Place()
                place.producer_id, place.epoch, place.sequence = identity[:3]
        if partition not in self._places:
            raise ProducerFenced(f"nobody has asked how far this producer got in {partition}")
        found = super().next(partition)
        return None if found is None else found._replace(continues=True)
