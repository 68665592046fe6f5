"""Partition states: a partition's leader, leader epoch and in-sync replicas (ISR).

One persistent node per partition, below its topic's *id*, so that a topic that is created anew has none of
the old one's states. The node's version is the partition epoch. Every write names the version that it stands
on, so that one of two writers is refused.

The writers (rules as numbered in docs/replication.md):

- The controller creates a state and *designates* a leader, under a check of its own epoch. It never
  changes the leader epoch (rule 1).
- A broker that is designated and in the ISR *activates* itself, which begins the next leader epoch (rule 2).
- The controller ends a reassignment, in one transaction with the topic's node (reassignments.py). It keeps
  the ISR's members that are in the target, and designates one of them.
- An active leader changes the ISR. When a replica joins, the transaction checks that broker's epoch, so that
  an incarnation that has lost its data since does not count as in sync (rule 7).

| if the process dies | right before the transaction | right after it |
|---|---|---|
| create | no state: the next controller creates it | there is one; it is not made again |
| designate | as before; the next controller designates | the broker that it names activates itself |
| activate | designated, until another is | it led an epoch in which nothing was appended |
| change the ISR | as before | it counts, for the next leader too |

After a lost reply a writer recognises its own write by the version and all of the contents.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

import msgspec
from msgspec.structs import replace

from folkmoot.coordination import paths
from folkmoot.coordination.brokers import is_in_epoch
from folkmoot.coordination.zookeeper import operations as zk
from folkmoot.coordination.zookeeper import recipes
from folkmoot.coordination.zookeeper.operations import Recipe, WatchCallback
from folkmoot.coordination.zookeeper.recipes import GuardRefused, Malformed

NOBODY: Final = -1
"""The leader of a partition that has none."""
MISSING: Final = -1
"""The partition epoch of a state that does not exist yet."""
STATES_PER_TRANSACTION: Final = 100
RESTORING: Final = b"restoring"


class TopicIdPartition(NamedTuple):
    """A partition of one topic, not of a later topic of the same name."""

    topic_id: str
    partition: int


class PartitionState(msgspec.Struct, frozen=True, omit_defaults=True):
    """A partition's node.

    `leader` leads in `leader_epoch` if it is `active`; else it has to begin the next one. `isr` has the order
    of the replicas. `controller_epoch` is that of the last designation. `unclean_epoch` is the leader epoch
    that the last unclean election began: records committed before it may be gone. `reassigned` is the
    topic's at the end of the partition's last reassignment: a broker that knows a lower one may have lost
    its replica unnoticed.
    """

    leader: int
    leader_epoch: int
    isr: tuple[int, ...]
    controller_epoch: int
    active: bool = False
    unclean_epoch: int = 0
    reassigned: int = 0

    def designate(self, leader: int, isr: Iterable[int], controller_epoch: int) -> "PartitionState":
        """The state with a newly designated leader; NOBODY for none."""
        return replace(
            self, leader=leader, isr=tuple(isr), controller_epoch=controller_epoch, active=False
        )

    def activate(self) -> "PartitionState":
        """The state in which the designated broker leads, in the next leader epoch."""
        return replace(self, leader_epoch=self.leader_epoch + 1, active=True)

    def with_isr(self, isr: Iterable[int]) -> "PartitionState":
        """The state with another ISR."""
        return replace(self, isr=tuple(isr))


class VersionedState(msgspec.Struct, frozen=True):
    """A state and its node's version, the partition epoch."""

    state: PartitionState
    partition_epoch: int

    @property
    def order(self) -> tuple[int, int]:
        """Higher in each later state of the partition. The partition epoch alone begins again at 0 when the
        node is restored, in a higher leader epoch (cluster/restoring.py)."""
        return self.state.leader_epoch, self.partition_epoch


class StateWrite(msgspec.Struct, frozen=True):
    """A state to write over the partition epoch `stands_on` (MISSING: to create).

    `in_sync` has the broker epochs of replicas that join the ISR: broker id → epoch.
    """

    state: PartitionState
    stands_on: int
    in_sync: Mapping[int, int] = {}


class Superseded(msgspec.Struct, frozen=True):
    """Another writer was faster; `current` is its state, None if the node is gone or malformed. Ours was not
    written, or was overwritten."""

    current: VersionedState | None


class BrokerReplaced(msgspec.Struct, frozen=True):
    """A replica that would join the ISR has registered again since, or never has. Nothing was written."""

    broker_id: int


Answer = VersionedState | Superseded | BrokerReplaced


_decoder = msgspec.json.Decoder(PartitionState)
_encode = msgspec.json.encode


def read(
    partition: TopicIdPartition, watch: WatchCallback | None = None
) -> Recipe[VersionedState | None]:
    """A partition's state, or None; `watch` is called when it is created, written or deleted.

    Raises Malformed.
    """
    path = paths.partition_state(*partition)
    node = yield from recipes.get_and_watch(zk.Get(path, watch))
    if node is None:
        return None
    return VersionedState(recipes.decode(_decoder, path, node), node.stat.version)


def topic_ids(watch: WatchCallback | None = None) -> Recipe[list[str]]:
    """The ids of topics that have states; `watch` is called when one comes or goes."""
    return sorted((yield from recipes.children(paths.PARTITIONS, watch)))


def partitions_of(topic_id: str, watch: WatchCallback | None = None) -> Recipe[list[int]]:
    """The partitions of a topic that have a state; `watch` is called when there is one more or less."""
    return (yield from recipes.numbers(paths.partition_states(topic_id), watch))


def is_intact(topic_id: str) -> Recipe[bool]:
    """True if no state of a topic was ever removed: a partition without one never had one.

    The parent node is created with the topic. Its data is RESTORING while states are restored
    (cluster/restoring.py).
    """
    found = yield from recipes.get_node(paths.partition_states(topic_id))
    if found is None:
        return False
    return found.stat.births_and_deaths == found.stat.children and found.data != RESTORING


def write(
    writes: Mapping[TopicIdPartition, StateWrite], guard: zk.Check | None = None
) -> Recipe[dict[TopicIdPartition, Answer]]:
    """Write states, each if it still has the partition epoch that it stands on → the outcome of each.

    A VersionedState was written, and has its new partition epoch. Each transaction checks `guard`, too.
    Raises GuardRefused.
    """
    parts = [_Part(partition, wanted) for partition, wanted in writes.items()]
    guards = () if guard is None else (guard,)
    yield from recipes.write_parts(parts, guards, STATES_PER_TRANSACTION)
    return {part.partition: part.answer for part in parts if part.answer is not None}


def written(partition: TopicIdPartition, wanted: StateWrite) -> zk.Set:
    """The write of a partition's existing state, for a transaction."""
    return zk.Set(paths.partition_state(*partition), _encode(wanted.state), wanted.stands_on)


@dataclass(slots=True)
class _Part:
    """A state to be written; a `recipes.Part`."""

    partition: TopicIdPartition
    wanted: StateWrite
    answer: Answer | None = None

    def writes(self) -> list[zk.Write]:
        state: zk.Write = written(self.partition, self.wanted)
        if self.wanted.stands_on == MISSING:
            state = zk.Create(state.path, _encode(self.wanted.state))
        return [state, *(is_in_epoch(*broker) for broker in self.wanted.in_sync.items())]

    def written(self, result: int | str) -> None:
        partition_epoch = result if isinstance(result, int) else 0  # else it was created
        self.answer = VersionedState(self.wanted.state, partition_epoch)

    def look(self, refused: zk.Write | None) -> Recipe[None]:
        wanted = self.wanted
        try:
            found = yield from read(self.partition)
        except Malformed:
            self.answer = Superseded(None)
            return
        if found == VersionedState(wanted.state, wanted.stands_on + 1):
            self.answer = found
        elif (MISSING if found is None else found.partition_epoch) != wanted.stands_on:
            self.answer = Superseded(found)
        elif isinstance(refused, zk.Check):
            self.answer = BrokerReplaced(int(refused.path.rsplit("/", 1)[1]))
        elif isinstance(refused, zk.Create):
            yield from recipes.ensure(paths.partition_states(self.partition.topic_id))


def delete(topic_id: str, guard: zk.Check) -> Recipe[None]:
    """Remove all states of a topic while its deletion is recorded. Raises GuardRefused.

    After a death on the way the next controller finds the rest.
    """
    path, record = paths.partition_states(topic_id), zk.Check(paths.deletion(topic_id))
    while True:
        names = (yield from recipes.children(path))[: STATES_PER_TRANSACTION - 1]
        deletions: list[zk.Write] = [zk.Delete(f"{path}/{name}") for name in names]
        if len(names) < STATES_PER_TRANSACTION - 1:
            deletions.append(zk.Delete(path))
        try:
            yield zk.Multi((guard, record, *deletions))
        except zk.MultiFailed as refusal:
            if refusal.failed == 0:
                raise GuardRefused(f"another controller has been elected: {refusal}") from None
            if refusal.failed == 1:
                return  # the topic is being restored
            if (yield from recipes.retry_on_connection_loss(zk.Exists(path))) is None:
                return
        except zk.ConnectionLost:
            continue
        else:
            if len(deletions) > len(names):
                return
