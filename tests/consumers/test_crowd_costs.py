"""What a large group costs ZooKeeper."""

from collections import Counter

import pytest

from tests.consumers.crowd import Crowd


@pytest.fixture(scope="module")
def hundred() -> Crowd:
    """A hundred members that came at once, on a thousand partitions."""
    crowd = Crowd()
    crowd.topic("a", 500)
    crowd.topic("b", 500)
    for _ in range(100):
        crowd.add("a", "b")
    took = crowd.settle()
    assert took < 5.0
    assert crowd.plans_written <= 3
    return crowd


def total(counted: Counter[str]) -> float:
    return sum(counted.values())


def test_a_hundred_members_start_cold_in_few_plans(hundred: Crowd) -> None:
    assert {len(person.held) for person in hundred.awake} == {10}


def test_one_of_a_hundred_that_leaves_costs_each_a_few_operations(hundred: Crowd) -> None:
    """The oldest leaves, the worst case: the next one has published nothing that it has read yet."""
    hundred.pass_time(0.5)
    first = next(iter(hundred.awake))
    others = [person for person in hundred.awake if person is not first]
    kept = {person.member.name: person.partitions for person in others}
    hundred.operations.clear()
    hundred.plans_written = 0
    first.leave()
    hundred.pass_time(0.1)
    took = 0.1 + hundred.settle(2.0)
    assert hundred.plans_written == 1
    moved = sum(len(person.partitions - kept[person.member.name]) for person in others)
    assert moved == 10
    assert all(kept[person.member.name] <= person.partitions for person in others)
    print(
        f"{took:.2f} s, {dict(hundred.operations)}: {total(hundred.operations) / 100:.1f} per member"
    )
    assert total(hundred.operations) / 100 <= 15
