"""Where replicas go: spread over brokers, over racks, and after a loss over those that are left."""

import random
from collections import Counter

import pytest

from folkmoot.coordination.brokers import Registration
from folkmoot.coordination.placement import move, place_replicas, racks_of
from folkmoot.protocol.errors import BrokerUnreachable, InvalidReplicationFactor
from tests.seeds import new_seed


def alone(*brokers: int) -> dict[int, str]:
    return dict.fromkeys(brokers, "")


def test_preferred_leaders_are_spread_as_evenly_as_can_be() -> None:
    for partitions in range(1, 30):
        for brokers in ((7,), (3, 1, 2), (10, 20, 30, 40)):
            placed = place_replicas("t", partitions, 1, alone(*brokers))
            counts = Counter(replicas[0] for replicas in placed)
            assert len(placed) == partitions
            assert max(counts.values()) - min(counts.values()) <= 1 or len(counts) < len(brokers)
            assert len(counts) == min(partitions, len(brokers))


def test_topics_of_one_partition_are_not_all_on_one_broker() -> None:
    counts = Counter(place_replicas(f"topic-{n}", 1, 1, alone(1, 2, 3))[0][0] for n in range(300))
    assert min(counts.values()) > 60


@pytest.mark.parametrize("replicas", [2, 3])
@pytest.mark.parametrize("brokers", [3, 4, 7])
def test_replicas_are_spread_as_evenly_and_so_are_the_leaderships_of_a_lost_broker(
    brokers: int, replicas: int
) -> None:
    placed = place_replicas("t", 60 * brokers, replicas, alone(*range(brokers)))
    held = Counter(broker for each in placed for broker in each)
    assert max(held.values()) - min(held.values()) <= 2
    for lost in range(brokers):
        successors = Counter(each[1] for each in placed if each[0] == lost)
        assert len(successors) == brokers - 1
        assert max(successors.values()) - min(successors.values()) <= 2, (lost, successors)


def test_replicas_of_a_partition_are_on_different_brokers_and_racks() -> None:
    chance = random.Random(new_seed())
    for _ in range(200):
        racks = {number: chance.choice("abcde") for number in range(chance.randint(1, 12))}
        replicas = chance.randint(1, min(5, len(racks)))
        placed = place_replicas(f"t{chance.random()}", chance.randint(1, 40), replicas, racks)
        for each in placed:
            assert len(set(each)) == replicas
            assert set(each) <= racks.keys()
            distinct = {racks[broker] for broker in each}
            assert len(distinct) == min(replicas, len(set(racks.values())))
        leaders = Counter(each[0] for each in placed)
        assert max(leaders.values()) - min(leaders.values()) <= 1 or len(leaders) < len(racks)


def test_racks_of_one_size_hold_as_much_each() -> None:
    racks = {1: "a", 2: "a", 3: "b", 4: "b", 5: "c", 6: "c"}
    placed = place_replicas("t", 60, 3, racks)
    held = Counter(broker for each in placed for broker in each)
    assert max(held.values()) - min(held.values()) <= 2


def test_brokers_of_one_host_are_one_rack_unless_racks_are_given() -> None:
    live = {
        1: Registration({"client": "host-a:1", "inside": "host-a:9"}, "n"),
        2: Registration({"client": "host-a:2"}, "n"),
        3: Registration({"client": "host-b:1"}, "n"),
        4: Registration({"client": "host-b:2"}, "n", rack="r4"),
        5: Registration({}, "n"),
    }
    assert racks_of(live) == {1: "host-a", 2: "host-a", 3: "host-b", 4: "r4", 5: ""}
    for each in place_replicas(
        "t", 30, 2, racks_of({number: live[number] for number in (1, 2, 3)})
    ):
        assert 3 in each


@pytest.mark.parametrize("replicas", [0, 3])
def test_more_replicas_than_live_brokers_are_refused(replicas: int) -> None:
    with pytest.raises(InvalidReplicationFactor, match=rf"{replicas} replicas .* brokers 1, 2 are"):
        place_replicas("t", 1, replicas, alone(1, 2))


def test_without_brokers_there_is_no_place() -> None:
    with pytest.raises(BrokerUnreachable, match="no broker is alive that could take topic t"):
        place_replicas("t", 1, 3, {})


def test_ten_thousand_partitions_are_placed_in_a_moment() -> None:
    placed = place_replicas("t", 10_000, 3, {number: f"r{number % 3}" for number in range(30)})
    assert len(placed) == 10_000


# -- moves ----------------------------------------------------------------------------------------------


def test_what_can_stay_stays_and_lists_get_longer_or_shorter_at_their_ends() -> None:
    current = {0: [1, 2], 1: [2, 3], 5: [3, 1]}
    assert move("t", current, alone(1, 2, 3)) == current
    assert move("t", current, alone(1, 2, 3), 1) == {0: [1], 1: [2], 5: [3]}
    longer = move("t", current, alone(1, 2, 3, 4), 3)
    assert all(longer[number][:2] == current[number] for number in current)
    assert all(len(set(each)) == 3 for each in longer.values())
    assert sum(4 in each for each in longer.values()) >= 2, "who has least gets most"


def test_who_is_lost_is_replaced_in_its_place_and_goes_first_if_there_are_to_be_fewer() -> None:
    assert move("t", {0: [1, 2]}, alone(2, 3)) == {0: [3, 2]}
    assert move("t", {0: [1, 2, 3]}, alone(1, 3), 2) == {0: [1, 3]}


def test_replacements_are_spread_and_go_to_other_racks() -> None:
    chance = random.Random(new_seed())
    for _ in range(100):
        racks = {number: chance.choice("abc") for number in range(6)}
        current = dict(enumerate(place_replicas(f"t{chance.random()}", 30, 2, racks)))
        lost = chance.randrange(6)
        left = {number: rack for number, rack in racks.items() if number != lost}
        moved = move("t", current, left)
        for number, target in moved.items():
            assert len(set(target)) == 2
            assert lost not in target
            if lost not in current[number]:
                assert target == current[number]
            elif len(set(left.values())) > 1:
                assert len({racks[each] for each in target}) == 2


def test_more_replicas_than_brokers_is_refused() -> None:
    with pytest.raises(InvalidReplicationFactor, match="brokers 1, 2 can hold them; use 1 to 2"):
        move("t", {0: [1, 2]}, alone(1, 2), 3)
    with pytest.raises(InvalidReplicationFactor, match="0 replicas of t-0"):
        move("t", {0: [1, 2]}, alone(1, 2), 0)
