"""Whole groups on a ZooKeeper in memory: who gets what, what moves, and what it costs."""

import pytest

from folkmoot.consumers.assignors.assignor import AssignmentInput
from folkmoot.consumers.assignors.next_plan import DEFAULT, assignors_of
from folkmoot.consumers.group.events import Lost, Revoking
from folkmoot.coordination.groups import ownership, planning
from folkmoot.coordination.groups import plan as plans
from folkmoot.coordination.zookeeper import operations
from folkmoot.coordination.zookeeper.execute import execute
from folkmoot.protocol.records import TopicPartition
from tests.consumers.crowd import Crowd, Person

DEBOUNCE = 0.15
"""At most."""


@pytest.fixture
def crowd() -> Crowd:
    return Crowd()


def t(topic: str, *numbers: int) -> set[TopicPartition]:
    return {TopicPartition(topic, number) for number in numbers}


def sizes(*people: Person) -> list[int]:
    return sorted(len(person.held) for person in people)


# -- topics -------------------------------------------------------------------------------------------


def test_members_that_want_different_topics_share_what_several_want(crowd: Crowd) -> None:
    crowd.topic("a", 4)
    crowd.topic("b", 8)
    only_a, both, only_b = crowd.add("a"), crowd.add("a", "b"), crowd.add("b")
    crowd.settle()
    assert {each.topic for each in only_a.held} == {"a"}
    assert {each.topic for each in only_b.held} == {"b"}
    assert sizes(only_a, both, only_b) == [4, 4, 4]


def test_a_pattern_takes_in_topics_as_they_come_and_lets_them_go(crowd: Crowd) -> None:
    crowd.topic("orders-1", 2)
    crowd.topic("customers", 2)
    one = crowd.add(pattern="orders-[0-9]+")
    crowd.settle()
    assert one.partitions == t("orders-1", 0, 1)
    crowd.topic("orders-2", 1)
    crowd.topic("orders-2-old", 1)
    crowd.pass_time(4 * DEBOUNCE)
    assert one.partitions == t("orders-1", 0, 1) | t("orders-2", 0)
    execute(crowd.admin, _deleted("orders-1"))
    crowd.pass_time(4 * DEBOUNCE)
    assert one.partitions == t("orders-2", 0)
    assert one.count(Lost) == 0


def _deleted(name: str) -> operations.Recipe[None]:
    from folkmoot.coordination import topics

    return topics.delete(name)


def test_a_pattern_that_cannot_be_understood_by_the_planner_wants_nothing(crowd: Crowd) -> None:
    crowd.topic("a", 2)
    fine, broken = crowd.add("a"), crowd.add(pattern="(")
    crowd.settle()
    assert (fine.partitions, broken.partitions) == (t("a", 0, 1), set())


def test_partitions_that_are_added_are_shared_and_the_others_stay(crowd: Crowd) -> None:
    crowd.topic("a", 4)
    people = [crowd.add("a"), crowd.add("a")]
    crowd.settle()
    before = [each.partitions for each in people]
    crowd.grow("a", 7)
    crowd.pass_time(4 * DEBOUNCE)
    assert sizes(*people) == [3, 4]
    for person, had in zip(people, before, strict=True):
        assert had <= person.partitions
        assert person.count(Revoking) == 0


def test_offsets_of_a_topic_are_nothing_to_one_made_anew_under_its_name(crowd: Crowd) -> None:
    crowd.topic("a", 1)
    one = crowd.add("a")
    crowd.settle()
    (partition,) = one.held
    epoch = one.held[partition].epoch
    one.member.commit({partition: 50}, {partition: epoch})
    crowd.pass_time(0.1)
    old_id = one.held[partition].topic_id
    crowd.make_anew("a", 1)
    crowd.pass_time(4 * DEBOUNCE)
    assert (one.held[partition].offset, one.held[partition].epoch) == (0, epoch + 1)
    assert one.held[partition].topic_id != old_id
    state = execute(crowd.admin, ownership.committed("g", partition))
    assert state is not None
    assert (state.offset, state.topic_id) == (0, one.held[partition].topic_id)


def test_who_was_cut_off_while_its_topic_shrank_leaves_no_owner_behind(crowd: Crowd) -> None:
    """The partitions that are gone are nobody's: nobody would steal them."""
    crowd.topic("a", 4)
    one, other = crowd.add("a"), crowd.add("a")
    crowd.settle()
    crowd.zookeeper.suspend(one.sessions[-1])
    crowd.pass_time(5.0)
    assert (one.partitions, one.member.state.liveness.fenced) == (set(), True)
    crowd.make_anew("a", 1)
    crowd.pass_time(1.0)
    crowd.zookeeper.resume(one.sessions[-1])
    crowd.settle()
    assert other.count(Lost) == 0
    assert [number for number in range(4) if crowd.owner(TopicPartition("a", number))] == [0]


# -- assignors, racks ---------------------------------------------------------------------------------


def test_what_the_eldest_member_prefers_divides_and_the_others_say_that_they_wanted_something_else(
    crowd: Crowd, caplog: pytest.LogCaptureFixture
) -> None:
    crowd.topic("a", 6)
    eldest = crowd.add("a", assignors=assignors_of(["range", "round-robin"]))
    crowd.settle()
    younger = crowd.add("a", assignors=assignors_of(["round-robin"]))
    crowd.settle()
    assert crowd.plan().assignor == "range"
    assert (
        "group g uses assignor range, which the group leader prefers, not round-robin"
        in caplog.text
    )
    assert not eldest.member.state.alarms + younger.member.state.alarms
    eldest.leave()
    crowd.pass_time(4 * DEBOUNCE)
    assert crowd.plan().assignor == "round-robin"
    assert sizes(younger) == [6]


class Broken:
    """An assignor that raises or exits, gives partitions to an absent member, or leaves them out."""

    name = "broken"

    def __init__(self, owner: str | BaseException) -> None:
        self._owner = owner

    def assign(self, inputs: AssignmentInput) -> dict[TopicPartition, str]:
        if isinstance(self._owner, BaseException):
            raise self._owner
        return dict.fromkeys(inputs.partitions(), self._owner) if self._owner else {}


@pytest.mark.parametrize(
    "owner", [RuntimeError("this one never works"), SystemExit(1), "a stranger", ""]
)
def test_an_assignor_that_fails_ends_nobody_and_the_default_divides(
    crowd: Crowd, owner: str | BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    crowd.topic("a", 4)
    people = [crowd.add("a", assignors=(Broken(owner), DEFAULT)) for _ in range(2)]
    crowd.settle()
    assert sizes(*people) == [2, 2]
    assert crowd.plan().assignor == "sticky"
    assert "assignor broken has failed: sticky is used instead" in caplog.text
    assert people[1].member.state.alarms == (
        "assignor broken, which the group leader prefers, was not used",
    )


def test_with_racks_partitions_go_to_members_near_their_leaders(crowd: Crowd) -> None:
    from folkmoot.coordination import topics

    crowd.broker(1, "north")
    crowd.broker(2, "south")
    execute(crowd.admin, topics.create("a", 6, [1, 2]))
    info = execute(crowd.admin, topics.read("a"))
    assert info is not None
    people = {rack: crowd.add("a", rack=rack) for rack in ("south", "north")}
    crowd.settle()
    racks = {1: "north", 2: "south"}
    for rack, person in people.items():
        assert {racks[info.partitions[each.partition][0]] for each in person.held} == {rack}
        assert len(person.held) == 3


# -- kinds of plans -----------------------------------------------------------------------------------


def test_old_and_new_members_agree_on_a_plan_that_all_understand(crowd: Crowd) -> None:
    """A rolling upgrade and back: what an old member cannot read is never made while it is there."""
    crowd.topic("a", 4)
    new = crowd.add("a", protocol=2)
    crowd.settle()
    seen = execute(crowd.admin, planning.get("g", understands=1)).plan
    assert (seen.protocol, seen.generation, seen.assignment) == (2, 1, {})
    assert sizes(new) == [4]
    old = crowd.add("a", protocol=1)
    crowd.settle()
    assert crowd.plan().protocol == 1
    assert sizes(new, old) == [2, 2]
    assert new.count(Lost) == 0
    assert len([each for each in new.notices if isinstance(each, Revoking)]) == 2
    old.leave()
    crowd.pass_time(4 * DEBOUNCE)
    assert crowd.plan().protocol == 2
    assert sizes(new) == [4]


def test_old_members_plan_over_a_plan_they_do_not_understand_when_nobody_else_does(
    crowd: Crowd,
) -> None:
    crowd.topic("a", 2)
    new = crowd.add("a", protocol=2)
    crowd.settle()
    new.die()
    old = crowd.add("a", protocol=1)
    crowd.settle()
    assert (crowd.plan().protocol, crowd.plan().generation) == (1, 2)
    assert sizes(old) == [2]


def test_an_old_process_in_a_static_members_place_plans_over_what_it_does_not_understand(
    crowd: Crowd,
) -> None:
    """The eldest sees the same member as before, and no reason for another plan."""
    crowd.topic("a", 4)
    eldest = crowd.add("a", protocol=2)
    new = crowd.add("a", protocol=2, instance_id="s1", rejoin_timeout=30.0)
    crowd.settle()
    new.die()
    old = crowd.add("a", protocol=1, instance_id="s1", rejoin_timeout=30.0)
    assert crowd.plan().protocol == 2
    crowd.settle()
    assert crowd.plan().protocol == 1
    assert sizes(eldest, old) == [2, 2]


# -- an application that does not come back -----------------------------------------------------------


def test_an_application_that_stays_away_loses_its_partitions_and_gets_a_share_when_it_is_back(
    crowd: Crowd,
) -> None:
    crowd.topic("a", 4)
    sleepy = crowd.add("a", max_processing_time=5.0, revoke_timeout=1.0)
    other = crowd.add("a")
    crowd.settle()
    sleepy.dozing = True
    crowd.pass_time(4.8)
    assert sizes(other) == [2]
    crowd.pass_time(1.6)
    assert sizes(other) == [4]
    assert sleepy.member.name is None
    sleepy.dozing = False
    crowd.pass_time(1.0)
    assert sizes(sleepy, other) == [2, 2]
    assert sleepy.count(Lost) == 2


def test_an_application_that_comes_back_within_its_revoke_timeout_keeps_what_it_has(
    crowd: Crowd,
) -> None:
    crowd.topic("a", 4)
    sleepy = crowd.add("a", max_processing_time=5.0, revoke_timeout=1.0)
    other = crowd.add("a")
    crowd.settle()
    had, version = sleepy.partitions, crowd.plan().generation
    sleepy.dozing = True
    crowd.pass_time(5.5)
    sleepy.dozing = False
    crowd.pass_time(1.0)
    assert sleepy.partitions == had
    assert sizes(other) == [2]
    assert sleepy.count(Lost) == 0
    assert crowd.plan().generation == version


def test_a_dozing_application_costs_no_turns(crowd: Crowd) -> None:
    crowd.topic("a", 1)
    sleepy = crowd.add("a", max_processing_time=2.0, revoke_timeout=0.5)
    crowd.settle()
    sleepy.dozing = True
    crowd.pass_time(4.0)
    assert sleepy.due > crowd.now


def test_an_application_inside_a_batch_keeps_its_partitions_until_it_is_done(crowd: Crowd) -> None:
    crowd.topic("a", 4)
    busy = crowd.add("a", max_processing_time=60.0, revoke_timeout=1.0)
    crowd.settle()
    busy.dozing = True
    other = crowd.add("a")
    crowd.pass_time(50.0)
    assert (len(busy.partitions), len(other.partitions)) == (4, 0)
    busy.dozing = False
    crowd.pass_time(0.5)
    assert sizes(busy, other) == [2, 2]
    assert busy.count(Lost) == 0
    assert busy.member.state.owned.lost == 0


def test_once_an_application_is_done_with_its_batch_its_revoke_timeout_bounds_the_rest(
    crowd: Crowd,
) -> None:
    crowd.topic("a", 4)
    busy = crowd.add("a", max_processing_time=60.0, revoke_timeout=2.0)
    crowd.settle()
    busy.dozing = True
    other = crowd.add("a")
    crowd.pass_time(30.0)
    busy.dozing, busy.drains = False, False  # its on_revoke does not end
    crowd.pass_time(1.8)
    assert sizes(other) == [0]
    crowd.pass_time(1.0)
    assert sizes(other) == [2]
    assert busy.member.state.owned.lost == busy.count(Lost) == 2
    assert len(busy.member.state.owned) == 2


# -- revoke timeouts ----------------------------------------------------------------------------------


def test_each_owner_is_given_its_own_revoke_timeout_before_its_partition_is_stolen(
    crowd: Crowd,
) -> None:
    crowd.topic("a", 3)
    slow = crowd.add("a", revoke_timeout=4.0)
    crowd.settle()
    slow.drains = False
    other, another = crowd.add("a", revoke_timeout=0.2), crowd.add("a", revoke_timeout=0.2)
    crowd.pass_time(4.0)
    assert sizes(other, another) == [0, 0]
    crowd.pass_time(1.0)
    assert sizes(other, another) == [1, 1]
    assert slow.member.state.owned.lost == 2


# -- a plan that is too large -------------------------------------------------------------------------


def test_a_plan_that_does_not_fit_ends_nobody_and_the_last_one_stands(
    crowd: Crowd, monkeypatch: pytest.MonkeyPatch
) -> None:
    crowd.topic("a", 2)
    one = crowd.add("a")
    crowd.settle()
    monkeypatch.setattr(operations, "MAX_REQUEST_BYTES", 5_000)
    encode = plans.encode
    monkeypatch.setattr(plans, "encode", lambda plan: encode(plan) + b" " * 9_000)
    crowd.grow("a", 4)
    crowd.operations.clear()
    crowd.pass_time(3.0)
    assert one.partitions == t("a", 0, 1)
    assert one.member.error is None
    assert crowd.plans_written == 1
    monkeypatch.undo()
    crowd.pass_time(10.0)
    assert one.partitions == t("a", 0, 1, 2, 3)
