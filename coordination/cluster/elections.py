"""Elections that somebody asks for: of preferred leaders, and unclean ones, which lose records.

They are designations like the controller's, under the version that was read, but not fenced by its
epoch: they do what it would do next, or, unclean, what it never does.
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
    """Have the first of the replicas lead. False if it does, or is about to.

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
        # The ISR stays as it is: that one may find that its disk has lost something.
        if (yield from _designate(partition, found, preferred, state.isr)):
            return True


def elect_unclean(
    named: TopicPartition, partition: TopicIdPartition, replicas: Sequence[int], leader: int
) -> Recipe[None]:
    """Have a replica lead that was not in sync, or that has lost something since and does not lead
    though it is alone in sync: what only others have is lost for good.

    Raises ElectionImpossible unless it is a live replica and no other that was in sync is alive,
    Malformed.
    """
    # By a server that lags one that is back already would be gone, and with it what it has.
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
    """The state that `elect_unclean` would start from. Raises what that raises, and changes nothing."""
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
            f"{named}: broker {in_sync[0]} is alive and in sync: nothing needs to be lost; "
            "if it does not lead its log says why, and it can be elected, or has to be stopped first"
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
    """False if somebody else was faster."""
    designated = found.state.designate(leader, isr, found.state.controller_epoch)
    write = StateWrite(designated, found.partition_epoch)
    answers = yield from partition_states.write({partition: write})
    return isinstance(answers[partition], VersionedState)
