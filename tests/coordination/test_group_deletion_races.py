"""Groups deleted while others join, claim, plan, reset, or delete them, too."""

from contextlib import suppress

import pytest

from folkmoot.coordination import paths
from folkmoot.coordination.groups import group_deletion
from folkmoot.coordination.groups import membership as members
from folkmoot.coordination.groups import offset_admin as resets
from folkmoot.coordination.groups import plan as plans
from folkmoot.coordination.groups.ownership import Claim, Fenced
from folkmoot.coordination.groups.plan import Plan
from folkmoot.coordination.zookeeper.operations import (
    ConnectionLost,
    Multi,
    Set,
)
from folkmoot.coordination.zookeeper.session import Store, perform, run
from folkmoot.protocol.errors import GroupNotEmpty, UnknownGroup
from tests.contracts.backends import Backend
from tests.coordination.groups import (
    GROUP,
    P0,
    P1,
    TOPIC_ID,
    Someone,
    is_gone,
    left_behind,
    make_plan,
    state,
    version_of,
)
from tests.coordination.steps import ENOUGH, going_on, step, up_to_its_write


@pytest.fixture
def a(backend: Backend) -> Someone:
    """A member to whom the plan gives t-0 and t-1."""
    someone = Someone(backend.open(), "a")
    make_plan(someone.store, someone.name, someone.name)
    return someone


@pytest.fixture
def admin(backend: Backend) -> Store:
    return backend.open()


def test_who_joins_while_the_group_is_deleted_stops_it(
    backend: Backend, a: Someone, admin: Store
) -> None:
    """Whenever it comes, it either keeps the group or finds a new one, and can claim there."""
    left_behind(a)
    outcomes: set[tuple[bool, int | None]] = set()
    for before in range(ENOUGH):
        verb = group_deletion.delete(GROUP)
        operation = next(verb)
        refused = ended = False
        newcomer: Someone | None = None
        held: Claim | None = None
        try:
            for number in range(ENOUGH):
                if number == before:
                    newcomer = Someone(backend.open(), f"n{before}")
                    make_plan(newcomer.store, newcomer.name, newcomer.name)
                    held = newcomer.claim()
                operation = step(admin, verb, operation)
        except GroupNotEmpty:
            refused = True
        except StopIteration:
            ended = newcomer is None
        if ended:
            assert len(outcomes) > 1
            return
        assert newcomer is not None
        assert held is not None
        outcomes.add((refused, held.state.offset))
        answer = newcomer.commit(held, 20)
        assert (answer == Fenced()) <= (not refused)
        run(newcomer.store, members.leave(GROUP, newcomer.name))
        newcomer.store.close()
        if is_gone(admin):
            fresh = Someone(backend.open(), f"f{before}")
            make_plan(fresh.store, fresh.name, fresh.name)
            left_behind(fresh)
    pytest.fail("a deletion does not end")


def test_by_force_who_joined_meanwhile_commits_nothing_that_was_deleted_under_its_claim(
    backend: Backend, admin: Store
) -> None:
    """Whenever it comes, and though the version that its claim stands on comes again."""
    claimed = 0
    for before in range(ENOUGH):
        a = Someone(backend.open(), f"a{before}")
        make_plan(a.store, a.name)
        a.release(a.claim(), 17)
        newcomer: Someone | None = None
        held: object = None
        verb = group_deletion.delete(GROUP, force=True)
        operation = next(verb)
        with suppress(StopIteration):
            for number in range(ENOUGH):
                if number == before:
                    newcomer = Someone(backend.open(), f"n{before}")
                    make_plan(newcomer.store, newcomer.name)
                    held = run(newcomer.store, newcomer.claiming())
                operation = step(admin, verb, operation)
        if newcomer is None:
            assert claimed > 3
            return
        b = Someone(backend.open(), f"b{before}")
        make_plan(b.store, b.name)
        found = run(b.store, b.claiming())
        if isinstance(held, Claim) and isinstance(found, Claim):
            claimed += 1
            while found.version < held.version:
                found = b.committed(found, 1)
            assert newcomer.commit(held, 99) == Fenced()
            assert state(admin) == found.state
        run(admin, group_deletion.delete(GROUP, force=True))
    pytest.fail("a deletion does not end")


@pytest.mark.parametrize("force", [False, True], ids=["empty", "by force"])
def test_a_claim_that_looked_before_a_deletion_meets_the_reset_that_came_after_it(
    backend: Backend, admin: Store, force: bool
) -> None:
    """Whenever its member joins, and though the offset's node comes to the version that it read."""
    claimed = 0
    for before in range(ENOUGH):
        a = Someone(backend.open(), f"a{before}")
        make_plan(a.store, a.name)
        a.release(a.claim(), 17)
        run(a.store, members.leave(GROUP, a.name))
        verb = group_deletion.delete(GROUP, force=force)
        operation = next(verb)
        try:
            for _ in range(before):
                operation = step(admin, verb, operation)
        except StopIteration:
            assert claimed > 3
            return
        newcomer = Someone(backend.open(), f"n{before}")
        make_plan(newcomer.store, newcomer.name)
        claiming = newcomer.claiming()
        claim = up_to_its_write(newcomer.store, claiming)
        with suppress(GroupNotEmpty):
            run(admin, going_on(verb, operation))
        latest = run(admin, resets.reset(GROUP, P0, TOPIC_ID, 5, "mark"))
        assert isinstance(claim, Multi)
        (read,) = (each.version for each in claim.writes if isinstance(each, Set))
        while version_of(admin, paths.offset(GROUP, *P0)) < read:
            latest = run(admin, resets.reset(GROUP, P0, TOPIC_ID, 6, f"m{latest.epoch}"))

        held = run(newcomer.store, going_on(claiming, claim))

        now = state(admin)
        assert (now.offset, now.reset) == (latest.offset, latest.reset)
        if isinstance(held, Claim):
            claimed += 1
            assert now == held.state
            assert now.epoch > latest.epoch
        run(newcomer.store, members.leave(GROUP, newcomer.name))
        run(admin, group_deletion.delete(GROUP, force=True))
    pytest.fail("a deletion does not end")


@pytest.mark.parametrize("at_once", [1, 250])
def test_by_force_who_joins_meanwhile_is_removed_as_well(
    backend: Backend, a: Someone, admin: Store, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    """Right before a transaction, which knows nothing of it: that fails, and takes it along then."""
    monkeypatch.setattr(group_deletion, "PARTITIONS_PER_TRANSACTION", at_once)
    a.committed(a.claim(), 17)
    a.committed(a.claim(P1), 18, P1)
    verb = group_deletion.delete(GROUP, force=True)
    operation = next(verb)
    newcomers: list[Someone] = []
    with suppress(StopIteration):
        while True:
            if isinstance(operation, Multi) and len(newcomers) < 5:
                newcomers.append(Someone(backend.open(), f"n{len(newcomers)}"))
                make_plan(newcomers[-1].store, newcomers[-1].name)
            operation = step(admin, verb, operation)
    assert len(newcomers) == 5
    assert is_gone(admin)


def test_a_deletion_that_was_done_and_not_answered_leaves_the_next_group_alone(
    backend: Backend, a: Someone, admin: Store
) -> None:
    for force in (False, True):
        someone = Someone(backend.open(), f"m{force}")
        make_plan(someone.store, someone.name, someone.name)
        left_behind(someone)
        run(a.store, members.leave(GROUP, a.name))
        verb = group_deletion.delete(GROUP, force)
        operation = up_to_its_write(admin, verb)
        perform(admin, operation)
        newcomer = Someone(backend.open(), f"n{force}")
        make_plan(newcomer.store, newcomer.name)
        held = newcomer.committed(newcomer.claim(), 5)
        operation = verb.throw(ConnectionLost("lost on the way back"))
        run(admin, going_on(verb, operation))
        assert state(admin) == held.state
        assert isinstance(newcomer.commit(held, 6), Claim)
        run(newcomer.store, members.leave(GROUP, newcomer.name))
        newcomer.store.close()
        run(admin, group_deletion.delete(GROUP))


def test_a_plan_that_was_read_before_a_deletion_is_not_written_after_it(
    backend: Backend, a: Someone, admin: Store
) -> None:
    """Though the plan of the next group has come to the version that it was made from."""
    for before in range(ENOUGH):
        verb = group_deletion.delete(GROUP, force=True)
        operation = next(verb)
        try:
            for _ in range(before):
                operation = step(admin, verb, operation)
        except StopIteration:
            assert before > 3
            return
        slow = Someone(backend.open(), f"s{before}")
        make_plan(slow.store, slow.name)
        version = run(slow.store, plans.get(GROUP)).version
        planning = plans.replace(GROUP, slow.name, {}, lambda plan, _: Plan(plan.generation + 1))
        write = up_to_its_write(slow.store, planning)
        run(admin, going_on(verb, operation))
        b = Someone(backend.open(), f"b{before}")
        while make_plan(b.store, b.name) < version:
            pass
        ours = run(b.store, plans.get(GROUP))
        run(slow.store, going_on(planning, write))
        assert run(b.store, plans.get(GROUP)) == ours
        for someone in (slow, b):
            run(someone.store, members.leave(GROUP, someone.name))
            someone.store.close()
    pytest.fail("a deletion does not end")


def test_two_deletions_at_once_both_come_to_an_end(backend: Backend, admin: Store) -> None:
    other = backend.open()
    for steps in range(ENOUGH):
        someone = Someone(backend.open(), f"m{steps}")
        make_plan(someone.store, someone.name, someone.name)
        left_behind(someone)
        verb = group_deletion.delete(GROUP)
        operation = next(verb)
        try:
            for _ in range(steps):
                operation = step(admin, verb, operation)
        except StopIteration:
            return
        with suppress(UnknownGroup):
            run(other, group_deletion.delete(GROUP))
        with suppress(UnknownGroup):
            run(admin, going_on(verb, operation))
        assert is_gone(admin)
    pytest.fail("this verb does not end")
