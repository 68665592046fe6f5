"""Offsets moved by an administrator while owners are at work, with lost replies and deaths."""

from itertools import count

import pytest

from folkmoot.coordination import paths
from folkmoot.coordination.groups import group_deletion, ownership
from folkmoot.coordination.groups import offset_admin as resets
from folkmoot.coordination.groups.ownership import Claim, Fenced, OffsetState
from folkmoot.coordination.zookeeper.operations import ConnectionLost, Set, Verb
from folkmoot.coordination.zookeeper.retry import Malformed
from folkmoot.coordination.zookeeper.session import Store, perform, run
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
from tests.coordination.steps import ENOUGH, Steps, going_on, step, up_to_its_write

_marks = count()


def resetting(
    offset: int, partition: TopicPartition = P0, topic_id: str = TOPIC_ID
) -> Verb[OffsetState]:
    return resets.reset(GROUP, partition, topic_id, offset, f"mark-{next(_marks)}")


@pytest.fixture
def a(backend: Backend) -> Someone:
    """A member to whom the plan gives t-0."""
    someone = Someone(backend.open(), "a")
    make_plan(someone.store, someone.name)
    return someone


@pytest.fixture
def admin(backend: Backend) -> Store:
    return backend.open()


def test_a_reset_fences_the_owner_and_it_goes_on_at_the_new_offset(
    a: Someone, admin: Store
) -> None:
    held = a.committed(a.claim(), 17)
    rings: list[str] = []
    assert run(a.store, ownership.verify(a.me, P0, held, lambda: rings.append("reset")))
    run(admin, resetting(3))
    wait_for_rings(rings, "reset")
    assert not run(a.store, ownership.verify(a.me, P0, held, nothing))
    assert a.commit(held, 18) == Fenced()
    a.release(held, 19)
    assert state(admin).offset == 3
    again = a.claim()
    assert (again.state.offset, again.state.epoch) == (3, held.state.epoch + 2)
    assert a.committed(again, 4).state.offset == 4


def test_a_group_that_never_was_can_be_given_offsets(backend: Backend, admin: Store) -> None:
    run(admin, resetting(7))
    assert (state(admin).offset, turn(admin)) == (7, 1)
    first = Someone(backend.open(), "first")
    make_plan(first.store, first.name)
    assert first.claim().state.offset == 7


def test_a_reset_of_what_nobody_owns_is_where_the_next_owner_begins(
    a: Someone, admin: Store
) -> None:
    a.release(a.claim(), 17)
    run(admin, resetting(30))
    assert owner(admin) is None
    assert a.claim().state.offset == 30


def test_an_offset_of_a_topic_that_was_made_anew_is_that_of_the_new_one(
    a: Someone, admin: Store
) -> None:
    a.release(a.claim(), 17)
    run(admin, resetting(5, topic_id="id-2"))
    answer = run(a.store, a.claiming(topic_id="id-2"))
    assert isinstance(answer, Claim)
    assert answer.state.offset == 5


def test_a_claim_under_way_meets_the_reset_or_comes_after_it(a: Someone, admin: Store) -> None:
    a.release(a.claim(), 17)
    claiming = a.claiming()
    operation = up_to_its_write(a.store, claiming)
    run(admin, resetting(3))
    answer = run(a.store, going_on(claiming, operation))
    assert isinstance(answer, Claim)
    assert answer.state.offset == 3


@pytest.mark.parametrize("act", ["commit", "release", "claim"])
def test_whatever_the_owner_does_while_a_reset_is_under_way_the_reset_counts(
    a: Someone, admin: Store, act: str
) -> None:
    held = a.claim()
    if act == "claim":
        a.release(held, 17)
    verb = resetting(3)
    operation = up_to_its_write(admin, verb)
    match act:
        case "commit":
            held = a.committed(held, 17)
        case "release":
            a.release(held, 17)
        case "claim":
            held = a.claim()
    run(admin, going_on(verb, operation))
    assert (state(admin).offset, owner(admin)) == (3, None)
    assert a.commit(held, 18) == Fenced()


def test_an_owner_that_commits_without_a_pause_does_not_keep_a_reset_out(
    a: Someone, admin: Store
) -> None:
    held = a.claim()
    verb = resetting(3)
    operation = next(verb)
    for offset in range(ENOUGH):
        try:
            operation = step(admin, verb, operation)
        except StopIteration:
            break
        if owner(admin) is not None:  # else it has noticed, and has to claim again
            held = a.committed(held, offset)
    assert a.commit(held, 100) == Fenced()
    assert (state(admin).offset, owner(admin)) == (3, None)


def test_an_offset_that_is_illegible_is_mended_by_a_reset(a: Someone, admin: Store) -> None:
    """Nobody can claim it before; its epoch is above all that there were."""
    held = a.claim()
    for offset in range(5):
        held = a.committed(held, offset)
    a.release(held, 8)
    last = a.claim()
    perform(admin, Set(paths.offset(GROUP, *P0), b"8"))
    with pytest.raises(Malformed, match="/groups/g/offsets/t/0"):
        run(a.store, a.claiming())
    assert run(admin, resetting(3)).epoch > last.state.epoch
    assert a.commit(last, 9) == Fenced()
    assert a.claim().state.offset == 3


# -- lost replies, deaths -----------------------------------------------------------------------------


@pytest.mark.parametrize("executed", [False, True], ids=["unsent", "unanswered"])
@pytest.mark.parametrize("owned", [False, True], ids=["free", "owned"])
def test_a_reset_ends_well_whichever_reply_is_lost(
    a: Someone, admin: Store, executed: bool, owned: bool
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
    pytest.fail("this verb does not end")


def test_a_reset_that_was_not_answered_is_recognised_though_its_owner_is_back(
    a: Someone, admin: Store
) -> None:
    """Done twice it would send the owner back for nothing."""
    a.committed(a.claim(), 17)
    verb = resetting(3)
    operation = up_to_its_write(admin, verb)
    perform(admin, operation)
    held = a.committed(a.claim(), 5)
    asks = verb.throw(ConnectionLost("no answer"))
    assert run(admin, going_on(verb, asks)) == held.state
    assert state(admin) == held.state
    assert a.committed(held, 6).state.offset == 6


def test_an_administrator_who_dies_at_any_step_has_reset_or_not(
    backend: Backend, a: Someone
) -> None:
    offsets = set()
    for steps in range(ENOUGH):
        each = TopicPartition(f"t{steps}", 0)
        held = a.committed(a.claim(each), 17, each)
        store = backend.open()
        alive = Steps(store).run_until(resetting(3, each), steps)
        backend.expire(store)
        offsets.add(state(a.store, each).offset)
        if state(a.store, each).offset == 17:
            a.committed(held, 18, each)
        else:
            assert a.commit(held, 18, each) == Fenced()
            assert a.claim(each).state.offset == 3
        if not alive:
            assert offsets == {3, 17}
            return
    pytest.fail("this verb does not end")


def test_a_reset_that_looked_before_the_group_was_deleted_looks_again(
    a: Someone, admin: Store, backend: Backend
) -> None:
    """The offset's node of the new group comes to the version that was read of the old one."""
    a.claim()
    verb = resetting(7)
    operation = up_to_its_write(admin, verb)
    other = backend.open()
    run(other, group_deletion.delete(GROUP, force=True))
    newcomer = Someone(backend.open(), "b")
    make_plan(newcomer.store, newcomer.name)
    before = newcomer.claim()
    assert version_of(admin, paths.offset(GROUP, *P0)) == 1

    run(admin, going_on(verb, operation))

    assert (state(admin).offset, turn(admin)) == (7, 2)
    assert state(admin).epoch > before.state.epoch
    assert newcomer.commit(before, 3) == Fenced()


def test_a_deletion_of_any_group_disturbs_no_reset_that_begins_after_it(
    a: Someone, admin: Store
) -> None:
    a.claim()
    run(admin, resets.reset("another", P0, TOPIC_ID, 5, "mark-another"))
    run(admin, group_deletion.delete("another"))
    assert run(admin, resetting(7)).offset == 7
