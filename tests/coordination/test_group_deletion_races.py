"""Groups deleted while others join, claim, plan, reset, or delete them, too."""

from contextlib import suppress

import pytest

from folkmoot.coordination import paths
from folkmoot.coordination.groups import group_deletion, planning
from folkmoot.coordination.groups import membership as members
from folkmoot.coordination.groups import offset_admin as resets
from folkmoot.coordination.groups.ownership import Claim, Fenced
from folkmoot.coordination.groups.plan import Plan
from folkmoot.coordination.zookeeper.execute import execute
from folkmoot.coordination.zookeeper.operations import ConnectionLost, Multi, Set
from folkmoot.coordination.zookeeper.session import Session
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
    replace,
    state,
    version_of,
)
from tests.coordination.steps import ENOUGH, going_on, step, up_to_its_write


def test_who_joins_while_the_group_is_deleted_stops_it(
    backend: Backend, a: Someone, admin: Session
) -> None:
    """Whenever it comes, it either keeps the group or finds a new one, and can claim there."""
    left_behind(a)
    outcomes: set[tuple[bool, int | None]] = set()
    for before in range(ENOUGH):
        recipe = group_deletion.delete(GROUP)
        operation = next(recipe)
        refused = ended = False
        newcomer: Someone | None = None
        held: Claim | None = None
        try:
            for number in range(ENOUGH):
                if number == before:
                    newcomer = Someone(backend.open(), f"n{before}")
                    make_plan(newcomer.session, newcomer.name, newcomer.name)
                    held = newcomer.claim()
                operation = step(admin, recipe, operation)
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
        execute(newcomer.session, members.remove(GROUP, newcomer.name))
        newcomer.session.close()
        if is_gone(admin):
            fresh = Someone(backend.open(), f"f{before}")
            make_plan(fresh.session, fresh.name, fresh.name)
            left_behind(fresh)
    pytest.fail("a deletion does not end")


def test_by_force_who_joined_meanwhile_commits_nothing_that_was_deleted_under_its_claim(
    backend: Backend, admin: Session
) -> None:
    """Whenever it comes, and though the version that its claim stands on comes again."""
    claimed = 0
    for before in range(ENOUGH):
        a = Someone(backend.open(), f"a{before}")
        make_plan(a.session, a.name)
        a.release(a.claim(), 17)
        newcomer: Someone | None = None
        held: object = None
        recipe = group_deletion.delete(GROUP, force=True)
        operation = next(recipe)
        with suppress(StopIteration):
            for number in range(ENOUGH):
                if number == before:
                    newcomer = Someone(backend.open(), f"n{before}")
                    make_plan(newcomer.session, newcomer.name)
                    held = execute(newcomer.session, newcomer.claiming())
                operation = step(admin, recipe, operation)
        if newcomer is None:
            assert claimed > 3
            return
        b = Someone(backend.open(), f"b{before}")
        make_plan(b.session, b.name)
        found = execute(b.session, b.claiming())
        if isinstance(held, Claim) and isinstance(found, Claim):
            claimed += 1
            while found.version < held.version:
                found = b.committed(found, 1)
            assert newcomer.commit(held, 99) == Fenced()
            assert state(admin) == found.state
        execute(admin, group_deletion.delete(GROUP, force=True))
    pytest.fail("a deletion does not end")


@pytest.mark.parametrize("force", [False, True], ids=["empty", "by force"])
def test_a_claim_that_looked_before_a_deletion_meets_the_reset_that_came_after_it(
    backend: Backend, admin: Session, force: bool
) -> None:
    """Whenever its member joins, and though the offset's node comes to the version that it read."""
    claimed = 0
    for before in range(ENOUGH):
        a = Someone(backend.open(), f"a{before}")
        make_plan(a.session, a.name)
        a.release(a.claim(), 17)
        execute(a.session, members.remove(GROUP, a.name))
        recipe = group_deletion.delete(GROUP, force=force)
        operation = next(recipe)
        try:
            for _ in range(before):
                operation = step(admin, recipe, operation)
        except StopIteration:
            assert claimed > 3
            return
        newcomer = Someone(backend.open(), f"n{before}")
        make_plan(newcomer.session, newcomer.name)
        claiming = newcomer.claiming()
        claim = up_to_its_write(newcomer.session, claiming)
        with suppress(GroupNotEmpty):
            execute(admin, going_on(recipe, operation))
        latest = execute(admin, resets.reset(GROUP, P0, TOPIC_ID, 5, "mark"))
        assert isinstance(claim, Multi)
        (read,) = (each.version for each in claim.writes if isinstance(each, Set))
        while version_of(admin, paths.offset(GROUP, *P0)) < read:
            latest = execute(admin, resets.reset(GROUP, P0, TOPIC_ID, 6, f"m{latest.epoch}"))

        held = execute(newcomer.session, going_on(claiming, claim))

        now = state(admin)
        assert (now.offset, now.reset) == (latest.offset, latest.reset)
        if isinstance(held, Claim):
            claimed += 1
            assert now == held.state
            assert now.epoch > latest.epoch
        execute(newcomer.session, members.remove(GROUP, newcomer.name))
        execute(admin, group_deletion.delete(GROUP, force=True))
    pytest.fail("a deletion does not end")


@pytest.mark.parametrize("at_once", [1, 250])
def test_by_force_who_joins_meanwhile_is_removed_as_well(
    backend: Backend, a: Someone, admin: Session, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    """Right before a transaction, which knows nothing of it: that fails, and takes it along then."""
    monkeypatch.setattr(group_deletion, "PARTITIONS_PER_TRANSACTION", at_once)
    a.committed(a.claim(), 17)
    a.committed(a.claim(P1), 18, P1)
    recipe = group_deletion.delete(GROUP, force=True)
    operation = next(recipe)
    newcomers: list[Someone] = []
    with suppress(StopIteration):
        while True:
            if isinstance(operation, Multi) and len(newcomers) < 5:
                newcomers.append(Someone(backend.open(), f"n{len(newcomers)}"))
                make_plan(newcomers[-1].session, newcomers[-1].name)
            operation = step(admin, recipe, operation)
    assert len(newcomers) == 5
    assert is_gone(admin)


def test_a_deletion_that_was_done_and_not_answered_leaves_the_next_group_alone(
    backend: Backend, a: Someone, admin: Session
) -> None:
    for force in (False, True):
        someone = Someone(backend.open(), f"m{force}")
        make_plan(someone.session, someone.name, someone.name)
        left_behind(someone)
        execute(a.session, members.remove(GROUP, a.name))
        recipe = group_deletion.delete(GROUP, force)
        operation = up_to_its_write(admin, recipe)
        execute(admin, operation)
        newcomer = Someone(backend.open(), f"n{force}")
        make_plan(newcomer.session, newcomer.name)
        held = newcomer.committed(newcomer.claim(), 5)
        operation = recipe.throw(ConnectionLost("lost on the way back"))
        execute(admin, going_on(recipe, operation))
        assert state(admin) == held.state
        assert isinstance(newcomer.commit(held, 6), Claim)
        execute(newcomer.session, members.remove(GROUP, newcomer.name))
        newcomer.session.close()
        execute(admin, group_deletion.delete(GROUP))


def test_a_plan_that_was_read_before_a_deletion_is_not_written_after_it(
    backend: Backend, a: Someone, admin: Session
) -> None:
    """Though the plan of the next group has come to the version that it was made from."""
    for before in range(ENOUGH):
        recipe = group_deletion.delete(GROUP, force=True)
        operation = next(recipe)
        try:
            for _ in range(before):
                operation = step(admin, recipe, operation)
        except StopIteration:
            assert before > 3
            return
        slow = Someone(backend.open(), f"s{before}")
        make_plan(slow.session, slow.name)
        version = execute(slow.session, planning.get(GROUP)).version
        proposal = replace(GROUP, slow.name, {}, lambda plan, _: Plan(plan.generation + 1))
        write = up_to_its_write(slow.session, proposal)
        execute(admin, going_on(recipe, operation))
        b = Someone(backend.open(), f"b{before}")
        while make_plan(b.session, b.name) < version:
            pass
        ours = execute(b.session, planning.get(GROUP))
        execute(slow.session, going_on(proposal, write))
        assert execute(b.session, planning.get(GROUP)) == ours
        for someone in (slow, b):
            execute(someone.session, members.remove(GROUP, someone.name))
            someone.session.close()
    pytest.fail("a deletion does not end")


def test_two_deletions_at_once_both_come_to_an_end(backend: Backend, admin: Session) -> None:
    other = backend.open()
    for steps in range(ENOUGH):
        someone = Someone(backend.open(), f"m{steps}")
        make_plan(someone.session, someone.name, someone.name)
        left_behind(someone)
        recipe = group_deletion.delete(GROUP)
        operation = next(recipe)
        try:
            for _ in range(steps):
                operation = step(admin, recipe, operation)
        except StopIteration:
            return
        with suppress(UnknownGroup):
            execute(other, group_deletion.delete(GROUP))
        with suppress(UnknownGroup):
            execute(admin, going_on(recipe, operation))
        assert is_gone(admin)
    pytest.fail("this recipe does not end")
