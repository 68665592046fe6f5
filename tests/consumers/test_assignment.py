"""The next plan: for whom and what it is made, and what it keeps of the last one."""

from folkmoot.consumers.assignors.next_plan import next_plan
from folkmoot.coordination.groups.membership import MemberInfo
from folkmoot.coordination.groups.plan import Plan, TopicBasis
from folkmoot.coordination.groups.planning import GroupSnapshot, VersionedPlan
from folkmoot.coordination.topics import TopicInfo


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


def test_partitions_that_were_added_go_to_who_has_least() -> None:
    live = {"m0": member("a"), "m1": member("a")}
    plan = plan_for(Plan(), live, {"a": topic("id", 2)})
    assert plan is not None
    more = plan_for(plan, live, {"a": topic("id", 6)})
    assert more is not None
    assert more.assignment["a"][:2] == plan.assignment["a"]
    assert more.assignment["a"].count("m0") == 3
