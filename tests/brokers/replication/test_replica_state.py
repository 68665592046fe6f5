"""What a replica does next, by what it has read of its partition's state, however old that is."""

import pytest

from folkmoot.brokers.replication.leader_state import LeaderState
from folkmoot.brokers.replication.replica_state import PersistEpoch, ReplicaState
from folkmoot.brokers.storage.leader_epochs import EpochStarts
from folkmoot.coordination.partition_states import (
    NOBODY,
    PartitionState,
    StateWrite,
    Superseded,
    VersionedState,
)


def a_state(
    leader: int,
    epoch: int,
    *isr: int,
    version: int = 10,
    active: bool = False,
    unclean: int = 0,
    reassigned: int = 0,
) -> VersionedState:
    state = PartitionState(
        *(leader, epoch, isr or (1, 2, 3), 1),
        active=active,
        unclean_epoch=unclean,
        reassigned=reassigned,
    )
    return VersionedState(state, version)


def led(leader: int, epoch: int, *isr: int, version: int = 10) -> VersionedState:
    return a_state(leader, epoch, *isr, version=version, active=True)


def lead(found: VersionedState) -> LeaderState:
    return LeaderState(
        *(found.state.leader, found, (1, 2, 3), EpochStarts()),
        log_end=0,
        high_watermark=0,
        deleted_before=0,
        min_in_sync=2,
        max_lag=10.0,
        now=0.0,
    )


def follows(replica: ReplicaState) -> tuple[int, int] | None:
    """The leader and the leader epoch that it follows."""
    follower = replica.follower
    return None if follower is None else (follower.leader, follower.epoch)


def leads(replica: ReplicaState) -> bool:
    return replica.leader is not None


def a_leader() -> ReplicaState:
    """Broker 1, which leads epoch 5 since partition epoch 11."""
    replica = ReplicaState(1, 5, {1, 2, 3}, {1, 2, 3})
    step = replica.observe(a_state(1, 4))
    assert isinstance(step, StateWrite)
    assert replica.finish_activation(VersionedState(step.state, 11), lead) is None
    assert leads(replica)
    return replica


# -- activation -----------------------------------------------------------------------------------------


def test_who_is_designated_has_the_next_epoch_on_disk_before_it_writes_that_it_leads() -> None:
    replica = ReplicaState(1, 4, {1, 2, 3}, {1, 2, 3})
    found = a_state(1, 4)
    assert replica.observe(found) == PersistEpoch(5)
    assert replica.observe(found) is None, "one step at a time"
    assert replica.confirm_epoch(5) == StateWrite(led(1, 5).state, 10)
    assert not leads(replica)
    assert replica.finish_activation(led(1, 5, version=11), lead) is None
    assert replica.leader is not None
    assert replica.leader.known.partition_epoch == 11


def test_an_activation_takes_brokers_that_are_not_registered_out_of_the_isr() -> None:
    replica = ReplicaState(1, 5, {1, 2, 3, 4}, {2, 4})
    step = replica.observe(a_state(1, 4, 3, 2, 1))
    assert step == StateWrite(led(1, 5, 2, 1).state, 10), "whether it stays itself or not"


@pytest.mark.parametrize("active", [False, True])
def test_who_is_designated_and_not_in_sync_does_not_lead(active: bool) -> None:
    replica = ReplicaState(1, 4, {1, 2, 3}, {1, 2, 3})
    assert replica.observe(a_state(1, 4, 2, 3, active=active)) is None
    assert replica.confirm_epoch(5) is None
    replica.may_lead_alone = True
    assert replica.observe(a_state(1, 4, 2, version=11, unclean=6, active=active)) is None


def test_who_is_designated_leaves_the_epoch_that_it_follows_at_once() -> None:
    replica = ReplicaState(1, 4, {1, 2, 3}, {1, 2, 3})
    replica.observe(led(2, 4))
    assert follows(replica) == (2, 4)
    assert replica.observe(a_state(1, 4, version=11)) == PersistEpoch(5)
    assert follows(replica) is None


def test_who_was_the_leader_before_it_was_started_anew_begins_another_epoch() -> None:
    replica = ReplicaState(1, 5, {1, 2, 3}, {1, 2, 3})
    assert replica.observe(led(1, 5)) == PersistEpoch(6)


def test_an_activation_that_was_refused_is_no_activation() -> None:
    replica = ReplicaState(1, 5, {1, 2, 3}, {1, 2, 3})
    assert isinstance(replica.observe(a_state(1, 4)), StateWrite)
    assert replica.finish_activation(Superseded(led(2, 5, version=12)), lead) is None
    assert not leads(replica)
    assert follows(replica) == (2, 5)


def test_an_activation_that_a_zookeeper_that_was_set_back_refuses_goes_on_from_what_it_has() -> (
    None
):
    """What was found there is no old read."""
    for found, step in (
        (a_state(1, 3, version=7), None),
        (led(2, 4, version=7), None),
        (a_state(1, 4, version=7), StateWrite(led(1, 5).state, 7)),
    ):
        replica = ReplicaState(1, 5, {1, 2, 3}, {1, 2, 3})
        assert isinstance(replica.observe(a_state(1, 4)), StateWrite)
        assert replica.finish_activation(Superseded(found), lead) == step
        assert not leads(replica)


def test_an_activation_whose_outcome_is_not_known_is_none_before_the_state_was_read_again() -> None:
    replica = ReplicaState(1, 5, {1, 2, 3}, {1, 2, 3})
    assert isinstance(replica.observe(a_state(1, 4)), StateWrite)
    assert replica.finish_activation(None, lead) is None
    assert (replica.leader, replica.known) == (None, None)
    assert replica.observe(led(1, 5, version=11)) == PersistEpoch(6), "it was written"


def test_an_activation_that_found_another_leader_written_is_none() -> None:
    """A write of ours that says that somebody else is to lead has the same kind of answer."""
    replica = ReplicaState(1, 5, {1, 2, 3}, {1, 2, 3})
    replica.may_lead = False
    step = replica.observe(a_state(1, 4))
    assert isinstance(step, StateWrite)
    assert step.state == a_state(NOBODY, 4, 2, 3).state
    assert replica.finish_activation(VersionedState(step.state, 11), lead) is None
    assert not leads(replica)


def test_a_designation_that_is_read_late_is_not_acted_on() -> None:
    """The epoch that it would begin was left since."""
    replica = ReplicaState(1, 6, {1, 2, 3}, {1, 2, 3})
    assert replica.observe(a_state(1, 4)) is None
    assert replica.observe(a_state(1, 5, version=11)) == StateWrite(led(1, 6).state, 11), (
        "nobody else has begun that one"
    )


# -- epochs ---------------------------------------------------------------------------------------------


def test_a_follower_has_an_epoch_on_disk_before_it_follows_in_it() -> None:
    replica = ReplicaState(1, 3, {1, 2, 3}, {1, 2, 3})
    assert replica.observe(led(2, 4)) == PersistEpoch(4)
    assert follows(replica) is None
    assert replica.confirm_epoch(4) is None
    assert follows(replica) == (2, 4)


def test_nobody_follows_in_an_epoch_below_the_one_on_its_disk() -> None:
    replica = ReplicaState(1, 5, {1, 2, 3}, {1, 2, 3})
    assert replica.observe(led(2, 4)) is None
    assert follows(replica) is None


def test_an_epoch_that_gets_on_disk_late_does_not_bring_back_a_lower_one() -> None:
    replica = ReplicaState(1, 5, {1, 2, 3}, {1, 2, 3})
    assert replica.confirm_epoch(4) is None
    assert replica.epoch == 5
    assert replica.observe(led(2, 4)) is None
    assert follows(replica) is None


def test_an_epoch_that_could_not_be_noted_is_not_followed_and_tried_again() -> None:
    replica = ReplicaState(1, 3, {1, 2, 3}, {1, 2, 3})
    assert replica.observe(led(2, 4)) == PersistEpoch(4)
    replica.fail_step()
    assert follows(replica) is None
    assert replica.observe(led(2, 4)) == PersistEpoch(4)


def test_what_was_read_earlier_does_not_count_when_it_comes_later() -> None:
    replica = ReplicaState(3, 5, {1, 2, 3}, {1, 2, 3})
    replica.observe(led(2, 5, version=20))
    assert follows(replica) == (2, 5)
    assert replica.observe(a_state(3, 4, version=19)) is None
    assert replica.known == led(2, 5, version=20)
    assert follows(replica) == (2, 5)


def test_a_follower_goes_on_while_nobody_else_leads_and_leaves_for_the_next_epoch() -> None:
    replica = ReplicaState(3, 5, {1, 2, 3}, {1, 2, 3})
    replica.observe(led(2, 5))
    follower = replica.follower
    replica.observe(led(2, 5, 2, 3, version=11))
    assert replica.follower is follower, "what the leader knows of it stays"
    assert replica.observe(a_state(1, 5, version=12)) is None
    assert follows(replica) == (2, 5)
    assert replica.observe(led(1, 6, version=13)) == PersistEpoch(6)
    assert follows(replica) is None
    replica.confirm_epoch(6)
    assert follows(replica) == (1, 6)


def test_a_replica_whose_state_is_gone_is_nothing() -> None:
    replica = ReplicaState(3, 5, {1, 2, 3}, {1, 2, 3})
    replica.observe(led(2, 5))
    assert replica.observe(None) is None
    assert (follows(replica), replica.known) == (None, None)
    leader = a_leader()
    assert leader.observe(None) is None
    assert not leads(leader)


def test_who_has_not_read_of_the_end_of_a_reassignment_does_not_follow_behind_it() -> None:
    replica = ReplicaState(3, 5, {1, 2, 3}, {1, 2, 3})
    behind = a_state(2, 5, active=True, reassigned=2)
    replica.reassigned = 1
    assert replica.observe(behind) is None
    assert follows(replica) is None
    replica.reassigned = 2
    assert replica.observe(behind) is None
    assert follows(replica) == (2, 5)


# -- leaders --------------------------------------------------------------------------------------------


def test_a_leader_resigns_when_it_reads_of_another_and_follows_that_one() -> None:
    replica = a_leader()
    assert replica.observe(led(1, 5, 1, 2, version=12)) is None
    assert leads(replica)
    assert replica.observe(a_state(2, 5, version=13)) is None
    assert not leads(replica)
    assert follows(replica) is None
    assert replica.observe(led(2, 6, version=14)) == PersistEpoch(6)


def test_a_leader_that_is_to_lead_again_begins_another_epoch() -> None:
    replica = a_leader()
    assert replica.observe(a_state(1, 5, version=12)) == PersistEpoch(6)
    assert not leads(replica)


# -- disks that have lost something ---------------------------------------------------------------------


def test_who_may_lack_what_it_has_acked_has_another_lead_and_leaves_the_isr() -> None:
    for active in (True, False):
        replica = ReplicaState(1, 5, {1, 2, 3}, {1, 2, 3})
        replica.may_lead = False
        step = replica.observe(a_state(1, 5, active=active))
        assert step == StateWrite(a_state(NOBODY, 5, 2, 3).state, 10)


def test_who_may_lack_something_and_is_alone_in_sync_says_once_that_nobody_leads() -> None:
    replica = ReplicaState(1, 5, {1, 2, 3}, {1, 2, 3})
    replica.may_lead = False
    step = replica.observe(a_state(1, 5, 1, active=True))
    assert step == StateWrite(a_state(1, 5, 1).state, 10)
    assert replica.finish_activation(a_state(1, 5, 1, version=11), lead) is None
    assert not leads(replica)
    assert replica.observe(a_state(1, 5, 1, version=11)) is None


@pytest.mark.parametrize(
    ("isr", "registered", "active", "leads"),
    [
        ((1,), {1, 2, 3}, False, True),
        ((1,), {1, 2, 3}, True, True),
        ((1, 2), {1, 3}, False, True),
        ((1, 2), {1, 2}, False, False),  # it is about to stop, and has everything
        ((1, 2), {1, 3}, True, False),  # nobody was elected: it may have everything, and come back
    ],
)
def test_who_has_lost_its_page_cache_leads_only_where_no_other_of_the_isr_is_registered(
    isr: tuple[int, ...], registered: set[int], active: bool, leads: bool
) -> None:
    replica = ReplicaState(1, 6, registered, {1})
    replica.may_lead, replica.may_lead_alone = False, True
    step = replica.observe(a_state(1, 5, *isr, active=active))
    assert isinstance(step, StateWrite | PersistEpoch)
    if isinstance(step, PersistEpoch):
        step = replica.confirm_epoch(step.epoch)
        assert isinstance(step, StateWrite)
    assert (step.state.active, step.state.isr) == (leads, (1,) if leads else (2,))


def test_who_lacks_something_leaves_the_isr_to_those_that_are_not_back_yet() -> None:
    """After a power cut the only ones that have everything may come last."""
    replica = ReplicaState(1, 5, {1}, {1})
    replica.may_lead = False
    step = replica.observe(a_state(1, 5))
    assert step == StateWrite(a_state(NOBODY, 5, 2, 3).state, 10)


@pytest.mark.parametrize(("unclean", "leads"), [(4, False), (5, False), (6, True)])
def test_an_unclean_election_has_who_is_alone_lead_once_whatever_it_lacks(
    unclean: int, leads: bool
) -> None:
    replica = ReplicaState(1, 6, {1, 2, 3}, {1, 2, 3})
    replica.may_lead = False
    step = replica.observe(a_state(1, 5, 1, unclean=unclean))
    assert isinstance(step, StateWrite) is leads
    replica = ReplicaState(1, 6, {1, 2, 3}, {1, 2, 3})
    replica.may_lead = False
    step = replica.observe(a_state(1, 5, unclean=unclean))
    assert isinstance(step, StateWrite)
    assert not step.state.active, "others are in sync"


def test_who_is_out_of_the_isr_may_lead_when_it_is_in_there_again() -> None:
    replica = ReplicaState(1, 5, {1, 2, 3}, {1, 2, 3})
    replica.may_lead = False
    may_lead = []
    for isr, version in (((1, 2, 3), 10), ((2, 3), 11), ((1, 2, 3), 12)):
        replica.observe(led(2, 5, *isr, version=version))
        may_lead.append(replica.may_lead)
    assert may_lead == [False, True, True], "who is out comes back by a leader that has seen it all"
    assert replica.observe(a_state(1, 5, version=13)) == PersistEpoch(6)
