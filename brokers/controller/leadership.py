"""The controller's decisions: which states to write, by brokers, topics and states. No I/O."""

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
"""Seconds for which a broker must be registered before it gets its leaderships back."""
REBALANCE_PERIOD: Final = 5.0
REBALANCE_AT_ONCE: Final = 100
"""Partitions that go back to their preferred leaders in one period (seconds), at most."""

Ending = tuple[Reassignment, StateWrite]
"""A reassignment that ends, and the state that goes with that."""


class Decision(msgspec.Struct, frozen=True):
    """States to write, reassignments to end, and when to decide again (None: when something has changed)."""

    writes: dict[TopicIdPartition, StateWrite]
    endings: dict[TopicIdPartition, Ending]
    ask_again: float | None


class Leadership:
    """A controller's knowledge, and its decisions.

    - A partition without a state gets one: its first live replica is designated, and is alone in sync. The
      others join by fetching. So a broker in the ISR has the epoch on its disk, and can tell if that disk
      was lost. Until the first leader epoch has begun nothing was appended, and any live replica may be
      designated.
    - A partition whose leader is not registered gets the first of its replicas that is registered and
      in the ISR. Without such a replica nothing is written. The former leader activates itself again when
      it is back; a member of the ISR that is back earlier is designated. A leader that has only lost
      its session continues meanwhile: no other can be elected.
    - An election leaves the ISR as it is; the broker that activates itself takes out those that are gone.
      If its disk has lost something, only a member of the ISR that is not back yet can lead.
    - A broker that is about to stop passes on what others in the ISR can lead, and gets nothing new.
    - A partition goes back to its first replica, some partitions at a time, once that replica is in the ISR
      and has been registered for a while.
    - A reassignment ends when all of its target are registered and in the ISR, which then becomes the
      target. The leader activates itself anew if it is in the target; else the first that is takes over.
      So the acks of a replica that leaves count only in the epoch that ends. A cancelled reassignment
      ends when as many of the original replicas are in sync as `min_in_sync` asks for.

    Only the end of a reassignment changes an ISR here. A partition whose state is malformed is left alone.

    Owner: the controller's thread. A partition is judged when something about it has changed.
    """

    def __init__(self, controller_epoch: int) -> None:
        self._controller_epoch = controller_epoch
        self._registered_since: dict[int, tuple[int, float]] = {}
        self._may_lead: set[int] = set()
        self._topics: dict[str, TopicInfo] = {}
        self._states: dict[TopicIdPartition, VersionedState] = {}
        self._malformed: set[TopicIdPartition] = set()
        self._unjudged: set[TopicIdPartition] = set()
        self._misplaced: set[TopicIdPartition] = set()
        self._rebalance_at = 0.0

    # -- what is known ----------------------------------------------------------------------------

    def update_brokers(
        self, epochs: Mapping[int, int], now: float, leaving: Iterable[int] = ()
    ) -> None:
        """Take over the registered brokers with their broker epochs, and those that are about to stop."""
        before, could_lead = self._registered_since, self._may_lead
        self._registered_since = {
            broker: before[broker]
            if broker in before and before[broker][0] == epoch
            else (epoch, now)
            for broker, epoch in epochs.items()
        }
        self._may_lead = epochs.keys() - set(leaving)
        if (before.keys(), could_lead) != (epochs.keys(), self._may_lead):
            for topic in self._topics.values():
                self._unjudged.update(_partitions_of(topic))

    def update_topics(self, topics: Iterable[TopicInfo]) -> None:
        """Take over all topics that exist."""
        before, self._topics = self._topics, {each.topic_id: each for each in topics}
        for topic_id, topic in self._topics.items():
            if before.get(topic_id) != topic:
                self._unjudged.update(_partitions_of(topic))
        for topic_id in before.keys() - self._topics.keys():
            for partition in _partitions_of(before[topic_id]):
                self.update_state(partition, None)

    def update_state(self, partition: TopicIdPartition, state: VersionedState | None) -> None:
        """Take over a partition's state as it was read or written; None if there is none."""
        self._malformed.discard(partition)
        if state is None:
            self._states.pop(partition, None)
        else:
            self._states[partition] = state
        self._unjudged.add(partition)

    def mark_malformed(self, partition: TopicIdPartition) -> None:
        """The node of a partition's state cannot be decoded."""
        self._states.pop(partition, None)
        self._malformed.add(partition)
        self._unjudged.add(partition)

    # -- decisions -----------------------------------------------------------------------------

    def decide(self, now: float) -> Decision:
        """Return what to write now. Pass on the outcome before the next call."""
        writes: dict[TopicIdPartition, StateWrite] = {}
        endings: dict[TopicIdPartition, Ending] = {}
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
        """Return what a partition needs at once; note whether it should go back to its first replica."""
        self._misplaced.discard(partition)
        replicas = self._replicas(partition)
        if replicas is None or partition in self._malformed:
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

    def _ending(self, partition: TopicIdPartition) -> Ending | None:
        """Return what ends the partition's reassignment, if it can end now."""
        topic, known = self._topics.get(partition.topic_id), self._states.get(partition)
        move = None if topic is None else topic.reassignments.get(partition.partition)
        if topic is None or move is None or known is None or partition in self._malformed:
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
        """Give partitions back to their first replicas, but not those that change anyway."""
        self._rebalance_at = now + REBALANCE_PERIOD
        moved = 0
        for partition in sorted(self._misplaced):
            known, replicas = self._states[partition], self._replicas(partition)
            assert replicas
            preferred = replicas[0]
            if not (known.state.active and self._can_lead(preferred, known.state)):
                continue
            is_settled = now - self._registered_since[preferred][1] >= SETTLED_AFTER
            if is_settled and partition not in writes and partition not in endings:
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
