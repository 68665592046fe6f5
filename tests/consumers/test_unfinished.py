"""Records that are finished in any order: what counts, against a naive model."""

import random

import pytest

from folkmoot.consumers.offsets.progress import Positions
from folkmoot.consumers.offsets.unfinished import OffsetRanges, Unfinished
from folkmoot.protocol.records import TopicPartition
from tests.seeds import new_seed

WHERE = TopicPartition("t", 0)


def listed(ranges: OffsetRanges) -> list[tuple[int, int]]:
    return list(zip(ranges._starts, ranges._ends, strict=True))


def test_ranges_that_touch_or_overlap_are_one() -> None:
    ranges = OffsetRanges()
    for start, end in ((5, 6), (1, 2), (9, 12), (2, 3), (7, 8), (6, 7), (10, 11)):
        ranges.add(start, end)
    assert listed(ranges) == [(1, 3), (5, 8), (9, 12)]
    ranges.cut(10)
    assert listed(ranges) == [(1, 3), (5, 8), (9, 10)]
    assert ranges.remove_through(4) == 4
    assert ranges.remove_through(5) == 8
    assert listed(ranges) == [(9, 10)]


def test_what_counts_ends_in_front_of_the_first_unfinished_record_in_any_order() -> None:
    """Batches with gaps, records finished at random, a log that is cut: as sets of offsets say it."""
    chance = random.Random(new_seed())
    for _ in range(300):
        at = chance.randrange(100)
        unfinished, open_offsets, all_offsets = Unfinished(at), set[int](), set[int]()
        for _ in range(chance.randrange(1, 60)):
            match chance.randrange(10):
                case 0 | 1 | 2:
                    span = range(at + chance.randrange(3), at + chance.randrange(3, 20))
                    offsets = [each for each in span if chance.random() < 0.8]
                    at = span.stop if chance.random() < 0.5 or not offsets else offsets[-1] + 1
                    unfinished.hand_out(
                        range(*_ends(offsets)) if _is_range(offsets) else offsets, at
                    )
                    open_offsets |= set(offsets)
                    all_offsets |= set(offsets)
                case 3 if chance.random() < 0.1:
                    end = chance.randrange(at + 1)
                    at = min(at, max(end, 0))
                    unfinished.cut(end)
                    open_offsets = {each for each in open_offsets if each < end}
                    all_offsets = {each for each in all_offsets if each < end}
                case _:
                    start = chance.choice([*all_offsets, at])
                    end = start + chance.choice((1, 1, 1, 5))
                    unfinished.finish(start, end)
                    open_offsets -= set(range(start, end))
            assert unfinished.low == min(open_offsets, default=at)
            assert unfinished.is_empty == (not open_offsets)


def _is_range(offsets: list[int]) -> bool:
    return bool(offsets) and offsets[-1] - offsets[0] + 1 == len(offsets)


def _ends(offsets: list[int]) -> tuple[int, int]:
    return offsets[0], offsets[-1] + 1


def test_ten_thousand_records_finished_in_order_behind_a_stuck_one_are_one_range() -> None:
    unfinished = Unfinished(0)
    unfinished.hand_out(range(10_000), 10_000)
    for offset in range(1, 10_000):
        unfinished.finish(offset, offset + 1)
    assert (unfinished.low, listed(unfinished._finished)) == (0, [(1, 10_000)])
    unfinished.finish(0, 1)
    assert (unfinished.low, unfinished.is_empty) == (10_000, True)


@pytest.fixture
def positions() -> Positions:
    positions = Positions(explicit_done=True)
    positions.claim(WHERE, 5)
    positions.hand_out(WHERE, range(5, 10), 10)
    return positions


def test_asking_for_more_finishes_nothing(positions: Positions) -> None:
    positions.end_poll()
    positions.process_all()
    assert not positions.due({WHERE})
    positions.done(WHERE, 6, 7)
    assert not positions.due({WHERE})
    positions.done(WHERE, 5, 6)
    assert positions.due({WHERE}) == {WHERE: 7}


def test_records_that_were_left_out_hold_nothing_up(positions: Positions) -> None:
    positions.hand_out(WHERE, (), 11)
    positions.done(WHERE, 5, 10)
    assert positions.due({WHERE}) == {WHERE: 11}


def test_what_is_done_of_an_earlier_claim_counts_for_what_is_in_hand_alone(
    positions: Positions,
) -> None:
    positions.claim(WHERE, 5)
    positions.done(WHERE, 5, 10)
    assert not positions.due({WHERE})
    positions.hand_out(WHERE, range(5, 7), 7)
    assert not positions.due({WHERE}), "they were handed out once more"
    positions.done(WHERE, 5, 10)
    assert positions.due({WHERE}) == {WHERE: 7}


def test_a_log_that_lost_records_keeps_what_is_unfinished_before(positions: Positions) -> None:
    positions.done(WHERE, 6, 10)
    positions.cut(WHERE, 8, 8)
    positions.hand_out(WHERE, range(8, 12), 12)
    assert not positions.is_done(WHERE)
    positions.done(WHERE, 5, 6)
    assert positions.due({WHERE}) == {WHERE: 8}, "the new records at 8 and 9 are not the old ones"
