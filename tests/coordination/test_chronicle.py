"""What a group notes of its rebalances: bounded, never in the way, with what is known of the reasons."""

import random

import pytest

from folkmoot.coordination import chronicle, members, paths
from folkmoot.coordination.chronicle import ENTRIES, MOST_BYTES, Entry, Move
from folkmoot.coordination.members import MemberInfo
from folkmoot.coordination.operations import Get, Set
from folkmoot.coordination.plan_format import Plan, Standing, TopicBasis
from folkmoot.coordination.store import Store, perform, run
from tests.contracts.backends import Backend
from tests.coordination.groups import GROUP, HAND_OVER, Someone, make_plan
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
    make_plan(someone.store, someone.name)
    return someone


def note(store: Store, before: Plan, after: Plan, **known: MemberInfo) -> list[Entry]:
    run(store, chronicle.record(GROUP, "me", before, after, known))
    return run(store, chronicle.entries(GROUP))


def test_who_came_and_went_and_what_moved(a: Someone) -> None:
    back = MemberInfo(("t",), "host", HAND_OVER, back="was x: killed")
    (entry,) = note(a.store, plan(1, "x", "x", "y"), plan(2, "z", "x", "x"), z=back)
    assert (entry.joined, entry.left) == ({"z": "was x: killed"}, {"y": "its session ended"})
    assert entry.moves == [Move("t", 0, "x", "z"), Move("t", 2, "y", "x")]
    assert (entry.generation, entry.by, entry.moved, entry.took) == (2, "me", 2, None)
    assert entry.at_ms > 0


def test_who_left_in_order_has_said_so_and_its_note_is_taken_away(
    backend: Backend, a: Someone
) -> None:
    b = Someone(backend.open(), "b")
    run(b.store, members.bid_farewell(GROUP, b.name))
    assert run(a.store, members.names(GROUP)) == (a.name,)
    (entry,) = note(a.store, plan(1, a.name, b.name), plan(2, a.name, a.name))
    assert entry.left == {b.name: "left"}
    *_, entry = note(a.store, plan(2, a.name, b.name), plan(3, a.name, a.name))
    assert entry.left == {b.name: "its session ended"}


def test_a_static_member_is_waited_for_comes_back_or_does_not(a: Someone) -> None:
    there = {"w=": Standing(30.0, 1)}
    away = {"w=": Standing(30.0, 1, absent=True)}
    (entry,) = note(a.store, plan(1, "w=", static=there), plan(2, "w=", static=away))
    assert entry.left == {"w=": "its session ended, is waited for, 30 s"}
    *_, entry = note(a.store, plan(2, "w=", static=away), plan(3, "w=", static=there))
    assert (list(entry.joined), entry.left) == (["w="], {})
    *_, entry = note(a.store, plan(2, "w=", static=away), plan(3, "x"))
    assert entry.left == {"w=": "did not come back in time"}


def test_the_time_until_all_is_owned_is_found_out_later(a: Someone) -> None:
    (entry,) = note(a.store, Plan(), plan(1, a.name))
    assert entry.took is None
    a.claim()
    (entry,) = run(a.store, chronicle.entries(GROUP))
    assert entry.took is not None
    assert 0 <= entry.took < 10
    first, _ = note(a.store, plan(1, a.name), plan(2, a.name))
    assert first.took == entry.took


def test_what_is_noted_is_bounded_whatever_happens(a: Someone) -> None:
    chance = random.Random(3)
    many = [f"member-{chance.getrandbits(64):016x}" for _ in range(400)]
    before, found = Plan(), list[Entry]()
    for generation in range(1, ENTRIES + 20):
        after = plan(generation, *chance.sample(many, 300))
        found = note(a.store, before, after)
        assert len(found[-1].moves) <= found[-1].moved
        before = after
    assert len(perform(a.store, Get(paths.events(GROUP))).data) <= MOST_BYTES
    assert 1 < len(found) <= ENTRIES
    assert found[-1].generation == ENTRIES + 19


def test_nonsense_in_its_place_is_written_over(a: Someone) -> None:
    note(a.store, Plan(), plan(1, "x"))
    for nonsense in (b"\xff", b"{}", b"\x28\xb5\x2f\xfd123"):
        perform(a.store, Set(paths.events(GROUP), nonsense))
        assert run(a.store, chronicle.entries(GROUP)) == []
        assert len(note(a.store, Plan(), plan(1, "x"))) == 1


@pytest.mark.parametrize("executed", [False, True], ids=["unsent", "unanswered"])
def test_neither_a_lost_reply_nor_a_death_is_any_harm(
    backend: Backend, a: Someone, executed: bool
) -> None:
    for lost in range(ENOUGH):
        steps = Steps(a.store)
        verb = chronicle.record(GROUP, "me", Plan(), plan(lost, "x"), {})
        steps.run(verb, lost, executed=executed)
        dying = chronicle.record(GROUP, "me", Plan(), plan(lost, "x"), {})
        Steps(a.store).run_until(dying, lost)
        run(a.store, chronicle.entries(GROUP))
        if steps.taken <= lost:
            return
    pytest.fail("this verb does not end")


@pytest.mark.parametrize("executed", [False, True], ids=["unsent", "unanswered"])
def test_a_farewell_ends_well_whichever_reply_is_lost(
    backend: Backend, a: Someone, executed: bool
) -> None:
    for lost in range(ENOUGH):
        b = Someone(backend.open(), f"b{lost}")
        steps = Steps(b.store)
        steps.run(members.bid_farewell(GROUP, b.name), lost, executed=executed)
        assert run(a.store, members.names(GROUP)) == (a.name,)
        if steps.taken <= lost:
            return
    pytest.fail("this verb does not end")
