"""Offsets moved by an administrator while owners are at work, with lost replies and deaths."""

from itertools import count

import pytest

from folkmoot.coordination import paths
from folkmoot.coordination.groups import group_deletion, ownership
from folkmoot.coordination.groups import offset_admin as resets
from folkmoot.coordination.groups.ownership import Claim, Fenced, MalformedOffset, OffsetState
from folkmoot.coordination.zookeeper.execute import execute
from folkmoot.coordination.zookeeper.operations import ConnectionLost, Recipe, Set
from folkmoot.coordination.zookeeper.session import Session
from folkmoot.protocol.records import TopicPartition
from tests.contracts.backends import Backend, wait_for_rings
from tests.coordination.groups import (
    GROUP,
    P0,
    TOPIC_ID,
    Someone,
    make_plan,
    nothing,
    owner,
    state,
    turn,
    version_of,
)
from tests.coordination.steps import ENOUGH, Steps, counted, going_on, step, up_to_its_write

_marks = count()


def resetting(
    offset: int, partition: TopicPartition = P0, topic_id: str = TOPIC_ID
) -> Recipe[OffsetState]:
    return resets.reset(GROUP, partition, topic_id, offset, f"mark-{next(_marks)}")


def test_a_reset_fences_the_owner_and_it_goes_on_at_the_new_offset(
    a: Someone, admin: Session
) -> None:
    held = a.committed(a.claim(), 17)
    rings: list[str] = []
    assert execute(a.session, ownership.verify(a.me, P0, held, lambda: rings.append("reset")))
    execute(admin, resetting(3))
    wait_for_rings(rings, "reset")
    assert not execute(a.session, ownership.verify(a.me, P0, held, nothing))
    assert a.commit(held, 18) == Fenced()
    a.release(held, 19)
    assert state(admin).offset == 3
    again = a.claim()
    assert (again.state.offset, again.state.epoch) == (3, held.state.epoch + 2)
    assert a.committed(again, 4).state.offset == 4


def test_a_reset_takes_the_partition_from_its_owner_in_one_transaction(
    a: Someone, admin: Session
) -> None:
    """But for one that commits faster than the reset can be tried."""
    a.committed(a.claim(), 17)
    _, kinds = counted(admin, resetting(3))
    assert (kinds["Multi"], kinds["Delete"]) == (1, 0)


def test_a_group_that_never_was_can_be_given_offsets(backend: Backend, admin: Session) -> None:
    execute(admin, resetting(7))
    assert (state(admin).offset, turn(admin)) == (7, 1)
    first = Someone(backend.open(), "first")
    make_plan(first.session, first.name)
    assert first.claim().state.offset == 7


def test_a_reset_of_what_nobody_owns_is_where_the_next_owner_begins(
    a: Someone, admin: Session
) -> None:
    a.release(a.claim(), 17)
    execute(admin, resetting(30))
    assert owner(admin) is None
    assert a.claim().state.offset == 30


def test_an_offset_of_a_topic_that_was_made_anew_is_that_of_the_new_one(
    a: Someone, admin: Session
) -> None:
    a.release(a.claim(), 17)
    execute(admin, resetting(5, topic_id="id-2"))
    answer = execute(a.session, a.claiming(topic_id="id-2"))
    assert isinstance(answer, Claim)
    assert answer.state.offset == 5


def test_a_claim_under_way_meets_the_reset_or_comes_after_it(a: Someone, admin: Session) -> None:
    a.release(a.claim(), 17)
    claiming = a.claiming()
    operation = up_to_its_write(a.session, claiming)
    execute(admin, resetting(3))
    answer = execute(a.session, going_on(claiming, operation))
    assert isinstance(answer, Claim)
    assert answer.state.offset == 3


@pytest.mark.parametrize("act", ["commit", "release", "claim"])
def test_whatever_the_owner_does_while_a_reset_is_under_way_the_reset_counts(
    a: Someone, admin: Session, act: str
) -> None:
    held = a.claim()
    if act == "claim":
        a.release(held, 17)
    recipe = resetting(3)
    operation = up_to_its_write(admin, recipe)
    match act:
        case "commit":
            held = a.committed(held, 17)
        case "release":
            a.release(held, 17)
        case "claim":
            held = a.claim()
    execute(admin, going_on(recipe, operation))
    assert (state(admin).offset, owner(admin)) == (3, None)
    assert a.commit(held, 18) == Fenced()


def test_an_owner_that_commits_without_a_pause_does_not_keep_a_reset_out(
    a: Someone, admin: Session
) -> None:
    held = a.claim()
    recipe = resetting(3)
    operation = next(recipe)
    for offset in range(ENOUGH):
        try:
            operation = step(admin, recipe, operation)
        except StopIteration:
            break
        if owner(admin) is not None:  # else it has noticed, and has to claim again
            held = a.committed(held, offset)
    assert a.commit(held, 100) == Fenced()
    assert (state(admin).offset, owner(admin)) == (3, None)


def test_an_offset_that_is_illegible_is_mended_by_a_reset(a: Someone, admin: Session) -> None:
    """Nobody can claim it before; its epoch is above all that there were."""
    held = a.claim()
    for offset in range(5):
        held = a.committed(held, offset)
    a.release(held, 8)
    last = a.claim()
    execute(admin, Set(paths.offset(GROUP, *P0), b"8"))
    assert isinstance(execute(a.session, a.claiming()), MalformedOffset)
    assert execute(admin, resetting(3)).epoch > last.state.epoch
    assert a.commit(last, 9) == Fenced()
    assert a.claim().state.offset == 3


# -- lost replies, deaths -----------------------------------------------------------------------------


@pytest.mark.parametrize("executed", [False, True], ids=["unsent", "unanswered"])
@pytest.mark.parametrize("owned", [False, True], ids=["free", "owned"])
def test_a_reset_ends_well_whichever_reply_is_lost(
    a: Someone, admin: Session, executed: bool, owned: bool
) -> None:
    for lost in range(ENOUGH):
        each = TopicPartition(f"t{lost}", 0)
        if owned:
            a.committed(a.claim(each), 17, each)
        steps = Steps(admin)
        written = steps.run(resetting(3, each), lost, executed=executed)
        assert state(admin, each) == written
        assert (written.offset, turn(admin, each)) == (3, 2 if owned else 1)
        assert owner(admin, each) is None
        if steps.taken <= lost:
            return
    pytest.fail("this recipe does not end")


def test_a_reset_that_was_not_answered_is_recognised_though_its_owner_is_back(
    a: Someone, admin: Session
) -> None:
    """Done twice it would send the owner back for nothing."""
    a.committed(a.claim(), 17)
    recipe = resetting(3)
    operation = up_to_its_write(admin, recipe)
    execute(admin, operation)
    held = a.committed(a.claim(), 5)
    asks = recipe.throw(ConnectionLost("no answer"))
    assert execute(admin, going_on(recipe, asks)) == held.state
    assert state(admin) == held.state
    assert a.committed(held, 6).state.offset == 6


def test_an_administrator_who_dies_at_any_step_has_reset_or_not(
    backend: Backend, a: Someone
) -> None:
    offsets = set()
    for steps in range(ENOUGH):
        each = TopicPartition(f"t{steps}", 0)
        held = a.committed(a.claim(each), 17, each)
        session = backend.open()
        alive = Steps(session).run_until(resetting(3, each), steps)
        backend.expire(session)
        offsets.add(state(a.session, each).offset)
        if state(a.session, each).offset == 17:
            a.committed(held, 18, each)
        else:
            assert a.commit(held, 18, each) == Fenced()
            assert a.claim(each).state.offset == 3
        if not alive:
            assert offsets == {3, 17}
            return
    pytest.fail("this recipe does not end")


def test_a_reset_that_looked_before_the_group_was_deleted_looks_again(
    a: Someone, admin: Session, backend: Backend
) -> None:
    """The offset's node of the new group comes to the version that was read of the old one."""
    a.claim()
    recipe = resetting(7)
    operation = up_to_its_write(admin, recipe)
    other = backend.open()
    execute(other, group_deletion.delete(GROUP, force=True))
    newcomer = Someone(backend.open(), "b")
    make_plan(newcomer.session, newcomer.name)
    before = newcomer.claim()
    assert version_of(admin, paths.offset(GROUP, *P0)) == 1

    execute(admin, going_on(recipe, operation))

    assert (state(admin).offset, turn(admin)) == (7, 2)
    assert state(admin).epoch > before.state.epoch
    assert newcomer.commit(before, 3) == Fenced()


def test_a_deletion_of_any_group_disturbs_no_reset_that_begins_after_it(
    a: Someone, admin: Session
) -> None:
    a.claim()
    execute(admin, resets.reset("another", P0, TOPIC_ID, 5, "mark-another"))
    execute(admin, group_deletion.delete("another"))
    assert execute(admin, resetting(7)).offset == 7
