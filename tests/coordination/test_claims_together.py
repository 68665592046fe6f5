"""Many partitions claimed and released together: few transactions, and a refusal concerns one alone."""

import pytest

from folkmoot.coordination import paths
from folkmoot.coordination.groups import ownership
from folkmoot.coordination.groups.ownership import (
    CLAIMS_PER_TRANSACTION,
    Answer,
    Blocked,
    Claim,
    ClaimRequest,
    Fenced,
    MalformedOffset,
    Stale,
)
from folkmoot.coordination.zookeeper.execute import execute
from folkmoot.coordination.zookeeper.operations import (
    ANY_VERSION,
    Delete,
    Get,
    Multi,
    Recipe,
    Set,
)
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
from tests.coordination.steps import ENOUGH, Steps, counted, going_on, step

MANY = [TopicPartition("t", number) for number in range(250)]


def claiming(
    someone: Someone, some: list[TopicPartition], version: int | None = None
) -> Recipe[dict[TopicPartition, Answer]]:
    now = version_of(someone.session, paths.plan(GROUP)) if version is None else version
    wanted = dict.fromkeys(some, ClaimRequest(TOPIC_ID))
    return ownership.claim(someone.me, wanted, now, lambda _: nothing)


def claimed(someone: Someone, some: list[TopicPartition]) -> dict[TopicPartition, Claim]:
    answers = execute(someone.session, claiming(someone, some))
    held = {each: answer for each, answer in answers.items() if isinstance(answer, Claim)}
    assert held.keys() == set(some)
    return held


def test_first_claims_are_two_transactions_for_each_hundred(a: Someone) -> None:
    """One that makes the offsets' nodes and one that claims; 250 claims were 500 of them."""
    a.claim(TopicPartition("t", 999))  # so that the parents are there
    answers, kinds = counted(a.session, claiming(a, MANY))
    held = {each: answer for each, answer in answers.items() if isinstance(answer, Claim)}
    assert list(held) == MANY
    assert kinds["Multi"] == 2 * -(-len(MANY) // CLAIMS_PER_TRANSACTION)
    assert kinds.keys() == {"Multi", "Get"}
    for each in (MANY[0], MANY[99], MANY[-1]):
        assert (state(a.session, each), turn(a.session, each)) == (held[each].state, 1)
        found = owner(a.session, each)
        assert found is not None
        assert (found.member, found.epoch) == (a.name, held[each].state.epoch)
    assert isinstance(a.commit(held[MANY[7]], 5, MANY[7]), Claim)


def test_partitions_that_have_an_owner_are_taken_out_and_the_others_are_claimed(
    backend: Backend, a: Someone
) -> None:
    """All of them at the first refusal, or each would cost a transaction in vain."""
    claimed(a, MANY[:100:2])
    b = Someone(backend.open(), "b")
    rings: list[str] = []
    wanted = dict.fromkeys(MANY[:100], ClaimRequest(TOPIC_ID))
    version = make_plan(b.session, b.name)
    recipe = ownership.claim(b.me, wanted, version, lambda each: lambda: rings.append(str(each)))
    answers, kinds = counted(b.session, recipe)
    assert [isinstance(answers[each], Claim) for each in MANY[:100]] == [False, True] * 50
    assert all(isinstance(answers[each], Blocked) for each in MANY[:100:2])
    assert kinds["Multi"] == 3  # the offsets' nodes, one refusal, the rest
    a.session.close()
    wait_for_rings(rings, *map(str, MANY[:100:2]))


def test_an_owner_that_commits_all_the_time_keeps_no_other_partition_from_being_claimed(
    backend: Backend, a: Someone
) -> None:
    b = Someone(backend.open(), "b")
    held = claimed(a, [MANY[3]])[MANY[3]]
    make_plan(b.session, b.name)
    recipe = claiming(b, MANY[:10])
    operation = next(recipe)
    for number in range(200):
        if isinstance(operation, Multi):  # a commit between what was read and the claim
            held = a.committed(held, number, MANY[3])
        try:
            operation = step(b.session, recipe, operation)
        except StopIteration as ended:
            answers = ended.value
            break
    else:
        pytest.fail("nothing is claimed")
    assert [each for each in MANY[:10] if isinstance(answers[each], Blocked)] == [MANY[3]]
    assert sum(isinstance(each, Claim) for each in answers.values()) == 9


def test_one_that_is_to_be_stolen_is_so_though_another_has_an_owner(
    backend: Backend, a: Someone
) -> None:
    held = claimed(a, MANY[:2])
    b = Someone(backend.open(), "b")
    version = make_plan(b.session, b.name)
    wanted = {
        MANY[0]: ClaimRequest(TOPIC_ID),
        MANY[1]: ClaimRequest(TOPIC_ID, owner(b.session, MANY[1])),
    }
    answers = execute(b.session, ownership.claim(b.me, wanted, version, lambda _: nothing))
    assert isinstance(answers[MANY[0]], Blocked)
    stolen = answers[MANY[1]]
    assert isinstance(stolen, Claim)
    assert stolen.state.epoch == held[MANY[1]].state.epoch + 1
    assert isinstance(a.commit(held[MANY[0]], 1, MANY[0]), Claim)
    assert a.commit(held[MANY[1]], 1, MANY[1]) == Fenced()


def test_one_offset_that_is_illegible_keeps_no_other_partition_from_being_claimed(
    a: Someone,
) -> None:
    execute(
        a.session, ownership.release(a.me, {e: (c, 3) for e, c in claimed(a, MANY[:3]).items()})
    )
    execute(a.session, Set(paths.offset(GROUP, *MANY[1]), b"\xff"))
    answers = execute(a.session, claiming(a, MANY[:3]))
    assert isinstance(answers.pop(MANY[1]), MalformedOffset)
    assert [each.state.offset for each in answers.values() if isinstance(each, Claim)] == [3, 3]
    assert owner(a.session, MANY[1]) is None


def test_an_offset_written_over_under_its_owner_fences_it_and_nothing_else(a: Someone) -> None:
    held = claimed(a, MANY[:3])
    execute(a.session, Set(paths.offset(GROUP, *MANY[1]), b"\xff"))
    answers = execute(a.session, ownership.commit(a.me, {e: (c, 3) for e, c in held.items()}))
    assert [isinstance(answers[each], Fenced) for each in MANY[:3]] == [False, True, False]
    execute(a.session, ownership.release(a.me, {each: (c, None) for each, c in held.items()}))
    assert owner(a.session, MANY[0]) is None


def test_under_an_older_plan_nothing_is_claimed(a: Someone) -> None:
    version = version_of(a.session, paths.plan(GROUP))
    make_plan(a.session, "somebody-0000000009")
    answers = execute(a.session, claiming(a, MANY, version))
    assert answers == dict.fromkeys(MANY, Stale())
    assert owner(a.session, MANY[0]) is None


def test_an_offset_that_moves_while_others_are_claimed_is_read_again(
    backend: Backend, a: Someone
) -> None:
    b = Someone(backend.open(), "b")
    make_plan(b.session, b.name)
    held = claimed(b, [P0])[P0]
    recipe = claiming(a, MANY[:3])
    operation = next(recipe)
    assert isinstance(operation, Get)
    answer = execute(a.session, operation)  # of the first partition
    b.release(held, 17)
    answers = execute(a.session, going_on(recipe, recipe.send(answer)))
    assert all(isinstance(each, Claim) for each in answers.values())
    first = answers[P0]
    assert isinstance(first, Claim)
    assert first.state.offset == 17


@pytest.mark.parametrize("executed", [False, True], ids=["unsent", "unanswered"])
@pytest.mark.parametrize("is_first", [True, False])
def test_whichever_reply_is_lost_all_are_claimed_once_and_released(
    a: Someone, is_first: bool, executed: bool
) -> None:
    for lost in range(ENOUGH):
        some = [TopicPartition(f"t{lost}", number) for number in range(4)]
        if not is_first:
            held = claimed(a, some)
            execute(a.session, ownership.release(a.me, {e: (c, 9) for e, c in held.items()}))
        steps = Steps(a.session)
        answers = steps.run(claiming(a, some), lost, executed=executed)
        held = {each: answer for each, answer in answers.items() if isinstance(answer, Claim)}
        assert list(held) == some
        for each, claim in held.items():
            assert state(a.session, each) == claim.state
            assert turn(a.session, each) == (1 if is_first else 2)
            assert claim.state.offset == (None if is_first else 9)
            assert version_of(a.session, paths.offset(GROUP, *each)) == claim.version
        letting_go = ownership.release(a.me, {each: (c, 12) for each, c in held.items()})
        Steps(a.session).run(letting_go, lost % 3, executed=executed)
        assert [(state(a.session, each).offset, owner(a.session, each)) for each in some] == [
            (12, None)
        ] * 4
        if steps.taken <= lost:
            return
    pytest.fail("this recipe does not end")


def test_all_that_is_held_is_released_in_few_transactions_with_its_offsets(a: Someone) -> None:
    held = claimed(a, MANY)
    execute(a.session, Delete(paths.owner(GROUP, *MANY[3]), ANY_VERSION))
    given = {each: (claim, 5 if each.partition % 2 else None) for each, claim in held.items()}
    _, kinds = counted(a.session, ownership.release(a.me, given))
    assert kinds["Multi"] <= 4
    assert [state(a.session, each).offset for each in MANY[:4]] == [None, 5, None, 5]
    assert all(owner(a.session, each) is None for each in MANY[::25])
