"""What a leader makes of a follower's position, and the follower of the answer."""

import pytest

from folkmoot.brokers.replication.follower_state import Append, FollowerState, Truncate
from folkmoot.brokers.replication.leader_state import LeaderState, Position
from folkmoot.brokers.storage.leader_epochs import NO_EPOCH, EpochEnd, EpochStarts
from folkmoot.coordination.partition_states import PartitionState, VersionedState
from folkmoot.protocol.errors import OffsetOutOfRange


def a_leader(starts: EpochStarts, log_end: int) -> LeaderState:
    """Of epoch 9."""
    found = VersionedState(PartitionState(1, 9, (1, 2), 1, active=True), 4)
    return LeaderState(
        *(1, found, (1, 2), starts),
        log_end=log_end,
        high_watermark=0,
        deleted_before=0,
        min_in_sync=1,
        max_lag=10.0,
        now=0.0,
    )


def told(leader: LeaderState, last_epoch: int, end: int, log_end: int, start: int = 0) -> object:
    return leader.handle_fetch(2, 1, Position(9, last_epoch, end), log_end, 0.0, log_start=start)


def test_a_position_on_the_leaders_log_is_acked_and_any_other_is_told_the_epochs_end() -> None:
    leader = a_leader(EpochStarts([(1, 0), (4, 10), (7, 15)]), 20)
    for last_epoch, end in ((NO_EPOCH, 0), (1, 5), (1, 10), (4, 12), (4, 15), (7, 20)):
        assert told(leader, last_epoch, end, 20) is None
    assert told(leader, 1, 11, 20) == EpochEnd(1, 10)
    assert told(leader, 2, 12, 20) == EpochEnd(1, 10)
    assert told(leader, 4, 16, 20) == EpochEnd(4, 15)
    assert told(leader, 6, 30, 20) == EpochEnd(4, 15)
    assert told(leader, 7, 21, 20) == EpochEnd(7, 20)
    assert told(leader, 8, 18, 20) == EpochEnd(7, 20)


def test_records_from_before_there_were_several_replicas_are_compared_as_well() -> None:
    """They are of epoch 0, in which one broker appends alone."""
    leader = a_leader(EpochStarts([(0, 0), (2, 5)]), 20)
    assert told(leader, 0, 4, 20) is None
    assert told(leader, 0, 5, 20) is None
    assert told(leader, 0, 8, 20) == EpochEnd(0, 5)
    assert told(leader, 1, 8, 20) == EpochEnd(0, 5)


def test_who_ends_where_the_leaders_log_begins_shows_by_its_epoch_that_it_has_the_same() -> None:
    leader = a_leader(EpochStarts([(5, 100)]), 200)
    for epoch, end in ((3, 90), (5, 119), (3, 120)):
        with pytest.raises(OffsetOutOfRange, match="begins with offset 120"):
            told(leader, epoch, end, 200, 120)
    assert told(leader, 5, 120, 200, 120) is None
    assert told(leader, NO_EPOCH, 120, 200, 120) is None, "it has nothing"
    assert told(leader, 3, 130, 200, 120) == EpochEnd(NO_EPOCH, 120)
    empty = a_leader(EpochStarts(), 50)
    with pytest.raises(OffsetOutOfRange, match="begins with offset 50"):
        told(empty, 3, 50, 50, 50)
    assert told(empty, NO_EPOCH, 50, 50, 50) is None
    assert told(empty, 3, 60, 50, 50) == EpochEnd(NO_EPOCH, 50)
    # Retention by age or size leaves epochs in the table whose records are gone.
    leader = a_leader(EpochStarts([(3, 0), (5, 100)]), 200)
    with pytest.raises(OffsetOutOfRange, match="begins with offset 120"):
        told(leader, 3, 120, 200, 120)
    assert told(leader, 3, 100, 200, 100) is None
    assert told(leader, 5, 120, 200, 120) is None


def test_who_has_only_what_compaction_has_left_nothing_of_is_to_cut_all_of_it() -> None:
    leader = a_leader(EpochStarts([(5, 100)]), 200)
    assert told(leader, 3, 60, 200) == EpochEnd(NO_EPOCH, 0)
    assert told(leader, 3, 130, 200) == EpochEnd(NO_EPOCH, 0)


def test_a_follower_cuts_its_log_to_what_both_have() -> None:
    starts = EpochStarts([(1, 0), (3, 8), (5, 12)])
    follower = FollowerState(1, 9)
    asked = follower.position(starts, 20)
    assert asked == Position(9, 5, 20)

    def cut_to(epoch: int, offset: int) -> object:
        return follower.handle_answer(asked, EpochEnd(epoch, offset), starts, 20)

    assert cut_to(5, 15) == Truncate(15)
    assert cut_to(4, 15) == Truncate(12), "it has nothing of epoch 4"
    assert cut_to(3, 10) == Truncate(10)
    assert cut_to(3, 14) == Truncate(12)
    assert cut_to(1, 10) == Truncate(8)
    assert cut_to(NO_EPOCH, 14) == Truncate(14), "before that the leader has given up all"


def test_an_answer_to_a_position_that_was_left_is_passed_over() -> None:
    starts = EpochStarts([(1, 0)])
    follower = FollowerState(1, 9)
    asked = follower.position(starts, 5)
    assert follower.handle_answer(asked, None, starts, 5) == Append()
    assert follower.handle_answer(asked, None, starts, 6) is None
    assert follower.handle_answer(asked, EpochEnd(1, 2), starts, 6) is None
    other = FollowerState(2, 10)
    assert other.handle_answer(asked, None, starts, 5) is None
