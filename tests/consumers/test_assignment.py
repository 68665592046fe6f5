"""The next plan: balanced, with the fewest moves possible, the same in every member."""

import random

from hypothesis import given, settings
from hypothesis import strategies as some

from folkmoot.consumers.assignment import next_plan, sticky
from folkmoot.coordination.members import MemberInfo
from folkmoot.coordination.plans import Plan, TopicBasis
from folkmoot.coordination.topics import TopicInfo
from folkmoot.protocol.records import TopicPartition

Owners = dict[TopicPartition, str]

MEMBERS = [f"m-{number:010d}" for number in range(8)]
sizes_of_topics = some.dictionaries(
    some.sampled_from(["a", "b", "c"]), some.integers(1, 12), min_size=1
)
members = some.lists(some.sampled_from(MEMBERS), min_size=1, unique=True)
owners = some.lists(some.sampled_from([*MEMBERS, "gone-0000000099", None]), max_size=36)


def partitions(sizes: dict[str, int]) -> list[TopicPartition]:
    return [
        TopicPartition(topic, number) for topic in sorted(sizes) for number in range(sizes[topic])
    ]


def loads(owned: Owners, of: list[str]) -> dict[str, int]:
    return {member: sum(owner == member for owner in owned.values()) for member in of}


def fewest_moves(before: dict[str, int], total: int) -> int:
    """So many must move at least for a balance within one: the fullest keep the larger shares."""
    share, larger = divmod(total, len(before))
    fullest_first = sorted(before.values(), reverse=True)
    kept = sum(min(load, share + (rank < larger)) for rank, load in enumerate(fullest_first))
    return sum(before.values()) - kept


@settings(deadline=None, max_examples=100)
@given(sizes_of_topics, members, owners)
def test_with_equal_wishes_all_is_balanced_within_one_by_the_fewest_moves(
    sizes: dict[str, int], live: list[str], held: list[str | None]
) -> None:
    everything = partitions(sizes)
    before = {p: owner for p, owner in zip(everything, held, strict=False) if owner is not None}
    after = sticky(sizes, dict.fromkeys(live, frozenset(sizes)), before)
    assert after.keys() == set(everything)
    counts = loads(after, live).values()
    assert max(counts) - min(counts) <= 1
    alive = {p: owner for p, owner in before.items() if owner in live}
    moves = sum(after[p] != owner for p, owner in alive.items())
    assert moves == fewest_moves(loads(alive, live), len(everything))


@settings(deadline=None, max_examples=100)
@given(sizes_of_topics, members, owners, some.data())
def test_with_different_wishes_nobody_gets_what_it_did_not_ask_for(
    sizes: dict[str, int], live: list[str], held: list[str | None], data: some.DataObject
) -> None:
    wishes = {each: frozenset(data.draw(some.sets(some.sampled_from("abcd")))) for each in live}
    everything = partitions(sizes)
    before = {p: owner for p, owner in zip(everything, held, strict=False) if owner is not None}
    after = sticky(sizes, wishes, before)
    wanted = {p for p in everything if any(p.topic in wish for wish in wishes.values())}
    assert after.keys() == wanted
    assert all(p.topic in wishes[owner] for p, owner in after.items())
    count = loads(after, live)
    for p, owner in after.items():
        for other in live:
            assert p.topic not in wishes[other] or count[owner] - count[other] < 2, (
                p,
                owner,
                other,
            )


@settings(deadline=None, max_examples=100)
@given(sizes_of_topics, members, owners, some.randoms(use_true_random=False))
def test_the_same_facts_give_the_same_plan_in_every_member(
    sizes: dict[str, int], live: list[str], held: list[str | None], chance: random.Random
) -> None:
    before = {
        p: owner for p, owner in zip(partitions(sizes), held, strict=False) if owner is not None
    }
    wishes = {each: frozenset(sizes) for each in live}
    shuffled = list(wishes.items()), list(before.items()), list(sizes.items())
    for items in shuffled:
        chance.shuffle(items)
    there = sticky(dict(shuffled[2]), dict(shuffled[0]), dict(shuffled[1]))
    assert there == sticky(sizes, wishes, before)


@settings(deadline=None, max_examples=100)
@given(sizes_of_topics, members, some.data())
def test_what_was_planned_once_stays(
    sizes: dict[str, int], live: list[str], data: some.DataObject
) -> None:
    wishes = {each: frozenset(data.draw(some.sets(some.sampled_from("abc")))) for each in live}
    planned = sticky(sizes, wishes, {})
    assert sticky(sizes, wishes, planned) == planned


def test_one_that_leaves_gives_to_all_others_and_one_that_joins_takes_from_all() -> None:
    sizes = {"t": 100}
    ten = {member: frozenset({"t"}) for member in (f"m{number}" for number in range(10))}
    planned = sticky(sizes, ten, {})
    nine = {member: wish for member, wish in ten.items() if member != "m3"}
    left = sticky(sizes, nine, planned)
    assert sum(left[p] != owner for p, owner in planned.items()) == 10
    joined = sticky(sizes, ten, left)
    assert sum(joined[p] != owner for p, owner in left.items()) == 10
    assert set(loads(joined, list(ten)).values()) == {10}


# -- plans --------------------------------------------------------------------------------------------


def member(*topics: str) -> MemberInfo:
    return MemberInfo(topics, "host", 2.0)


def topic(topic_id: str, partitions: int) -> TopicInfo:
    return TopicInfo(topic_id, [[1]] * partitions)


def test_a_plan_says_for_whom_and_for_what_it_was_made() -> None:
    plan = next_plan(Plan(), {"m1": member("a"), "m0": member("a")}, {"a": topic("id", 3)})
    assert plan is not None
    assert (plan.generation, plan.members) == (1, ("m1", "m0"))
    assert plan.topics == {"a": TopicBasis("id", 3)}
    assert sorted(plan.assignment["a"], key=str) in (["m0", "m0", "m1"], ["m0", "m1", "m1"])


def test_no_plan_is_due_while_its_basis_stands() -> None:
    live, topics = {"m0": member("a")}, {"a": topic("id", 3)}
    plan = next_plan(Plan(), live, topics)
    assert plan is not None
    assert next_plan(plan, live, topics) is None
    second = next_plan(plan, live | {"m1": member()}, topics)
    assert second is not None
    assert second.generation == 2
    assert second.assignment == plan.assignment


def test_a_group_without_topics_or_without_members_has_a_plan_with_nothing_in_it() -> None:
    nothing = next_plan(Plan(), {"m0": member("a")}, {})
    assert nothing is not None
    assert nothing.assignment == {}
    nobody = next_plan(nothing, {}, {"a": topic("id", 2)})
    assert nobody is not None
    assert nobody.assignment == {"a": [None, None]}


def test_a_topic_made_anew_owes_nothing_to_the_owners_of_the_old_one() -> None:
    live = {"m0": member("a", "b"), "m1": member("a", "b")}
    current = Plan(
        generation=4,
        members=tuple(live),
        topics={"a": TopicBasis("old", 2), "b": TopicBasis("b", 2)},
        assignment={"a": ["m0", "m0"], "b": ["m1", "m1"]},
    )
    plan = next_plan(current, live, {"a": topic("new", 4), "b": topic("b", 2)})
    assert plan is not None
    assert plan.topics["a"].topic_id == "new"
    assert plan.assignment["b"] == ["m1", "m1"]
    assert plan.assignment["a"].count("m0") == 3


def test_partitions_that_were_added_go_to_who_has_least() -> None:
    live = {"m0": member("a"), "m1": member("a")}
    plan = next_plan(Plan(), live, {"a": topic("id", 2)})
    assert plan is not None
    more = next_plan(plan, live, {"a": topic("id", 6)})
    assert more is not None
    assert more.assignment["a"][:2] == plan.assignment["a"]
    assert more.assignment["a"].count("m0") == 3
