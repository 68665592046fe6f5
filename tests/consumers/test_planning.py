"""When a member plans, and for which seats nobody waits any more."""

from random import Random

from folkmoot.consumers.group.plan_schedule import Planning
from folkmoot.consumers.group.timing import Timing
from folkmoot.coordination.groups.membership import MemberInfo
from folkmoot.coordination.groups.plan import Plan, Standing, TopicBasis, VersionedPlan

ME = "me-0000000001"
SEAT = "s1="
GRACE = 2.0
TOPICS = {"t": TopicBasis("id-1", 2)}


def grace_is_over() -> Planning:
    """A member whose turn it is to plan: a seat was empty for longer than its grace."""
    plan = Plan(1, (ME, SEAT), TOPICS, {"t": [ME, SEAT]}, {SEAT: Standing(GRACE, 1)})
    planning = Planning(MemberInfo(("t",), "host", 1.0), Timing(), Random(1))
    planning.saw_plan(VersionedPlan(plan, 1, 40))
    planning.saw_members((ME,))
    planning.saw_topics(TOPICS)
    planning.consider(ME, 10.0)
    assert planning.begin(10.0 + GRACE - 0.1) is None
    planning.consider(ME, 10.0 + GRACE)
    return planning


def test_a_seat_that_was_empty_for_its_grace_is_planned_without() -> None:
    turn = grace_is_over().begin(20.0)
    assert turn is not None
    assert turn.expired == (SEAT,)
    assert turn.seen == (40, 1)


def test_a_seat_that_is_taken_again_as_the_turn_comes_is_not_planned_without() -> None:
    planning = grace_is_over()
    planning.saw_members((ME, f"{SEAT}n2-0000000005"))
    turn = planning.begin(20.0)
    assert turn is not None
    assert turn.expired == ()
