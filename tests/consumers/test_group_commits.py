"""The group machine, step by step: commits and releases, fences, silence and lost sessions."""

import pytest

from folkmoot.consumers.group.events import Assigned, Committed, Lost, Revoking
from folkmoot.consumers.group.source_reads import Source
from folkmoot.coordination.groups.ownership import Fenced
from folkmoot.coordination.groups.plan import TopicBasis
from folkmoot.protocol.records import TopicPartition
from tests.consumers.machine import (
    ME,
    NONCE,
    SESSION_TIMEOUT,
    TIMING,
    YOUNGER,
    ClaimPartition,
    Join,
    Read,
    Scene,
    VerifyOwner,
    claim,
    later,
    t,
)

NOBODY: frozenset[TopicPartition] = frozenset()


@pytest.fixture
def scene() -> Scene:
    return Scene()


# -- commits ------------------------------------------------------------------------------------------


def test_a_commit_is_written_under_its_claim_and_the_next_under_what_that_made_of_it(
    scene: Scene,
) -> None:
    held = scene.hold(0, 1)
    scene.tell("commit", 1, {t(0): (1, 10), t(1): (1, 20)})
    (task,) = scene.commits()
    assert task.offsets == {t(0): (held[t(0)], 10), t(1): (held[t(1)], 20)}
    after = {each: later(*given) for each, given in task.offsets.items()}
    scene.answer(task, after)
    assert scene.take(Committed) == [Committed(1, {t(0): 10, t(1): 20}, NOBODY)]
    scene.tell("commit", 2, {t(0): (1, 11)})
    (task,) = scene.commits()
    assert task.offsets == {t(0): (after[t(0)], 11)}


def test_one_commit_is_under_way_at_a_time_and_all_are_answered_in_their_order(
    scene: Scene,
) -> None:
    held = scene.hold(0)
    for token, offset in ((1, 10), (2, 11), (3, 12)):
        scene.tell("commit", token, {t(0): (1, offset)})
    current = held[t(0)]
    for token, offset in ((1, 10), (2, 11), (3, 12)):
        (task,) = scene.commits()
        assert task.offsets == {t(0): (current, offset)}
        current = later(current, offset)
        scene.answer(task, {t(0): current})
        assert scene.take(Committed) == [Committed(token, {t(0): offset}, NOBODY)]


def test_a_fenced_commit_is_refused_and_its_partition_lost(scene: Scene) -> None:
    held = scene.hold(0, 1)
    scene.tell("commit", 1, {t(0): (1, 10), t(1): (1, 20)})
    (task,) = scene.commits()
    scene.answer(task, {t(0): Fenced(), t(1): later(held[t(1)], 20)})
    assert scene.take(Lost) == [Lost(t(0), "a commit was fenced")]
    assert scene.take(Committed) == [Committed(1, {t(1): 20}, frozenset({t(0)}))]
    assert scene.member.owned.fenced_commits == 1
    assert [task.partition for task in scene.take(ClaimPartition)] == [t(0)]


def test_what_is_not_held_is_refused_and_the_rest_is_written(scene: Scene) -> None:
    held = scene.hold(0)
    scene.tell("commit", 1, {t(0): (1, 10), t(3): (1, 5)})
    (task,) = scene.commits()
    assert task.offsets == {t(0): (held[t(0)], 10)}
    scene.answer(task, {t(0): later(held[t(0)], 10)})
    assert scene.take(Committed) == [Committed(1, {t(0): 10}, frozenset({t(3)}))]


def test_work_of_an_earlier_claim_is_not_committed_under_a_later_one(scene: Scene) -> None:
    """In between another may have owned it and got further: the offset would go back."""
    scene.hold(0)
    scene.tell("owner_changed", t(0))
    scene.answer(scene.take_one(VerifyOwner), False)
    scene.answer(scene.take_one(ClaimPartition), claim(t(0), epoch=3, offset=80))
    scene.effects.clear()
    scene.tell("commit", 1, {t(0): (1, 50)})
    assert not scene.commits()
    assert scene.take(Committed) == [Committed(1, {}, frozenset({t(0)}))]
    scene.tell("commit", 2, {t(0): (3, 81)})
    assert scene.commits()


def test_what_was_drained_of_an_earlier_claim_does_not_end_a_later_one(scene: Scene) -> None:
    scene.hold(0)
    scene.tell("owner_changed", t(0))
    scene.answer(scene.take_one(VerifyOwner), False)
    scene.answer(scene.take_one(ClaimPartition), claim(t(0), epoch=3, offset=80))
    scene.see_plan(YOUNGER, members=(ME, YOUNGER))
    scene.tell("drained", t(0), 1, 50)
    assert not scene.release()
    scene.tell("drained", t(0), 3, 82)
    assert [(task.held.state.epoch, task.offset) for task in scene.release()] == [(3, 82)]


# -- commits and releases -----------------------------------------------------------------------------


def test_while_it_is_being_revoked_a_partition_can_be_committed(scene: Scene) -> None:
    held = scene.hold(0)
    scene.see_plan(YOUNGER, members=(ME, YOUNGER))
    scene.tell("commit", 1, {t(0): (1, 10)})
    (task,) = scene.commits()
    after = later(held[t(0)], 10)
    scene.answer(task, {t(0): after})
    assert scene.take(Committed) == [Committed(1, {t(0): 10}, NOBODY)]
    scene.tell("drained", t(0), 1, 12)
    assert [(task.held, task.offset) for task in scene.release()] == [(after, 12)]


def test_a_release_waits_for_the_commits_that_were_asked_for_before_it(scene: Scene) -> None:
    held = scene.hold(0)
    scene.tell("commit", 1, {t(0): (1, 10)})
    scene.tell("commit", 2, {t(0): (1, 11)})
    scene.see_plan(YOUNGER, members=(ME, YOUNGER))
    scene.tell("drained", t(0), 1, 12)
    current = held[t(0)]
    for offset in (10, 11):
        assert not scene.release()
        (task,) = scene.commits()
        current = later(current, offset)
        scene.answer(task, {t(0): current})
    assert [(task.held, task.offset) for task in scene.release()] == [(current, 12)]
    assert not [each for each in scene.take(Committed) if each.refused]


def test_a_commit_while_releasing_is_refused(scene: Scene) -> None:
    """Its write would move the fence on which the release stands."""
    scene.hold(0)
    scene.see_plan(YOUNGER, members=(ME, YOUNGER))
    scene.tell("drained", t(0), 1, 12)
    scene.tell("commit", 1, {t(0): (1, 13)})
    assert not scene.commits()
    assert scene.take(Committed) == [Committed(1, {}, frozenset({t(0)}))]
    assert [task.offset for task in scene.release()] == [12]


def test_what_was_given_up_and_is_fenced_then_is_not_told_as_lost(scene: Scene) -> None:
    scene.hold(0)
    scene.tell("commit", 1, {t(0): (1, 10)})
    scene.see_plan(YOUNGER, members=(ME, YOUNGER))
    scene.tell("drained", t(0), 1, 12)
    (task,) = scene.commits()
    scene.answer(task, {t(0): Fenced()})
    assert not scene.take(Lost)
    assert not scene.release()
    assert not list(scene.member.owned)


# -- silence ------------------------------------------------------------------------------------------


def test_after_two_thirds_of_the_session_timeout_in_silence_nothing_is_held_any_more(
    scene: Scene,
) -> None:
    scene.hold(0, 1)
    scene.be_silent(SESSION_TIMEOUT * 2 / 3 - 0.01)
    assert not scene.take(Lost)
    scene.be_silent(0.02)
    assert [lost.partition for lost in scene.take(Lost)] == [t(0), t(1)]
    scene.tell("commit", 1, {t(0): (1, 10)})
    assert scene.take(Committed) == [Committed(1, {}, frozenset({t(0)}))]
    assert not scene.commits()


def test_commits_that_wait_in_silence_are_refused_and_the_one_under_way_is_in_doubt(
    scene: Scene,
) -> None:
    held = scene.hold(0)
    for token in (1, 2):
        scene.tell("commit", token, {t(0): (1, 10 * token)})
    scene.be_silent(SESSION_TIMEOUT)
    assert scene.take(Committed) == [Committed(2, {}, frozenset({t(0)}))]
    (task,) = scene.commits()
    scene.answer(task, {t(0): later(held[t(0)], 10)})
    assert scene.take(Committed) == [Committed(1, {t(0): 10}, NOBODY)]


def test_the_time_counts_from_when_the_answered_question_was_sent(scene: Scene) -> None:
    scene.hold(0)
    asked_at = scene.now
    scene.be_silent(SESSION_TIMEOUT / 2)
    scene.tell("acknowledged", asked_at + 0.1)
    scene.be_silent(SESSION_TIMEOUT / 6)
    assert not scene.take(Lost)
    scene.be_silent(0.2)
    assert scene.take(Lost)


def test_the_session_timeout_that_zookeeper_granted_is_what_counts(scene: Scene) -> None:
    scene.tell("started", NONCE, 60.0)
    scene.answer(scene.take_one(Join), ME)
    scene.read_all()
    scene.see_plan(ME, members=(ME,))
    scene.answer(scene.take_one(ClaimPartition), claim(t(0)))
    scene.be_silent(39.0)
    assert not scene.take(Lost)
    scene.be_silent(2.0)
    assert scene.take(Lost)


def test_zookeeper_is_not_silent_while_the_first_session_is_joined_in(scene: Scene) -> None:
    scene.heard = scene.now  # by what opened it
    scene.tell("started", NONCE, SESSION_TIMEOUT)
    scene.be_silent(SESSION_TIMEOUT / 2)
    assert not scene.member.liveness.fenced


def test_when_zookeeper_answers_again_all_is_released_and_claimed_anew(scene: Scene) -> None:
    held = scene.hold(0, offset=4)
    scene.be_silent(SESSION_TIMEOUT)
    scene.take(Lost)
    scene.effects = [effect for effect in scene.effects if not isinstance(effect, Read)]
    scene.tell("acknowledged", scene.now)
    scene.answer(Read(Source.PLAN), scene.plan)
    assert not scene.take(ClaimPartition)
    (release,) = scene.release()
    assert (release.partition, release.held, release.offset) == (t(0), held[t(0)], None)
    scene.answer(scene.take_one(ClaimPartition), claim(t(0), epoch=2, offset=4))
    assert scene.take(Assigned) == [Assigned(t(0), "id-1", 4, 2)]


def test_what_is_gone_with_its_topic_in_silence_is_released_all_the_same(scene: Scene) -> None:
    """Its owner's node would stay until the session ends, and nobody else would take it away."""
    scene.hold(0, 1)
    scene.be_silent(SESSION_TIMEOUT)
    scene.topics = {"t": TopicBasis("id-2", 1)}
    scene.plan_for(ME, members=(ME,))
    scene.answer(Read(Source.PLAN), scene.plan)
    scene.read_all()
    assert [task.partition for task in scene.release()] == [t(0), t(1)]
    assert [task.partition for task in scene.take(ClaimPartition)] == [t(0)]


def test_a_release_in_silence_stands_on_what_the_commit_under_way_made_of_the_fence(
    scene: Scene,
) -> None:
    """It writes the offset anew: that of before the commit would take the group back."""
    held = scene.hold(0)
    scene.tell("commit", 1, {t(0): (1, 10)})
    scene.be_silent(SESSION_TIMEOUT)
    assert not scene.release()
    (task,) = scene.commits()
    committed = later(held[t(0)], 10)
    scene.answer(task, {t(0): committed})
    (release,) = scene.release()
    assert (release.held, release.offset) == (committed, None)


def test_what_was_given_up_before_the_silence_is_released_with_its_last_offset(
    scene: Scene,
) -> None:
    held = scene.hold(0)
    scene.tell("commit", 1, {t(0): (1, 10)})
    scene.see_plan(YOUNGER, members=(ME, YOUNGER))
    scene.tell("drained", t(0), 1, 12)
    scene.be_silent(SESSION_TIMEOUT)
    assert not scene.take(Lost)
    (task,) = scene.commits()
    scene.answer(task, {t(0): later(held[t(0)], 10)})
    assert [release.offset for release in scene.release()] == [12]


def test_in_silence_one_sign_of_life_is_asked_for_and_not_one_each_second(scene: Scene) -> None:
    """They would wait for a connection that may never come, and pile up."""
    scene.hold(0)
    for _ in range(50):
        scene.be_silent(SESSION_TIMEOUT / TIMING.heartbeats)
    assert len(scene.take(Read)) == 1


def test_a_claim_won_in_silence_is_not_told_but_let_go_of(scene: Scene) -> None:
    scene.join()
    scene.see_plan(ME, members=(ME,))
    task = scene.take_one(ClaimPartition)
    scene.be_silent(SESSION_TIMEOUT)
    scene.member.handle(scene.now, scene.now - SESSION_TIMEOUT, lambda: None)
    scene.be_silent(0.0)
    scene.finish(task, claim(t(0)))
    assert not scene.take(Assigned)
    assert [release.partition for release in scene.release()] == [t(0)]


def test_who_stood_still_is_silent_first_and_only_then_hears_of_the_answer_that_came_meanwhile(
    scene: Scene,
) -> None:
    """Others may have taken what it had: it must not be asked to finish with it, nor commit it."""
    scene.hold(0, 1)
    scene.now += SESSION_TIMEOUT + 1.0
    scene.tell("acknowledged", scene.now)
    assert [lost.partition for lost in scene.take(Lost)] == [t(0), t(1)]
    scene.see_plan(YOUNGER, YOUNGER, members=(ME, YOUNGER))
    assert not scene.take(Revoking)
    assert [release.offset for release in scene.release()] == [None, None]


# -- lost sessions ------------------------------------------------------------------------------------


def test_with_the_session_all_is_lost_and_commits_under_way_are_refused(scene: Scene) -> None:
    scene.hold(0, 1)
    scene.tell("commit", 1, {t(0): (1, 10)})
    scene.tell("commit", 2, {t(1): (1, 20)})
    assert scene.commits()
    scene.tell("session_lost")
    assert [lost.partition for lost in scene.take(Lost)] == [t(0), t(1)]
    refused = sorted(scene.take(Committed), key=lambda answer: answer.token)
    assert refused == [
        Committed(1, {}, frozenset({t(0)})),
        Committed(2, {}, frozenset({t(1)})),
    ]
    assert not scene.commits()


def test_in_the_next_session_all_begins_anew(scene: Scene) -> None:
    scene.hold(0)
    scene.tell("session_lost")
    scene.effects.clear()
    scene.tell("commit", 3, {t(0): (1, 10)})
    assert scene.take(Committed) == [Committed(3, {}, frozenset({t(0)}))]
    scene.tell("started", "n2", SESSION_TIMEOUT)
    name = "me-0000000007"
    scene.answer(scene.take_one(Join), name)
    scene.members = (name,)
    scene.read_all()
    assert scene.member.name == name
    assert not scene.take(ClaimPartition)  # the plan names the member that we no longer are
    scene.see_plan(name, members=(name,))
    assert [task.partition for task in scene.take(ClaimPartition)] == [t(0)]
    assert not scene.take(Revoking)
