"""What a group notes of its rebalances: bounded, never in the way, with what is known of the reasons."""

import random
from typing import Any

import pytest

from folkmoot.coordination import paths
from folkmoot.coordination.groups import history, planning
from folkmoot.coordination.groups import membership as members
from folkmoot.coordination.groups.history import Entry, Move
from folkmoot.coordination.groups.membership import MemberInfo
from folkmoot.coordination.groups.plan import Plan, StaticMember, TopicBasis
from folkmoot.coordination.groups.planning import GroupSnapshot, VersionedPlan
from folkmoot.coordination.zookeeper.execute import execute
from folkmoot.coordination.zookeeper.operations import Create, Delete, Get, Node, Recipe, Set, Write
from folkmoot.coordination.zookeeper.recipes import children
from folkmoot.protocol.records import TopicPartition
from tests.contracts.backends import Backend
from tests.coordination.groups import GROUP, P0, REVOKE_TIMEOUT, Someone
from tests.coordination.steps import ENOUGH, Steps, counted

INFO = MemberInfo(("t",), "host", REVOKE_TIMEOUT)


def plan(generation: int, *owners: str, static: dict[str, StaticMember] | None = None) -> Plan:
    """Gives t-0, t-1… to these seats."""
    seats = tuple(dict.fromkeys([*owners, *(static or {})]))
    basis = {"t": TopicBasis("id", len(owners))}
    return Plan(generation, seats, basis, {"t": list(owners)}, static or {})


def entries(group: str) -> Recipe[list[Entry]]:
    found = []
    for name in (yield from history.entry_names(group)):
        found.append((yield from history.entry(group, name)))
    return [each for each in found if each is not None]


def note(
    someone: Someone, before: Plan, after: Plan, *names: str, **infos: MemberInfo
) -> list[Entry]:
    """Have someone write a plan, for the assignees that are there; `names` are those of their nodes."""
    now = execute(someone.session, planning.get(GROUP))
    there = [
        each for each in after.members if not (each in after.static and after.static[each].absent)
    ]
    infos = {each: infos.get(each, INFO) for each in there}
    snapshot = GroupSnapshot(
        VersionedPlan(before, now.version), infos, {}, names=frozenset(names or infos)
    )
    assert execute(someone.session, planning.write(GROUP, someone.name, snapshot, after)) is True
    return execute(someone.session, entries(GROUP))


def test_who_came_and_went_and_what_moved(a: Someone) -> None:
    back = MemberInfo(("t",), "host", REVOKE_TIMEOUT, previous="was x: killed")
    (entry,) = note(a, plan(1, "x", "x", "y"), plan(2, "z", "x", "x"), z=back)
    assert (entry.joined, entry.left) == ({"z": "was x: killed"}, {"y": "its session ended"})
    assert entry.moves == [Move("t", 0, "x", "z"), Move("t", 2, "y", "x")]
    assert (entry.generation, entry.by, entry.moved) == (2, a.name, 2)
    assert entry.at_ms > 0


def test_who_left_in_order_has_said_so_and_its_note_is_taken_away(
    backend: Backend, a: Someone
) -> None:
    b = Someone(backend.open(), "b")
    execute(b.session, members.leave(GROUP, b.name))
    assert execute(a.session, members.names(GROUP)) == (a.name,)
    (entry,) = note(a, plan(1, a.name, b.name), plan(2, a.name, a.name))
    assert entry.left == {b.name: "left"}
    *_, entry = note(a, plan(2, a.name, b.name), plan(3, a.name, a.name))
    assert entry.left == {b.name: "its session ended"}


def test_that_the_last_went_is_told_although_nobody_is_left_to_note_it(
    backend: Backend, a: Someone
) -> None:
    b = Someone(backend.open(), "b")
    now = plan(1, a.name, b.name)
    names = (a.name, b.name)
    assert execute(a.session, history.departure(GROUP, now, names)) is None
    execute(b.session, members.leave(GROUP, b.name))
    entry = execute(a.session, history.departure(GROUP, now, ()))
    assert entry is not None
    assert entry.left == {a.name: "its session ended", b.name: "left"}
    assert entry.at_ms > 0
    entry = execute(a.session, history.departure(GROUP, now, (b.name,)))
    assert entry == Entry(left={a.name: "its session ended"})


def test_who_left_in_order_costs_who_plans_no_look(backend: Backend, a: Someone) -> None:
    """A thousand may leave at once."""
    for number in range(5):
        b = Someone(backend.open(), f"b{number}")
        execute(b.session, members.leave(GROUP, b.name))
    noting = history.notes(GROUP, a.name, Plan(), plan(1, a.name), {a.name: INFO}, {a.name})
    writes, kinds = counted(a.session, noting)
    assert (len(writes), kinds) == (1 + 5, {"Children": 1})


def test_what_is_said_of_a_member_is_kept_for_the_plan_without_it(
    backend: Backend, a: Someone
) -> None:
    """It went while a plan was made that still counts on it; a reset in between is no plan."""
    b = Someone(backend.open(), "b")
    note(a, Plan(), plan(1, a.name, b.name))
    execute(b.session, members.leave(GROUP, b.name))
    *_, entry = note(a, plan(1, a.name, b.name), plan(2, b.name, a.name))
    assert entry.left == {}
    execute(a.session, history.record_reset(GROUP, "somebody", {P0: 3}))
    assert execute(a.session, entries(GROUP))[-1].reset == {"t-0": 3}
    *_, entry = note(a, plan(2, a.name, b.name), plan(3, a.name, a.name))
    assert entry.left == {b.name: "left"}


def test_why_somebody_went_is_told_as_it_was_said_and_never_at_length(a: Someone) -> None:
    names = [f"{each}-0000000009" for each in "xyz"]
    note(a, Plan(), plan(1, a.name, *names))
    for name, said in ((names[0], b"its process died"), (names[1], b"\xff" * 5_000)):
        execute(a.session, Create(paths.departure(GROUP, name), said))
    *_, entry = note(a, plan(1, a.name, *names), plan(2, a.name))
    assert entry.left[names[0]] == "its process died"
    assert entry.left[names[2]] == "its session ended"
    assert len(entry.left[names[1]]) <= 200
    found = execute(a.session, children(paths.events(GROUP)))
    assert not [name for name in found if name.startswith("gone-")]


def test_what_is_said_of_an_earlier_process_is_no_reason_of_the_one_that_is_there_now(
    a: Someone,
) -> None:
    """It died and was back within its time, which makes no plan."""
    there = {"w=": StaticMember(30.0)}
    away = {"w=": StaticMember(30.0, absent=True)}
    note(a, Plan(), plan(1, "w=", static=there), "w=1-0000000007")
    execute(a.session, Create(paths.departure(GROUP, "w=1-0000000007"), b"its process died"))
    note(a, plan(1, "w=", static=there), plan(2, "w=", static=there), "w=2-0000000009")
    *_, entry = note(a, plan(2, "w=", static=there), plan(3, "w=", static=away))
    assert entry.left == {"w=": "its session ended, is waited for, 30 s"}


def test_a_static_member_is_waited_for_comes_back_or_does_not(a: Someone) -> None:
    there = {"w=": StaticMember(30.0)}
    away = {"w=": StaticMember(30.0, absent=True)}
    (entry,) = note(a, plan(1, "w=", static=there), plan(2, "w=", static=away))
    assert entry.left == {"w=": "its session ended, is waited for, 30 s"}
    *_, entry = note(a, plan(2, "w=", static=away), plan(3, "w=", static=there))
    assert (list(entry.joined), entry.left) == (["w="], {})
    *_, entry = note(a, plan(2, "w=", static=away), plan(3, "x"))
    assert entry.left == {"w=": "did not come back in time"}


def test_what_is_noted_is_bounded_and_the_oldest_goes_first(
    a: Someone, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert history.HISTORY_BYTES <= 1024 * 1024
    monkeypatch.setattr(history, "HISTORY_BYTES", 30 * history.SMALLEST_ENTRY)
    before, found = Plan(), list[Entry]()
    for generation in range(1, 50):
        after = plan(generation, f"member-{generation}")
        found = note(a, before, after)
        before = after
    assert [each.generation for each in found] == list(range(20, 50))
    times = [each.at_ms for each in found]
    assert times == sorted(times)
    assert times[0] > 0


def test_large_entries_leave_room_for_fewer(a: Someone, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "HISTORY_BYTES", 30_000)
    chance = random.Random(6)
    before, found = Plan(), list[Entry]()
    for generation in range(1, 12):
        owners = [f"member-{chance.getrandbits(64):016x}" for _ in range(1 + 40 * (generation % 9))]
        after = plan(generation, *owners)
        found = note(a, before, after)
        before = after
        sizes = [len(each.data) for each in logged(a)]
        assert sum(max(size, history.SMALLEST_ENTRY) for size in sizes) <= 30_000
    assert found[-1].generation == 11
    assert 1 < len(found) < 11


def test_an_entry_with_thousands_of_members_counts_and_goes_like_the_others(
    a: Someone, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Members are not left out, so an entry may have more digits than others."""
    chance = random.Random(7)
    before, found = Plan(), list[Entry]()
    for generation in range(1, 4):
        owners = [f"{chance.getrandbits(800):x}=" for _ in range(1_100)]
        after = plan(generation, *owners)
        found = note(a, before, after)
        before = after
    assert len(logged(a)[-1].data) > 99_999
    assert [each.generation for each in found] == [1, 2, 3]
    monkeypatch.setattr(history, "HISTORY_BYTES", 150_000)
    found = note(a, before, plan(4, "x"))
    assert found[-1].generation == 4
    assert len(found) < 3


def test_an_entry_that_is_too_large_has_its_first_moves(a: Someone) -> None:
    chance = random.Random(5)
    owners = [f"member-{chance.randrange(200):016x}" for _ in range(20_000)]
    note(a, Plan(), plan(1, "x"))
    _, entry = note(a, plan(1, "x"), plan(2, *owners))
    assert entry.moved == 20_000
    assert 1_000 < len(entry.moves) < 20_000
    assert entry.moves[1] == Move("t", 1, None, owners[1])
    offsets = {TopicPartition("t", each): chance.getrandbits(40) for each in range(20_000)}
    execute(a.session, history.record_reset(GROUP, "somebody", offsets))
    *_, entry = execute(a.session, entries(GROUP))
    assert entry.moved == 20_000
    assert 500 < len(entry.reset) < 20_000
    assert max(len(each.data) for each in logged(a)) <= history.ENTRY_BYTES


def test_all_moves_of_a_large_group_are_kept(a: Someone) -> None:
    owners = [f"member-{number % 100:016x}" for number in range(2_000)]
    (entry,) = note(a, Plan(), plan(1, *owners))
    assert len(entry.moves) == entry.moved == 2_000


def test_a_plan_is_written_without_its_entry_where_that_is_refused(
    a: Someone, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another planner, or a reset, has removed the oldest entry meanwhile."""
    note(a, Plan(), plan(1, "x"))
    append = history._append

    def overtaken(*arguments: Any) -> list[Write]:
        return [*append(*arguments), Delete(f"{paths.events(GROUP)}/log-0000000007")]

    monkeypatch.setattr(history, "_append", overtaken)
    assert [each.generation for each in note(a, plan(1, "x"), plan(2, "y"))] == [1]
    assert execute(a.session, planning.get(GROUP)).plan.generation == 2


def logged(someone: Someone) -> list[Node]:
    found = execute(someone.session, children(paths.events(GROUP)))
    paths_ = [f"{paths.events(GROUP)}/{name}" for name in sorted(found) if name.startswith("log-")]
    return [execute(someone.session, Get(path)) for path in paths_]


def test_nonsense_among_what_was_noted_is_left_out(a: Someone) -> None:
    note(a, Plan(), plan(1, "x"))
    (name,) = execute(a.session, children(paths.events(GROUP)))
    for nonsense in (b"", b"\xff", b"[]", b"\x90", b"\x28\xb5\x2f\xfd123"):
        execute(a.session, Set(f"{paths.events(GROUP)}/{name}", nonsense))
        assert execute(a.session, entries(GROUP)) == []
    for name in ("something", "log-", "log-0000000009", "log-large-0000000009"):
        execute(a.session, Create(f"{paths.events(GROUP)}/{name}"))
    assert len(note(a, Plan(), plan(2, "x"))) == 1


@pytest.mark.parametrize("executed", [False, True], ids=["unsent", "unanswered"])
def test_a_reset_is_noted_or_not_whichever_reply_is_lost(a: Someone, executed: bool) -> None:
    for lost in range(ENOUGH):
        steps = Steps(a.session)
        steps.run(history.record_reset(f"group-{lost}", "me", {P0: 3}), lost, executed=executed)
        assert len(execute(a.session, entries(f"group-{lost}"))) <= 1
        if steps.taken <= lost:
            return
    pytest.fail("this recipe does not end")
