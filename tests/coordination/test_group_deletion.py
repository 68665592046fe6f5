"""Groups deleted: without members, under somebody's feet, halfway, and what zombies can do then."""

from contextlib import suppress

import pytest

from folkmoot.coordination import group_deletion, groups, members, ownership, paths, plans, resets
from folkmoot.coordination.members import MemberInfo
from folkmoot.coordination.operations import (
    ConnectionLost,
    Create,
    Delete,
    Exists,
    Multi,
    MultiFailed,
    Set,
    StoreError,
)
from folkmoot.coordination.ownership import Claim, Fenced
from folkmoot.coordination.plans import Plan
from folkmoot.coordination.store import Store, perform, run
from folkmoot.protocol.errors import GroupNotEmpty, UnknownGroup
from tests.contracts.backends import Backend
from tests.coordination.groups import (
    GROUP,
    HAND_OVER,
    P0,
    P1,
    TOPIC_ID,
    Someone,
    make_plan,
    owner,
    state,
    version_of,
)
from tests.coordination.steps import ENOUGH, Steps, going_on, step, up_to_its_write


@pytest.fixture
def a(backend: Backend) -> Someone:
    """A member to whom the plan gives t-0 and t-1."""
    someone = Someone(backend.open(), "a")
    make_plan(someone.store, someone.name, someone.name)
    return someone


@pytest.fixture
def admin(backend: Backend) -> Store:
    return backend.open()


def left_behind(someone: Someone) -> None:
    """It has committed 17 and 18, and left."""
    for partition, offset in ((P0, 17), (P1, 18)):
        someone.release(someone.claim(partition), offset, partition)
    run(someone.store, members.leave(GROUP, someone.name))


def is_gone(store: Store) -> bool:
    return perform(store, Exists(paths.group(GROUP))) is None


def test_a_group_without_members_is_forgotten(a: Someone, admin: Store) -> None:
    left_behind(a)
    run(admin, group_deletion.delete(GROUP))
    assert is_gone(admin)
    assert groups.describe(admin, GROUP) is None
    with pytest.raises(UnknownGroup, match=GROUP):
        run(admin, group_deletion.delete(GROUP))


def test_a_group_with_a_member_stays_as_it_is(a: Someone, admin: Store) -> None:
    a.release(a.claim(), 17)
    with pytest.raises(GroupNotEmpty, match=a.name):
        run(admin, group_deletion.delete(GROUP))
    assert a.claim().state.offset == 17


def test_a_group_that_somebody_owns_a_part_of_stays_though_its_node_was_removed(
    a: Someone, admin: Store
) -> None:
    a.committed(a.claim(), 17)
    perform(admin, Delete(paths.member(GROUP, a.name)))
    with pytest.raises(GroupNotEmpty, match=a.name):
        run(admin, group_deletion.delete(GROUP))
    assert state(admin).offset == 17


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


def test_by_force_members_lose_what_they_have_and_nothing_is_committed_any_more(
    a: Someone, admin: Store
) -> None:
    held = a.committed(a.claim(), 17)
    run(admin, group_deletion.delete(GROUP, force=True))
    assert is_gone(admin)
    assert a.commit(held, 18) == Fenced()
    a.release(held, 19)
    assert is_gone(admin)


def test_after_a_deletion_a_zombie_commits_nothing_though_versions_meet_again(
    backend: Backend, a: Someone, admin: Store
) -> None:
    zombie = a.committed(a.claim(), 17)
    run(admin, group_deletion.delete(GROUP, force=True))
    b = Someone(backend.open(), "b")
    make_plan(b.store, b.name)
    held = b.claim()
    assert held.state.epoch > zombie.state.epoch
    while held.version < zombie.version:
        held = b.committed(held, 1)
    assert a.commit(zombie, 99) == Fenced()
    assert state(b.store) == held.state
    assert owner(b.store) is not None


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


@pytest.mark.parametrize("executed", [False, True], ids=["unsent", "unanswered"])
def test_a_deletion_ends_well_whichever_reply_is_lost(
    backend: Backend, admin: Store, executed: bool
) -> None:
    for lost in range(ENOUGH):
        someone = Someone(backend.open(), f"m{lost}")
        make_plan(someone.store, someone.name, someone.name)
        left_behind(someone)
        steps = Steps(admin)
        steps.run(group_deletion.delete(GROUP), lost, executed=executed)
        assert is_gone(admin)
        if steps.taken <= lost:
            return
    pytest.fail("this verb does not end")


def test_who_dies_at_any_step_of_a_deletion_leaves_what_can_be_deleted_again(
    backend: Backend, admin: Store
) -> None:
    for steps in range(ENOUGH):
        someone = Someone(backend.open(), f"m{steps}")
        make_plan(someone.store, someone.name, someone.name)
        left_behind(someone)
        store = backend.open()
        alive = Steps(store).run_until(group_deletion.delete(GROUP), steps)
        backend.expire(store)
        if not is_gone(admin):
            left = groups.offsets(admin, GROUP)
            assert all(each.offset in (17, 18) for each in left.values())
            run(admin, group_deletion.delete(GROUP))
        assert is_gone(admin)
        if not alive:
            return
    pytest.fail("this verb does not end")


def test_a_group_of_more_than_a_transaction_holds_is_deleted_in_several(
    backend: Backend, a: Someone, admin: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who joins between two of them keeps what is left, and what it has claimed."""
    monkeypatch.setattr(group_deletion, "PARTITIONS_PER_TRANSACTION", 1)
    left_behind(a)
    before = groups.offsets(admin, GROUP)
    verb = group_deletion.delete(GROUP)
    operation = next(verb)
    while len(groups.offsets(admin, GROUP)) == len(before):
        operation = step(admin, verb, operation)
    newcomer = Someone(backend.open(), "n")
    make_plan(newcomer.store, newcomer.name, newcomer.name)
    kept = newcomer.claim(P1)
    assert (newcomer.claim().state.offset, kept.state.offset) == (None, 18)
    with pytest.raises(GroupNotEmpty, match=newcomer.name):
        run(admin, going_on(verb, operation))
    assert isinstance(newcomer.commit(kept, 19, P1), Claim)
    run(newcomer.store, members.leave(GROUP, newcomer.name))
    newcomer.store.close()
    run(admin, group_deletion.delete(GROUP))
    assert is_gone(admin)


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


def test_what_is_no_partition_or_member_does_not_keep_a_deletion_from_its_end(
    a: Someone, admin: Store
) -> None:
    """Put there by hand: below the offsets it stays, among the members it counts as one."""
    left_behind(a)
    perform(admin, Create(paths.offsets(GROUP, "t") + "/007"))
    perform(admin, Create(paths.members(GROUP) + "/note"))
    with pytest.raises(GroupNotEmpty, match="note"):
        run(admin, group_deletion.delete(GROUP))
    assert state(admin).offset == 17
    run(admin, group_deletion.delete(GROUP, force=True))
    assert run(admin, ownership.committed(GROUP, P0)) is None
    perform(admin, Delete(paths.offsets(GROUP, "t") + "/007"))
    run(admin, group_deletion.delete(GROUP))
    assert is_gone(admin)


def test_a_refusal_that_no_member_can_have_caused_ends_a_deletion(a: Someone, admin: Store) -> None:
    left_behind(a)
    verb = group_deletion.delete(GROUP)
    up_to_its_write(admin, verb)
    with pytest.raises(MultiFailed, match="not allowed"):
        verb.throw(MultiFailed(0, StoreError("not allowed")))


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


def test_what_others_have_put_into_a_group_stops_its_deletion(a: Someone, admin: Store) -> None:
    """By hand: below the plan, where nothing belongs."""
    left_behind(a)
    perform(admin, Create(f"{paths.plan(GROUP)}/note"))
    with pytest.raises(MultiFailed, match="children"):
        run(admin, group_deletion.delete(GROUP))
    assert state(admin).offset == 17


def test_offsets_alone_are_a_group_that_can_be_deleted(backend: Backend, admin: Store) -> None:
    someone = Someone(backend.open(), "a")
    make_plan(someone.store, someone.name, someone.name)
    left_behind(someone)
    for path in (paths.members(GROUP), paths.plan(GROUP)):
        perform(admin, Delete(path))
    run(admin, group_deletion.delete(GROUP))
    assert is_gone(admin)
    assert run(admin, ownership.committed(GROUP, P0)) is None
    assert run(admin, members.join(GROUP, "m", MemberInfo(("t",), "host", HAND_OVER)))
