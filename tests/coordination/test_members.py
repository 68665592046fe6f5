"""Members of a group: a node each, an age each, and nobody who is none."""

from typing import Any

import msgspec
import pytest

from folkmoot.coordination import paths
from folkmoot.coordination.groups import membership as members
from folkmoot.coordination.groups.membership import MemberInfo, Superseded
from folkmoot.coordination.zookeeper.execute import execute
from folkmoot.coordination.zookeeper.operations import Create, Delete, Exists, Set
from folkmoot.coordination.zookeeper.recipes import children
from folkmoot.coordination.zookeeper.session import Session
from tests.contracts.backends import Backend, wait_for_rings
from tests.coordination.steps import ENOUGH, Steps, going_on, step

INFO = MemberInfo(("t", "u"), "host", 2.5)


@pytest.fixture
def session(backend: Backend) -> Session:
    return backend.open()


def join(session: Session, prefix: str) -> str:
    return execute(session, members.join("g", prefix, INFO))


def test_members_are_listed_oldest_first_whatever_their_names(session: Session) -> None:
    names = [join(session, prefix) for prefix in ("z", "a", "m-0000000000")]
    assert execute(session, members.names("g")) == tuple(names)
    assert sorted(names, key=members.age) == names


def test_a_member_says_what_it_wants_and_how_long_it_may_take(session: Session) -> None:
    name = join(session, "a")
    member = execute(session, members.read("g", name))
    assert member is not None
    assert (member.name, member.info) == (name, INFO)
    assert member.joined_ms > 0
    assert execute(session, members.exists("g", name))


def test_who_left_is_gone_and_may_leave_again(session: Session) -> None:
    name = join(session, "a")
    for _ in range(2):
        execute(session, members.remove("g", name))
    assert execute(session, members.names("g")) == ()
    assert execute(session, members.read("g", name)) is None
    assert not execute(session, members.exists("g", name))


def test_who_dies_is_gone_with_its_session(backend: Backend, session: Session) -> None:
    other = backend.open()
    join(other, "a")
    rings: list[str] = []
    assert len(execute(session, members.names("g", lambda: rings.append("members")))) == 1
    backend.expire(other)
    wait_for_rings(rings, "members")
    assert execute(session, members.names("g")) == ()


def test_a_group_that_nobody_has_joined_has_no_members_and_rings_for_the_first(
    session: Session,
) -> None:
    rings: list[str] = []
    assert execute(session, members.names("g", lambda: rings.append("members"))) == ()
    join(session, "a")
    execute(session, members.names("g"))
    assert rings


def test_joining_makes_the_group_again_that_somebody_deletes(session: Session) -> None:
    recipe = members.join("g", "a", INFO)
    operation = next(recipe)
    while not (isinstance(operation, Create) and operation.sequence):
        operation = step(session, recipe, operation)
    execute(session, Delete(paths.members("g")))
    name = execute(session, going_on(recipe, operation))
    assert execute(session, members.names("g")) == (name,)


@pytest.mark.parametrize("name", ["foo", "a-12", "a-00000000zz", "0000000001", "-0000000001"])
def test_a_node_that_no_member_can_have_made_is_nobody(session: Session, name: str) -> None:
    mine = join(session, "a")
    execute(session, Create(paths.member("g", name)))
    assert execute(session, members.names("g")) == (mine,)


@pytest.mark.parametrize("data", [b"", b"{}", b"\xff", b'{"topics": 7}'])
def test_a_member_that_says_nothing_legible_wants_nothing(session: Session, data: bytes) -> None:
    name = join(session, "a")
    execute(session, Set(paths.member("g", name), data))
    found = execute(session, members.read("g", name))
    assert found is not None
    assert found.info.topics == ()


# -- static members -----------------------------------------------------------------------------------


def join_as_w1(session: Session, nonce: str, last: str | None = None) -> str | Superseded:
    return execute(session, members.join_as_static("g", "w1", nonce, INFO, last))


def test_of_an_instance_id_the_youngest_member_counts_and_the_others_are_removed(
    session: Session,
) -> None:
    another = join(session, "w1")  # a dynamic member whose name begins alike
    first = join_as_w1(session, "n1")
    second = join_as_w1(session, "n2")
    assert (members.assignee(str(first)), members.assignee(str(second))) == ("w1=", "w1=")
    assert members.assignee(another) == another
    assert execute(session, members.names("g")) == (another, second)
    assert members.assignees((another, str(first), str(second))) == {
        another: another,
        "w1=": second,
    }


def test_who_was_superseded_does_not_come_back(session: Session) -> None:
    first = join_as_w1(session, "n1")
    second = join_as_w1(session, "n2")
    assert join_as_w1(session, "n3", str(first)) == Superseded()
    assert execute(session, members.names("g")) == (second,)


def test_who_only_lost_its_session_is_the_same_member_again(session: Session) -> None:
    first = join_as_w1(session, "n1")
    again = join_as_w1(session, "n2", str(first))
    assert execute(session, members.names("g")) == (again,)


def test_a_static_member_that_comes_and_goes_for_ever_leaves_no_more_notes_each_time(
    session: Session,
) -> None:
    """It is back in time, so that nobody plans, and takes the notes away."""
    another = join(session, "a")
    execute(session, members.leave("g", another))
    for number in range(5):
        name = str(join_as_w1(session, f"n{number}"))
        said = Create(paths.departure("g", name), b"its process died")
        execute(session, said if number % 2 else Exists("/"))
        execute(session, members.leave("g", name))
    join_as_w1(session, "n5")
    assert execute(session, children(paths.events("g"))) == [f"left-{another}"]


@pytest.mark.parametrize("executed", [False, True])
def test_whichever_reply_is_lost_one_member_has_the_instance_id(
    backend: Backend, executed: bool
) -> None:
    session = backend.open()
    for lost in range(ENOUGH):
        group, steps = f"group-{lost}", Steps(session)
        execute(session, members.join_as_static(group, "w1", "n1", INFO, None))
        taking = members.join_as_static(group, "w1", "n2", INFO, None)
        name = steps.run(taking, lost, executed=executed)
        assert execute(session, members.names(group)) == (name,)
        if steps.taken <= lost:
            return
    pytest.fail("it does not end")


def test_a_subscription_differs_with_all_that_a_plan_depends_on_and_with_nothing_else() -> None:
    changed: list[dict[str, Any]] = [
        {"topics": ("t",)},
        {"pattern": "x.*"},
        {"protocol": 2},
        {"assignors": ("range",)},
        {"rack": "r"},
        {"rejoin_timeout": 1.0},
    ]
    subscriptions = {msgspec.structs.replace(INFO, **each).subscription() for each in changed}
    assert len({INFO.subscription(), *subscriptions}) == 1 + len(changed)
    said: dict[str, Any] = {"host": "x", "revoke_timeout": 9.0, "previous": "was y", "pid": 7}
    elsewhere = msgspec.structs.replace(INFO, **said)
    assert elsewhere.subscription() == INFO.subscription()


@pytest.mark.parametrize("executed", [False, True], ids=["unsent", "unanswered"])
def test_leaving_ends_well_whichever_reply_is_lost(backend: Backend, executed: bool) -> None:
    session = backend.open()
    mine = join(session, "a")
    for lost in range(ENOUGH):
        name, steps = join(session, f"b{lost}"), Steps(session)
        steps.run(members.leave("g", name), lost, executed=executed)
        assert execute(session, members.names("g")) == (mine,)
        if steps.taken <= lost:
            return
    pytest.fail("it does not end")


def test_a_watch_on_a_member_tells_when_it_goes(session: Session) -> None:
    name = join(session, "a")
    rings: list[str] = []
    assert execute(session, members.exists("g", name, lambda: rings.append("gone")))
    execute(session, members.leave("g", name))
    wait_for_rings(rings, "gone")
