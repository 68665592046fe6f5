"""When a member plans, and for which static members nobody waits any more."""

from random import Random

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
    schedule = PlanSchedule(MemberInfo(("t",), "host", 1.0), Timing(), Random(1))
    schedule.saw_members((ME,), ME)
    schedule.saw_plan(VersionedPlan(plan, 1, 40))
    schedule.saw_topics(TOPICS)
    schedule.consider(ME, 10.0)
    assert schedule.begin(10.0 + REJOIN_TIMEOUT - 0.1) is None
    schedule.consider(ME, 10.0 + REJOIN_TIMEOUT)
    return schedule


def test_a_static_member_that_was_away_for_its_rejoin_timeout_is_planned_without() -> None:
    turn = the_time_is_over().begin(20.0)
    assert turn is not None
    assert turn.expired == (STATIC,)
    assert turn.seen == (40, 1)


def test_one_that_is_back_as_the_turn_comes_is_not_planned_without() -> None:
    schedule = the_time_is_over()
    schedule.saw_members((ME, f"{STATIC}n2-0000000005"), ME)
    turn = schedule.begin(20.0)
    assert turn is not None
    assert turn.expired == ()


def test_who_becomes_the_eldest_waits_for_the_whole_time() -> None:
    """It has looked now and then only: who was away may have been back in between."""
    schedule = PlanSchedule(MemberInfo(("t",), "host", 1.0), Timing(), Random(1))
    older = "older-0000000000"
    plan = Plan(
        1, (older, ME, STATIC), TOPICS, {"t": [ME, STATIC]}, {STATIC: StaticMember(REJOIN_TIMEOUT)}
    )
    schedule.saw_members((older, ME), ME)
    schedule.saw_plan(VersionedPlan(plan, 1, 40))
    schedule.saw_members((older, ME), ME)
    schedule.consider(ME, 10.0)
    schedule.saw_members((ME,), ME)
    schedule.consider(ME, 20.0)
    turn = schedule.begin(20.0 + REJOIN_TIMEOUT - 0.1)
    assert turn is not None
    assert turn.expired == ()
