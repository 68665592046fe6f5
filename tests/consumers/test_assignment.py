"""The next plan: for whom and what it is made, and what it keeps of the last one."""

import msgspec

from folkmoot.consumers.assignors.next_plan import next_plan
from folkmoot.coordination.groups.membership import MemberInfo
from folkmoot.coordination.groups.plan import MOST_REMEMBERED, Plan, TopicBasis, decode, encode
from folkmoot.coordination.groups.planning import GroupSnapshot, VersionedPlan
from folkmoot.coordination.topics import TopicInfo
from folkmoot.protocol.records import TopicPartition


def plan_for(
    current: Plan, members: dict[str, MemberInfo], topics: dict[str, TopicInfo]
) -> Plan | None:
    return next_plan(GroupSnapshot(VersionedPlan(current, 1), members, topics))


def member(*topics: str) -> MemberInfo:
    return MemberInfo(topics, "host", 2.0)


def topic(topic_id: str, partitions: int) -> TopicInfo:
    return TopicInfo(topic_id, [[1]] * partitions)


def test_a_plan_says_for_whom_and_for_what_it_was_made() -> None:
    plan = plan_for(Plan(), {"m1": member("a"), "m0": member("a")}, {"a": topic("id", 3)})
    assert plan is not None
    assert (plan.generation, plan.members) == (1, ("m1", "m0"))
    assert plan.topics == {"a": TopicBasis("id", 3)}
    assert sorted(plan.assignment["a"], key=str) in (["m0", "m0", "m1"], ["m0", "m1", "m1"])


def test_no_plan_is_due_while_its_basis_stands() -> None:
    live, topics = {"m0": member("a")}, {"a": topic("id", 3)}
    plan = plan_for(Plan(), live, topics)
    assert plan is not None
    assert plan_for(plan, live, topics) is None
    second = plan_for(plan, live | {"m1": member()}, topics)
    assert second is not None
    assert second.generation == 2
    assert second.assignment == plan.assignment


def test_a_group_without_topics_or_without_members_has_a_plan_with_nothing_in_it() -> None:
    nothing = plan_for(Plan(), {"m0": member("a")}, {})
    assert nothing is not None
    assert nothing.assignment == {}
    nobody = plan_for(nothing, {}, {"a": topic("id", 2)})
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
    plan = plan_for(current, live, {"a": topic("new", 4), "b": topic("b", 2)})
    assert plan is not None
    assert plan.topics["a"].topic_id == "new"
    assert plan.assignment["b"] == ["m1", "m1"]
    assert plan.assignment["a"].count("m0") == 3


def following(current: Plan | None, members: dict[str, MemberInfo], **topics: TopicInfo) -> Plan:
    plan = plan_for(current or Plan(), members, topics)
    assert plan is not None
    return plan


def starts(plan: Plan, topic: str) -> list[int | None]:
    """Of each partition: 0 if it appeared after the group began, else None."""
    count = plan.topics[topic].partitions
    return [plan.start_of(TopicPartition(topic, number)) for number in range(count)]


def test_what_a_group_begins_with_is_started_by_a_policy_and_what_appears_later_is_not() -> None:
    live = {"m0": member("a", "b")}
    first = following(None, live, a=topic("id", 2))
    assert starts(first, "a") == [None, None]
    second = following(first, live, a=topic("id", 4), b=topic("b", 1))
    third = following(second, live, a=topic("id", 5), b=topic("b", 1))
    assert (starts(third, "a"), starts(third, "b")) == ([None, None, 0, 0, 0], [0])


def test_a_topic_that_is_made_anew_has_appeared_later() -> None:
    live = {"m0": member("a")}
    first = following(None, live, a=topic("id", 2))
    assert starts(following(first, live, a=topic("new", 2)), "a") == [0, 0]
    gone = following(first, live)
    assert starts(following(gone, live, a=topic("new", 2)), "a") == [0, 0]
    assert starts(following(gone, live, a=topic("id", 3)), "a") == [None, None, 0]


def test_a_topic_that_nobody_subscribed_to_before_has_no_past() -> None:
    first = following(None, {"m0": member("a")}, a=topic("a", 1))
    changed = following(first, {"m1": member("b")}, b=topic("b", 2))
    assert starts(changed, "b") == [None, None]


def test_what_a_group_was_subscribed_to_is_remembered_when_nobody_is_any_more() -> None:
    matching = MemberInfo((), "host", 2.0, pattern="a.*")
    first = following(None, {"m0": matching}, aa=topic("aa", 1))
    between = following(first, {"m1": member("b")}, b=topic("b", 1))
    later = following(between, {"m2": matching}, aa=topic("aa", 2), ab=topic("ab", 1))
    assert (starts(later, "aa"), starts(later, "ab")) == ([None, 0], [0])


def test_a_group_without_members_has_its_past() -> None:
    first = following(None, {"m0": member("a")}, a=topic("a", 1))
    assert starts(following(first, {"m1": member("a")}, a=topic("a", 2)), "a") == [None, 0]


def test_a_plan_of_a_newer_kind_says_what_the_group_began_with() -> None:
    live = {"m0": member("a", "b")}
    newer = msgspec.structs.replace(following(None, live, a=topic("a", 1)), protocol=9)
    plan = following(decode(encode(newer)), live, a=topic("a", 2), b=topic("b", 1))
    assert (starts(plan, "a"), starts(plan, "b")) == ([None, 0], [0])


def test_no_more_is_remembered_than_a_plan_can_hold() -> None:
    names = [f"t{number}" for number in range(MOST_REMEMBERED + 10)]
    many = following(None, {"m0": member(*names)}, **{each: topic(each, 1) for each in names})
    assert len(many.initial_topics) == len(many.subscribed) == MOST_REMEMBERED + 10
    one = following(many, {"m1": member("a")}, a=topic("a", 1))
    assert len(one.initial_topics) == len(one.subscribed) == MOST_REMEMBERED + 1
    assert [*one.initial_topics][:2] == ["a", "t0"]


def test_partitions_that_were_added_go_to_who_has_least() -> None:
    live = {"m0": member("a"), "m1": member("a")}
    plan = plan_for(Plan(), live, {"a": topic("id", 2)})
    assert plan is not None
    more = plan_for(plan, live, {"a": topic("id", 6)})
    assert more is not None
    assert more.assignment["a"][:2] == plan.assignment["a"]
    assert more.assignment["a"].count("m0") == 3
