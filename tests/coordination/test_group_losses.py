"""Recipes of groups with each of their replies lost, and with their process dying at each step."""

from collections.abc import Callable
from typing import Any

import pytest

from folkmoot.coordination import paths
from folkmoot.coordination.groups import membership as members
from folkmoot.coordination.groups import ownership
from folkmoot.coordination.groups.membership import MemberInfo
from folkmoot.coordination.groups.ownership import Blocked, Claim, Fenced, Owner
from folkmoot.coordination.zookeeper.execute import execute
from folkmoot.coordination.zookeeper.operations import (
    ConnectionLost,
    Multi,
    Recipe,
)
from folkmoot.protocol.records import TopicPartition
from tests.contracts.backends import Backend
from tests.coordination.groups import (
    GROUP,
    P0,
    REVOKE_TIMEOUT,
    Someone,
    make_plan,
    owner,
    state,
    turn,
    version_of,
)
from tests.coordination.losses import LaggingZooKeeper
from tests.coordination.steps import ENOUGH, Steps, going_on

LOSSES = pytest.mark.parametrize("executed", [False, True], ids=["unsent", "unanswered"])


def partition(number: int) -> TopicPartition:
    """Of a topic that nobody has claimed anything of: all that is missing is made on the way."""
    return TopicPartition(f"t{number}", 0)


def each_lost(
    someone: Someone, prepare: Callable[[TopicPartition], Callable[[], Recipe[Any]]], executed: bool
) -> list[tuple[TopicPartition, Any]]:
    """What the recipe of each partition answers, the reply number n lost for the n-th partition."""
    answers = []
    for lost in range(ENOUGH):
        recipe = prepare(partition(lost))
        steps = Steps(someone.session)
        answers.append((partition(lost), steps.run(recipe(), lost, executed=executed)))
        if steps.taken <= lost:
            return answers
    raise AssertionError("this recipe does not end")


def check_held(someone: Someone, each: TopicPartition, held: Claim, count: int) -> None:
    """So many epochs were used, and the last is ours, and what it stands on is the fence."""
    epoch = held.state.epoch
    assert (turn(someone.session, each), held.state.member) == (count, someone.name)
    assert state(someone.session, each) == held.state
    owns = Owner(someone.name, someone.nonce, epoch, REVOKE_TIMEOUT)
    assert owner(someone.session, each) == owns
    assert held.version == version_of(someone.session, paths.offset(GROUP, *each))


# -- lost replies -------------------------------------------------------------------------------------


@LOSSES
def test_a_claim_ends_well_whichever_reply_is_lost(a: Someone, executed: bool) -> None:
    answers = each_lost(a, lambda each: lambda: a.claiming(each), executed)
    assert len(answers) > 4
    for each, held in answers:
        check_held(a, each, held, 1)


@LOSSES
def test_a_steal_ends_well_whichever_reply_is_lost(
    backend: Backend, a: Someone, executed: bool
) -> None:
    b = Someone(backend.open(), "b")

    def stealing(each: TopicPartition) -> Callable[[], Recipe[Any]]:
        a.committed(a.claim(each), 17, each)
        return lambda: b.claiming(each, steal_from=owner(b.session, each))

    for each, held in each_lost(b, stealing, executed):
        check_held(b, each, held, 2)
        assert held.state.offset == 17


@LOSSES
@pytest.mark.parametrize("offset", [None, 20])
def test_a_release_ends_well_whichever_reply_is_lost(
    a: Someone, executed: bool, offset: int | None
) -> None:
    def releasing(each: TopicPartition) -> Callable[[], Recipe[None]]:
        held = a.committed(a.claim(each), 17, each)
        return lambda: ownership.release(a.me, {each: (held, offset)})

    for each, _ in each_lost(a, releasing, executed):
        assert owner(a.session, each) is None
        assert (state(a.session, each).offset, turn(a.session, each)) == (offset or 17, 1)


@LOSSES
def test_a_commit_ends_well_whichever_reply_is_lost(a: Someone, executed: bool) -> None:
    other = TopicPartition("other", 0)
    current = {other: a.claim(other)}

    def committing(each: TopicPartition) -> Callable[[], Recipe[Any]]:
        offsets = {each: (a.claim(each), 17), other: (current[other], int(each.topic[1:]))}
        return lambda: ownership.commit(a.me, offsets)

    for number, (each, answers) in enumerate(_commits(a, committing, executed, current, other)):
        check_held(a, each, answers[each], 1)
        assert (answers[each].state.offset, answers[other].state.offset) == (17, number)
    check_held(a, other, current[other], 1)


def _commits(
    a: Someone,
    committing: Callable[[TopicPartition], Callable[[], Recipe[Any]]],
    executed: bool,
    current: dict[TopicPartition, Claim],
    other: TopicPartition,
) -> list[tuple[TopicPartition, Any]]:
    """One after the other, each standing on the fence that the last has moved."""
    answers = []
    for lost in range(ENOUGH):
        recipe = committing(partition(lost))
        steps = Steps(a.session)
        answer = steps.run(recipe(), lost, executed=executed)
        current[other] = answer[other]
        answers.append((partition(lost), answer))
        if steps.taken <= lost:
            break
    return answers


@LOSSES
def test_a_fenced_commit_is_told_as_such_whichever_reply_is_lost(
    backend: Backend, a: Someone, executed: bool
) -> None:
    b = Someone(backend.open(), "b")

    def committing(each: TopicPartition) -> Callable[[], Recipe[Any]]:
        held = a.claim(each)
        execute(b.session, b.claiming(each, steal_from=owner(b.session, each)))
        return lambda: ownership.commit(a.me, {each: (held, 17)})

    for each, answer in each_lost(a, committing, executed):
        assert answer == {each: Fenced()}
        assert state(b.session, each).offset is None


@LOSSES
def test_joining_leaves_one_node_whichever_reply_is_lost(backend: Backend, executed: bool) -> None:
    session = backend.open()
    info = MemberInfo(("t",), "host", REVOKE_TIMEOUT)
    for lost in range(ENOUGH):
        steps, group = Steps(session), f"group-{lost}"
        name = steps.run(members.join(group, "m-x", info), lost, executed=executed)
        assert execute(session, members.names(group)) == (name,)
        member = execute(session, members.read(group, name))
        assert member is not None
        assert (member.name, member.info) == (name, info)
        left = Steps(session)
        left.run(members.remove(group, name), 0, executed=executed)
        assert execute(session, members.names(group)) == ()
        if steps.taken <= lost:
            return
    pytest.fail("join does not end")


# -- death at each step -------------------------------------------------------------------------------


def each_death(
    backend: Backend, act: Callable[[Someone, TopicPartition], Recipe[Any]]
) -> list[TopicPartition]:
    """A member for each step of the recipe, which dies before it; the one that ends dies then."""
    dead = []
    for step in range(ENOUGH):
        someone = Someone(backend.open(), f"d{step}")
        each = partition(step)
        alive = Steps(someone.session).run_until(act(someone, each), step)
        backend.expire(someone.session)
        dead.append(each)
        if not alive:
            return dead
    raise AssertionError("this recipe does not end")


@pytest.mark.parametrize("what", ["claim", "commit", "release"])
def test_whoever_dies_at_any_step_is_succeeded_from_the_committed_offset(
    backend: Backend, a: Someone, what: str
) -> None:
    def act(someone: Someone, each: TopicPartition) -> Recipe[Any]:
        held = a.committed(a.claim(each), 17, each)
        a.release(held, None, each)
        if what == "claim":
            return someone.claiming(each)
        held = someone.claim(each)
        if what == "commit":
            return ownership.commit(someone.me, {each: (held, 20)})
        return ownership.release(someone.me, {each: (held, 20)})

    for each in each_death(backend, act):
        before, count = state(a.session, each), turn(a.session, each)
        held = a.claim(each)
        assert held.state.offset == before.offset
        assert before.offset in ((17,) if what == "claim" else (17, 20))
        check_held(a, each, held, count + 1)


def test_whoever_dies_while_stealing_has_stolen_or_not(backend: Backend, a: Someone) -> None:
    held: dict[TopicPartition, Claim] = {}

    def act(someone: Someone, each: TopicPartition) -> Recipe[Any]:
        held[each] = a.committed(a.claim(each), 17, each)
        return someone.claiming(each, steal_from=owner(someone.session, each))

    outcomes = set()
    for each in each_death(backend, act):
        stolen = turn(a.session, each) == 2
        outcomes.add(stolen)
        answer = execute(a.session, a.claiming(each))
        if stolen:
            assert a.commit(held[each], 18, each) == Fenced()
            assert isinstance(answer, Claim)
            check_held(a, each, answer, 3)
        else:
            assert answer == Blocked(Owner(a.name, "a", held[each].state.epoch, REVOKE_TIMEOUT))
            check_held(a, each, a.committed(held[each], 18, each), 1)
    assert outcomes == {False, True}


# -- servers that lag ---------------------------------------------------------------------------------


@pytest.fixture
def lagging() -> LaggingZooKeeper:
    return LaggingZooKeeper()


@pytest.fixture
def c(lagging: LaggingZooKeeper) -> Someone:
    someone = Someone(lagging.connect(), "c")
    make_plan(someone.session, someone.name)
    return someone


def test_a_claim_that_was_won_is_known_as_won_though_a_server_lags(
    lagging: LaggingZooKeeper, c: Someone
) -> None:
    c.release(c.claim(), 17)
    recipe = c.claiming()
    lagging.armed = True
    held = execute(c.session, recipe)
    assert isinstance(held, Claim)
    check_held(c, P0, held, 2)


def test_a_claim_that_was_won_is_known_as_won_though_the_plan_has_changed_since(
    lagging: LaggingZooKeeper, c: Someone
) -> None:
    """Else the partition would have an owner that does not know of it."""
    other = Someone(lagging.connect(), "other")
    c.release(c.claim(), 17)
    recipe = c.claiming()
    operation = next(recipe)
    while not isinstance(operation, Multi):
        operation = recipe.send(execute(c.session, operation))
    lagging.armed = True
    with pytest.raises(ConnectionLost) as lost:
        execute(c.session, operation)
    question = recipe.throw(lost.value)
    old = execute(c.session, question)
    make_plan(other.session, other.name)
    held = execute(c.session, going_on(recipe, recipe.send(old)))
    assert isinstance(held, Claim)
    check_held(c, P0, held, 2)


def test_a_commit_that_was_written_is_not_taken_for_fenced_though_a_server_lags(
    lagging: LaggingZooKeeper, c: Someone
) -> None:
    held = c.claim()
    lagging.armed = True
    check_held(c, P0, c.committed(held, 17), 1)


def test_a_release_ends_well_though_a_server_lags(lagging: LaggingZooKeeper, c: Someone) -> None:
    held = c.claim()
    lagging.armed = True
    c.release(held, 17)
    assert owner(c.session) is None
    assert state(c.session).offset == 17


def test_joining_leaves_one_node_though_a_server_lags(lagging: LaggingZooKeeper) -> None:
    """The second would be given partitions, and nobody would claim them."""
    session = lagging.connect()
    lagging.armed = True
    name = execute(session, members.join(GROUP, "m-x", MemberInfo(("t",), "host", REVOKE_TIMEOUT)))
    assert execute(session, members.names(GROUP)) == (name,)
