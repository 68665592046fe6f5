"""Elections on request: of preferred leaders, and unclean ones, which lose records.

They designate a leader as the controller does, under the version that was read, but without a check of its
epoch. A preferred election does what the controller would do, an unclean one what it never does.
"""

from collections.abc import Sequence

from msgspec.structs import replace

from folkmoot.coordination import brokers, partition_states
from folkmoot.coordination.partition_states import StateWrite, TopicIdPartition, VersionedState
from folkmoot.coordination.zookeeper.operations import Recipe, Sync
from folkmoot.coordination.zookeeper.recipes import retry_on_connection_loss
from folkmoot.protocol.errors import ElectionImpossible
from folkmoot.protocol.records import TopicPartition


def elect_preferred(
    named: TopicPartition, partition: TopicIdPartition, replicas: Sequence[int]
) -> Recipe[bool]:
    """Make the first replica the leader; return False if it already is or is about to be.

    Raises ElectionImpossible if that broker is not registered or not in sync, Malformed.
    """
    preferred = replicas[0]
    while True:
        found = yield from _read(named, partition)
        state = found.state
        if state.leader == preferred:
            return False
        live = yield from brokers.live()
        for missing, why in ((live, "registered"), (state.isr, "in sync")):
            if preferred not in missing:
                raise ElectionImpossible(
                    f"{named}: broker {preferred}, its preferred leader, is not {why}"
                )
        # The ISR stays: the preferred leader may find that its disk has lost records.
        if (yield from _designate(partition, found, preferred, state.isr)):
            return True


def elect_unclean(
    named: TopicPartition, partition: TopicIdPartition, replicas: Sequence[int], leader: int
) -> Recipe[None]:
    """Make a replica the leader that is not in sync, or that is alone in sync and does not lead because it
    has lost records. Records that only other replicas have are lost for good.

    Raises ElectionImpossible unless it is live and no other replica in sync is, Malformed.
    """
    # A server that lags could miss a replica in sync that has just come back.
    yield from retry_on_connection_loss(Sync())
    while True:
        found = yield from check_unclean(named, partition, replicas, leader)
        unclean = replace(found.state, unclean_epoch=found.state.leader_epoch + 1)
        found = VersionedState(unclean, found.partition_epoch)
        if (yield from _designate(partition, found, leader, [leader])):
            return


def check_unclean(
    named: TopicPartition, partition: TopicIdPartition, replicas: Sequence[int], leader: int
) -> Recipe[VersionedState]:
    """Return the state that `elect_unclean` would change, or raise its errors."""
    found = yield from _read(named, partition)
    live = yield from brokers.live()
    if leader not in replicas:
        raise ElectionImpossible(
            f"{named}: broker {leader} is none of its replicas {list(replicas)}"
        )
    if leader not in live:
        raise ElectionImpossible(f"{named}: broker {leader} is not registered: start it")
    in_sync = [each for each in found.state.isr if each in live and each != leader]
    if in_sync:
        raise ElectionImpossible(
            f"{named}: broker {in_sync[0]} is alive and in sync: no record needs to be lost; "
            "if it does not lead, see its log, then elect it or stop it"
        )
    return found


def _read(named: TopicPartition, partition: TopicIdPartition) -> Recipe[VersionedState]:
    found = yield from partition_states.read(partition)
    if found is None:
        raise ElectionImpossible(
            f"{named} has no state yet: the controller creates it; is there one?"
        )
    return found


def _designate(
    partition: TopicIdPartition, found: VersionedState, leader: int, isr: Sequence[int]
) -> Recipe[bool]:
    """Return False if the state has changed meanwhile."""
    designated = found.state.designate(leader, isr, found.state.controller_epoch)
    write = StateWrite(designated, found.partition_epoch)
    answers = yield from partition_states.write({partition: write})
    return isinstance(answers[partition], VersionedState)
