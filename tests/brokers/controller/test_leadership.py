"""What a controller decides, as pure as it is."""

from collections.abc import Iterable

import pytest

from folkmoot.brokers.controller import leadership as module
from folkmoot.brokers.controller.leadership import (
    REBALANCE_AT_ONCE,
    REBALANCE_PERIOD,
    SETTLED_AFTER,
    Decision,
    Leadership,
)
from folkmoot.coordination.partition_states import (
    MISSING,
    NOBODY,
    PartitionState,
    StateWrite,
    TopicIdPartition,
    VersionedState,
)
from folkmoot.coordination.topics import Reassignment, TopicInfo

EPOCH = 7
P0, P1 = TopicIdPartition("id", 0), TopicIdPartition("id", 1)


class Known:
    """A leadership, with what it was told and told to write."""

    def __init__(self, *replicas: list[int], alive: Iterable[int] = ()) -> None:
        self.leadership = Leadership(EPOCH)
        self.now = 1_000.0
        self.epochs: dict[int, int] = {}
        self.leadership.update_topics([TopicInfo("id", list(replicas))])
        self.alive(*alive)

    def alive(self, *brokers: int, leaving: Iterable[int] = ()) -> None:
        self.epochs = {broker: self.epochs.get(broker, 1) for broker in brokers}
        self.leadership.update_brokers(self.epochs, self.now, leaving)

    def state(self, partition: TopicIdPartition, state: PartitionState, version: int = 0) -> None:
        self.leadership.update_state(partition, VersionedState(state, version))

    def decide(self) -> Decision:
        return self.leadership.decide(self.now)

    def write(self) -> dict[TopicIdPartition, StateWrite]:
        """What it decides is written, and it is told so."""
        writes = self.decide().writes
        for partition, write in writes.items():
            self.state(partition, write.state, write.stands_on + 1)
        return writes


def led_by(leader: int, *isr: int, leader_epoch: int = 3) -> PartitionState:
    return PartitionState(leader, leader_epoch, isr, EPOCH - 1, active=True)


def test_a_new_partition_is_led_by_its_first_live_replica_which_is_alone_in_sync() -> None:
    known = Known([1, 2, 3], [2, 3, 1], alive=(2, 3))
    first = StateWrite(PartitionState(2, 0, (2,), EPOCH), MISSING)
    assert known.write() == {P0: first, P1: first}
    assert not known.write()


def test_a_partition_in_which_nothing_was_ever_appended_can_be_led_by_any_replica() -> None:
    known = Known([1, 2, 3], alive=(1, 2, 3))
    known.write()
    known.alive(3)
    assert known.write() == {P0: StateWrite(PartitionState(3, 0, (3,), EPOCH), 0)}
    known.state(P0, PartitionState(3, 1, (3,), EPOCH, active=True), 2)
    known.alive(1, 2)
    assert not known.write(), "something may have been appended since"


def test_a_new_partition_without_live_replicas_waits_for_the_first_of_any() -> None:
    known = Known([1, 2], alive=(9,))
    assert known.write() == {P0: StateWrite(PartitionState(1, 0, (1,), EPOCH), MISSING)}
    known.alive(2, 9)
    assert known.write() == {P0: StateWrite(PartitionState(2, 0, (2,), EPOCH), 0)}


def test_a_partition_of_nobody_is_led_by_nobody() -> None:
    known = Known([], alive=(1,))
    assert known.write()[P0].state == PartitionState(NOBODY, 0, (), EPOCH)
    assert not known.write()


@pytest.mark.parametrize(
    ("isr", "alive", "leader"),
    [((1, 2, 3), (2, 3), 2), ((1, 3, 2), (2, 3), 2), ((1, 3), (2, 3), 3), ((1, 2, 3), (3,), 3)],
)
def test_a_lost_leader_is_followed_by_the_first_replica_that_is_alive_and_in_sync(
    isr: tuple[int, ...], alive: tuple[int, ...], leader: int
) -> None:
    known = Known([1, 2, 3], alive=(1, 2, 3))
    known.state(P0, led_by(1, *isr), 5)
    assert not known.write()
    known.alive(*alive)
    assert known.write() == {P0: StateWrite(PartitionState(leader, 3, isr, EPOCH), 5)}


def test_without_a_live_replica_in_sync_nothing_is_written_until_one_comes_back() -> None:
    known = Known([1, 2, 3], alive=(1, 2, 3))
    known.state(P0, led_by(1, 1, 2), 5)
    known.alive(3)
    assert not known.write()
    known.alive(2, 3)
    assert known.write() == {P0: StateWrite(PartitionState(2, 3, (1, 2), EPOCH), 5)}


def test_the_leader_that_comes_back_first_keeps_its_partition() -> None:
    known = Known([1, 2], alive=(1, 2))
    known.state(P0, led_by(1, 1), 5)
    known.alive(2)
    assert not known.write()
    known.alive(1, 2)
    assert not known.write()


def test_a_lost_follower_stays_in_the_isr_until_the_leader_takes_it_out() -> None:
    known = Known([1, 2, 3], alive=(1, 2, 3))
    known.state(P0, led_by(1, 1, 2, 3))
    known.alive(1)
    assert not known.write()


def test_a_designated_broker_that_is_lost_before_it_activates_is_replaced() -> None:
    known = Known([1, 2, 3], alive=(1, 2, 3))
    known.state(P0, led_by(1, 1, 2, 3), 5)
    known.alive(2, 3)
    assert known.write()[P0].state.leader == 2
    known.alive(3)
    assert known.write() == {P0: StateWrite(PartitionState(3, 3, (1, 2, 3), EPOCH), 6)}


def test_whoever_is_in_the_isr_but_no_replica_is_not_elected() -> None:
    known = Known([1, 2], alive=(1, 2, 4))
    known.state(P0, led_by(1, 1, 4))
    known.alive(2, 4)
    assert not known.write()


def test_a_state_that_somebody_else_wrote_is_judged_anew() -> None:
    known = Known([1, 2, 3], alive=(2, 3))
    known.state(P0, led_by(1, 1, 2, 3), 5)
    assert known.decide().writes[P0].stands_on == 5
    known.state(P0, led_by(1, 1, 3), 6)
    assert known.decide().writes == {P0: StateWrite(PartitionState(3, 3, (1, 3), EPOCH), 6)}


def test_nothing_is_decided_about_an_illegible_state() -> None:
    known = Known([1, 2, 3], [1, 2, 3], alive=(2, 3))
    known.leadership.mark_malformed(P0)
    assert known.write().keys() == {P1}
    known.state(P0, led_by(1, 1, 2, 3))
    assert known.write().keys() == {P0}


def test_a_broker_that_is_to_stop_hands_over_what_others_can_lead() -> None:
    known = Known([1, 2, 3], [1, 2], alive=(1, 2, 3))
    known.state(P0, led_by(1, 1, 2, 3), 5)
    known.state(P1, led_by(1, 1), 5)
    known.alive(1, 2, 3, leaving=[1])
    assert known.write() == {P0: StateWrite(PartitionState(2, 3, (1, 2, 3), EPOCH), 5)}
    known.state(P1, led_by(1, 1, 2), 6)
    assert known.write() == {P1: StateWrite(PartitionState(2, 3, (1, 2), EPOCH), 6)}
    known.now += SETTLED_AFTER
    assert not known.write(), "nothing goes back to it"


def test_a_broker_that_is_to_stop_gets_a_new_partition_only_if_nobody_else_can_lead() -> None:
    known = Known([1, 2], [1], alive=())
    known.alive(1, 2, leaving=[1])
    written = known.write()
    assert written[P0].state == PartitionState(2, 0, (2,), EPOCH)
    assert written[P1].state == PartitionState(1, 0, (1,), EPOCH)


@pytest.mark.parametrize(("leader", "next_leader"), [(2, 2), (1, 3)])
def test_a_reassignment_ends_with_a_new_leader_epoch_whether_its_leader_stays_or_not(
    leader: int, next_leader: int
) -> None:
    known = Known([], alive=(1, 2, 3))
    move = Reassignment([1, 2], [3, 2])
    known.leadership.update_topics([TopicInfo("id", [move.replicas], {}, {0: move})])
    known.state(P0, led_by(leader, 1, 2), 5)
    assert not known.decide().endings
    known.state(P0, led_by(leader, 1, 2, 3), 6)
    ended = PartitionState(next_leader, 3, (3, 2), EPOCH)
    assert known.decide().endings == {P0: (move, StateWrite(ended, 6))}


# -- preferred leaders --------------------------------------------------------------------------------


def test_a_partition_goes_back_to_its_first_replica_once_that_is_settled_and_in_sync() -> None:
    known = Known([1, 2, 3], alive=(2, 3))
    known.state(P0, led_by(2, 2, 3), 5)
    assert known.decide().ask_again is None
    known.alive(1, 2, 3)
    assert not known.write(), "it has just come back"
    due = known.decide().ask_again
    assert due is not None
    assert due <= known.now + REBALANCE_PERIOD

    known.now += SETTLED_AFTER
    assert not known.write(), "it is not in sync"
    known.state(P0, led_by(2, 2, 3, 1), 6)
    known.now += REBALANCE_PERIOD
    assert known.write() == {P0: StateWrite(PartitionState(1, 3, (2, 3, 1), EPOCH), 6)}
    assert known.decide().ask_again is None


def test_a_broker_that_registers_again_settles_anew() -> None:
    known = Known([1, 2], alive=(1, 2))
    known.state(P0, led_by(2, 1, 2))
    known.now += SETTLED_AFTER
    known.epochs[1] = 2
    known.alive(1, 2)
    assert not known.write()
    known.now += SETTLED_AFTER
    assert known.write()[P0].state.leader == 1


def test_a_partition_that_is_being_elected_is_not_moved() -> None:
    known = Known([1, 2], alive=(1, 2))
    known.state(P0, PartitionState(2, 3, (1, 2), EPOCH))
    known.now += SETTLED_AFTER
    assert not known.write()
    known.state(P0, led_by(2, 1, 2))
    known.now += REBALANCE_PERIOD
    assert known.write()[P0].state.leader == 1


def test_a_bounded_number_of_partitions_goes_back_in_one_period(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "REBALANCE_AT_ONCE", 10)
    known = Known(*[[1, 2]] * 25, alive=(1, 2))
    for number in range(25):
        known.state(TopicIdPartition("id", number), led_by(2, 1, 2))
    known.now += SETTLED_AFTER
    moved = []
    for _ in range(4):
        moved.append(len(known.write()))
        assert not known.write(), "the period is not over"
        known.now += REBALANCE_PERIOD
    assert moved == [10, 10, 5, 0]
    assert REBALANCE_AT_ONCE > 10


def test_a_lost_leader_is_followed_at_once_whatever_is_being_moved() -> None:
    known = Known([1, 2], [3, 2], alive=(1, 2, 3))
    known.state(P0, led_by(2, 1, 2))
    known.state(P1, led_by(3, 2, 3))
    known.now += SETTLED_AFTER
    known.alive(1, 2)
    assert {each: write.state.leader for each, write in known.write().items()} == {P0: 1, P1: 2}


# -- topics -------------------------------------------------------------------------------------------


def test_added_partitions_get_states_and_the_others_stay() -> None:
    known = Known([1], alive=(1,))
    known.state(P0, led_by(1, 1))
    known.leadership.update_topics([TopicInfo("id", [[1], [1]])])
    assert known.write().keys() == {P1}
