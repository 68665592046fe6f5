"""Which partition states are to be written: pure decisions over brokers, topics and states."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from folkmoot.coordination.partition_states import (
    MISSING,
    NOBODY,
    PartitionState,
    StateWrite,
    TopicIdPartition,
    VersionedState,
)
from folkmoot.coordination.topics import Reassignment, TopicInfo

SETTLED_AFTER: Final = 30.0
"""A broker gets its leaderships back when it has been registered for so many seconds."""
REBALANCE_PERIOD: Final = 5.0
REBALANCE_AT_ONCE: Final = 100
"""So many partitions go back to their preferred leaders in one period (seconds), at most."""


class Decision(msgspec.Struct, frozen=True):
    """States to write, reassignments to end with the states that go with that, and when to ask again (None:
    when something has changed)."""

    writes: dict[TopicIdPartition, StateWrite]
    endings: dict[TopicIdPartition, tuple[Reassignment, StateWrite]]
    ask_again: float | None


class Leadership:
    """What a controller knows, and what follows from it.

    - A partition without a state gets one: its first live replica is to lead, and is alone in sync. The
      others join by fetching: whoever is in the ISR has the epoch on its disk, so that one whose disk was
      lost can tell. Until the first leader epoch has begun nothing was appended, and any live replica may
      be designated in its place.
    - A partition whose leader is not registered gets the first of its replicas that is registered and
      in the ISR. Without such a replica nothing is written: the leader that comes back activates itself
      again, another member of the ISR that comes first is designated. A leader that is alive but has lost
      its session goes on meanwhile, which is safe: nobody else can be elected.
    - An election leaves the ISR as it is; the broker that activates itself takes out who is gone. The
      designated broker may find that its disk has lost something: then a member of the ISR that is not
      back yet is the only one that can lead.
    - A broker that is to stop hands over what others in the ISR can lead, and gets nothing new.
    - A partition that another than its first replica leads goes back to that one, some at a time, once
      that is in the ISR and has been registered for a while.
    - A reassignment ends when all of its target are registered and in the ISR, which is the target from
      then on; a leader that is not in there hands over to the first that is, one that is activates itself
      anew: what a replica that leaves has acked counts in the epoch that ends alone. One that is cancelled
      ends when as many of the original replicas are as `min_in_sync` asks for.

    Only the end of a reassignment changes an ISR here.
    Nothing is decided about a partition whose state is illegible.

    Owner: the controller's thread. Partitions are judged when something about them has changed.
    """

    def __init__(self, controller_epoch: int) -> None:
        self._controller_epoch = controller_epoch
        self._registered_since: dict[int, tuple[int, float]] = {}
        self._may_lead: set[int] = set()
        self._topics: dict[str, TopicInfo] = {}
        self._states: dict[TopicIdPartition, VersionedState] = {}
        self._illegible: set[TopicIdPartition] = set()
        self._unjudged: set[TopicIdPartition] = set()
        self._misplaced: set[TopicIdPartition] = set()
        self._rebalance_at = 0.0

    # -- what is known ----------------------------------------------------------------------------

    def brokers_are(
        self, epochs: Mapping[int, int], now: float, leaving: Iterable[int] = ()
    ) -> None:
        """The brokers that are registered, with their broker epochs, and those that are to stop."""
        before, could_lead = self._registered_since, self._may_lead
        self._registered_since = {
            broker: before[broker]
            if broker in before and before[broker][0] == epoch
            else (epoch, now)
            for broker, epoch in epochs.items()
        }
        self._may_lead = epochs.keys() - set(leaving)
        if (before.keys(), could_lead) != (epochs.keys(), self._may_lead):
            self._unjudged.update(self.partitions())

    def topics_are(self, topics: Iterable[TopicInfo]) -> None:
        """All topics that exist."""
        before, self._topics = self._topics, {each.topic_id: each for each in topics}
        for topic_id, topic in self._topics.items():
            if before.get(topic_id) != topic:
                self._unjudged.update(_partitions_of(topic))
        for topic_id in before.keys() - self._topics.keys():
            for partition in _partitions_of(before[topic_id]):
                self.state_is(partition, None)

    def state_is(self, partition: TopicIdPartition, state: VersionedState | None) -> None:
        """A partition's state as it was read or written; None if there is none."""
        self._illegible.discard(partition)
        if state is None:
            self._states.pop(partition, None)
        else:
            self._states[partition] = state
        self._unjudged.add(partition)

    def state_is_illegible(self, partition: TopicIdPartition) -> None:
        """A partition's state is something else than a state."""
        self._states.pop(partition, None)
        self._illegible.add(partition)
        self._unjudged.add(partition)

    def partitions(self) -> list[TopicIdPartition]:
        """All partitions of all topics."""
        return [each for topic in self._topics.values() for each in _partitions_of(topic)]

    # -- what follows -----------------------------------------------------------------------------

    def decide(self, now: float) -> Decision:
        """What is to be written now; what became of it is to be told before this is called again."""
        writes: dict[TopicIdPartition, StateWrite] = {}
        endings: dict[TopicIdPartition, tuple[Reassignment, StateWrite]] = {}
        for partition in sorted(self._unjudged):
            write = self._judge(partition)
            if write is not None:
                writes[partition] = write
            elif (ending := self._ending(partition)) is not None:
                endings[partition] = ending
        self._unjudged.clear()
        if now >= self._rebalance_at and self._misplaced:
            self._rebalance(now, writes, endings)
        return Decision(writes, endings, self._rebalance_at if self._misplaced else None)

    def _judge(self, partition: TopicIdPartition) -> StateWrite | None:
        """What a partition needs at once; also notes whether its first replica is to lead later."""
        self._misplaced.discard(partition)
        replicas = self._replicas(partition)
        if replicas is None or partition in self._illegible:
            return None
        known = self._states.get(partition)
        if known is None:
            return StateWrite(self._first_state(replicas), MISSING)
        state = known.state
        if state.leader not in self._may_lead:
            able = (each for each in replicas if self._can_lead(each, state))
            leader = next(able, None)
            return None if leader is None else self._designation(known, leader)
        if replicas and state.leader != replicas[0] and replicas[0] in self._may_lead:
            self._misplaced.add(partition)
        return None

    def _ending(self, partition: TopicIdPartition) -> tuple[Reassignment, StateWrite] | None:
        """What ends the partition's reassignment, if it is to end now."""
        topic, known = self._topics.get(partition.topic_id), self._states.get(partition)
        move = None if topic is None else topic.reassignments.get(partition.partition)
        if topic is None or move is None or known is None or partition in self._illegible:
            return None
        state = known.state
        stay = [each for each in move.target if each in state.isr]
        needed = topic.min_in_sync if move.is_cancelled else len(move.target)
        enough = min(needed, len(move.target))
        able = [each for each in stay if each in self._may_lead]
        registered = self._registered_since.keys() & stay
        if not state.active or len(registered) < enough or not able:
            return None
        leader = state.leader if state.leader in able else able[0]
        ended = state.designate(leader, stay, self._controller_epoch)
        return move, StateWrite(ended, known.partition_epoch)

    def _rebalance(
        self,
        now: float,
        writes: dict[TopicIdPartition, StateWrite],
        endings: Mapping[TopicIdPartition, object],
    ) -> None:
        """Give partitions back to their first replicas; those that are being elected wait."""
        self._rebalance_at = now + REBALANCE_PERIOD
        settled = {
            broker
            for broker, (_, since) in self._registered_since.items()
            if now - since >= SETTLED_AFTER
        }
        moved = 0
        for partition in sorted(self._misplaced):
            known, replicas = self._states[partition], self._replicas(partition)
            assert replicas
            preferred = replicas[0]
            is_due = preferred in settled and self._can_lead(preferred, known.state)
            is_busy = partition in writes or partition in endings
            if is_due and known.state.active and not is_busy:
                writes[partition] = self._designation(known, preferred)
                moved += 1
                if moved == REBALANCE_AT_ONCE:
                    return

    def _first_state(self, replicas: Sequence[int]) -> PartitionState:
        live = [each for each in replicas if each in self._registered_since]
        willing = [each for each in live if each in self._may_lead]
        leader = next(iter(willing or live or replicas), NOBODY)
        isr = () if leader == NOBODY else (leader,)
        return PartitionState(leader, 0, isr, self._controller_epoch)

    def _designation(self, known: VersionedState, leader: int) -> StateWrite:
        isr = known.state.isr if known.state.leader_epoch else (leader,)
        designated = known.state.designate(leader, isr, self._controller_epoch)
        return StateWrite(designated, known.partition_epoch)

    def _can_lead(self, broker: int, state: PartitionState) -> bool:
        return broker in self._may_lead and (broker in state.isr or not state.leader_epoch)

    def _replicas(self, partition: TopicIdPartition) -> list[int] | None:
        topic = self._topics.get(partition.topic_id)
        if topic is None or partition.partition >= len(topic.partitions):
            return None
        return topic.partitions[partition.partition]


def _partitions_of(topic: TopicInfo) -> list[TopicIdPartition]:
    return [TopicIdPartition(topic.topic_id, number) for number in range(len(topic.partitions))]
