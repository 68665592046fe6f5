"""Members of a group: a node each, an age each, and nobody who is none."""

from typing import Any

import msgspec
import pytest

from folkmoot.coordination import paths
from folkmoot.coordination.groups import membership as members
from folkmoot.coordination.groups.membership import MemberInfo, Superseded
from folkmoot.coordination.zookeeper.operations import Create, Delete, Set
from folkmoot.coordination.zookeeper.session import Store, perform, run
from tests.contracts.backends import Backend, wait_for_rings
from tests.coordination.steps import ENOUGH, Steps, going_on, step

INFO = MemberInfo(("t", "u"), "host", 2.5)


@pytest.fixture
def store(backend: Backend) -> Store:
    return backend.open()


def join(store: Store, prefix: str) -> str:
    return run(store, members.join("g", prefix, INFO))


def test_members_are_listed_oldest_first_whatever_their_names(store: Store) -> None:
    names = [join(store, prefix) for prefix in ("z", "a", "m-0000000000")]
    assert run(store, members.names("g")) == tuple(names)
    assert sorted(names, key=members.age) == names


def test_a_member_says_what_it_wants_and_how_long_it_may_take(store: Store) -> None:
    name = join(store, "a")
    assert run(store, members.info("g", name)) == INFO
    assert run(store, members.is_there("g", name))


def test_who_left_is_gone_and_may_leave_again(store: Store) -> None:
    name = join(store, "a")
    for _ in range(2):
        run(store, members.leave("g", name))
    assert run(store, members.names("g")) == ()
    assert run(store, members.info("g", name)) is None
    assert not run(store, members.is_there("g", name))


def test_who_dies_is_gone_with_its_session(backend: Backend, store: Store) -> None:
    other = backend.open()
    join(other, "a")
    rings: list[str] = []
    assert len(run(store, members.names("g", lambda: rings.append("members")))) == 1
    backend.expire(other)
    wait_for_rings(rings, "members")
    assert run(store, members.names("g")) == ()


def test_a_group_that_nobody_has_joined_has_no_members_and_rings_for_the_first(
    store: Store,
) -> None:
    rings: list[str] = []
    assert run(store, members.names("g", lambda: rings.append("members"))) == ()
    join(store, "a")
    run(store, members.names("g"))
    assert rings


def test_joining_makes_the_group_again_that_somebody_deletes(store: Store) -> None:
    verb = members.join("g", "a", INFO)
    operation = next(verb)
    while not (isinstance(operation, Create) and operation.sequence):
        operation = step(store, verb, operation)
    perform(store, Delete(paths.members("g")))
    name = run(store, going_on(verb, operation))
    assert run(store, members.names("g")) == (name,)


@pytest.mark.parametrize("name", ["foo", "a-12", "a-00000000zz", "0000000001", "-0000000001"])
def test_a_node_that_no_member_can_have_made_is_nobody(store: Store, name: str) -> None:
    mine = join(store, "a")
    perform(store, Create(paths.member("g", name)))
    assert run(store, members.names("g")) == (mine,)


@pytest.mark.parametrize("data", [b"", b"{}", b"\xff", b'{"topics": 7}'])
def test_a_member_that_says_nothing_legible_wants_nothing(store: Store, data: bytes) -> None:
    name = join(store, "a")
    perform(store, Set(paths.member("g", name), data))
    found = run(store, members.info("g", name))
    assert found is not None
    assert found.topics == ()


# -- seats --------------------------------------------------------------------------------------------


def sit(store: Store, nonce: str, last: str | None = None) -> str | Superseded:
    return run(store, members.take_seat("g", "w1", nonce, INFO, last))


def test_the_youngest_of_those_who_sat_in_a_seat_has_it_and_the_others_are_removed(
    store: Store,
) -> None:
    another = join(store, "w1")  # a dynamic member whose name begins alike
    first = sit(store, "n1")
    second = sit(store, "n2")
    assert (members.seat(str(first)), members.seat(str(second))) == ("w1=", "w1=")
    assert members.seat(another) == another
    assert run(store, members.names("g")) == (another, second)
    assert members.seats((another, str(first), str(second))) == {another: another, "w1=": second}


def test_who_was_superseded_does_not_take_the_seat_back(store: Store) -> None:
    first = sit(store, "n1")
    second = sit(store, "n2")
    assert sit(store, "n3", str(first)) == Superseded()
    assert run(store, members.names("g")) == (second,)


def test_who_only_lost_its_session_takes_its_seat_again(store: Store) -> None:
    first = sit(store, "n1")
    again = sit(store, "n2", str(first))
    assert run(store, members.names("g")) == (again,)


@pytest.mark.parametrize("executed", [False, True])
def test_whichever_reply_is_lost_one_sits_in_the_seat(backend: Backend, executed: bool) -> None:
    store = backend.open()
    for lost in range(ENOUGH):
        group, steps = f"group-{lost}", Steps(store)
        run(store, members.take_seat(group, "w1", "n1", INFO, None))
        taking = members.take_seat(group, "w1", "n2", INFO, None)
        name = steps.run(taking, lost, executed=executed)
        assert run(store, members.names(group)) == (name,)
        if steps.taken <= lost:
            return
    pytest.fail("it does not end")


def test_a_wish_differs_with_all_that_a_plan_depends_on() -> None:
    changed: list[dict[str, Any]] = [
        {"topics": ("t",)},
        {"pattern": "x.*"},
        {"protocol": 2},
        {"assignors": ("range",)},
        {"weight": 2},
        {"rack": "r"},
        {"grace": 1.0},
    ]
    wishes = [msgspec.structs.replace(INFO, **each).wish() for each in changed]
    assert len({INFO.wish(), *wishes}) == 1 + len(changed)
    assert msgspec.structs.replace(INFO, host="elsewhere", hand_over=9.0).wish() == INFO.wish()
