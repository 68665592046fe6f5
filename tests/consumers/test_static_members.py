"""Members with an instance id: what is kept for them, and for how long; who of two has the seat."""

import pytest

from folkmoot.consumers.group.events import Assigned, Lost, Revoking
from folkmoot.protocol.records import TopicPartition
from tests.consumers.crowd import Crowd, Person


@pytest.fixture
def crowd() -> Crowd:
    return Crowd()


def t(topic: str, *numbers: int) -> set[TopicPartition]:
    return {TopicPartition(topic, number) for number in numbers}


def sizes(*people: Person) -> list[int]:
    return sorted(len(person.held) for person in people)


def static(
    crowd: Crowd, instance_id: str, rejoin_timeout: float = 10.0, **settings: float
) -> Person:
    return crowd.add("a", instance_id=instance_id, rejoin_timeout=rejoin_timeout, **settings)


@pytest.mark.parametrize("how", ["dies", "leaves"])
def test_a_static_member_that_comes_back_in_time_finds_all_as_it_was(
    crowd: Crowd, how: str
) -> None:
    crowd.topic("a", 6)
    first, second = static(crowd, "w1"), static(crowd, "w2")
    crowd.settle()
    had, version = first.partitions, crowd.plan().generation
    first.die() if how == "dies" else first.leave()
    crowd.pass_time(5.0)
    assert crowd.plan().generation == version
    back = static(crowd, "w1")
    crowd.pass_time(1.0)
    assert back.partitions == had
    assert crowd.plan().generation == version
    assert second.count(Assigned) == 3
    assert second.count(Revoking) == 0


def test_a_static_member_that_stays_away_loses_its_share_after_its_rejoin_timeout(
    crowd: Crowd,
) -> None:
    crowd.topic("a", 6)
    first, second = static(crowd, "w1", rejoin_timeout=4.0), static(crowd, "w2")
    crowd.settle()
    first.die()
    crowd.pass_time(3.9)
    assert sizes(second) == [3]
    crowd.pass_time(0.5)
    assert sizes(second) == [6]
    assert crowd.plan().members == ("w2=",)


def test_while_one_is_waited_for_the_others_share_the_rest_and_it_gets_its_own_back(
    crowd: Crowd,
) -> None:
    crowd.topic("a", 6)
    first, second = static(crowd, "w1"), static(crowd, "w2")
    crowd.settle()
    had = first.partitions
    first.die()
    third = crowd.add("a")
    crowd.settle()
    assert sizes(second, third) == [1, 2]
    assert crowd.plan().static["w1="].absent
    back = static(crowd, "w1")
    crowd.pass_time(0.5)
    crowd.settle()
    assert sizes(back, second, third) == [2, 2, 2]
    assert back.partitions < had
    assert not crowd.plan().static["w1="].absent


def test_a_second_process_with_an_instance_id_fences_the_first_and_takes_all(
    crowd: Crowd,
) -> None:
    crowd.topic("a", 4)
    first = static(crowd, "w1")
    crowd.settle()
    version = crowd.plan().generation
    second = static(crowd, "w1")
    crowd.pass_time(1.0)
    assert first.replaced
    assert first.over
    assert not first.held
    assert first.count(Lost) == 4
    assert sizes(second) == [4]
    assert crowd.plan().generation == version
    assert {crowd.owner(each) for each in second.held} == {"w1="}
    crowd.pass_time(20.0)
    assert sizes(second) == [4]
    assert not second.replaced


def test_who_lost_its_session_while_another_took_its_seat_does_not_come_back(crowd: Crowd) -> None:
    crowd.topic("a", 4)
    first = static(crowd, "w1")
    crowd.settle()
    crowd.zookeeper.end_session(first.sessions[-1])  # and nobody has told it yet
    second = static(crowd, "w1")
    crowd.pass_time(1.0)
    crowd.zookeeper.expire(first.sessions[-1])
    first.sessions[-1].lost()
    crowd.pass_time(5.0)
    assert first.replaced
    assert sizes(second) == [4]
    assert not second.replaced


def test_a_static_member_that_comes_back_with_other_wishes_is_planned_for_anew(
    crowd: Crowd,
) -> None:
    crowd.topic("a", 4)
    crowd.topic("b", 4)
    first, second = crowd.add("a", instance_id="w1", rejoin_timeout=10.0), static(crowd, "w2")
    crowd.settle()
    first.die()
    crowd.pass_time(1.0)
    back = crowd.add("b", instance_id="w1", rejoin_timeout=10.0)
    crowd.settle()
    crowd.pass_time(1.0)
    assert back.partitions == t("b", 0, 1, 2, 3)
    assert second.partitions == t("a", 0, 1, 2, 3)
