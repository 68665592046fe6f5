"""What a group notes of its rebalances: bounded, never in the way, with what is known of the reasons."""

import random

import pytest

from folkmoot.coordination import paths
from folkmoot.coordination.groups import membership as members
from folkmoot.coordination.groups import rebalance_history as chronicle
from folkmoot.coordination.groups.membership import MemberInfo
from folkmoot.coordination.groups.plan_format import Plan, Standing, TopicBasis
from folkmoot.coordination.groups.rebalance_history import ENTRIES, MOST_BYTES, Entry, Move
from folkmoot.coordination.zookeeper.execute import execute
from folkmoot.coordination.zookeeper.operations import Create, Get, Set
from folkmoot.coordination.zookeeper.recipes import children
from folkmoot.coordination.zookeeper.session import Session
from tests.contracts.backends import Backend
from tests.coordination.groups import GROUP, HAND_OVER, P0, Someone, make_plan, owner
from tests.coordination.steps import ENOUGH, Steps

INFO = MemberInfo(("t",), "host", HAND_OVER)


def plan(generation: int, *owners: str, static: dict[str, Standing] | None = None) -> Plan:
    """Gives t-0, t-1… to these seats."""
    seats = tuple(dict.fromkeys([*owners, *(static or {})]))
    basis = {"t": TopicBasis("id", len(owners))}
    return Plan(generation, seats, basis, {"t": list(owners)}, static or {})


@pytest.fixture
def a(backend: Backend) -> Someone:
    someone = Someone(backend.open(), "a")
    make_plan(someone.session, someone.name)
    return someone


def note(
    session: Session, before: Plan, after: Plan, *names: str, **known: MemberInfo
) -> list[Entry]:
    """`names` are those of the members that the plan was made for."""
    execute(session, chronicle.record(GROUP, "me", before, after, known, names))
    return execute(session, chronicle.entries(GROUP))


def test_who_came_and_went_and_what_moved(a: Someone) -> None:
    back = MemberInfo(("t",), "host", HAND_OVER, back="was x: killed")
    (entry,) = note(a.session, plan(1, "x", "x", "y"), plan(2, "z", "x", "x"), z=back)
    assert (entry.joined, entry.left) == ({"z": "was x: killed"}, {"y": "its session ended"})
    assert entry.moves == [Move("t", 0, "x", "z"), Move("t", 2, "y", "x")]
    assert (entry.generation, entry.by, entry.moved, entry.took) == (2, "me", 2, None)
    assert entry.at_ms > 0


def test_who_left_in_order_has_said_so_and_its_note_is_taken_away(
    backend: Backend, a: Someone
) -> None:
    b = Someone(backend.open(), "b")
    execute(b.session, members.bid_farewell(GROUP, b.name))
    assert execute(a.session, members.names(GROUP)) == (a.name,)
    (entry,) = note(a.session, plan(1, a.name, b.name), plan(2, a.name, a.name))
    assert entry.left == {b.name: "left"}
    *_, entry = note(a.session, plan(2, a.name, b.name), plan(3, a.name, a.name))
    assert entry.left == {b.name: "its session ended"}


def test_what_is_said_of_a_member_is_kept_for_the_plan_without_it(
    backend: Backend, a: Someone
) -> None:
    """It went while a plan was made that still counts on it; a reset in between is no plan."""
    b = Someone(backend.open(), "b")
    a.claim()
    note(a.session, Plan(), plan(1, a.name, b.name), a.name, b.name)
    execute(b.session, members.bid_farewell(GROUP, b.name))
    *_, entry = note(a.session, plan(1, a.name, b.name), plan(2, b.name, a.name), a.name, b.name)
    assert entry.left == {}
    execute(a.session, chronicle.record_reset(GROUP, "somebody", {P0: 3}))
    assert execute(a.session, chronicle.entries(GROUP))[-1].reset == {"t-0": 3}
    *_, entry = note(a.session, plan(2, a.name, b.name), plan(3, a.name, a.name), a.name)
    assert entry.left == {b.name: "left"}


def test_why_somebody_went_is_told_as_it_was_said_and_never_at_length(a: Someone) -> None:
    note(a.session, Plan(), plan(1, a.name, "x", "y", "z"))
    for name, said in (("x", b"its process died"), ("y", b"\xff" * 5_000)):
        execute(a.session, Create(paths.left(GROUP, name), said))
    *_, entry = note(a.session, plan(1, a.name, "x", "y", "z"), plan(2, a.name), a.name)
    assert entry.left["x"] == "its process died"
    assert entry.left["z"] == "its session ended"
    assert len(entry.left["y"]) <= 200
    assert execute(a.session, children(paths.left(GROUP))) == []


def test_what_is_said_of_an_earlier_process_is_no_reason_of_the_one_that_sits_there_now(
    a: Someone,
) -> None:
    """It died and was back within its grace, which makes no plan."""
    there = {"w=": Standing(30.0, 1)}
    away = {"w=": Standing(30.0, 1, absent=True)}
    note(a.session, Plan(), plan(1, "w=", static=there), "w=1-0000000007")
    execute(a.session, Create(paths.left(GROUP, "w=1-0000000007"), b"its process died"))
    note(a.session, plan(1, "w=", static=there), plan(2, "w=", static=there), "w=2-0000000009")
    *_, entry = note(a.session, plan(2, "w=", static=there), plan(3, "w=", static=away))
    assert entry.left == {"w=": "its session ended, is waited for, 30 s"}


def test_what_was_stolen_is_told_with_whom_it_was_stolen_from(backend: Backend, a: Someone) -> None:
    b = Someone(backend.open(), "b")
    a.claim()
    make_plan(b.session, b.name)
    execute(b.session, b.claiming(steal_from=owner(b.session)))
    (entry,) = note(b.session, plan(1, a.name), plan(2, b.name), a.name, b.name)
    assert (entry.took is not None, entry.stolen) == (True, {"t-0": a.name})


def test_a_static_member_is_waited_for_comes_back_or_does_not(a: Someone) -> None:
    there = {"w=": Standing(30.0, 1)}
    away = {"w=": Standing(30.0, 1, absent=True)}
    (entry,) = note(a.session, plan(1, "w=", static=there), plan(2, "w=", static=away))
    assert entry.left == {"w=": "its session ended, is waited for, 30 s"}
    *_, entry = note(a.session, plan(2, "w=", static=away), plan(3, "w=", static=there))
    assert (list(entry.joined), entry.left) == (["w="], {})
    *_, entry = note(a.session, plan(2, "w=", static=away), plan(3, "x"))
    assert entry.left == {"w=": "did not come back in time"}


def test_the_time_until_all_is_owned_is_found_out_later(backend: Backend, a: Someone) -> None:
    (entry,) = note(a.session, Plan(), plan(1, a.name))
    assert entry.took is None
    assert execute(a.session, chronicle.measure(GROUP))
    held = a.claim()
    (entry,) = execute(a.session, chronicle.entries(GROUP))
    assert entry.took is not None
    assert 0 <= entry.took < 10
    assert not execute(
        a.session, chronicle.measure(GROUP)
    )  # it is noted: there is nothing more to find out
    a.release(held, 3)
    assert execute(a.session, chronicle.entries(GROUP)) == [entry]
    assert not execute(a.session, chronicle.measure(GROUP))


def test_a_later_owner_says_nothing_of_how_long_it_took(backend: Backend, a: Someone) -> None:
    b = Someone(backend.open(), "b")
    note(a.session, Plan(), plan(1, a.name))
    make_plan(b.session, b.name)
    b.claim()
    (entry,) = execute(a.session, chronicle.entries(GROUP))
    assert entry.took is None
    assert execute(a.session, chronicle.measure(GROUP))


def test_what_is_noted_is_bounded_whatever_happens(a: Someone) -> None:
    chance = random.Random(3)
    many = [f"member-{chance.getrandbits(64):016x}" for _ in range(400)]
    before, found = Plan(), list[Entry]()
    for generation in range(1, ENTRIES + 20):
        after = plan(generation, *chance.sample(many, 300))
        found = note(a.session, before, after)
        assert len(found[-1].moves) <= found[-1].moved
        before = after
    assert len(execute(a.session, Get(paths.events(GROUP))).data) <= MOST_BYTES
    assert 1 < len(found) <= ENTRIES
    assert found[-1].generation == ENTRIES + 19


def test_nonsense_in_its_place_is_written_over(a: Someone) -> None:
    note(a.session, Plan(), plan(1, "x"))
    for nonsense in (b"\xff", b"{}", b"\x28\xb5\x2f\xfd123"):
        execute(a.session, Set(paths.events(GROUP), nonsense))
        assert execute(a.session, chronicle.entries(GROUP)) == []
        assert len(note(a.session, Plan(), plan(1, "x"))) == 1


@pytest.mark.parametrize("executed", [False, True], ids=["unsent", "unanswered"])
def test_neither_a_lost_reply_nor_a_death_is_any_harm(
    backend: Backend, a: Someone, executed: bool
) -> None:
    for lost in range(ENOUGH):
        steps = Steps(a.session)
        recipe = chronicle.record(GROUP, "me", Plan(), plan(lost, "x"), {})
        steps.run(recipe, lost, executed=executed)
        dying = chronicle.record(GROUP, "me", Plan(), plan(lost, "x"), {})
        Steps(a.session).run_until(dying, lost)
        Steps(a.session).run(chronicle.measure(GROUP), lost, executed=executed)
        execute(a.session, chronicle.entries(GROUP))
        if steps.taken <= lost:
            return
    pytest.fail("this recipe does not end")


@pytest.mark.parametrize("executed", [False, True], ids=["unsent", "unanswered"])
def test_a_farewell_ends_well_whichever_reply_is_lost(
    backend: Backend, a: Someone, executed: bool
) -> None:
    for lost in range(ENOUGH):
        b = Someone(backend.open(), f"b{lost}")
        steps = Steps(b.session)
        steps.run(members.bid_farewell(GROUP, b.name), lost, executed=executed)
        assert execute(a.session, members.names(GROUP)) == (a.name,)
        if steps.taken <= lost:
            return
    pytest.fail("this recipe does not end")
