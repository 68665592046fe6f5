"""A group's plan: one wins, nobody plans on old facts, and what is no plan is replaced."""

import secrets
from contextlib import suppress

import pytest

from folkmoot.coordination import paths, topics
from folkmoot.coordination.groups import group_deletion, planning
from folkmoot.coordination.groups import membership as members
from folkmoot.coordination.groups.membership import MemberInfo
from folkmoot.coordination.groups.plan import Plan, TopicBasis, encode
from folkmoot.coordination.groups.planning import GroupSnapshot, VersionedPlan
from folkmoot.coordination.zookeeper.execute import execute
from folkmoot.coordination.zookeeper.operations import (
    Delete,
    Exists,
    Get,
    Multi,
    Recipe,
    Set,
    TooLarge,
)
from folkmoot.coordination.zookeeper.recipes import ensure
from folkmoot.coordination.zookeeper.session import Session
from tests.contracts.backends import Backend, wait_for_rings
from tests.coordination.groups import replace
from tests.coordination.steps import ENOUGH, Steps, going_on, step


@pytest.fixture
def session(backend: Backend) -> Session:
    """A session on a group with one member, which wants the topic t."""
    session = backend.open()
    execute(session, topics.create("t", 2, [1]))
    execute(session, members.join("g", "a", MemberInfo(("t",), "host", 2.0)))
    return session


def decide(current: Plan, snapshot: GroupSnapshot) -> Plan | None:
    """All to the oldest, if anything has changed."""
    basis = {
        name: TopicBasis(topic.topic_id, len(topic.partitions))
        for name, topic in snapshot.topics.items()
    }
    if (current.members, current.topics) == (tuple(snapshot.members), basis):
        return None
    oldest = next(iter(snapshot.members), None)
    assignment = {name: [oldest] * topic.partitions for name, topic in basis.items()}
    return Plan(
        current.generation + 1,
        tuple(snapshot.members),
        basis,
        assignment,
        subscriptions=snapshot.subscriptions,
    )


def make(session: Session, known: dict[str, MemberInfo] | None = None) -> Recipe[bool | TooLarge]:
    """The next plan, by the oldest member."""
    planner, *_ = execute(session, members.names("g"))
    return replace("g", planner, {} if known is None else known, decide)


def test_before_the_first_plan_there_is_an_empty_one(session: Session) -> None:
    found = execute(session, planning.get("g"))
    assert (found.plan, found.version) == (Plan(), 0)


def test_a_plan_is_made_for_the_live_members_and_the_topics_they_want(session: Session) -> None:
    execute(session, topics.create("unwanted", 1, [1]))
    assert execute(session, make(session))
    found = execute(session, planning.get("g"))
    (name,) = execute(session, members.names("g"))
    assert (found.version, found.plan.generation, found.plan.members) == (1, 1, (name,))
    assert found.plan.assignment == {"t": [name, name]}


def test_who_plans_for_a_topic_first_makes_room_for_its_claims(session: Session) -> None:
    """A thousand claims would otherwise each try, all at once."""
    assert execute(session, make(session))
    for path in (paths.offsets("g", "t"), paths.owners("g", "t")):
        assert execute(session, Exists(path)) is not None


def test_no_plan_is_written_while_none_is_due(session: Session) -> None:
    assert execute(session, make(session))
    assert not execute(session, make(session))
    assert execute(session, planning.get("g")).version == 1


def test_of_two_planners_one_wins(backend: Backend, session: Session) -> None:
    other = backend.open()
    recipe = make(session)
    operation = next(recipe)
    while not isinstance(operation, Multi):
        operation = step(other, recipe, operation)
    assert execute(session, make(session))
    assert not execute(other, going_on(recipe, operation))
    assert execute(session, planning.get("g")).plan.generation == 1


def test_who_is_no_member_any_more_plans_for_nobody(session: Session) -> None:
    """Versions of a group that was deleted and made anew meet again."""
    recipe = make(session)
    operation = next(recipe)
    while not isinstance(operation, Multi):
        operation = step(session, recipe, operation)
    (name,) = execute(session, members.names("g"))
    execute(session, members.remove("g", name))
    execute(session, group_deletion.delete("g"))
    execute(session, members.join("g", "b", MemberInfo(("t",), "host", 2.0)))
    assert execute(session, planning.get("g")).version == 0
    assert not execute(session, going_on(recipe, operation))
    found = execute(session, planning.get("g"))
    assert (found.plan, found.version) == (Plan(), 0)


def test_what_changes_while_a_plan_is_made_makes_the_next_one_due(session: Session) -> None:
    """The plan is read before its basis: either the basis is newer or the write fails."""
    recipe = make(session)
    operation = next(recipe)
    while not isinstance(operation, Multi):
        operation = step(session, recipe, operation)
    joined = execute(session, members.join("g", "b", MemberInfo(("t",), "host", 2.0)))
    assert execute(session, going_on(recipe, operation))
    assert joined not in execute(session, planning.get("g")).plan.members
    assert execute(session, make(session))
    assert joined in execute(session, planning.get("g")).plan.members


def test_what_members_have_published_is_read_once(session: Session) -> None:
    """Nor by the next planner, since the plan has it."""
    reads: list[str] = []

    def counted(known: dict[str, MemberInfo]) -> int:
        reads.clear()
        recipe = make(session, known)
        operation = next(recipe)
        with suppress(StopIteration):
            while True:
                if isinstance(operation, Get) and operation.path.startswith(paths.members("g")):
                    reads.append(operation.path)
                operation = step(session, recipe, operation)
        return len(reads)

    known: dict[str, MemberInfo] = {}
    assert counted(known) == 1
    assert counted(known) == 0
    assert counted({}) == 0
    execute(session, members.join("g", "b", MemberInfo(("u",), "host", 2.0)))
    assert counted({}) == 1
    recipe = make(session, known)
    for each in execute(session, members.names("g")):
        execute(session, members.remove("g", each))
    assert not execute(session, recipe)
    assert not known


def test_behind_an_instance_id_may_be_another_process_than_the_one_planned_for(
    session: Session,
) -> None:
    for nonce, topic in (("n1", "t"), ("n2", "u")):
        info = MemberInfo((topic,), "host", 2.0, rejoin_timeout=30.0)
        execute(session, members.join_as_static("g", "w", nonce, info, None))
        assert execute(session, make(session, {})) is (nonce == "n1")
    snapshot = execute(session, planning.read_snapshot("g", {}))
    assert snapshot is not None
    assert snapshot.members["w="].topics == ("u",)


def test_a_plan_tells_which_topics_its_members_want_whether_they_exist_or_not(
    session: Session,
) -> None:
    """So that only who is to plan has to look at topics."""
    info = MemberInfo(("later",), "host", 2.0, pattern="x-.*")
    execute(session, members.join("g", "b", info))
    assert execute(session, make(session))
    plan = execute(session, planning.get("g")).plan
    assert plan.topics.keys() == {"t"}
    assert plan.topics["t"].partitions == 2
    for name in ("later", "x-1", "other"):
        execute(session, topics.create(name, 1, [1]))
    subscriptions = plan.subscriptions.values()
    found = execute(session, planning.wanted_topics(subscriptions))
    assert found.keys() == {"t", "later", "x-1"}
    assert [found[name].partitions for name in sorted(found)] == [1, 2, 1]


def test_what_cannot_be_noted_keeps_no_plan_from_being_written(session: Session) -> None:
    execute(session, Delete(paths.events("g")))
    assert execute(session, make(session))
    assert execute(session, planning.get("g")).version == 1


def test_a_plan_that_does_not_fit_is_told_and_the_last_one_stands(session: Session) -> None:
    assert execute(session, make(session))
    names = tuple(secrets.token_hex(40) for _ in range(40_000))  # which nothing can compress

    def huge(current: Plan, _: GroupSnapshot) -> Plan:
        return Plan(current.generation + 1, names)

    planner, *_ = execute(session, members.names("g"))
    assert isinstance(execute(session, replace("g", planner, {}, huge)), TooLarge)
    assert execute(session, planning.get("g")).version == 1


def test_a_plan_rings_when_it_is_replaced(session: Session) -> None:
    rings: list[str] = []
    execute(session, planning.get("g", lambda: rings.append("plan")))
    execute(session, make(session))
    wait_for_rings(rings, "plan")


@pytest.mark.parametrize("executed", [False, True])
def test_whichever_reply_is_lost_a_plan_is_there_or_due(backend: Backend, executed: bool) -> None:
    session = backend.open()
    for lost in range(ENOUGH):
        group, steps = f"group-{lost}", Steps(session)
        name = execute(session, members.join(group, "a", MemberInfo((), "host", 2.0)))
        written = steps.run(replace(group, name, {}, decide), lost, executed=executed)
        found = execute(session, planning.get(group))
        assert found.version == found.plan.generation <= 1
        assert not written or found.version == 1
        execute(session, replace(group, name, {}, decide))
        assert execute(session, planning.get(group)).plan.members == (name,)
        if steps.taken <= lost:
            return
    pytest.fail("it does not end")


@pytest.mark.parametrize(
    "data",
    [
        b"\xff",
        b"7",
        b'{"protocol": 1, "generation": "x"}',
        encode(Plan(3, ("a",), {"t": TopicBasis("", 1)}, {"t": ["a"]})).replace(
            b'["a"]}', b'["b"]}'
        ),
        encode(Plan(3, ("a",), {"t": TopicBasis("", 2)}, {"t": ["a"]})),
        encode(Plan(3, ("a",), {}, {"t": ["a"]})),
        b"\x28\xb5\x2f\xfd" + bytes(30),
    ],
)
def test_what_is_no_plan_counts_as_none_and_is_replaced(session: Session, data: bytes) -> None:
    execute(session, Set(paths.plan("g"), data))
    found = execute(session, planning.get("g"))
    assert (found.plan, found.version) == (Plan(), 1)
    assert execute(session, make(session))
    assert execute(session, planning.get("g")).plan.generation == 1


def test_the_plan_of_a_group_that_was_deleted_has_no_version_and_is_made_room_for(
    session: Session,
) -> None:
    execute(session, Delete(paths.plan("g")))
    assert execute(session, planning.get("g")) == VersionedPlan(Plan(), -1)
    assert not execute(session, make(session))
    assert execute(session, make(session))


def test_the_plan_of_a_group_made_anew_is_another_though_versions_meet_again(
    session: Session,
) -> None:
    assert execute(session, make(session))
    before = execute(session, planning.get("g"))
    execute(session, Delete(paths.plan("g")))
    execute(session, ensure(paths.plan("g")))
    assert execute(session, make(session))
    after = execute(session, planning.get("g"))
    assert (after.plan, after.version) == (before.plan, before.version)
    assert after.identity > before.identity


def test_who_was_away_under_another_plan_is_not_expired_under_this_one(
    session: Session,
) -> None:
    """Not even if a group that was deleted had a plan of the same version."""
    asked: list[frozenset[str]] = []

    def note(_: Plan, snapshot: GroupSnapshot) -> None:
        asked.append(snapshot.expired)

    version = execute(session, planning.get("g")).identity
    others = (version[0] - 1, version[1]), (version[0], version[1] - 1), None
    (planner,) = execute(session, members.names("g"))
    for seen in (version, *others):
        assert not execute(session, replace("g", planner, {}, note, ("s1=",), seen))
    assert asked == [frozenset({"s1="}), *3 * [frozenset()]]
