"""What a full collection of a broker's process looks at."""

import gc
import weakref
from collections.abc import Iterator

import pytest

from folkmoot.brokers.server.garbage_collection import LOOK_THROUGH_ALL_AFTER, SurvivorsFrozen


class Kept:
    """Something that the collector looks at."""

    def __init__(self) -> None:
        self.other: Kept | None = None


class Collector:
    """A process's collector, with a clock that a test moves."""

    def __init__(self) -> None:
        self.now = 0.0
        self.policy = SurvivorsFrozen(lambda: self.now)


@pytest.fixture
def collector() -> Iterator[Collector]:
    made = Collector()
    made.policy.begin()
    yield made
    made.policy.end()


def looked_at() -> int:
    """How many objects the next full collection would look at."""
    return len(gc.get_objects())


def a_circle() -> weakref.ref[Kept]:
    one, other = Kept(), Kept()
    one.other, other.other = other, one
    return weakref.ref(one)


def test_what_survives_a_full_collection_is_not_looked_at_by_the_next(collector: Collector) -> None:
    gc.collect()
    kept = [Kept() for _ in range(20_000)]
    assert looked_at() >= len(kept)
    gc.collect()
    assert looked_at() < 5_000, (
        "all that a partition has ever had would be looked at again and again"
    )
    dead = weakref.ref(kept[0])
    del kept
    assert dead() is None, "what nobody refers to goes at once, frozen or not"


def test_a_circle_that_died_is_found_at_once_if_young_and_within_a_day_if_frozen(
    collector: Collector,
) -> None:
    young = a_circle()
    gc.collect()
    assert young() is None
    one, other = Kept(), Kept()
    one.other, other.other = other, one
    old = weakref.ref(one)
    gc.collect()
    del one, other
    gc.collect()
    assert old() is not None
    collector.now += LOOK_THROUGH_ALL_AFTER
    gc.collect()
    gc.collect()
    assert old() is None
    assert looked_at() < 5_000, "from then on survivors are frozen again"


def test_a_broker_within_an_application_leaves_its_collector_alone() -> None:
    assert gc.callbacks == [] or not any(
        isinstance(getattr(each, "__self__", None), SurvivorsFrozen) for each in gc.callbacks
    )
    frozen = gc.get_freeze_count()
    policy = SurvivorsFrozen()
    assert gc.get_freeze_count() == frozen
    policy.begin()
    policy.end()
    assert gc.get_freeze_count() == 0


def test_a_full_collection_follows_after_a_bounded_number_of_new_objects(
    collector: Collector,
) -> None:
    before = gc.get_stats()[2]["collections"]
    gc.collect()
    kept = [[each] for each in range(100_000)]
    assert gc.get_stats()[2]["collections"] - before >= 4, "each looks at a part of them"
    assert len(kept) == 100_000


def test_the_thresholds_are_the_application_s_again_in_the_end() -> None:
    before = gc.get_threshold()
    policy = SurvivorsFrozen()
    policy.begin()
    assert gc.get_threshold() != before
    policy.end()
    assert gc.get_threshold() == before
