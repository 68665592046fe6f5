"""When a member plans, and for which static members nobody waits any more."""

from random import Random

from folkmoot.consumers.group.group_view import GroupView
from folkmoot.consumers.group.liveness import Timing
from folkmoot.consumers.group.plan_schedule import PlanSchedule
from folkmoot.coordination.groups.membership import MemberInfo
from folkmoot.coordination.groups.plan import Plan, StaticMember, TopicBasis
from folkmoot.coordination.groups.planning import VersionedPlan

ME = "me-0000000001"
STATIC = "s1="
REJOIN_TIMEOUT = 2.0
TOPICS = {"t": TopicBasis("id-1", 2)}


def the_time_is_over() -> PlanSchedule:
    """A member whose turn it is to plan: a static member was away for longer than its rejoin timeout."""
    plan = Plan(
        1, (ME, STATIC), TOPICS, {"t": [ME, STATIC]}, {STATIC: StaticMember(REJOIN_TIMEOUT)}
    )
    schedule = PlanSchedule(GroupView(MemberInfo(("t",), "host", 1.0), ME), Timing(), Random(1))
    schedule.view.update_members((ME,))
    schedule.view.update_plan(VersionedPlan(plan, 1, 40))
    schedule.view.update_topics(TOPICS)
    schedule.consider(10.0)
    assert schedule.begin(10.0 + REJOIN_TIMEOUT - 0.1) is None
    schedule.consider(10.0 + REJOIN_TIMEOUT)
    return schedule


def test_a_static_member_that_was_away_for_its_rejoin_timeout_is_planned_without() -> None:
    turn = the_time_is_over().begin(20.0)
    assert turn is not None
    assert turn == (STATIC,)


def test_one_that_is_back_as_the_turn_comes_is_not_planned_without() -> None:
    schedule = the_time_is_over()
    schedule.view.update_members((ME, f"{STATIC}n2-0000000005"))
    turn = schedule.begin(20.0)
    assert turn is not None
    assert turn == ()


def test_who_becomes_the_eldest_waits_for_the_whole_time() -> None:
    """It has looked now and then only: who was away may have been back in between."""
    schedule = PlanSchedule(GroupView(MemberInfo(("t",), "host", 1.0), ME), Timing(), Random(1))
    older = "older-0000000000"
    plan = Plan(
        1, (older, ME, STATIC), TOPICS, {"t": [ME, STATIC]}, {STATIC: StaticMember(REJOIN_TIMEOUT)}
    )
    schedule.view.update_members((older, ME))
    schedule.view.update_plan(VersionedPlan(plan, 1, 40))
    schedule.view.update_members((older, ME))
    schedule.consider(10.0)
    schedule.view.update_members((ME,))
    schedule.consider(20.0)
    turn = schedule.begin(20.0 + REJOIN_TIMEOUT - 0.1)
    assert turn is not None
    assert turn == ()


OTHER = "other-0000000002"


def eldest(plan: Plan, version: int) -> PlanSchedule:
    schedule = PlanSchedule(GroupView(MemberInfo(("t",), "host", 1.0), ME), Timing(), Random(1))
    schedule.view.update_members((ME, OTHER))
    schedule.view.update_plan(VersionedPlan(plan, version, 40))
    schedule.view.update_topics(TOPICS)
    schedule.consider(10.0)
    return schedule


def test_who_has_written_a_plan_makes_no_other_before_it_has_read_that_one() -> None:
    """What it knows is older than its own plan: it would read the whole group for nothing."""
    schedule = eldest(Plan(1, (ME,), TOPICS, {"t": [ME, ME]}), 1)
    assert schedule.begin(20.0) is not None
    schedule.ended(True, 20.1)
    schedule.consider(20.1)
    assert schedule.begin(30.0) is None
    schedule.view.update_plan(
        VersionedPlan(Plan(2, (ME, OTHER), TOPICS, {"t": [ME, OTHER]}), 2, 40)
    )
    schedule.view.update_members((ME,))
    schedule.consider(30.1)
    assert schedule.begin(40.0) is not None, "one has left meanwhile"


def test_a_written_plan_that_was_read_before_the_answer_came_is_not_waited_for() -> None:
    schedule = eldest(Plan(1, (ME,), TOPICS, {"t": [ME, ME]}), 1)
    assert schedule.begin(20.0) is not None
    schedule.view.update_plan(
        VersionedPlan(Plan(2, (ME, OTHER), TOPICS, {"t": [ME, OTHER]}), 2, 40)
    )
    schedule.ended(True, 20.1)
    schedule.view.update_members((ME,))
    schedule.consider(20.2)
    assert schedule.begin(30.0) is not None


def test_who_has_tried_to_plan_in_vain_plans_at_once_when_the_next_member_goes() -> None:
    """One change is not put off as a crowd is, once all that came before is seen to be planned."""
    schedule = eldest(Plan(1, (ME,), TOPICS, {"t": [ME, ME]}), 1)
    assert schedule.begin(20.0) is not None
    schedule.view.update_plan(
        VersionedPlan(Plan(2, (ME, OTHER), TOPICS, {"t": [ME, OTHER]}), 2, 40)
    )
    schedule.ended(False, 20.1)
    schedule.consider(20.2)
    schedule.view.update_members((ME,))
    schedule.consider(30.0)
    assert schedule.begin(30.0) is not None


def test_who_comes_when_a_plan_is_due_already_is_waited_for_as_others_may_follow() -> None:
    schedule = eldest(Plan(1, (ME,), TOPICS, {"t": [ME, ME]}), 1)
    schedule.view.update_members((ME, OTHER, "third-0000000003"))
    schedule.consider(10.01)
    assert schedule.begin(10.01) is None
    assert schedule.begin(20.0) is not None
    schedule.ended(False, 20.1)
    schedule.view.update_members((ME, OTHER))
    schedule.consider(20.11)
    assert schedule.begin(20.11) is None, "it has not seen the plan that others may have made"
    assert schedule.begin(30.0) is not None


def test_as_long_as_a_crowd_keeps_coming_its_plan_is_put_off() -> None:
    schedule = eldest(Plan(1, (ME,), TOPICS, {"t": [ME, ME]}), 1)
    names, now = [ME, OTHER], 10.0
    for _ in range(40):
        names += [f"one-{len(names) + number:010}" for number in range(100)]
        schedule.view.update_members(tuple(names))
        schedule.consider(now)
        assert schedule.begin(now + 0.09) is None
        now += 0.1
    assert schedule.begin(now + 1.0) is not None


def test_what_was_read_of_topics_holds_until_a_plan_is_made_for_other_wishes() -> None:
    schedule = the_time_is_over()

    def see(version: int, *topics: str) -> None:
        info = MemberInfo(topics, "host", 1.0)
        plan = Plan(
            version, (ME,), TOPICS, {"t": [ME, ME]}, subscriptions={ME: info.subscription()}
        )
        schedule.view.update_plan(VersionedPlan(plan, version, 40))

    def known() -> object:
        return schedule.view.topics

    see(2, "t")
    schedule.view.update_topics(TOPICS)
    see(3, "t")
    assert known() == TOPICS, "the eldest does not read them again"
    see(4, "t", "u")
    assert known() is None
    see(5, "t", "u")
    assert known() is None


def test_a_younger_member_plans_when_the_plan_is_for_what_an_earlier_process_of_its_id_wanted() -> (
    None
):
    """The eldest sees the same static member, and cannot know that it wants something else."""
    before, info = (MemberInfo((topic,), "host", 1.0, rejoin_timeout=2.0) for topic in ("t", "u"))
    older, name = "older-0000000000", f"{STATIC}n2-0000000003"
    for wanted, plans in ((info, False), (before, True)):
        plan = Plan(
            1,
            (older, STATIC),
            TOPICS,
            {"t": [older, STATIC]},
            {STATIC: StaticMember(REJOIN_TIMEOUT)},
            subscriptions={STATIC: wanted.subscription()},
        )
        schedule = PlanSchedule(GroupView(info, name), Timing(), Random(1))
        schedule.view.update_members((older, name))
        schedule.view.update_plan(VersionedPlan(plan, 1, 40))
        schedule.consider(10.0)
        assert (schedule.begin(20.0) is not None) == plans
