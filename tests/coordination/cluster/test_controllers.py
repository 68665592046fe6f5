"""The controller's election: one at a time, each in an epoch of its own, whatever is lost."""

import pytest

from folkmoot.coordination import paths
from folkmoot.coordination.cluster import controllers
from folkmoot.coordination.cluster.controllers import Controller
from folkmoot.coordination.zookeeper.execute import execute
from folkmoot.coordination.zookeeper.operations import Create, Delete, Multi, MultiFailed
from folkmoot.coordination.zookeeper.recipes import Malformed
from folkmoot.coordination.zookeeper.session import Session
from tests.contracts.backends import Backend, settle
from tests.coordination.steps import ENOUGH, Steps


def nothing() -> None:
    """A ring that nobody hears."""


def elected(session: Session, nonce: str) -> Controller:
    controller = execute(session, controllers.elect(1, nonce, nothing))
    assert controller.nonce == nonce
    return controller


def may_write(session: Session, controller: Controller) -> bool:
    try:
        execute(session, Multi((controllers.is_in_epoch(controller),)))
    except MultiFailed:
        return False
    return True


def test_one_is_elected_and_the_others_learn_when_it_goes(backend: Backend) -> None:
    first, second = backend.open(), backend.open()
    rings: list[str] = []
    assert elected(first, "a") == Controller(1, "a", 1)
    found = execute(second, controllers.elect(2, "b", lambda: rings.append("gone")))
    assert found == Controller(1, "a", 1)
    settle(second)
    assert not rings
    backend.expire(first)
    settle(second)
    assert rings == ["gone"]
    assert execute(second, controllers.elect(2, "b", nothing)) == Controller(2, "b", 2)


def test_a_controller_in_a_process_of_its_own_is_taken_for_no_broker(backend: Backend) -> None:
    alone = execute(backend.open(), controllers.elect(controllers.ALONE, "a", nothing))
    assert alone.broker < 0, "brokers' ids begin at 0"


def test_whoever_is_elected_learns_that_somebody_removed_its_node(backend: Backend) -> None:
    session, other = backend.open(), backend.open()
    rings: list[str] = []
    execute(session, controllers.elect(1, "a", lambda: rings.append("gone")))
    execute(other, Delete(paths.CONTROLLER))
    settle(session)
    assert rings == ["gone"]


def test_a_controller_that_was_replaced_writes_nothing_more(backend: Backend) -> None:
    first, second = backend.open(), backend.open()
    before = elected(first, "a")
    assert may_write(first, before)
    execute(second, Delete(paths.CONTROLLER))
    now = elected(second, "b")
    assert now.epoch > before.epoch
    assert may_write(second, now)
    assert not may_write(first, before)


@pytest.mark.parametrize("executed", [False, True], ids=["unsent", "unanswered"])
def test_an_election_ends_well_whichever_reply_is_lost(backend: Backend, executed: bool) -> None:
    for lost in range(ENOUGH):
        session = backend.open()
        steps = Steps(session)
        recipe = controllers.elect(1, f"n{lost}", nothing)
        controller = steps.run(recipe, lost, executed=executed)
        assert (controller.nonce, controller.epoch) == (f"n{lost}", lost + 1)
        assert may_write(session, controller)
        session.close()
        if steps.taken <= lost:
            return
    pytest.fail("elect does not end")


def test_a_candidate_that_dies_at_any_step_is_succeeded_in_a_later_epoch(backend: Backend) -> None:
    last = 0
    for step in range(ENOUGH):
        dead, session = backend.open(), backend.open()
        alive = Steps(dead).run_until(controllers.elect(1, f"d{step}", nothing), step)
        was = execute(session, controllers.current())
        backend.expire(dead)
        now = elected(session, f"s{step}")
        assert now.epoch == last + (1 if was is None else 2)
        last = now.epoch
        session.close()
        if not alive:
            return
    pytest.fail("elect does not end")


def test_a_node_that_no_controller_wrote_is_named(backend: Backend) -> None:
    session = backend.open()
    execute(session, Create("/controller"))
    execute(session, Create(paths.CONTROLLER, b"scribble"))
    with pytest.raises(Malformed, match="/controller/current"):
        execute(session, controllers.elect(1, "a", nothing))
