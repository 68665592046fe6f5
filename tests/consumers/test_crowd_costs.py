"""What a large group costs ZooKeeper."""

from collections import Counter

import pytest

from tests.consumers.crowd import Crowd

MEMBERS = 100


@pytest.fixture(scope="module")
def hundred() -> Crowd:
    """A hundred members that came at once, on a thousand partitions."""
    crowd = Crowd()
    crowd.topic("a", 500)
    crowd.topic("b", 500)
    for _ in range(MEMBERS):
        crowd.add("a", "b")
    took = crowd.settle()
    assert took < 5.0
    assert crowd.plans_written <= 3
    print(f"cold start: {dict(crowd.operations)}")
    # Each reads who is there once, not at each of the others' joining; what it claims, together.
    assert crowd.operations["Children"] <= 3 * MEMBERS
    assert crowd.operations["Multi"] <= 3 * MEMBERS
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
    assert total(hundred.operations) / MEMBERS <= 3


def test_a_topic_that_nobody_wants_is_looked_at_by_one_member(hundred: Crowd) -> None:
    hundred.pass_time(1.0)
    hundred.operations.clear()
    hundred.topic("unwanted", 5)
    hundred.pass_time(0.3)
    assert total(hundred.operations) <= 2 * 0.5 * MEMBERS * 0.3  # signs of life, about half as many


def test_a_member_at_rest_reads_at_most_once_in_two_seconds(hundred: Crowd) -> None:
    hundred.pass_time(2.0)
    hundred.operations.clear()
    hundred.pass_time(60.0)
    per_second = total(hundred.operations) / len(list(hundred.awake)) / 60
    print(f"{per_second:.2f} per member and second, {dict(hundred.operations)}")
    assert per_second <= 0.51  # the eldest reads topics, too
