"""Whole clusters through a few hostile histories, which follow from the code; `make simulate-replication`
lives through more.

FOLKMOOT_SEED=n replays one history and prints its end;
FOLKMOOT_BLACKOUTS=n has the power fail so often on all machines at once.
"""

import os
from collections import Counter
from collections.abc import Callable
from functools import partial

import pytest

from tests.simulation.checks import Violation
from tests.simulation.fingerprint import fingerprint, first_seed
from tests.simulation.frame import expect_violation, live_through, live_through_many, silence
from tests.simulation.replication.history import ReplicationHistory
from tests.simulation.replication.mutations import MUTATIONS, mutated
from tests.simulation.replication.stage import Stage

__all__ = ["silence"]

HISTORIES = 25
BLACKOUTS = int(os.environ.get("FOLKMOOT_BLACKOUTS", "40"))
AT_ONCE = 10
SEEDS_FOR_MUTATIONS = 400
FIRST_SEEDS = {"go on after a failed flush": 550}
"""Of mutations that one history in 500 shows: where to begin."""


@pytest.mark.timeout(0)
def test_no_history_loses_a_committed_record_and_all_end_with_equal_logs() -> None:
    live_through_many(ReplicationHistory, HISTORIES)


@pytest.mark.timeout(0)
def test_nothing_acknowledged_is_lost_when_the_power_fails_on_all_machines_at_once() -> None:
    code = fingerprint(ReplicationHistory.__module__)
    first = int(os.environ.get("FOLKMOOT_SEED", first_seed(code)))
    seen: Counter[str] = Counter()
    while seen["fault power of all"] < BLACKOUTS:
        seen.update(live_through(ReplicationHistory(first, blackouts=AT_ONCE)).world.seen)
        first += 1
    print(f"up to seed {first - 1}")
    print(", ".join(f"{what} {count}" for what, count in sorted(seen.items())))
    assert seen["acknowledged"] > BLACKOUTS


def test_the_same_seed_is_the_same_history() -> None:
    hashes = [live_through(ReplicationHistory(seed)).world.hash() for seed in (1, 2, 1, 2)]
    assert hashes[:2] == hashes[2:]
    assert len(set(hashes)) == 2


# -- scripts: what chance hardly finds -----------------------------------------------------------------


def a_late_fetch_of_an_earlier_epoch(stage: Stage) -> None:
    """Broker 3 has cut its log since it sent the fetch, and 1 leads again, with what 3 has cut."""
    stage.write(1, 100)
    stage.fetch(2, 3)
    stage.write(1, 101)
    stage.fetch(3, times=1)
    late = stage.ask(3)
    stage.designate(2, 1, 2, 3)
    stage.read(2, 3)
    stage.fetch(3)
    assert len(stage.disks[3].records) == 1
    stage.designate(1, 1, 3)
    stage.read(1)
    stage.serve(1, late)


def a_stale_read_after_a_restart(stage: Stage) -> None:
    """Broker 3 reads of an epoch that it has left for the next one before it died."""
    first = stage.state
    stage.write(1, 100)
    stage.fetch(2, 3)
    stage.write(1, 101)
    stage.designate(2, 2, 3)
    stage.read(2, 3)
    stage.write(2, 102)
    stage.fetch(3)
    assert len(stage.checks.committed) == 2
    stage.die(3)
    stage.start(3)
    stage.read(3, found=first)
    if stage.lives[3].replica.follower is not None:
        stage.fetch(3)
    stage.die(2)
    stage.designate(3, 3)
    stage.read(3)


def a_record_while_one_replica_alone_is_in_sync(stage: Stage) -> None:
    """It is not acknowledged before another one has it."""
    stage.write(1, 100)
    stage.fetch(2, 3)
    stage.leader(1).finish_proposal(stage.written(stage.propose(1, 1)))
    assert stage.state.state.isr == (1,)
    stage.write(1, 101)


def _one_in_sync_left_out(stage: Stage) -> None:
    """Broker 3 is not in sync, and has all; then it is to come back."""
    stage.write(1, 100)
    stage.fetch(2, 3)
    stage.leader(1).finish_proposal(stage.written(stage.propose(1, 1, 2)))
    assert stage.state.state.isr == (1, 2)


def an_expansion_that_is_written_and_not_answered_yet(stage: Stage) -> None:
    """What is committed meanwhile must be at the replica that comes."""
    _one_in_sync_left_out(stage)
    stage.written(stage.propose(1, 1, 2, 3))
    stage.write(1, 101)
    stage.fetch(2)
    stage.die(1, 2)
    stage.designate(3, 3)
    stage.read(3)


def an_expansion_whose_answer_is_lost(stage: Stage) -> None:
    """The same, and nobody knows whether it was written."""
    _one_in_sync_left_out(stage)
    stage.written(stage.propose(1, 1, 2, 3))
    stage.leader(1).finish_proposal(None)
    stage.write(1, 101)
    stage.fetch(2)
    stage.die(1, 2)
    stage.designate(3, 3)
    stage.read(3)


def an_expansion_by_who_has_lost_its_disk_since(stage: Stage) -> None:
    """The fetch that has let it in was that of an earlier incarnation."""
    _one_in_sync_left_out(stage)
    wanted = stage.propose(1, 1, 2, 3)
    stage.die(3)
    stage.lose_disk(3)
    stage.start(3)
    stage.leader(1).finish_proposal(stage.written(wanted))
    if stage.state.state.isr == (1, 2, 3):
        stage.die(1, 2)
        stage.designate(3, 3)
        stage.read(3)


def a_replica_that_has_all_that_a_new_leader_knows_to_be_committed(stage: Stage) -> None:
    """Which is less than what was committed."""
    _one_in_sync_left_out(stage)
    stage.write(1, 101, 102)
    stage.fetch(2, times=1)
    stage.serve(1, stage.ask(2))
    assert len(stage.checks.committed) == 3
    stage.die(1)
    stage.designate(2, 2)
    stage.read(2, 3)
    assert stage.leader(2).high_watermark == 1
    stage.serve(2, stage.ask(3))
    wanted = stage.leader(2).propose((2, 3), 0.0)
    if wanted is not None:
        stage.leader(2).finish_proposal(stage.written(wanted))
        stage.die(2)
        stage.designate(3, 3)
        stage.read(3)


def what_was_acked_in_an_earlier_epoch_and_cut_since(stage: Stage) -> None:
    """Broker 1 leads again, and 3 has not said yet what it has now."""
    stage.write(1, 100)
    stage.fetch(2, 3)
    stage.write(1, 101)
    stage.fetch(3)
    stage.designate(2, 1, 2, 3)
    stage.read(2, 3)
    stage.fetch(3)
    assert len(stage.disks[3].records) == 1
    stage.designate(1, 1, 3)
    stage.read(1)
    stage.advance(1)


def _let_in(stage: Stage) -> None:
    """The leader has not read of the topic: to it broker 3 is a replica like others."""
    wanted = stage.leader(1).propose((1, 2, 3), 0.0)
    if wanted is not None:
        stage.written(wanted)


def a_fetch_of_who_leaves_right_before_it_has_left(stage: Stage) -> None:
    """Broker 3 deletes its log meanwhile."""
    _one_in_sync_left_out(stage)
    stage.end_reassignment(1, 1, 2)
    stage.read(1)
    stage.fetch(3)
    _let_in(stage)


def a_fetch_of_who_has_left_and_has_not_read_of_it(stage: Stage) -> None:
    """Broker 3 reads who leads, and only then that it is to delete its log; nor has the leader read it."""
    stage.write(1, 100)
    stage.fetch(2, 3)
    stage.end_reassignment(1, 1, 2)
    stage.read(1, 3)
    stage.fetch(3)
    _let_in(stage)


def an_epoch_that_the_leader_never_saw(stage: Stage) -> None:
    """Broker 3 has led one, and 2, which leads again, one before that of which 3 has nothing."""
    stage.write(1, 100)
    stage.fetch(2, 3)
    stage.designate(2, 1, 2, 3)
    stage.read(2)
    stage.write(2, 101, 102)
    stage.designate(3, 1, 2, 3)
    stage.read(2, 3)
    stage.write(3, 103, 104, 105)
    stage.designate(2, 1, 2, 3)
    stage.read(2, 3)
    stage.fetch(3)
    if stage.disks[3].records != stage.disks[2].records:
        raise Violation(f"3 has {stage.disks[3].records}, its leader {stage.disks[2].records}")


SCRIPTS: dict[str, Callable[[Stage], None]] = {
    "truncate to the end of the leaders epoch alone": an_epoch_that_the_leader_never_saw,
    "answer fetches of any epoch": a_late_fetch_of_an_earlier_epoch,
    "forget epochs": a_stale_read_after_a_restart,
    "ignore proposals": an_expansion_that_is_written_and_not_answered_yet,
    "take unknown for failed": an_expansion_whose_answer_is_lost,
    "let in who lacks earlier epochs": (
        a_replica_that_has_all_that_a_new_leader_knows_to_be_committed
    ),
    "commit below min in sync": a_record_while_one_replica_alone_is_in_sync,
    "count ends of earlier epochs": what_was_acked_in_an_earlier_epoch_and_cut_since,
    "lead on in the epoch of a reassignment that ends": (
        a_fetch_of_who_leaves_right_before_it_has_left
    ),
    "follow whatever is known of the topic": a_fetch_of_who_has_left_and_has_not_read_of_it,
    "let in an earlier incarnation": an_expansion_by_who_has_lost_its_disk_since,
}


IN_BLACKOUTS = {
    "go on where another disk had the id",
    "count on a disk whose id another one had",
}
"""It takes that the one that has the id is down, and others are, too."""


@pytest.mark.chaos
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", MUTATIONS)
def test_without_this_rule_a_promise_is_broken_and_with_it_none(name: str) -> None:
    script = SCRIPTS.get(name)
    if script is not None:
        script(Stage())
        with mutated(name), pytest.raises(Violation) as broken:
            script(Stage())
        print(broken.value)
        return
    often = AT_ONCE if name in IN_BLACKOUTS else 0
    make = partial(ReplicationHistory, blackouts=often, page_cache="page cache" in name)
    first = FIRST_SEEDS.get(name, 0)
    expect_violation(make, partial(mutated, name), SEEDS_FOR_MUTATIONS, first)
