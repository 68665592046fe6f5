"""A group's plan: one wins, nobody plans on old facts, and what is no plan is replaced."""

import pytest

from folkmoot.coordination import paths, topics
from folkmoot.coordination.groups import group_deletion, plan_format
from folkmoot.coordination.groups import membership as members
from folkmoot.coordination.groups import plan as plans
from folkmoot.coordination.groups.membership import MemberInfo
from folkmoot.coordination.groups.plan import Facts, Plan, TopicBasis, VersionedPlan
from folkmoot.coordination.zookeeper.operations import Delete, Exists, Multi, Set, TooLarge, Verb
from folkmoot.coordination.zookeeper.session import Store, ensure, perform, run
from tests.contracts.backends import Backend, wait_for_rings
from tests.coordination.steps import ENOUGH, Steps, going_on, step


@pytest.fixture
def store(backend: Backend) -> Store:
    """A session on a group with one member, which wants the topic t."""
    store = backend.open()
    run(store, topics.create("t", 2, [1]))
    run(store, members.join("g", "a", MemberInfo(("t",), "host", 2.0)))
    return store


def decide(current: Plan, facts: Facts) -> Plan | None:
    """All to the oldest, if anything has changed."""
    basis = {
        name: TopicBasis(topic.topic_id, len(topic.partitions))
        for name, topic in facts.topics.items()
    }
    if (current.members, current.topics) == (tuple(facts.members), basis):
        return None
    oldest = next(iter(facts.members), None)
    assignment = {name: [oldest] * topic.partitions for name, topic in basis.items()}
    return Plan(current.generation + 1, tuple(facts.members), basis, assignment)


def make(store: Store, known: dict[str, MemberInfo] | None = None) -> Verb[bool | TooLarge]:
    """The next plan, by the oldest member."""
    planner, *_ = run(store, members.names("g"))
    return plans.replace("g", planner, {} if known is None else known, decide)


def test_before_the_first_plan_there_is_an_empty_one(store: Store) -> None:
    found = run(store, plans.get("g"))
    assert (found.plan, found.version) == (Plan(), 0)


def test_a_plan_is_made_for_the_live_members_and_the_topics_they_want(store: Store) -> None:
    run(store, topics.create("unwanted", 1, [1]))
    assert run(store, make(store))
    found = run(store, plans.get("g"))
    (name,) = run(store, members.names("g"))
    assert (found.version, found.plan.generation, found.plan.members) == (1, 1, (name,))
    assert found.plan.assignment == {"t": [name, name]}


def test_who_plans_for_a_topic_first_makes_room_for_its_claims(store: Store) -> None:
    """A thousand claims would otherwise each try, all at once."""
    assert run(store, make(store))
    for path in (paths.offsets("g", "t"), paths.owners("g", "t")):
        assert perform(store, Exists(path)) is not None


def test_no_plan_is_written_while_none_is_due(store: Store) -> None:
    assert run(store, make(store))
    assert not run(store, make(store))
    assert run(store, plans.get("g")).version == 1


def test_of_two_planners_one_wins(backend: Backend, store: Store) -> None:
    other = backend.open()
    verb = make(store)
    operation = next(verb)
    while not isinstance(operation, Multi):
        operation = step(other, verb, operation)
    assert run(store, make(store))
    assert not run(other, going_on(verb, operation))
    assert run(store, plans.get("g")).plan.generation == 1


def test_who_is_no_member_any_more_plans_for_nobody(store: Store) -> None:
    """Versions of a group that was deleted and made anew meet again."""
    verb = make(store)
    operation = next(verb)
    while not isinstance(operation, Multi):
        operation = step(store, verb, operation)
    (name,) = run(store, members.names("g"))
    run(store, members.leave("g", name))
    run(store, group_deletion.delete("g"))
    run(store, members.join("g", "b", MemberInfo(("t",), "host", 2.0)))
    assert run(store, plans.get("g")).version == 0
    assert not run(store, going_on(verb, operation))
    found = run(store, plans.get("g"))
    assert (found.plan, found.version) == (Plan(), 0)


def test_what_changes_while_a_plan_is_made_makes_the_next_one_due(store: Store) -> None:
    """The plan is read before its basis: either the basis is newer or the write fails."""
    verb = make(store)
    operation = next(verb)
    while not isinstance(operation, Multi):
        operation = step(store, verb, operation)
    joined = run(store, members.join("g", "b", MemberInfo(("t",), "host", 2.0)))
    assert run(store, going_on(verb, operation))
    assert joined not in run(store, plans.get("g")).plan.members
    assert run(store, make(store))
    assert joined in run(store, plans.get("g")).plan.members


def test_what_members_have_published_is_read_once(store: Store) -> None:
    for path in (paths.offsets("g", "t"), paths.owners("g", "t")):
        run(store, ensure(path))
    known: dict[str, MemberInfo] = {}
    first = Steps(store)
    first.run(make(store, known))
    (name,) = known
    second = Steps(store)
    second.run(make(store, known))
    assert second.taken == first.taken - 4  # neither that read nor room for claims nor the write
    verb = make(store, known)
    run(store, members.leave("g", name))
    assert not run(store, verb)
    assert not known


def test_a_plan_rings_when_it_is_replaced(store: Store) -> None:
    rings: list[str] = []
    run(store, plans.get("g", lambda: rings.append("plan")))
    run(store, make(store))
    wait_for_rings(rings, "plan")


@pytest.mark.parametrize("executed", [False, True])
def test_whichever_reply_is_lost_a_plan_is_there_or_due(backend: Backend, executed: bool) -> None:
    store = backend.open()
    for lost in range(ENOUGH):
        group, steps = f"group-{lost}", Steps(store)
        name = run(store, members.join(group, "a", MemberInfo((), "host", 2.0)))
        written = steps.run(plans.replace(group, name, {}, decide), lost, executed=executed)
        found = run(store, plans.get(group))
        assert found.version == found.plan.generation <= 1
        assert not written or found.version == 1
        run(store, plans.replace(group, name, {}, decide))
        assert run(store, plans.get(group)).plan.members == (name,)
        if steps.taken <= lost:
            return
    pytest.fail("it does not end")


@pytest.mark.parametrize(
    "data",
    [
        b"\xff",
        b"7",
        b'{"protocol": 1, "generation": "x"}',
        plan_format.encode(Plan(3, ("a",), {"t": TopicBasis("", 1)}, {"t": ["a"]})).replace(
            b"[0]", b"[1]"
        ),
        b"\x28\xb5\x2f\xfd" + bytes(30),
    ],
)
def test_what_is_no_plan_counts_as_none_and_is_replaced(store: Store, data: bytes) -> None:
    perform(store, Set(paths.plan("g"), data))
    found = run(store, plans.get("g"))
    assert (found.plan, found.version) == (Plan(), 1)
    assert run(store, make(store))
    assert run(store, plans.get("g")).plan.generation == 1


def test_the_plan_of_a_group_that_was_deleted_has_no_version_and_is_made_room_for(
    store: Store,
) -> None:
    perform(store, Delete(paths.plan("g")))
    assert run(store, plans.get("g")) == VersionedPlan(Plan(), -1)
    assert not run(store, make(store))
    assert run(store, make(store))


def test_the_plan_of_a_group_made_anew_is_another_though_versions_meet_again(store: Store) -> None:
    assert run(store, make(store))
    before = run(store, plans.get("g"))
    perform(store, Delete(paths.plan("g")))
    run(store, ensure(paths.plan("g")))
    assert run(store, make(store))
    after = run(store, plans.get("g"))
    assert (after.plan, after.version) == (before.plan, before.version)
    assert after.identity > before.identity


def test_a_seat_that_was_empty_under_another_plan_is_not_expired_under_this_one(
    store: Store,
) -> None:
    """Not even if a group that was deleted had a plan of the same version."""
    asked: list[frozenset[str]] = []

    def note(_: Plan, facts: Facts) -> None:
        asked.append(facts.expired)

    version = run(store, plans.get("g")).identity
    others = (version[0] - 1, version[1]), (version[0], version[1] - 1), None
    (planner,) = run(store, members.names("g"))
    for seen in (version, *others):
        assert not run(store, plans.replace("g", planner, {}, note, ("s1=",), seen))
    assert asked == [frozenset({"s1="}), *3 * [frozenset()]]
