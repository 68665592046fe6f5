"""Claims, commits, steals and releases: the findings on which the group protocol stands."""

import pytest

from folkmoot.coordination import paths
from folkmoot.coordination.groups import ownership
from folkmoot.coordination.groups.ownership import (
    Blocked,
    Claim,
    Fenced,
    MalformedOffset,
    OffsetState,
    Owner,
    Stale,
)
from folkmoot.coordination.zookeeper.execute import execute
from folkmoot.coordination.zookeeper.operations import (
    BadVersion,
    Delete,
    Get,
    Multi,
    MultiFailed,
    NoNode,
    Set,
)
from folkmoot.coordination.zookeeper.recipes import Malformed
from folkmoot.coordination.zookeeper.session import Session
from folkmoot.protocol.records import TopicPartition
from tests.contracts.backends import Backend, settle, wait_for_rings
from tests.coordination.groups import (
    GROUP,
    P0,
    P1,
    REVOKE_TIMEOUT,
    TOPIC_ID,
    Someone,
    born,
    make_plan,
    nothing,
    owner,
    state,
    turn,
    version_of,
)
from tests.coordination.steps import going_on

OWNER = paths.owner(GROUP, *P0)
OFFSET = paths.offset(GROUP, *P0)


@pytest.fixture
def b(backend: Backend, a: Someone) -> Someone:
    """A younger member, to whom the plan gives nothing yet."""
    return Someone(backend.open(), "b")


# -- claims -------------------------------------------------------------------------------------------


def test_the_first_claim_ever_has_no_offset_and_the_first_epoch(a: Someone) -> None:
    held = a.claim()
    first = born(a.session) + 1
    assert held.state == OffsetState(None, first, a.name, "a", TOPIC_ID)
    assert owner(a.session) == Owner(a.name, "a", first, REVOKE_TIMEOUT)
    assert state(a.session) == held.state


def test_a_claim_starts_exactly_at_the_committed_offset_with_the_next_epoch(
    a: Someone, b: Someone
) -> None:
    a.release(a.committed(a.claim(), 17), None)
    make_plan(b.session, b.name)
    held = b.claim()
    assert (held.state.offset, turn(a.session)) == (17, 2)


def test_a_start_is_committed_with_the_claim_where_nothing_is_committed_yet(a: Someone) -> None:
    make_plan(a.session, a.name)
    for topic_id, expected in ((TOPIC_ID, 0), ("id-2", 0)):
        held = execute(a.session, a.claiming(topic_id=topic_id, start=0))
        assert isinstance(held, Claim)
        assert (held.state.offset, state(a.session).offset) == (expected, expected)
        a.release(a.committed(held, 7), None)
    again = execute(a.session, a.claiming(topic_id="id-2", start=0))
    assert isinstance(again, Claim)
    assert again.state.offset == 7


def test_an_offset_committed_while_a_claim_is_under_way_is_where_it_starts(
    a: Someone, b: Someone
) -> None:
    """Kafka 0.8 read the offset before it owned the partition."""
    held = a.claim()
    make_plan(b.session, b.name)
    claiming = b.claiming()
    read = execute(b.session, next(claiming))
    a.release(held, 17)
    operation = claiming.send(read)
    answer = execute(b.session, going_on(claiming, operation))
    assert isinstance(answer, Claim)
    assert answer.state.offset == 17


def test_a_claim_under_an_older_plan_is_refused_and_changes_nothing(a: Someone) -> None:
    old = make_plan(a.session, a.name)
    make_plan(a.session, "somebody-0000000009")
    assert execute(a.session, a.claiming(version=old)) == Stale()
    assert owner(a.session) is None
    assert state(a.session).epoch == 0


def test_a_claim_by_somebody_who_is_no_member_is_refused(a: Someone) -> None:
    execute(a.session, Delete(paths.member(GROUP, a.name)))
    assert execute(a.session, a.claiming()) == Stale()
    assert owner(a.session) is None


def test_a_partition_with_an_owner_is_blocked_and_rings_when_it_is_free(
    a: Someone, b: Someone
) -> None:
    held = a.claim()
    make_plan(b.session, b.name)
    rings: list[str] = []
    answer = execute(b.session, b.claiming(ring=lambda: rings.append("free")))
    assert answer == Blocked(Owner(a.name, "a", held.state.epoch, REVOKE_TIMEOUT))
    settle(b.session)
    assert not rings
    a.release(held, 5)
    wait_for_rings(rings, "free")
    assert b.claim().state.offset == 5


def test_a_partition_whose_owner_died_is_free(backend: Backend, a: Someone, b: Someone) -> None:
    a.committed(a.claim(), 5)
    make_plan(b.session, b.name)
    rings: list[str] = []
    assert isinstance(execute(b.session, b.claiming(ring=lambda: rings.append("free"))), Blocked)
    backend.expire(a.session)
    wait_for_rings(rings, "free")
    assert b.claim().state.offset == 5


def test_a_new_topic_of_the_same_name_has_no_offsets_and_a_higher_epoch(a: Someone) -> None:
    a.release(a.claim(), 17)
    answer = execute(a.session, a.claiming(topic_id="id-2"))
    assert isinstance(answer, Claim)
    assert answer.state == OffsetState(None, born(a.session) + 2, a.name, "a", "id-2")


# -- stealing -----------------------------------------------------------------------------------------


def test_a_steal_takes_the_partition_in_one_step_and_fences_its_holder(
    a: Someone, b: Someone
) -> None:
    held = a.committed(a.claim(), 17)
    make_plan(b.session, b.name)
    rings: list[str] = []
    assert execute(a.session, ownership.verify(a.me, P0, held, lambda: rings.append("stolen")))
    stolen = execute(b.session, b.claiming(steal_from=owner(b.session)))
    assert isinstance(stolen, Claim)
    assert (stolen.state.offset, stolen.state.epoch) == (17, held.state.epoch + 1)
    assert owner(a.session) == Owner(b.name, "b", stolen.state.epoch, REVOKE_TIMEOUT)
    wait_for_rings(rings, "stolen")
    assert not execute(a.session, ownership.verify(a.me, P0, held, nothing))
    assert a.commit(held, 18) == Fenced()
    assert state(a.session).offset == 17


def test_a_steal_from_somebody_who_is_not_the_owner_any_more_waits_for_who_is(
    a: Someone, b: Someone
) -> None:
    before = owner(a.session)
    assert before is None
    held = a.claim()
    make_plan(b.session, b.name)
    another = Owner("c-0000000009", "c", 1, REVOKE_TIMEOUT)
    answer = execute(b.session, b.claiming(steal_from=another))
    assert answer == Blocked(Owner(a.name, "a", held.state.epoch, REVOKE_TIMEOUT))


def test_a_steal_from_an_owner_that_has_gone_is_a_claim(a: Someone, b: Someone) -> None:
    held = a.claim()
    there = owner(b.session)
    a.release(held, 3)
    make_plan(b.session, b.name)
    answer = execute(b.session, b.claiming(steal_from=there))
    assert isinstance(answer, Claim)
    assert answer.state.offset == 3


def test_a_steal_under_an_older_plan_is_refused(a: Someone, b: Someone) -> None:
    held = a.claim()
    old = make_plan(b.session, b.name)
    make_plan(a.session, a.name)
    assert execute(b.session, b.claiming(steal_from=owner(b.session), version=old)) == Stale()
    assert isinstance(a.commit(held, 1), Claim)


# -- commits ------------------------------------------------------------------------------------------


def test_a_zombies_commit_is_refused_though_the_owners_node_has_version_0_again(
    backend: Backend, a: Someone, b: Someone
) -> None:
    """The obvious fence, a check of the owner's node, would let it pass."""
    held = a.committed(a.claim(), 10)
    execute(a.session, Delete(OWNER))  # as if its session had ended: the zombie does not know
    make_plan(b.session, b.name)
    new = b.committed(b.claim(), 12)
    assert version_of(b.session, OWNER) == 0
    assert a.commit(held, 11) == Fenced()
    a.release(held, 11)
    assert state(b.session) == new.state
    assert owner(b.session) == Owner(b.name, "b", held.state.epoch + 1, REVOKE_TIMEOUT)


def test_commits_follow_each_other_under_the_fence_that_each_one_moves(a: Someone) -> None:
    held = a.claim()
    for offset in (5, 5, 9):
        held = a.committed(held, offset)
        assert held.version == version_of(a.session, OFFSET)
    assert state(a.session).offset == 9


def test_one_fenced_partition_does_not_keep_the_others_from_being_committed(
    a: Someone, b: Someone
) -> None:
    first, second = a.claim(P0), a.claim(P1)
    make_plan(b.session, b.name, a.name)
    execute(b.session, b.claiming(steal_from=owner(b.session)))
    answers = execute(a.session, ownership.commit(a.me, {P0: (first, 4), P1: (second, 6)}))
    assert answers[P0] == Fenced()
    assert isinstance(answers[P1], Claim)
    assert state(a.session, P1).offset == 6


def test_a_thousand_offsets_take_two_transactions_and_smaller_ones_once_one_has_failed(
    a: Someone,
) -> None:
    held = Claim(OffsetState(0, 1, a.name, "a", TOPIC_ID), 3)
    offsets = {TopicPartition("t", number): (held, 5) for number in range(1_000)}
    whole = ownership.commit(a.me, offsets)
    first = next(whole)
    assert isinstance(first, Multi)
    second = whole.send([None, *[4] * (len(first.writes) - 1)])
    assert isinstance(second, Multi)
    assert len(first.writes) + len(second.writes) == 1_000 + 2  # each checks the own node, too

    fenced = ownership.commit(a.me, offsets)
    next(fenced)
    assert isinstance(fenced.throw(MultiFailed(1, BadVersion("t-0"))), Get)
    smaller = fenced.throw(NoNode("t-0"))
    assert isinstance(smaller, Multi)
    assert len(smaller.writes) == 101


def test_an_owner_whose_node_was_removed_by_hand_may_commit_until_somebody_claims(
    a: Someone, b: Someone
) -> None:
    held = a.claim()
    execute(a.session, Delete(OWNER))
    held = a.committed(held, 4)
    make_plan(b.session, b.name)
    assert b.claim().state.offset == 4
    assert a.commit(held, 5) == Fenced()


# -- releases -----------------------------------------------------------------------------------------


def test_a_release_commits_and_lets_go_in_one_step(a: Someone) -> None:
    a.release(a.claim(), 8)
    assert owner(a.session) is None
    assert state(a.session).offset == 8


def test_a_release_by_somebody_fenced_leaves_the_new_owner_alone(a: Someone, b: Someone) -> None:
    """Kafka 0.8 deleted whoever's node it was."""
    held = a.claim()
    make_plan(b.session, b.name)
    execute(b.session, b.claiming(steal_from=owner(b.session)))
    a.release(held, 8)
    assert owner(b.session) == Owner(b.name, "b", held.state.epoch + 1, REVOKE_TIMEOUT)
    assert state(b.session).offset is None


def test_a_release_whose_owners_node_was_removed_by_hand_commits_all_the_same(a: Someone) -> None:
    held = a.claim()
    execute(a.session, Delete(OWNER))
    a.release(held, 8)
    assert state(a.session).offset == 8


# -- what somebody else wrote -------------------------------------------------------------------------


def test_an_owner_that_is_illegible_can_be_stolen_from(a: Someone, b: Someone) -> None:
    a.claim()
    execute(a.session, Set(OWNER, b"\xff{"))
    make_plan(b.session, b.name)
    answer = execute(b.session, b.claiming())
    assert isinstance(answer, Blocked)
    assert isinstance(execute(b.session, b.claiming(steal_from=answer.owner)), Claim)


def test_an_offset_that_is_illegible_is_said_to_be_so_and_not_guessed(a: Someone) -> None:
    a.release(a.claim(), 8)
    execute(a.session, Set(OFFSET, b"8"))
    answer = execute(a.session, a.claiming())
    assert isinstance(answer, MalformedOffset)
    assert "/groups/g/offsets/t/0" in answer.reason
    with pytest.raises(Malformed):
        state(a.session)


# -- nodes that were deleted --------------------------------------------------------------------------


def forget(session: Session) -> None:
    """The offset and the owner's node are deleted by hand."""
    for path in (OWNER, OFFSET):
        execute(session, Delete(path))


def test_an_offset_that_was_deleted_begins_above_all_epochs_that_it_had(
    a: Someone, b: Someone
) -> None:
    """What applications keep as a fencing token would otherwise lock the new owners out."""
    held = a.committed(a.claim(), 5)
    for _ in range(3):
        a.release(held, None)
        held = a.claim()
    forget(a.session)
    make_plan(b.session, b.name)
    new = b.claim()
    assert new.state.offset is None
    assert new.state.epoch > held.state.epoch


def test_a_zombie_of_a_group_that_was_deleted_commits_nothing_though_versions_meet_again(
    a: Someone, b: Someone
) -> None:
    """A check of the offset's version alone would let it pass."""
    held = a.committed(a.claim(), 5)
    execute(a.session, Delete(paths.member(GROUP, a.name)))
    forget(a.session)
    make_plan(b.session, b.name)
    new = b.claim()
    while new.version < held.version:
        new = b.committed(new, 1)
    assert version_of(b.session, OFFSET) == held.version
    assert a.commit(held, 9) == Fenced()
    a.release(held, 9)
    assert state(b.session) == new.state
    assert owner(b.session) == Owner(b.name, "b", new.state.epoch, REVOKE_TIMEOUT)
