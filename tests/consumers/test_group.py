"""The group machine, step by step: joining, rebalances, waiting and stealing."""

from math import inf

import pytest
from msgspec.structs import replace

from folkmoot.consumers.group import pending_claims
from folkmoot.consumers.group.events import Assigned, Lost, Rebalanced, Revoking
from folkmoot.consumers.group.liveness import Liveness
from folkmoot.consumers.group.owned_partitions import EndSession
from folkmoot.consumers.group.pending_claims import MAX_OWNED_BYTES
from folkmoot.consumers.group.source_reads import Source
from folkmoot.coordination import paths
from folkmoot.coordination.groups.ownership import Blocked, MalformedOffset, Stale
from folkmoot.coordination.groups.plan import TopicBasis
from folkmoot.coordination.groups.planning import VersionedPlan
from folkmoot.coordination.zookeeper.operations import TooLarge, ZooKeeperError, path_bytes
from tests.consumers.machine import (
    HAND_OVER,
    ME,
    NONCE,
    OLDER,
    SESSION_TIMEOUT,
    TIMING,
    YOUNGER,
    ClaimPartition,
    ClaimPartitions,
    Join,
    MakePlan,
    Read,
    ReleasePartition,
    Scene,
    VerifyOwner,
    claim,
    owner,
    t,
)

STEAL_AFTER = HAND_OVER + TIMING.steal_margin


@pytest.fixture
def scene() -> Scene:
    return Scene()


# -- joining and planning -----------------------------------------------------------------------------


def test_the_first_member_joins_plans_after_a_moment_and_claims_what_it_planned(
    scene: Scene,
) -> None:
    scene.join()
    assert scene.member.name == ME
    assert not scene.take(MakePlan)
    scene.wait(TIMING.debounce * 1.5)
    task = scene.take_one(MakePlan)
    scene.plan_for(ME, ME, ME, ME, members=(ME,))
    scene.answer(task, True)
    scene.read_all()
    tasks = scene.take(ClaimPartition)
    assert [task.partition for task in tasks] == [t(0), t(1), t(2), t(3)]
    assert {(task.plan_version, task.topic_id) for task in tasks} == {(1, "id-1")}
    scene.answer(tasks[0], claim(t(0), epoch=3, offset=17))
    assert scene.take(Assigned) == [Assigned(t(0), "id-1", 17, 3)]
    won = claim(t(1), epoch=4, offset=2)
    scene.answer(tasks[1], replace(won, state=replace(won.state, reset="mark")))
    assert scene.take(Assigned) == [Assigned(t(1), "id-1", 2, 4, "mark")]


def test_only_what_moves_is_touched_when_a_second_member_joins(scene: Scene) -> None:
    held = scene.hold(0, 1, 2, 3)
    scene.see_plan(ME, ME, YOUNGER, YOUNGER, members=(ME, YOUNGER))
    assert scene.take(Revoking) == [Revoking(t(2)), Revoking(t(3))]
    assert scene.take_one(Rebalanced) == Rebalanced(2, 2, (t(0), t(1)))
    scene.tell("drained", t(2), 1, 40)
    (release,) = scene.release()
    assert (release.partition, release.held, release.offset) == (t(2), held[t(2)], 40)
    assert not scene.effects
    scene.tell("drained", t(3), 1, None)
    (release,) = scene.release()
    assert (release.partition, release.offset) == (t(3), None)
    assert set(scene.member.owned) == {t(0), t(1)}


def test_the_oldest_plans_first_and_a_younger_one_only_in_its_place(scene: Scene) -> None:
    scene.members = (OLDER, ME)
    scene.join()
    scene.wait(TIMING.debounce * 1.5)
    assert not scene.take(MakePlan)
    scene.see_members(ME)
    scene.wait(TIMING.debounce * 1.5)
    assert scene.take(MakePlan)


def test_a_younger_member_makes_no_plan_as_long_as_the_eldest_is_alive(scene: Scene) -> None:
    scene.members = (OLDER, ME)
    scene.join()
    for _ in range(20):
        scene.wait(3.0)
        scene.read_all()
    assert not scene.take(MakePlan)
    scene.see_members(ME)
    scene.wait(TIMING.debounce * 1.5)
    assert scene.take(MakePlan)


def test_a_plan_that_does_not_come_about_raises_an_alarm_until_it_does(scene: Scene) -> None:
    """An assignor that does not return holds up the group: somebody has to end its process."""
    scene.join()
    scene.wait(TIMING.debounce * 1.5)
    plan = scene.take_one(MakePlan)
    alarm = "the plan begun 30 s ago is not finished: if assignor sticky does not return, end this process"
    scene.wait(TIMING.stuck - 1.0)
    scene.read_all()
    assert not scene.member.alarms
    for _ in range(2):  # heartbeats
        scene.wait(3.0)
        scene.read_all()
    assert scene.member.alarms == (alarm,)
    assert not scene.take(MakePlan)
    scene.answer(plan, True)
    assert not scene.member.alarms


def test_a_younger_member_does_not_read_the_list_when_others_come_and_go(scene: Scene) -> None:
    """A thousand members that start would else read half a million names each."""
    scene.members = (OLDER, ME)
    scene.join()
    scene.see_plan(OLDER, ME)
    scene.take(Read)
    for _ in range(10):
        scene.tell("changed", Source.MEMBERS)
        scene.tell("changed", Source.TOPICS)
        scene.wait(0.05)
    assert not scene.take(Read)


def test_the_eldest_waits_before_it_reads_so_that_many_changes_are_read_at_once(
    scene: Scene,
) -> None:
    scene.hold(0)
    for _ in range(10):
        scene.tell("changed", Source.MEMBERS)
    assert not scene.take(Read)
    scene.wait(TIMING.debounce * 1.5)
    assert [each.source for each in scene.take(Read)] == [Source.MEMBERS, Source.TOPICS]


def test_what_is_no_change_of_the_group_does_not_put_a_turn_off(scene: Scene) -> None:
    """Else a busy member's turn would never come."""
    scene.hold(0)
    scene.see_members(ME, YOUNGER, *(f"another-000000000{number}" for number in range(3, 9)))
    began = scene.now
    while not scene.take(MakePlan):
        scene.wait(0.01)
        scene.tell("owner_changed", t(3))
        assert scene.now < began + TIMING.debounce * 5 * 1.5


def test_a_plan_by_another_makes_ours_unnecessary(scene: Scene) -> None:
    scene.members = (OLDER, ME)
    scene.join()
    scene.see_plan(OLDER, OLDER, ME, ME)
    scene.wait(1.0)
    assert not scene.take(MakePlan)


def test_all_is_read_again_when_a_plan_of_ours_was_not_written(scene: Scene) -> None:
    """What we know may be the reason: a watch was lost, and nobody else thinks that a plan is due."""
    scene.join()
    scene.wait(TIMING.debounce * 1.5)
    scene.answer(scene.take_one(MakePlan), False)
    read = {read.source for read in scene.take(Read)}
    assert read == {Source.PLAN, Source.MEMBERS, Source.TOPICS}


def test_a_plan_that_does_not_fit_is_tried_again_some_seconds_later(scene: Scene) -> None:
    """What is read then has not changed, and is no reason to try it at once."""
    scene.join()
    scene.wait(TIMING.debounce * 1.5)
    began = scene.now
    scene.answer(scene.take_one(MakePlan), TooLarge("it has a million bytes"))
    while not scene.take(MakePlan):
        scene.read_all()
        scene.wait(0.05)
    assert scene.now - began >= TIMING.retry


def test_no_second_plan_is_made_before_the_first_one_was_seen(scene: Scene) -> None:
    scene.hold(0)
    scene.see_members(ME, YOUNGER)
    scene.wait(0.01)
    scene.finish(scene.take_one(MakePlan), True)
    scene.wait(0.01)
    assert not scene.take(MakePlan)
    scene.plan_for(ME, YOUNGER, members=(ME, YOUNGER))
    scene.read_all()
    scene.see_members(ME)
    scene.wait(0.01)
    assert scene.take(MakePlan)


def test_a_member_that_joins_while_the_first_list_is_read_is_not_overlooked(scene: Scene) -> None:
    """The watch may fire before the answer of the read that armed it, which makes us the eldest."""
    scene.tell("started", NONCE, SESSION_TIMEOUT)
    scene.answer(scene.take_one(Join), ME)
    (read,) = [each for each in scene.take(Read) if each.source is Source.MEMBERS]
    scene.tell("changed", Source.MEMBERS)
    scene.answer(read, (ME,))
    assert Read(Source.MEMBERS) in scene.take(Read)


def test_a_ring_while_reading_is_followed_by_another_read(scene: Scene) -> None:
    scene.join()
    scene.tell("changed", Source.PLAN)
    scene.tell("changed", Source.PLAN)
    scene.tell("changed", Source.PLAN)
    read = scene.take_one(Read)
    scene.answer(read, scene.plan)
    assert scene.take(Read) == [Read(Source.PLAN)]


@pytest.mark.parametrize("version", [-1, 0, 1, 2], ids=["none", "an older", "the same", "a newer"])
def test_a_plan_in_another_node_whatever_its_version_ends_the_session(
    scene: Scene, version: int
) -> None:
    """The group was deleted and made anew, and what we hold is of the old one."""
    scene.hold(0)
    assert scene.plan.version == 1
    scene.plan = VersionedPlan(
        scene.plan.plan, version, 0 if version < 0 else scene.plan.created + 1
    )
    scene.tell("changed", Source.PLAN)
    scene.read_all()
    assert scene.take(Lost) == [Lost(t(0), "the group's plan was removed")]
    assert scene.take(EndSession)


# -- waiting for owners and stealing ------------------------------------------------------------------


def test_who_is_blocked_waits_and_claims_when_the_owner_has_let_go(scene: Scene) -> None:
    scene.join()
    scene.see_plan(ME)
    scene.answer(scene.take_one(ClaimPartition), Blocked(owner(OLDER)))
    scene.wait(1.0)
    assert not scene.take(ClaimPartition)
    scene.tell("owner_changed", t(0))
    task = scene.take_one(ClaimPartition)
    assert task.steal_from is None
    scene.answer(task, claim(t(0), epoch=2, offset=9))
    assert scene.take(Assigned) == [Assigned(t(0), "id-1", 9, 2)]


def test_a_partition_is_stolen_when_the_owners_hand_over_time_is_over(scene: Scene) -> None:
    scene.join()
    scene.see_plan(ME)
    scene.answer(scene.take_one(ClaimPartition), Blocked(owner(OLDER)))
    scene.wait(STEAL_AFTER - 0.01)
    assert not scene.take(ClaimPartition)
    scene.wait(0.02)
    assert scene.take_one(ClaimPartition).steal_from == owner(OLDER)


def test_looks_in_between_do_not_put_the_stealing_off(scene: Scene) -> None:
    scene.join()
    scene.see_plan(ME)
    scene.answer(scene.take_one(ClaimPartition), Blocked(owner(OLDER)))
    for _ in range(2):
        scene.wait(STEAL_AFTER / 3)
        scene.tell("owner_changed", t(0))
        task = scene.take_one(ClaimPartition)
        assert task.steal_from is None
        scene.answer(task, Blocked(owner(OLDER)))
        scene.see_plan(ME)
    scene.wait(STEAL_AFTER / 3 + 0.01)
    assert scene.take_one(ClaimPartition).steal_from == owner(OLDER)


def test_behind_a_plan_that_was_missed_the_owner_has_its_whole_time_again(scene: Scene) -> None:
    """It may have been given the partition back in between, and let go of it for a second time."""
    scene.join()
    scene.see_plan(ME)
    scene.answer(scene.take_one(ClaimPartition), Blocked(owner(OLDER)))
    scene.wait(STEAL_AFTER - 0.5)
    scene.plan_for(OLDER)
    scene.see_plan(ME)
    scene.wait(0.6)
    task = scene.take_one(ClaimPartition)
    assert task.steal_from is None
    scene.answer(task, Blocked(owner(OLDER)))
    scene.wait(STEAL_AFTER - 0.61)
    scene.read_all()
    assert not scene.take(ClaimPartition)
    scene.wait(0.02)
    assert scene.take_one(ClaimPartition).steal_from == owner(OLDER)


@pytest.mark.parametrize("is_missed", [True, False])
def test_the_owner_has_its_whole_time_again_also_if_a_claim_was_under_way_meanwhile(
    scene: Scene, is_missed: bool
) -> None:
    scene.join()
    scene.see_plan(ME)
    scene.answer(scene.take_one(ClaimPartition), Blocked(owner(OLDER)))
    scene.wait(STEAL_AFTER - 0.5)
    scene.tell("owner_changed", t(0))
    under_way = scene.take_one(ClaimPartition)
    (scene.plan_for if is_missed else scene.see_plan)(OLDER)
    scene.see_plan(ME)
    scene.answer(under_way, Stale())
    scene.wait(0.6)
    scene.read_all()
    task = scene.take_one(ClaimPartition)
    assert task.steal_from is None
    scene.answer(task, Blocked(owner(OLDER)))
    scene.wait(STEAL_AFTER - 0.01)
    scene.read_all()
    assert not scene.take(ClaimPartition)
    scene.wait(0.02)
    assert scene.take_one(ClaimPartition).steal_from == owner(OLDER)


def test_another_owner_gets_its_own_revoke_timeout(scene: Scene) -> None:
    scene.join()
    scene.see_plan(ME)
    scene.answer(scene.take_one(ClaimPartition), Blocked(owner(OLDER)))
    scene.wait(STEAL_AFTER)
    scene.answer(scene.take_one(ClaimPartition), Blocked(owner(YOUNGER, epoch=2)))
    scene.wait(STEAL_AFTER - 0.01)
    scene.read_all()
    assert not scene.take(ClaimPartition)
    scene.wait(0.02)
    assert scene.take_one(ClaimPartition).steal_from == owner(YOUNGER, epoch=2)


def test_what_we_gave_up_in_doubt_is_taken_back_at_once(scene: Scene) -> None:
    scene.join()
    scene.see_plan(ME)
    ours = owner(ME, nonce=NONCE)
    scene.answer(scene.take_one(ClaimPartition), Blocked(ours))
    assert scene.take_one(ClaimPartition).steal_from == ours


def test_a_ring_before_the_answer_of_the_claim_that_armed_it_is_not_lost(scene: Scene) -> None:
    """The owner let go between the look and our hearing of it: no other ring will come."""
    scene.join()
    scene.see_plan(ME)
    task = scene.take_one(ClaimPartition)
    scene.tell("owner_changed", t(0))
    assert not scene.take(ClaimPartition)
    scene.answer(task, Blocked(owner(OLDER)))
    assert scene.take_one(ClaimPartition).steal_from is None


def test_a_ring_before_a_claim_is_known_to_be_ours_is_looked_into(scene: Scene) -> None:
    """It was stolen from us at once, and the watch that told so is used up."""
    scene.join()
    scene.see_plan(ME)
    task = scene.take_one(ClaimPartition)
    scene.tell("owner_changed", t(0))
    scene.answer(task, claim(t(0)))
    scene.answer(scene.take_one(VerifyOwner), False)
    assert scene.take(Lost) == [Lost(t(0), "another member took it over, or its offset was reset")]


def test_a_ring_while_the_plan_is_read_is_acted_on_after_it(scene: Scene) -> None:
    """Else the partition would have no owner until its old one's hand-over time is over."""
    scene.join()
    scene.see_plan(ME)
    scene.answer(scene.take_one(ClaimPartition), Blocked(owner(OLDER)))
    scene.plan_for(ME)
    scene.tell("changed", Source.PLAN)
    scene.tell("owner_changed", t(0))
    assert not scene.take(ClaimPartition)
    scene.read_all()
    assert scene.take_one(ClaimPartition).plan_version == scene.plan.version


def test_a_stale_claim_waits_for_the_newer_plan_and_asks_no_faster(scene: Scene) -> None:
    scene.join()
    scene.see_plan(ME)
    scene.answer(scene.take_one(ClaimPartition), Stale())
    read = scene.take_one(Read)
    assert read == Read(Source.PLAN)
    scene.answer(read, scene.plan)
    assert not scene.take(ClaimPartition)  # the server that answers lags
    scene.see_plan(ME)
    assert scene.take_one(ClaimPartition).plan_version == scene.plan.version


def test_a_stale_claim_is_made_again_after_a_moment_under_the_same_plan(scene: Scene) -> None:
    """It was fenced as soon as it was won."""
    scene.join()
    scene.see_plan(ME)
    scene.answer(scene.take_one(ClaimPartition), Stale())
    scene.read_all()
    scene.wait(TIMING.patience)
    assert scene.take(ClaimPartition)


def test_a_claim_that_the_next_plan_does_not_want_is_let_go_of_untold(scene: Scene) -> None:
    scene.join()
    scene.see_plan(ME)
    task = scene.take_one(ClaimPartition)
    scene.see_plan(OLDER)
    scene.answer(task, claim(t(0)))
    assert not scene.take(Assigned)
    (release,) = scene.release()
    assert (release.partition, release.offset) == (t(0), None)
    assert not scene.take(Revoking)


def test_nothing_is_due_for_what_is_no_longer_wanted(scene: Scene) -> None:
    """A deadline that lies in the past and is never met would be a loop without a pause."""
    scene.join()
    scene.see_plan(ME, ME)
    first, second = scene.take(ClaimPartition)
    scene.see_plan(OLDER, OLDER)
    scene.answer(first, Stale())
    scene.answer(second, Blocked(owner(OLDER)))
    scene.read_all()
    scene.wait(STEAL_AFTER * 2)
    assert not scene.take(ClaimPartition)
    assert scene.now < scene.member.due < inf


def test_what_the_plan_gives_back_is_claimed_anew_after_it_was_let_go(scene: Scene) -> None:
    scene.hold(0)
    scene.see_plan(YOUNGER, members=(ME, YOUNGER))
    scene.see_plan(ME, members=(ME, YOUNGER))
    assert scene.take(Revoking) == [Revoking(t(0))]
    assert not scene.take(ClaimPartition)
    scene.tell("drained", t(0), 1, 5)
    scene.release()
    scene.answer(scene.take_one(ClaimPartition), claim(t(0), epoch=2, offset=5))
    assert scene.take(Assigned) == [Assigned(t(0), "id-1", 5, 2)]


def test_a_partition_is_let_go_once_and_only_when_it_is_being_revoked(scene: Scene) -> None:
    scene.hold(0)
    scene.tell("drained", t(0), 1, 3)
    assert not scene.take(ReleasePartition), "nobody has asked for it back"
    scene.see_plan(YOUNGER, members=(ME, YOUNGER))
    scene.take(Revoking)
    for offset in (5, 9):  # what is said first counts
        scene.tell("drained", t(0), 1, offset)
    (released,) = scene.take(ReleasePartition)
    assert (released.partition, released.offset) == (t(0), 5)


def test_a_topic_made_anew_is_given_up_and_claimed_under_its_new_id(scene: Scene) -> None:
    scene.hold(0)
    scene.topics = {"t": TopicBasis("id-2", 4)}
    scene.see_plan(ME, members=(ME,))
    assert scene.take(Revoking) == [Revoking(t(0))]
    scene.tell("drained", t(0), 1, None)
    scene.release()
    assert scene.take_one(ClaimPartition).topic_id == "id-2"


# -- what is put aside ------------------------------------------------------------------------------


def test_no_session_owns_more_than_zookeeper_can_write_when_it_ends(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    room = 2 * path_bytes(paths.owner("g", *t(0)), "/chroot") + 1
    monkeypatch.setattr(pending_claims, "MAX_OWNED_BYTES", room)
    scene.chroot = "/chroot"
    scene.join()
    scene.see_plan(ME, ME, ME, ME)
    first, second = scene.take(ClaimPartition)
    assert [first.partition, second.partition] == [t(0), t(1)]
    (alarm,) = scene.member.alarms
    assert alarm.startswith("2 partitions have no owner: one ZooKeeper session must not own more")
    scene.answer(first, claim(t(0)))
    scene.answer(second, claim(t(1)))
    assert not scene.take(ClaimPartition)
    scene.see_plan(ME, OLDER, ME, OLDER)
    scene.tell("drained", t(1), 1, None)
    scene.release()
    assert [task.partition for task in scene.take(ClaimPartition)] == [t(2)]
    assert not scene.member.alarms


def test_ten_thousand_partitions_with_long_names_are_bounded_well_below_what_stops_zookeeper() -> (
    None
):
    topic = "x" * 200
    room = MAX_OWNED_BYTES // path_bytes(paths.owner("g", topic, 1000), "")
    assert room < 4_000
    every = [paths.owner("g", topic, number) for number in range(room)]
    assert 48 + sum(map(path_bytes, every)) < 1_000_000


def test_an_offset_that_cannot_be_read_is_asked_for_now_and_then(scene: Scene) -> None:
    scene.join()
    scene.see_plan(ME, ME)
    first, second = scene.take(ClaimPartition)
    scene.answer(first, MalformedOffset("it is no JSON"))
    scene.answer(second, claim(t(1)))
    assert scene.member.alarms == ("t-0 has no owner: it is no JSON",)
    scene.wait(TIMING.retry - 0.1)
    scene.read_all()
    assert not scene.take(ClaimPartition)
    scene.wait(0.2)
    scene.answer(scene.take_one(ClaimPartition), claim(t(0), epoch=2))
    assert set(scene.member.owned) == {t(0), t(1)}
    assert not scene.member.alarms


def test_a_plan_that_zookeeper_refuses_leaves_the_last_one_in_force_and_is_tried_again(
    scene: Scene,
) -> None:
    scene.hold(0)
    scene.see_members(ME, YOUNGER)
    scene.wait(TIMING.debounce * 1.5)
    scene.fail(scene.take_one(MakePlan), ZooKeeperError("no quota is left"))
    scene.read_all()
    assert scene.member.alarms == ("no plan: no quota is left",)
    assert set(scene.member.owned) == {t(0)}
    assert not scene.take(EndSession)
    scene.wait(TIMING.retry + 0.5)
    assert scene.take(MakePlan)


def test_who_cannot_join_says_so_until_it_can(scene: Scene) -> None:
    scene.tell("started", NONCE, SESSION_TIMEOUT)
    scene.fail(scene.take_one(Join), ZooKeeperError("no quota is left"))
    said = "ZooKeeper refused to join: no quota is left"
    assert scene.take(EndSession) == [EndSession(said, has_failed=True)]
    assert scene.member.alarms == (f"this member joins again: {said}",)
    scene.tell("session_lost")
    scene.join()
    scene.tell("tick")
    assert not scene.member.alarms


def test_many_first_claims_are_asked_for_by_the_hundred(scene: Scene) -> None:
    scene.topics = {"t": TopicBasis("id-1", 250)}
    scene.join()
    scene.see_plan(*[ME] * 250)
    sizes = [len(each.wanted) for each in scene.asked if isinstance(each, ClaimPartitions)]
    assert sizes == [100, 100, 50]


def test_nothing_is_asked_for_in_the_name_of_a_member_that_has_just_gone(scene: Scene) -> None:
    """A sign of life and the end of the application's time were due at once."""
    scene.member.liveness = Liveness(TIMING, 2.0, 1.0)
    scene.hold(0)
    scene.wait(2.0)
    scene.effects.clear()
    scene.now += 1.5
    scene.tell("tick")
    assert [type(each) for each in scene.effects] == [Lost, EndSession]


@pytest.mark.parametrize("signs_before", range(5))
def test_a_sign_of_life_is_sent_also_while_all_is_being_released(
    scene: Scene, signs_before: int
) -> None:
    """Else nothing was asked, no answer came, and no further sign was ever sent: fenced for good."""
    scene.hold(0)
    for _ in range(signs_before):
        scene.wait(SESSION_TIMEOUT / TIMING.heartbeats)
        scene.read_all()
    scene.see_plan(None, None, members=(ME,))
    scene.tell("drained", t(0), 1, None)
    (release,) = scene.take(ReleasePartition)
    sent = scene.now
    scene.be_silent(SESSION_TIMEOUT / TIMING.heartbeats)
    scene.tell("acknowledged", sent)
    scene.finish(release, None)
    for _ in range(20):
        scene.read_all()
        assert not scene.member.liveness.fenced
        scene.be_silent(0.5)


# -- lost watches, nodes removed by hand --------------------------------------------------------------


def test_a_lost_ring_is_made_up_for_by_the_sweep(scene: Scene) -> None:
    scene.hold(0)
    scene.see_plan(ME, ME, members=(ME,))
    scene.answer(scene.take_one(ClaimPartition), Blocked(owner(OLDER)))
    scene.effects.clear()
    read: set[Source] = set()
    verified = []
    for _ in range(5):
        scene.wait(SESSION_TIMEOUT / TIMING.heartbeats)
        read |= {each.source for each in scene.effects if isinstance(each, Read)}
        verified += scene.take(VerifyOwner)
        scene.read_all()
    assert read == {Source.OWN, Source.PLAN, Source.MEMBERS, Source.TOPICS}
    assert [each.partition for each in verified] == [t(0)]
    assert t(1) in {task.partition for task in scene.take(ClaimPartition)}


@pytest.mark.parametrize("how", ["its own watch", "list of members"])
def test_a_member_whose_node_was_removed_drops_all_and_joins_in_a_new_session(
    scene: Scene, how: str
) -> None:
    scene.hold(0)
    if how == "its own watch":
        scene.tell("changed", Source.OWN)
        scene.answer(scene.take_one(Read), False)
    else:
        scene.see_members(YOUNGER)
    assert scene.take(Lost) == [Lost(t(0), "this member's node was removed")]
    assert scene.take(EndSession)
    assert not scene.take(Join)
    scene.tell("session_lost")
    scene.tell("started", "n2", SESSION_TIMEOUT)
    assert scene.take(Join)
