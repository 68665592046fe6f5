"""The group machine, step by step: how a member leaves."""

from math import inf

import pytest

from folkmoot.consumers.group.events import Left, Lost, Revoking
from folkmoot.consumers.group.member_state import Phase
from folkmoot.coordination.groups.ownership import Blocked
from tests.consumers.machine import (
    ME,
    NONCE,
    OLDER,
    SESSION_TIMEOUT,
    TIMING,
    ClaimPartition,
    Leave,
    Scene,
    VerifyOwner,
    claim,
    owner,
    t,
)


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_who_leaves_gives_all_up_first_and_removes_its_node_last(scene: Scene) -> None:
    scene.hold(0, 1)
    scene.tell("leaving")
    assert scene.take(Revoking) == [Revoking(t(0)), Revoking(t(1))]
    scene.tell("drained", t(0), 1, 3)
    scene.tell("drained", t(1), 1, 4)
    assert [task.offset for task in scene.release()] == [3, 4]
    assert not scene.take(Left)
    scene.answer(scene.take_one(Leave), None)
    assert scene.take(Left)
    assert scene.member.phase is Phase.LEFT


def test_who_leaves_while_joining_is_gone_at_once(scene: Scene) -> None:
    scene.tell("started", NONCE, SESSION_TIMEOUT)
    scene.tell("leaving")
    assert scene.take(Left)


def test_a_claim_won_while_leaving_is_let_go_of_before_the_end(scene: Scene) -> None:
    scene.join()
    scene.see_plan(ME, ME)
    first, second = scene.take(ClaimPartition)
    scene.tell("leaving")
    scene.answer(first, Blocked(owner(OLDER)))
    assert not scene.take(Leave)
    assert scene.now < scene.member.due < inf
    scene.answer(second, claim(t(1)))
    assert not scene.take(Leave)
    assert scene.release()
    assert scene.take(Leave)


def test_who_drains_for_long_while_leaving_keeps_its_session_and_its_partitions(
    scene: Scene,
) -> None:
    """Without signs of life it would fence itself, and the last commit would be refused."""
    scene.hold(0)
    scene.tell("leaving")
    for _ in range(30):
        scene.be_silent(SESSION_TIMEOUT / TIMING.heartbeats)
        scene.read_all()
        for task in scene.take(VerifyOwner):
            scene.answer(task, True)
    assert not scene.take(Lost)
    scene.tell("drained", t(0), 1, 99)
    assert [task.offset for task in scene.release()] == [99]


def test_who_loses_its_session_while_leaving_has_left(scene: Scene) -> None:
    scene.hold(0)
    scene.tell("leaving")
    scene.tell("session_lost")
    assert scene.take(Lost)
    assert scene.take(Left)
    scene.tell("tick")
    assert not scene.take(Left)
