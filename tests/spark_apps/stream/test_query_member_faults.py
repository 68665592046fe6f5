"""The engine's calls in the orders that were measured: restarts, trouble, AvailableNow, the end."""

import json

import pytest

from folkmoot.consumers.group.events import Replaced
from folkmoot.protocol.errors import (
    BrokerUnreachable,
    ConfigError,
    InstanceReplaced,
    LogTruncated,
    NoCluster,
    OffsetOutOfRange,
    RequestTimeout,
    UnknownTopicOrPartition,
    ZooKeeperUnreachable,
)
from folkmoot.spark_apps.offsets.checkpoint import Ends, Range, from_json, to_json
from folkmoot.spark_apps.offsets.log_watch import ReadPosition
from folkmoot.spark_apps.source import MAX_ROWS
from tests.spark_apps.stream.group import EMPTY, ID, Scene, end, ends, flights

# -- restarts ----------------------------------------------------------------------------------------


def test_a_replayed_batch_is_planned_from_its_end_whoever_owns_it_now(scene: Scene) -> None:
    logged = end(p0=(5, 9), p1=(0, 0), p3=(2, 4))
    planned = scene.query.tasks(logged)
    parts = [part for task in planned for part in task]
    assert [(part.partition, part.first, part.end) for part in parts] == [(0, 5, 9), (3, 2, 4)]
    assert {(part.topic_id, part.leader, part.brokers) for part in parts} == {
        (ID, "broker:1", ("broker:1",))
    }


def test_after_a_replay_the_checkpoint_knows_more_than_the_group(scene: Scene) -> None:
    logged = end(p0=(5, 9), p3=(2, 4))
    scene.query.tasks(logged)
    scene.group.gain(0, 5)
    scene.log_ends(p0=12, p3=10)
    assert scene.latest(logged) == end(p0=(9, 12))
    assert scene.group.take_calls() == [("commit", {0: 9})]


def test_a_group_that_is_further_than_the_checkpoint_wins(scene: Scene) -> None:
    scene.group.gain(0, 11)
    scene.log_ends(p0=12)
    assert scene.latest(end(p0=(5, 9))) == end(p0=(11, 12))
    assert scene.group.take_calls() == []


def test_a_checkpoint_of_a_topic_that_was_created_anew_says_nothing(scene: Scene) -> None:
    scene.group.gain(0, None, "id-of-the-new-one")
    scene.log_ends(p0=3)
    found = scene.latest(end(p0=(5, 9)))
    assert (found["p"], found["t"]) == (
        {"flights/0": [0, 3, 3]},
        {"flights": "id-of-the-new-one"},
    )


def test_a_checkpoint_of_another_group_ends_the_query(scene: Scene) -> None:
    with pytest.raises(ConfigError, match="belongs to group 'h'"):
        scene.latest(to_json(Ends("h")))


# -- trouble -----------------------------------------------------------------------------------------


def test_brokers_that_cannot_be_asked_are_a_reason_to_wait(scene: Scene) -> None:
    scene.group.gain(0, 0)
    scene.logs.trouble = BrokerUnreachable("broker 1 is not reachable")
    assert scene.latest(EMPTY) is EMPTY
    scene.logs.trouble = None
    scene.log_ends(p0=1)
    assert scene.latest(EMPTY) == end(p0=(0, 1))


@pytest.mark.parametrize(
    "trouble", [ConfigError("no broker has a listener 'inside'"), NoCluster("nothing at /chroot")]
)
@pytest.mark.parametrize("rests", [True, False])
def test_trouble_of_the_cluster_ends_no_query_that_has_looked_and_ends_one_that_starts(
    scene: Scene, trouble: ConfigError, rests: bool
) -> None:
    scene.group.gain(0, 0)
    scene.logs.trouble = trouble
    for call in (lambda: scene.latest(EMPTY), lambda: scene.query.tasks(end(p0=(0, 1)))):
        with pytest.raises(type(trouble)):
            call()
    scene.logs.trouble = None
    scene.log_ends(p0=1)
    first = scene.latest(EMPTY)
    if rests:
        assert scene.latest(first) is first
    scene.logs.trouble = trouble
    assert scene.latest(first) is scene.latest(first) is first
    assert len(scene.query.tasks(first)) == 1
    scene.logs.trouble = None
    scene.log_ends(p0=2)
    assert scene.latest(first) == end(p0=(1, 2))


def test_a_partition_whose_end_is_not_known_keeps_its_place(scene: Scene) -> None:
    scene.group.gain(0, 0)
    scene.group.gain(1, 0)
    scene.log_ends(p0=5, p1=5)
    first = scene.latest(EMPTY)
    del scene.logs.log_ends[flights(1)]
    scene.log_ends(p0=6)
    second = scene.latest(first)
    assert second == end(p0=(5, 6), p1=(5, 5))
    scene.log_ends(p1=8)
    assert scene.latest(second) == end(p0=(6, 6), p1=(5, 8))


def test_what_ended_the_group_thread_ends_the_query(scene: Scene) -> None:
    scene.latest(EMPTY)
    scene.group.error = ZeroDivisionError("unforeseen")
    with pytest.raises(ZeroDivisionError):
        scene.latest(EMPTY)


def test_records_gone_by_retention_end_the_query_or_are_passed_over() -> None:
    said = (
        r"flights-0: records 2 to 6 are gone \(retention\): failOnDataLoss=false continues without"
    )
    for allowed in (False, True):
        scene = Scene(failOnDataLoss=not allowed)
        scene.group.gain(0, 2)
        scene.logs.starts[flights(0)] = 7
        scene.log_ends(p0=9)
        if allowed:
            assert scene.latest(EMPTY) == end(p0=(7, 9))
        else:
            with pytest.raises(OffsetOutOfRange, match=said):
                scene.latest(EMPTY)


def test_records_that_a_new_leader_has_lost_end_the_query_or_are_read_as_they_are_now() -> None:
    for allowed in (False, True):
        scene = Scene(failOnDataLoss=not allowed)
        scene.group.gain(0, 0)
        scene.log_ends(p0=10)
        first = scene.latest(EMPTY)
        scene.latest(first)
        assert scene.logs.read_positions == {flights(0): ReadPosition(ID, 10, 3)}
        scene.logs.truncated, scene.logs.epoch = {flights(0): 6}, 4
        scene.log_ends(p0=8)
        if allowed:
            assert (
                scene.latest(first) is first
            )  # where it ends now is looked at with the next trigger
            assert scene.latest(first) == ends({flights(0): Range(6, 8, 4)})
        else:
            with pytest.raises(LogTruncated, match="records 6 to 9, which were read, are gone"):
                scene.latest(first)


def test_an_end_that_no_leader_has_confirmed_yet_is_no_loss(scene: Scene) -> None:
    scene.group.gain(0, 12)
    scene.log_ends(p0=10)
    assert scene.latest(EMPTY) is EMPTY
    scene.log_ends(p0=15)
    assert scene.latest(EMPTY) == end(p0=(12, 15))


def test_a_start_behind_the_end_is_refused_and_nothing_is_committed() -> None:
    scene = Scene(startingOffsets='{"flights": {"0": 11, "1": -2, "2": -2, "3": -2}}')
    scene.group.gain(0, None)
    scene.log_ends(p0=10, p1=0, p2=0, p3=0)
    with pytest.raises(OffsetOutOfRange, match="flights-0 ends at 10"):
        scene.latest(EMPTY)
    assert scene.group.committed == {}


@pytest.mark.parametrize("limit", [MAX_ROWS, None])
def test_a_log_that_has_lost_its_end_ends_the_query_or_is_read_as_it_is(
    limit: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    """What comes later would be passed over until the log is as long as it was."""
    for allowed in (False, True):
        scene = Scene(failOnDataLoss=not allowed)
        scene.group.gain(0, 12)
        scene.logs.starts[flights(0)] = 3
        scene.log_ends(p0=10)
        scene.logs.refuses = True
        if not allowed:
            with pytest.raises(
                OffsetOutOfRange, match="flights-0 ends at 10, below the position 12"
            ):
                scene.query.latest(EMPTY, limit)
            assert scene.group.committed == {}
            continue
        first = scene.query.latest(EMPTY, limit)
        assert from_json(first, "g").ranges[flights(0)][:2] == (3, 10)
        assert "flights-0 ends at 10" in caplog.text
        assert scene.query.latest(first, limit) is first
        assert scene.group.committed == {flights(0): 10}
        scene.log_ends(p0=11)
        then = scene.query.latest(first, limit)
        assert from_json(then, "g").ranges[flights(0)][:2] == (10, 11)


@pytest.mark.parametrize("start", [None, 0], ids=["by the query", "by the group's plan"])
def test_a_topic_that_was_created_anew_is_told_of(
    scene: Scene, caplog: pytest.LogCaptureFixture, start: int | None
) -> None:
    scene.group.gain(0, start, "id-of-the-new-one")
    scene.latest(end(p0=(5, 9)))
    assert "topic flights was created anew: it is read from its beginning" in caplog.text


def test_a_younger_process_with_the_same_instance_id_ends_the_query(scene: Scene) -> None:
    scene = Scene(instanceId="one")
    scene.group.tell(Replaced())
    with pytest.raises(InstanceReplaced, match="has joined group g as one"):
        scene.latest(EMPTY)


def test_each_call_of_the_engine_shows_the_group_that_the_query_lives(scene: Scene) -> None:
    scene.latest(EMPTY)
    before = scene.group.polls
    scene.latest(EMPTY)
    assert scene.group.polls > before


# -- AvailableNow ------------------------------------------------------------------------------------


def test_available_now_reads_up_to_what_there_was_and_no_further(scene: Scene) -> None:
    scene.group.gain(0, 0)
    scene.log_ends(p0=10, p1=0, p2=0, p3=0)
    scene.query.prepare()
    scene.log_ends(p0=15)
    first = scene.latest(EMPTY, 8)
    second = scene.latest(first, 8)
    assert (first, second) == (end(p0=(0, 8)), end(p0=(8, 10)))
    scene.logs.trouble = AssertionError("there is nothing to wait for any more")
    assert scene.latest(second, 8) is second
    assert scene.group.committed == {flights(0): 10}


def test_available_now_does_not_end_while_a_partition_is_still_to_come(scene: Scene) -> None:
    scene.group.gain(0, 0)
    scene.log_ends(p0=1, p1=1, p2=1, p3=1)
    scene.query.prepare()
    first = scene.latest(EMPTY)
    assert scene.group.plan is not None
    scene.group.plan.add(flights(1))
    with pytest.raises(RequestTimeout, match="nothing could be read"):
        scene.latest(first)
    scene.group.gain(1, 0)
    assert scene.latest(first) == end(p0=(1, 1), p1=(0, 1))


def test_available_now_waits_for_its_assignment(scene: Scene) -> None:
    scene.group.plan = None
    with pytest.raises(RequestTimeout, match="did not hand over"):
        scene.query.prepare()


def test_available_now_refuses_a_pattern_that_matches_nothing() -> None:
    scene = Scene(subscribe="", subscribePattern="trains.*")
    with pytest.raises(UnknownTopicOrPartition, match=r"no topic matches 'trains\.\*'"):
        scene.query.prepare()


def test_available_now_takes_no_topic_for_missing_while_zookeeper_does_not_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scene = Scene(subscribe="", subscribePattern="fli.*")
    plans = iter([scene.group.read_plan(), None])
    monkeypatch.setattr(scene.query, "_read_plan", lambda: next(plans))
    with pytest.raises(ZooKeeperUnreachable, match="could not be read in ZooKeeper"):
        scene.query.prepare()


def test_available_now_refuses_a_topic_that_does_not_exist() -> None:
    scene = Scene(subscribe="nothing")
    with pytest.raises(UnknownTopicOrPartition, match="topic nothing does not exist"):
        scene.query.prepare()


# -- the end -----------------------------------------------------------------------------------------


def test_leaving_gives_everything_up_at_what_is_known_to_be_processed(scene: Scene) -> None:
    scene.group.gain(0, 0)
    scene.log_ends(p0=5)
    first = scene.latest(EMPTY)
    scene.latest(first)
    scene.log_ends(p0=9)
    scene.latest(first)  # this batch is in flight: nobody knows whether it will be done
    scene.group.take_calls()
    scene.query.leave(1.0)
    assert scene.group.take_calls() == [("leave",), ("drained", 0, None), ("stop",)]


def test_a_query_that_drains_commits_and_starts_no_batch(scene: Scene) -> None:
    scene.group.gain(0, 0)
    scene.log_ends(p0=5)
    first = scene.latest(EMPTY)
    scene.log_ends(p0=9)
    scene.query.is_draining = True
    assert scene.latest(first) is first
    assert scene.group.committed == {flights(0): 5}


def test_the_report_shows_lag_against_what_the_group_has_committed(scene: Scene) -> None:
    scene.group.gain(0, 2)
    scene.log_ends(p0=10)
    scene.latest(EMPTY, 3)
    report = scene.query.report()
    assert report["ends"] == {"flights": {"0": 10}}
    assert report["lag"] == {"flights": {"0": 8}}
    assert report["maxOffsetsBehindLatest"] == 8
    assert (report["member"], report["generation"]) == ("spark-0", 7)
    json.dumps(report)
