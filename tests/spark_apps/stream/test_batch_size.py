"""How large the next micro-batch may be."""

from folkmoot.spark_apps.stream.batch_size import FIRST, GROWTH, LEAST, BatchSize

REVOKE_TIMEOUT = 30.0
NOW = 1_000.5


def ran(size: BatchSize, records: int, seconds: float, end: float = NOW) -> float:
    size.begin(end - seconds, records)
    size.end(end)
    return size.limit


def test_batches_begin_small_and_grow_to_what_a_third_of_the_time_is_enough_for() -> None:
    size = BatchSize(REVOKE_TIMEOUT, None)
    assert size.limit == FIRST
    assert ran(size, FIRST, 0.5) == FIRST * 20
    assert ran(size, FIRST * 20, 8.0) == FIRST * 25


def test_a_batch_that_took_too_long_is_followed_by_one_that_takes_a_third_of_the_time() -> None:
    size = BatchSize(REVOKE_TIMEOUT, 10_000)
    assert ran(size, 10_000, 40.0) == 2_500
    assert ran(size, 2_500, 9_000.0) == LEAST


def test_a_batch_with_few_records_says_nothing_about_large_ones() -> None:
    size = BatchSize(REVOKE_TIMEOUT, None)
    assert ran(size, 10, 0.5) == FIRST


def test_a_limit_that_was_asked_for_is_kept() -> None:
    size = BatchSize(REVOKE_TIMEOUT, 500)
    assert ran(size, 500, 0.1) == 500


def test_waiting_for_the_next_trigger_is_not_taken_for_work() -> None:
    """The engine comes at a whole minute; the batch may have been done long before."""
    size = BatchSize(REVOKE_TIMEOUT, None)
    assert ran(size, FIRST, 60.0, end=1_020.01) == FIRST * GROWTH
    # This one overran the minute: it took as long as it seems, and the next does not grow any more.
    assert ran(size, FIRST * GROWTH, 100.0, end=NOW) == FIRST
    assert ran(size, FIRST, 60.0, end=1_080.01) == FIRST
