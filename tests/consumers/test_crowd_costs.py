"""What a large group costs ZooKeeper."""

from collections import Counter

import pytest

from folkmoot.consumers.group.events import Lost, Revoking
from folkmoot.consumers.group.liveness import Timing
from folkmoot.coordination.groups.planning import NOTIFY_FROM
from tests.consumers.crowd import Crowd, Person

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


# -- a large group --------------------------------------------------------------------------------------

LARGE = NOTIFY_FROM + 30


@pytest.fixture
def large() -> Crowd:
    crowd = Crowd()
    crowd.topic("a", 2 * LARGE)
    for _ in range(LARGE):
        crowd.add("a")
    crowd.settle()
    crowd.pass_time(1.0)
    return crowd


def have_seen(crowd: Crowd) -> list[Person]:
    """Who has read the plan of the moment."""
    generation = crowd.plan().generation
    return [each for each in crowd.awake if each.member.generation == generation]


def until_replanned(crowd: Crowd) -> None:
    generation = crowd.plan().generation
    while crowd.plan().generation == generation:
        crowd.pass_time(0.001)


def test_in_a_large_group_a_plan_is_read_first_by_those_whose_share_it_changes(
    large: Crowd,
) -> None:
    """A thousand that read at once would keep the two that are to claim waiting for a second."""
    first, leaver = list(large.awake)[:2]
    leaver.leave()
    until_replanned(large)
    large.pass_time(0.02)
    assert large.is_settled(), "those who are to have the two partitions own them"
    seen = have_seen(large)
    assert first in seen, "the planner"
    assert 3 <= len(seen) < LARGE / 2
    large.pass_time(Timing().spread_limit)
    assert have_seen(large) == list(large.awake)
    assert sum(each.count(Lost) + each.count(Revoking) for each in large.awake) == 0


def test_in_a_large_group_those_that_give_up_for_a_new_member_are_told_too(large: Crowd) -> None:
    newcomer = large.add("a")
    until_replanned(large)
    large.pass_time(0.2)  # an application asks for records ten times a second
    assert large.is_settled()
    assert len(newcomer.held) == 1
    large.pass_time(Timing().spread_limit)
    assert have_seen(large) == list(large.awake)


def test_what_changes_the_shares_of_many_is_read_by_all_within_the_spread(large: Crowd) -> None:
    large.grow("a", 3 * LARGE)
    until_replanned(large)
    took = large.settle()
    assert took <= Timing().spread_limit + 0.5
    assert {len(each.held) for each in large.awake} == {3}


def test_first_claims_look_for_one_offset_and_then_make_all() -> None:
    crowd = Crowd()
    crowd.topic("a", 50)
    crowd.add("a")
    crowd.settle()
    assert crowd.operations["Get"] <= 50 + 50 + 15, "each offset once, each owner once"
