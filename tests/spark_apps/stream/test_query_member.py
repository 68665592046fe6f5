"""The engine's calls in the orders that were measured: a new query, and rebalances between batches."""

import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from folkmoot.consumers.group.events import Assigned, Committed
from folkmoot.coordination.groups.plan import TopicBasis
from folkmoot.protocol.errors import ConfigError, NoOffset
from folkmoot.protocol.records import TopicPartition
from folkmoot.spark_apps.offsets.checkpoint import Ends, Range, to_json
from folkmoot.spark_apps.stream.batch_size import FIRST, GROWTH
from folkmoot.spark_apps.stream.query_member import QueryMember
from tests.spark_apps.stream.group import EMPTY, ID, Scene, end, ends, flights

# -- a new query -------------------------------------------------------------------------------------


def test_a_new_query_starts_at_the_committed_offset_and_else_at_the_beginning(scene: Scene) -> None:
    scene.group.gain(0, 40)
    scene.group.gain(1, None)
    scene.logs.starts[flights(1)] = 5
    scene.log_ends(p0=50, p1=9)
    assert scene.latest(EMPTY) == end(p0=(40, 50), p1=(5, 9))


def test_where_nothing_was_committed_the_start_is_committed_at_once(scene: Scene) -> None:
    """Else a successor with startingOffsets=latest would skip what came in between."""
    scene = Scene(startingOffsets="latest")
    scene.group.gain(0, None)
    scene.log_ends(p0=50)
    assert scene.latest(EMPTY) is EMPTY
    assert scene.group.committed == {flights(0): 50}
    scene.log_ends(p0=52)
    assert scene.latest(EMPTY) == end(p0=(50, 52))


def test_nothing_is_read_before_the_start_is_committed() -> None:
    """Whoever has the partition next would look up another end, behind a batch that was not processed."""
    scene = Scene(startingOffsets="latest")
    scene.group.gain(0, None)
    scene.group.gain(1, 3)
    scene.group.silent = True
    scene.log_ends(p0=50, p1=9)
    first = scene.latest(EMPTY)
    assert first["p"] == {"flights/0": [50, 50, -1], "flights/1": [3, 9, 3]}
    scene.log_ends(p0=52, p1=12)
    second = scene.latest(first)
    assert second["p"] == {"flights/0": [50, 50, -1], "flights/1": [9, 12, 3]}
    scene.group.tell(Committed(1, {flights(0): 50}, frozenset()))
    assert scene.latest(second) == end(p0=(50, 52), p1=(12, 12))


def test_what_appeared_after_the_group_began_is_read_from_its_start_by_a_new_query() -> None:
    """A claim commits that start, whoever makes it: a checkpoint is not needed to know it."""
    scene = Scene(startingOffsets="latest")
    scene.group.gain(0, None)
    scene.group.gain(1, 0)
    scene.log_ends(p0=50, p1=7)
    assert scene.latest(EMPTY) == end(p0=(50, 50), p1=(0, 7))


def test_without_a_group_the_checkpoint_knows_where_to_start_before_anything_is_read() -> None:
    """Else a query that starts anew with startingOffsets=latest would skip what came in between."""
    options: dict[str, Any] = {"group": "", "subscribe": "", "assign": '{"flights": [0]}'}
    query = Scene(**options, startingOffsets="latest")
    query.group.gain(0, None)
    query.log_ends(p0=50)
    noted = query.latest(to_json(Ends("")))
    assert noted["p"] == {"flights/0": [50, 50, 3]}
    assert query.latest(noted) is noted
    again = Scene(**options, startingOffsets="latest")
    again.group.gain(0, None)
    again.log_ends(p0=57)
    assert again.latest(noted)["p"] == {"flights/0": [50, 57, 3]}


def test_the_end_of_a_batch_is_committed_when_it_comes_back_as_start(scene: Scene) -> None:
    scene.group.gain(0, 0)
    scene.log_ends(p0=50)
    first = scene.latest(EMPTY)
    assert scene.group.take_calls() == []
    assert scene.latest(first) is first
    assert scene.group.take_calls() == [("commit", {0: 50})]
    assert scene.latest(first) is first
    assert scene.group.take_calls() == []


def test_an_idle_trigger_gives_back_the_very_same_start(scene: Scene) -> None:
    scene.group.gain(0, 7)
    scene.log_ends(p0=7)
    text = json.dumps(EMPTY)
    assert json.dumps(scene.latest(json.loads(text))) == text


@pytest.mark.parametrize(
    "news",
    [
        lambda scene: scene.log_ends(p0=12),
        lambda scene: scene.group.gain(1, 0),
        lambda scene: scene.logs.truncated.update({flights(0): 8}),
    ],
    ids=["records", "a partition", "a log that was cut"],
)
def test_an_idle_query_stays_so_until_there_is_news(
    scene: Scene, news: Callable[[Scene], None]
) -> None:
    scene = Scene(failOnDataLoss=False)
    scene.group.gain(0, 0)
    scene.log_ends(p0=10, p1=4)
    first = scene.latest(EMPTY)
    for _ in range(3):
        assert scene.latest(first) is first
    news(scene)
    scene.latest(first)  # may say no more than that records are gone
    assert scene.latest(first) != first


def test_an_idle_query_gives_up_what_is_revoked_and_fails_with_its_group(scene: Scene) -> None:
    scene.group.gain(0, 0)
    scene.log_ends(p0=10)
    first = scene.latest(EMPTY)
    assert scene.latest(first) is first
    scene.group.take_calls()
    scene.group.revoke(0)
    assert scene.latest(first) is first
    assert scene.group.take_calls() == [("drained", 0, None)]
    scene.group.error = ConfigError("the group thread has ended")
    with pytest.raises(ConfigError):
        scene.latest(first)


def test_no_range_that_was_read_appears_again_in_a_later_end(scene: Scene) -> None:
    scene.group.gain(0, 0)
    scene.group.gain(1, 0)
    scene.log_ends(p0=5, p1=5)
    first = scene.latest(EMPTY)
    scene.log_ends(p1=6)
    assert scene.latest(first) == end(p0=(5, 5), p1=(5, 6))


def test_a_batch_keeps_to_the_limit(scene: Scene) -> None:
    scene.group.gain(0, 0)
    scene.group.gain(1, 0)
    scene.log_ends(p0=1000, p1=1000)
    ranges = scene.latest(EMPTY, 100)["p"]
    assert sum(to - first for first, to, *_ in ranges.values()) == 100


def test_the_answer_is_the_same_if_the_engine_never_used_the_last_one(scene: Scene) -> None:
    scene.group.gain(0, 0)
    scene.log_ends(p0=10)
    assert scene.latest(EMPTY, 5) == scene.latest(EMPTY, 5) == end(p0=(0, 5))


# -- rebalances between batches -----------------------------------------------------------------------


def test_what_is_revoked_goes_with_the_offset_that_was_just_processed(scene: Scene) -> None:
    scene.group.gain(0, 0)
    scene.group.gain(1, 0)
    scene.log_ends(p0=10, p1=10)
    first = scene.latest(EMPTY)
    scene.group.revoke(1)
    scene.log_ends(p0=12, p1=12)
    assert scene.latest(first) == end(p0=(10, 12))
    assert scene.group.take_calls() == [("commit", {0: 10}), ("drained", 1, 10)]


def test_what_is_revoked_before_anything_was_read_goes_as_it_came(scene: Scene) -> None:
    scene.group.gain(0, 3)
    scene.group.revoke(0)
    scene.log_ends(p0=10)
    assert scene.latest(EMPTY) is EMPTY
    assert scene.group.take_calls() == [("drained", 0, None)]


def test_what_is_gained_joins_the_next_batch(scene: Scene) -> None:
    scene.group.gain(0, 0)
    scene.log_ends(p0=10, p1=30)
    first = scene.latest(EMPTY)
    scene.group.gain(1, 20)
    assert scene.latest(first) == end(p0=(10, 10), p1=(20, 30))


def test_what_comes_back_starts_where_the_other_member_left_it(scene: Scene) -> None:
    scene.group.gain(0, 0)
    scene.log_ends(p0=10)
    first = scene.latest(EMPTY)
    scene.group.revoke(0)
    assert scene.latest(first) is first
    scene.group.gain(0, 25)
    scene.log_ends(p0=30)
    assert scene.latest(first) == end(p0=(25, 30))
    assert ("commit", {0: 10}) not in scene.group.take_calls()


def test_a_partition_lost_while_its_batch_ran_is_not_committed_but_counted(scene: Scene) -> None:
    scene.group.gain(0, 0)
    scene.group.gain(1, 0)
    scene.log_ends(p0=10, p1=10)
    first = scene.latest(EMPTY)
    scene.group.lose(1)
    assert scene.latest(first) is first
    assert scene.group.take_calls() == [("commit", {0: 10})]
    assert scene.query.report()["droppedCommits"] == {"flights": {"1": 1}}
    assert scene.latest(first) is first
    assert scene.query.report()["droppedCommits"] == {"flights": {"1": 1}}


def test_a_lost_partition_that_comes_back_is_not_read_twice(scene: Scene) -> None:
    """Its records went through this query's sink, though nobody has committed them."""
    scene.group.gain(0, 0)
    scene.log_ends(p0=10)
    first = scene.latest(EMPTY)
    scene.group.lose(0)
    scene.group.gain(0, 4)
    scene.log_ends(p0=11)
    assert scene.latest(first) == end(p0=(10, 11))
    assert scene.group.take_calls() == [("commit", {0: 10})]


def test_a_refused_commit_is_dropped_and_counted_and_ends_nothing(scene: Scene) -> None:
    scene.group.gain(0, 0)
    scene.log_ends(p0=10)
    first = scene.latest(EMPTY)
    scene.group.not_ours.add(flights(0))
    assert scene.latest(first) is first
    assert scene.group.take_calls() == [("commit", {0: 10})]
    assert scene.query.report()["droppedCommits"] == {"flights": {"0": 1}}


def test_the_next_batch_waits_for_no_commit(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    scene.group.gain(0, 0)
    scene.log_ends(p0=10)
    first = scene.latest(EMPTY)
    scene.group.silent = True
    scene.log_ends(p0=20)
    with monkeypatch.context() as hasty:
        hasty.delattr(QueryMember, "_wait_until")
        second = scene.latest(first)
    assert second == end(p0=(10, 20))
    assert scene.query.report()["lag"] == {"flights": {"0": 10}}
    scene.group.tell(Committed(1, {flights(0): 10}, frozenset()))
    scene.group.silent = False
    assert scene.latest(second) is second
    assert scene.group.committed == {flights(0): 20}


# -- resets -------------------------------------------------------------------------------------------


def test_a_reset_of_a_running_query_is_not_undone(scene: Scene) -> None:
    """The batch that was under way ends under the mark of before, and counts no more."""
    scene.group.gain(0, 0)
    scene.log_ends(p0=50)
    first = scene.latest(EMPTY)
    scene.group.lose(0)
    scene.group.gain(0, 0, reset="mark")
    again = scene.latest(first)
    assert again == ends({flights(0): Range(0, 50, 3, "mark")})
    assert scene.group.take_calls() == []
    assert scene.query.report()["droppedCommits"] == {"flights": {"0": 1}}
    assert scene.latest(again) is again
    assert scene.group.take_calls() == [("commit", {0: 50})]


def test_a_reset_while_the_query_was_stopped_is_not_undone(scene: Scene) -> None:
    scene.group.gain(0, 5, reset="mark")
    scene.log_ends(p0=50)
    found = scene.latest(ends({flights(0): Range(0, 50, 3)}))
    assert found == ends({flights(0): Range(5, 50, 3, "mark")})


# -- where to start ------------------------------------------------------------------------------------


def test_a_partition_added_to_a_running_query_begins_at_its_beginning(scene: Scene) -> None:
    """What came in before anybody noticed it would be lost at its end."""
    scene = Scene(startingOffsets="latest")
    scene.group.gain(0, None)
    scene.log_ends(p0=50)
    assert scene.latest(EMPTY) is EMPTY
    scene.group.gain(4, None)
    scene.log_ends(p4=7)
    assert scene.latest(EMPTY) == end(p0=(50, 50), p4=(0, 7))


def test_a_partition_added_while_the_query_was_stopped_begins_at_its_beginning(
    scene: Scene,
) -> None:
    scene = Scene(startingOffsets="latest")
    scene.group.topics["flights"] = TopicBasis(ID, 6)
    scene.group.gain(0, 50)
    scene.group.gain(5, None)
    scene.log_ends(p0=50, p5=7)
    assert scene.latest(end(p0=(40, 50))) == end(p0=(50, 50), p5=(0, 7))


def test_what_there_was_is_noted_though_the_group_knew_where_to_start(scene: Scene) -> None:
    scene = Scene(startingOffsets="latest")
    scene.group.gain(0, 40)
    scene.log_ends(p0=50)
    first = scene.latest(EMPTY)
    scene.group.topics["flights"] = TopicBasis(ID, 6)
    scene.group.gain(5, None)
    scene.log_ends(p5=7)
    assert scene.latest(first) == end(p0=(50, 50), p5=(0, 7))


def test_a_topic_that_came_later_begins_at_its_beginning(scene: Scene) -> None:
    scene = Scene(startingOffsets="latest")
    flights_later = scene.group.topics.pop("flights")
    assert scene.latest(EMPTY) is EMPTY
    scene.group.topics["flights"] = flights_later
    scene.group.gain(0, None)
    scene.log_ends(p0=7)
    assert scene.latest(EMPTY)["p"] == {"flights/0": [0, 7, 3]}


def test_a_batch_leaves_out_a_topic_whose_start_is_not_committed_yet(scene: Scene) -> None:
    scene.group.silent = True
    scene.group.gain(0, 0)
    scene.log_ends(p0=5)
    other = TopicPartition("trains", 0)
    scene.group.epochs[other] = 1
    scene.group.tell(Assigned(other, "id-of-trains", None, 1))
    assert scene.latest(EMPTY)["p"] == {"flights/0": [0, 5, 3]}


def test_offsets_of_partitions_say_where_to_start(scene: Scene) -> None:
    scene = Scene(startingOffsets='{"flights": {"0": 7, "1": -1}}')
    for number in range(3):
        scene.group.gain(number, None)
    scene.log_ends(p0=20, p1=20, p2=20)
    assert scene.latest(EMPTY) == end(p0=(7, 20), p1=(20, 20), p2=(0, 20))


def test_times_say_where_to_start(scene: Scene) -> None:
    scene = Scene(startingTimestamp=1000, startingOffsetsByTimestampStrategy="latest")
    for number in range(2):
        scene.group.gain(number, None)
    scene.log_ends(p0=20, p1=20)
    scene.logs.times = {flights(0): 12, flights(1): None}
    assert scene.latest(EMPTY) == end(p0=(12, 20), p1=(20, 20))


def test_a_time_that_no_record_has_is_an_error_unless_the_options_allow_it(scene: Scene) -> None:
    scene = Scene(startingTimestamp=1000)
    scene.group.gain(0, None)
    scene.logs.times = {flights(0): None}
    with pytest.raises(NoOffset, match="flights-0 has no record of 1000 ms or later: set starting"):
        scene.latest(EMPTY)


def test_a_partition_that_does_not_exist_is_refused(scene: Scene) -> None:
    scene = Scene(startingOffsets='{"flights": {"4": 7}}')
    scene.group.gain(0, None)
    with pytest.raises(ConfigError, match="names flights-4: topic flights has partitions 0 to 3"):
        scene.latest(EMPTY)


# -- how much -------------------------------------------------------------------------------------------


def test_without_a_limit_of_records_a_batch_begins_small_and_grows(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "time", lambda: 1_000.5)  # the batch takes no time
    scene.group.gain(0, 0)
    scene.log_ends(p0=10**9)
    first = scene.latest(EMPTY)
    assert first["p"] == {"flights/0": [0, FIRST, 3]}
    (second,) = scene.latest(first)["p"].values()
    assert second[1] - second[0] > GROWTH * FIRST


def test_a_batch_keeps_to_its_bytes(scene: Scene) -> None:
    scene = Scene(maxBytesPerTrigger=1_000_000)
    scene.group.gain(0, 0)
    scene.log_ends(p0=100_000)
    scene.logs.record_size = 100.0
    assert scene.latest(EMPTY)["p"] == {"flights/0": [0, 10_000, 3]}


def test_a_batch_waits_for_as_many_records_as_are_asked_for_but_not_for_ever(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = Scene(minOffsetsPerTrigger=10)
    scene.group.gain(0, 0)
    scene.log_ends(p0=5)
    first = scene.latest(EMPTY)  # nobody knows how long these have waited
    assert first["p"] == {"flights/0": [0, 5, 3]}
    scene.log_ends(p0=14)
    assert scene.latest(first) is first
    scene.log_ends(p0=15)
    second = scene.latest(first)
    assert second["p"] == {"flights/0": [5, 15, 3]}
    scene.log_ends(p0=16)
    assert scene.latest(second) is second
    now = time.monotonic() + 901.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    assert scene.latest(second)["p"] == {"flights/0": [15, 16, 3]}


def test_a_trigger_that_wants_everything_gets_it_without_any_limit(scene: Scene) -> None:
    scene = Scene(maxOffsetsPerTrigger=5, minOffsetsPerTrigger=10**9)
    scene.group.gain(0, 0)
    scene.log_ends(p0=10**6)
    assert scene.query.latest(EMPTY, None)["p"] == {"flights/0": [0, 10**6, -1]}


def test_a_query_that_reads_with_another_schema_than_before_goes_on_and_says_so(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    before = Scene(reader_schema=7)
    before.group.gain(0, 0)
    before.log_ends(p0=5)
    first = before.latest(EMPTY)
    assert first["r"] == 7
    assert before.latest(first) is first
    assert not caplog.records
    after = Scene(reader_schema=9)
    after.group.gain(0, 5)
    after.log_ends(p0=5)
    assert after.latest(first) is first
    after.log_ends(p0=6)
    second = after.latest(first)
    assert (second["p"], second["r"]) == (end(p0=(5, 6))["p"], 9)
    assert [each.message for each in caplog.records] == [
        "values are read with another schema than they were before the query was started anew: "
        "readerSchema=7 would stay with that"
    ]
