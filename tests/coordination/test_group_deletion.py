"""Groups deleted: without members, under somebody's feet, halfway, and what zombies can do then."""

import pytest

from folkmoot.coordination import paths
from folkmoot.coordination.groups import group_deletion, inspection, ownership
from folkmoot.coordination.groups import membership as members
from folkmoot.coordination.groups.membership import MemberInfo
from folkmoot.coordination.groups.ownership import Claim, Fenced
from folkmoot.coordination.zookeeper.execute import execute
from folkmoot.coordination.zookeeper.operations import Create, Delete, MultiFailed, ZooKeeperError
from folkmoot.coordination.zookeeper.session import Session
from folkmoot.protocol.errors import GroupNotEmpty, UnknownGroup, UnknownTopicOrPartition
from folkmoot.protocol.records import TopicPartition
from tests.contracts.backends import Backend
from tests.coordination.groups import (
    GROUP,
    P0,
    P1,
    REVOKE_TIMEOUT,
    Someone,
    is_gone,
    left_behind,
    make_plan,
    offsets,
    owner,
    state,
)
from tests.coordination.steps import ENOUGH, Steps, going_on, step, up_to_its_write


def test_a_group_without_members_is_forgotten(a: Someone, admin: Session) -> None:
    left_behind(a)
    execute(admin, group_deletion.delete(GROUP))
    assert is_gone(admin)
    assert inspection.describe(admin, [GROUP]) == []
    with pytest.raises(UnknownGroup, match=GROUP):
        execute(admin, group_deletion.delete(GROUP))


def test_a_group_with_a_member_stays_as_it_is(a: Someone, admin: Session) -> None:
    a.release(a.claim(), 17)
    with pytest.raises(GroupNotEmpty, match=a.name):
        execute(admin, group_deletion.delete(GROUP))
    assert a.claim().state.offset == 17


def test_a_group_that_somebody_owns_a_part_of_stays_though_its_node_was_removed(
    a: Someone, admin: Session
) -> None:
    a.committed(a.claim(), 17)
    execute(admin, Delete(paths.member(GROUP, a.name)))
    with pytest.raises(GroupNotEmpty, match="without a member"):
        execute(admin, group_deletion.delete(GROUP))
    assert state(admin).offset == 17


def test_by_force_members_lose_what_they_have_and_nothing_is_committed_any_more(
    a: Someone, admin: Session
) -> None:
    held = a.committed(a.claim(), 17)
    execute(admin, group_deletion.delete(GROUP, force=True))
    assert is_gone(admin)
    assert a.commit(held, 18) == Fenced()
    a.release(held, 19)
    assert is_gone(admin)


def test_after_a_deletion_a_zombie_commits_nothing_though_versions_meet_again(
    backend: Backend, a: Someone, admin: Session
) -> None:
    zombie = a.committed(a.claim(), 17)
    execute(admin, group_deletion.delete(GROUP, force=True))
    b = Someone(backend.open(), "b")
    make_plan(b.session, b.name)
    held = b.claim()
    assert held.state.epoch > zombie.state.epoch
    while held.version < zombie.version:
        held = b.committed(held, 1)
    assert a.commit(zombie, 99) == Fenced()
    assert state(b.session) == held.state
    assert owner(b.session) is not None


@pytest.mark.parametrize("executed", [False, True], ids=["unsent", "unanswered"])
def test_a_deletion_ends_well_whichever_reply_is_lost(
    backend: Backend, admin: Session, executed: bool
) -> None:
    for lost in range(ENOUGH):
        someone = Someone(backend.open(), f"m{lost}")
        make_plan(someone.session, someone.name, someone.name)
        left_behind(someone)
        steps = Steps(admin)
        steps.run(group_deletion.delete(GROUP), lost, executed=executed)
        assert is_gone(admin)
        if steps.taken <= lost:
            return
    pytest.fail("this recipe does not end")


def test_who_dies_at_any_step_of_a_deletion_leaves_what_can_be_deleted_again(
    backend: Backend, admin: Session
) -> None:
    for steps in range(ENOUGH):
        someone = Someone(backend.open(), f"m{steps}")
        make_plan(someone.session, someone.name, someone.name)
        left_behind(someone)
        session = backend.open()
        alive = Steps(session).run_until(group_deletion.delete(GROUP), steps)
        backend.expire(session)
        if not is_gone(admin):
            left = offsets(admin)
            assert all(each.offset in (17, 18) for each in left.values())
            execute(admin, group_deletion.delete(GROUP))
        assert is_gone(admin)
        if not alive:
            return
    pytest.fail("this recipe does not end")


def test_a_group_of_more_than_a_transaction_holds_is_deleted_in_several(
    backend: Backend, a: Someone, admin: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who joins between two of them keeps what is left, and what it has claimed."""
    monkeypatch.setattr(group_deletion, "PARTITIONS_PER_TRANSACTION", 1)
    left_behind(a)
    before = offsets(admin)
    recipe = group_deletion.delete(GROUP)
    operation = next(recipe)
    while len(offsets(admin)) == len(before):
        operation = step(admin, recipe, operation)
    newcomer = Someone(backend.open(), "n")
    make_plan(newcomer.session, newcomer.name, newcomer.name)
    kept = newcomer.claim(P1)
    assert (newcomer.claim().state.offset, kept.state.offset) == (None, 18)
    with pytest.raises(GroupNotEmpty, match=newcomer.name):
        execute(admin, going_on(recipe, operation))
    assert isinstance(newcomer.commit(kept, 19, P1), Claim)
    execute(newcomer.session, members.remove(GROUP, newcomer.name))
    newcomer.session.close()
    execute(admin, group_deletion.delete(GROUP))
    assert is_gone(admin)


def test_what_is_no_partition_or_member_does_not_keep_a_deletion_from_its_end(
    a: Someone, admin: Session
) -> None:
    """Put there by hand: below the offsets it stays, among the members it counts as one."""
    left_behind(a)
    execute(admin, Create(paths.offsets(GROUP, "t") + "/007"))
    execute(admin, Create(paths.members(GROUP) + "/note"))
    with pytest.raises(GroupNotEmpty, match="note"):
        execute(admin, group_deletion.delete(GROUP))
    assert state(admin).offset == 17
    execute(admin, group_deletion.delete(GROUP, force=True))
    assert execute(admin, ownership.committed(GROUP, P0)) is None
    execute(admin, Delete(paths.offsets(GROUP, "t") + "/007"))
    execute(admin, group_deletion.delete(GROUP))
    assert is_gone(admin)


def test_a_refusal_that_no_member_can_have_caused_ends_a_deletion(
    a: Someone, admin: Session
) -> None:
    left_behind(a)
    recipe = group_deletion.delete(GROUP)
    up_to_its_write(admin, recipe)
    with pytest.raises(MultiFailed, match="not allowed"):
        recipe.throw(MultiFailed(0, ZooKeeperError("not allowed")))


def test_what_others_have_put_into_a_group_stops_its_deletion(a: Someone, admin: Session) -> None:
    """By hand: below the plan, where nothing belongs."""
    left_behind(a)
    execute(admin, Create(f"{paths.plan(GROUP)}/note"))
    with pytest.raises(MultiFailed, match="children"):
        execute(admin, group_deletion.delete(GROUP))
    assert state(admin).offset == 17


def test_offsets_alone_are_a_group_that_can_be_deleted(backend: Backend, admin: Session) -> None:
    someone = Someone(backend.open(), "a")
    make_plan(someone.session, someone.name, someone.name)
    left_behind(someone)
    for path in (paths.members(GROUP), paths.plan(GROUP)):
        execute(admin, Delete(path))
    execute(admin, group_deletion.delete(GROUP))
    assert is_gone(admin)
    assert execute(admin, ownership.committed(GROUP, P0)) is None
    assert execute(admin, members.join(GROUP, "m", MemberInfo(("t",), "host", REVOKE_TIMEOUT)))


@pytest.mark.parametrize("executed", [False, True], ids=["unsent", "unanswered"])
def test_the_offsets_of_one_topic_are_deleted_whichever_reply_is_lost_and_others_stay(
    backend: Backend, admin: Session, executed: bool
) -> None:
    other = TopicPartition("u", 0)
    for lost in range(ENOUGH):
        someone = Someone(backend.open(), f"m{lost}")
        make_plan(someone.session, someone.name, someone.name)
        someone.release(someone.claim(other), lost, other)
        left_behind(someone)
        steps = Steps(admin)
        steps.run(group_deletion.delete_offsets(GROUP, "t"), lost, executed=executed)
        assert {each: known.offset for each, known in offsets(admin).items()} == {other: lost}
        if steps.taken <= lost:
            return
    pytest.fail("this recipe does not end")


def test_offsets_of_a_topic_stay_if_somebody_joins_at_the_last_moment(
    backend: Backend, a: Someone, admin: Session
) -> None:
    left_behind(a)
    before = offsets(admin)
    recipe = group_deletion.delete_offsets(GROUP, "t")
    operation = up_to_its_write(admin, recipe)
    newcomer = Someone(backend.open(), "n")
    with pytest.raises(GroupNotEmpty, match=newcomer.name):
        execute(admin, going_on(recipe, operation))
    assert offsets(admin) == before


@pytest.mark.parametrize("executed", [False, True], ids=["unsent", "unanswered"])
def test_under_live_members_offsets_of_what_they_do_not_read_are_reset_to_nothing(
    backend: Backend, admin: Session, executed: bool
) -> None:
    """Whichever reply is lost, or the administrator dies: who has read an offset before is fenced."""
    of_u = [TopicPartition("u", number) for number in range(2)]
    for lost in range(ENOUGH):
        someone = Someone(backend.open(), f"m{lost}")
        make_plan(someone.session, someone.name)
        kept = someone.committed(someone.claim(), 5 + lost)
        held = {each: someone.committed(someone.claim(each), 7, each) for each in of_u}
        with pytest.raises(GroupNotEmpty, match="subscribe to t"):
            execute(admin, group_deletion.delete_offsets(GROUP, "t"))
        with pytest.raises(GroupNotEmpty, match="subscribe to u"):
            execute(admin, group_deletion.delete_offsets(GROUP, "u"))  # it owns some of it
        for each in of_u:
            execute(admin, Delete(paths.owner(GROUP, *each)))  # by hand: it has not noticed
        steps = Steps(admin)
        steps.run(group_deletion.delete_offsets(GROUP, "u"), lost, executed=executed)
        assert {each: offsets(admin)[each].offset for each in of_u} == dict.fromkeys(of_u)
        assert all(isinstance(someone.commit(held[each], 9, each), Fenced) for each in of_u)
        (described,) = inspection.describe(admin, [GROUP])
        assert [each.partition for each in described.partitions] == [P0]
        with pytest.raises(UnknownTopicOrPartition):
            execute(admin, group_deletion.delete_offsets(GROUP, "u"))
        someone.release(kept, None)
        execute(someone.session, members.leave(GROUP, someone.name))
        if steps.taken <= lost:
            return
    pytest.fail("this recipe does not end")


def test_forgetting_that_ends_halfway_is_completed_by_doing_it_again(
    a: Someone, admin: Session
) -> None:
    of_u = [TopicPartition("u", number) for number in range(2)]
    make_plan(a.session, a.name)
    for each in of_u:
        a.release(a.claim(each), 7, each)
    for steps in range(ENOUGH):
        recipe = group_deletion.delete_offsets(GROUP, "u")
        operation = next(recipe)
        for _ in range(steps):
            operation = step(admin, recipe, operation)
        if offsets(admin)[of_u[0]].offset is None:
            break
    assert offsets(admin)[of_u[1]].offset == 7
    execute(admin, group_deletion.delete_offsets(GROUP, "u"))
    assert offsets(admin)[of_u[1]].offset is None
