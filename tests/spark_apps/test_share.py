"""The engine's calls in the orders that were measured: a new query, and rebalances between batches."""

import json

from folkmoot.consumers.group.events import Committed
from tests.spark_apps.group import EMPTY, Scene, end, flights

# -- a new query -------------------------------------------------------------------------------------


def test_a_new_query_starts_at_the_committed_offset_and_else_at_the_beginning(scene: Scene) -> None:
    scene.member.gain(0, 40)
    scene.member.gain(1, None)
    scene.offsets.starts[flights(1)] = 5
    scene.logs(p0=50, p1=9)
    assert scene.latest(EMPTY) == end(p0=(40, 50), p1=(5, 9))


def test_where_nothing_was_committed_the_start_is_committed_at_once(scene: Scene) -> None:
    """Else a successor with startingOffsets=latest would skip what came in between."""
    scene = Scene(starting_offsets="latest")
    scene.member.gain(0, None)
    scene.logs(p0=50)
    assert scene.latest(EMPTY) is EMPTY
    assert scene.member.committed == {flights(0): 50}
    scene.logs(p0=52)
    assert scene.latest(EMPTY) == end(p0=(50, 52))


def test_the_end_of_a_batch_is_committed_when_it_comes_back_as_start(scene: Scene) -> None:
    scene.member.gain(0, 0)
    scene.logs(p0=50)
    first = scene.latest(EMPTY)
    assert scene.member.take_calls() == []
    assert scene.latest(first) is first
    assert scene.member.take_calls() == [("commit", {0: 50})]
    assert scene.latest(first) is first
    scene.share.commit(first)
    assert scene.member.take_calls() == []


def test_an_idle_trigger_gives_back_the_very_same_start(scene: Scene) -> None:
    scene.member.gain(0, 7)
    scene.logs(p0=7)
    text = json.dumps(EMPTY)
    assert json.dumps(scene.latest(json.loads(text))) == text


def test_no_range_that_was_read_appears_again_in_a_later_end(scene: Scene) -> None:
    scene.member.gain(0, 0)
    scene.member.gain(1, 0)
    scene.logs(p0=5, p1=5)
    first = scene.latest(EMPTY)
    scene.logs(p1=6)
    assert scene.latest(first) == end(p0=(5, 5), p1=(5, 6))


def test_a_batch_keeps_to_the_limit(scene: Scene) -> None:
    scene.member.gain(0, 0)
    scene.member.gain(1, 0)
    scene.logs(p0=1000, p1=1000)
    ranges = scene.latest(EMPTY, 100)["p"]
    assert sum(to - first for first, to in ranges.values()) == 100


def test_the_answer_is_the_same_if_the_engine_never_used_the_last_one(scene: Scene) -> None:
    scene.member.gain(0, 0)
    scene.logs(p0=10)
    assert scene.latest(EMPTY, 5) == scene.latest(EMPTY, 5) == end(p0=(0, 5))


# -- rebalances between batches -----------------------------------------------------------------------


def test_what_is_revoked_goes_with_the_offset_that_was_just_processed(scene: Scene) -> None:
    scene.member.gain(0, 0)
    scene.member.gain(1, 0)
    scene.logs(p0=10, p1=10)
    first = scene.latest(EMPTY)
    scene.member.revoke(1)
    scene.logs(p0=12, p1=12)
    assert scene.latest(first) == end(p0=(10, 12))
    assert scene.member.take_calls() == [("commit", {0: 10}), ("drained", 1, 10)]


def test_what_is_revoked_before_anything_was_read_goes_as_it_came(scene: Scene) -> None:
    scene.member.gain(0, 3)
    scene.member.revoke(0)
    scene.logs(p0=10)
    assert scene.latest(EMPTY) is EMPTY
    assert scene.member.take_calls() == [("drained", 0, None)]


def test_what_is_gained_joins_the_next_batch(scene: Scene) -> None:
    scene.member.gain(0, 0)
    scene.logs(p0=10, p1=30)
    first = scene.latest(EMPTY)
    scene.member.gain(1, 20)
    assert scene.latest(first) == end(p0=(10, 10), p1=(20, 30))


def test_what_comes_back_starts_where_the_other_member_left_it(scene: Scene) -> None:
    scene.member.gain(0, 0)
    scene.logs(p0=10)
    first = scene.latest(EMPTY)
    scene.member.revoke(0)
    assert scene.latest(first) is first
    scene.member.gain(0, 25)
    scene.logs(p0=30)
    assert scene.latest(first) == end(p0=(25, 30))
    assert ("commit", {0: 10}) not in scene.member.take_calls()


def test_a_partition_lost_while_its_batch_ran_is_not_committed_but_counted(scene: Scene) -> None:
    scene.member.gain(0, 0)
    scene.member.gain(1, 0)
    scene.logs(p0=10, p1=10)
    first = scene.latest(EMPTY)
    scene.member.lose(1)
    assert scene.latest(first) is first
    assert scene.member.take_calls() == [("commit", {0: 10})]
    assert scene.share.dropped_commits == 1
    assert scene.latest(first) is first
    assert scene.share.dropped_commits == 1


def test_a_lost_partition_that_comes_back_is_not_read_twice(scene: Scene) -> None:
    """Its records went through this query's sink, though nobody has committed them."""
    scene.member.gain(0, 0)
    scene.logs(p0=10)
    first = scene.latest(EMPTY)
    scene.member.lose(0)
    scene.member.gain(0, 4)
    scene.logs(p0=11)
    assert scene.latest(first) == end(p0=(10, 11))
    assert scene.member.take_calls() == [("commit", {0: 10})]


def test_a_refused_commit_is_dropped_and_counted_and_ends_nothing(scene: Scene) -> None:
    scene.member.gain(0, 0)
    scene.logs(p0=10)
    first = scene.latest(EMPTY)
    scene.member.not_ours.add(flights(0))
    assert scene.latest(first) is first
    assert scene.member.take_calls() == [("commit", {0: 10})]
    assert scene.share.dropped_commits == 1


def test_a_commit_that_zookeeper_does_not_answer_holds_no_batch_up(scene: Scene) -> None:
    scene.member.gain(0, 0)
    scene.logs(p0=10)
    first = scene.latest(EMPTY)
    scene.member.silent = True
    scene.logs(p0=20)
    second = scene.latest(first)
    assert second == end(p0=(10, 20))
    scene.member.tell(Committed(1, {flights(0): 10}, frozenset()))
    scene.member.silent = False
    assert scene.latest(second) is second
    assert scene.member.committed == {flights(0): 20}
