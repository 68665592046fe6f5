"""Options of streams, and what Spark does with them: real queries on real brokers."""

import json
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from folkmoot.console.running.processes import EmbeddedCluster
from folkmoot.consumers.client.consumer import Consumer
from folkmoot.producers.producer import Producer
from folkmoot.spark_apps.offsets.checkpoint import VERSION
from tests.spark_apps.queries import LONG, PARTITIONS, WRONG_COLUMNS, Option, Scene
from tests.spark_apps.sink.topics import await_partitions
from tests.waiting import eventually

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


def failure(query: StreamingQuery) -> str:
    with pytest.raises(StreamingQueryException) as failed:
        query.awaitTermination(LONG)
    return str(failed.value)


def test_a_reset_holds_while_the_query_runs_and_while_it_is_stopped(queries: Scene) -> None:
    queries.send(300)
    query = queries.query().trigger(processingTime="100 milliseconds").start()
    eventually(lambda: queries.committed() == queries.ends(), LONG)
    assert len(queries.seen.records) == 300

    start = {queries.partition(number): 0 for number in range(PARTITIONS)}
    queries.admin.reset_offsets(queries.group, start)
    eventually(lambda: len(queries.seen.records) == 600, LONG)
    eventually(lambda: queries.committed() == queries.ends(), LONG)
    query.stop()
    eventually(lambda: not queries.owners(), LONG)

    queries.admin.reset_offsets(queries.group, start)
    queries.query().trigger(availableNow=True).start().awaitTermination(LONG)
    assert len(queries.seen.records) == 900
    assert queries.committed() == queries.ends()


def test_partitions_added_to_a_query_at_the_latest_are_read_from_their_beginning(
    queries: Scene,
) -> None:
    queries.send(60)
    query = queries.query(startingOffsets="latest").trigger(processingTime="2 seconds").start()
    eventually(lambda: None not in queries.committed().values(), LONG)
    queries.admin.add_partitions(queries.topic, PARTITIONS + 1)
    await_partitions(queries.zookeeper, queries.topic, PARTITIONS + 1)
    with Producer(zookeeper=queries.zookeeper) as producer:
        for number in range(20):
            producer.send(queries.topic, str(1000 + number).encode(), partition=PARTITIONS)
    eventually(lambda: queries.seen.values == set(range(1000, 1020)), LONG)
    query.stop()


def test_what_appears_after_a_group_began_is_read_from_its_beginning_by_a_query_at_the_latest(
    queries: Scene,
) -> None:
    """Also where no query ran when it appeared, and none has noted anything in a checkpoint."""
    queries.send(60)
    anew, new = f"{queries.topic}-anew", f"{queries.topic}-new"
    queries.admin.create_topic(anew, 1)

    def read() -> None:
        pattern = {"subscribe": None, "subscribePattern": f"{queries.topic}.*"}
        query = queries.query(**pattern, startingOffsets="latest").trigger(availableNow=True)
        query.start().awaitTermination(LONG)

    read()
    assert (queries.seen.values, set(queries.committed())) == (set(), set(range(PARTITIONS)))
    queries.admin.delete_topic(anew)
    queries.admin.create_topic(anew, 1)
    queries.admin.create_topic(new, 1)
    queries.admin.add_partitions(queries.topic, PARTITIONS + 1)
    places = [(queries.topic, PARTITIONS), (new, 0), (anew, 0)]
    for topic, number in places:
        await_partitions(queries.zookeeper, topic, number + 1)
    for first in (1000, 2000):
        with Producer(zookeeper=queries.zookeeper) as producer:
            for number, (topic, partition) in enumerate(places):
                producer.send(topic, str(first + number).encode(), partition=partition)
        if first == 1000:
            read()
    read()
    assert queries.seen.values == {1000, 1001, 1002, 2000, 2001, 2002}
    assert len(queries.seen.records) == 6


def test_a_topic_made_anew_is_read_from_its_beginning_by_a_query_at_the_latest_without_a_group(
    queries: Scene,
) -> None:
    assigned = {"group": None, "subscribe": None, "assign": json.dumps({queries.topic: [0]})}

    def read() -> None:
        query = queries.query(**assigned, startingOffsets="latest").trigger(availableNow=True)
        query.start().awaitTermination(LONG)

    queries.send(60, partition=0)
    read()
    assert queries.seen.values == set()
    queries.admin.delete_topic(queries.topic)
    queries.admin.create_topic(queries.topic, 1)
    await_partitions(queries.zookeeper, queries.topic, 1)
    queries.send(10, partition=0)
    for _ in range(2):
        read()
    assert queries.seen.values == set(range(60, 70))
    assert len(queries.seen.records) == 10


def test_a_query_and_a_member_start_where_the_other_began_the_group(queries: Scene) -> None:
    def member() -> Consumer:
        return Consumer(
            zookeeper=queries.zookeeper,
            group=queries.group,
            topics=[queries.topic],
            auto_offset_reset="latest",
            auto_commit=False,
        )

    def send(*partitions: int) -> set[int]:
        with Producer(zookeeper=queries.zookeeper) as producer:
            for number in partitions:
                producer.send(queries.topic, str(1000 + number).encode(), partition=number)
        return {1000 + number for number in partitions}

    queries.send(60)
    queries.read_all(startingOffsets="latest")
    wanted, got = send(*range(PARTITIONS)), set[int]()

    def reads() -> bool:
        got.update(int(each.value or b"") for each in consumer.poll(0.2))
        return got >= wanted

    with member() as consumer:
        eventually(reads, LONG)
    assert got == wanted
    queries.admin.add_partitions(queries.topic, PARTITIONS + 1)
    await_partitions(queries.zookeeper, queries.topic, PARTITIONS + 1)
    wanted |= send(0, PARTITIONS)
    queries.seen.records.clear()
    query = queries.query(startingOffsets="latest").option(
        "checkpointLocation", f"{queries.checkpoint}-2"
    )
    query.trigger(availableNow=True).start().awaitTermination(LONG)
    assert queries.seen.values == wanted


def test_offsets_say_where_partitions_begin(queries: Scene) -> None:
    for number in range(3):
        queries.send(10, number)
    offsets = json.dumps({queries.topic: {"0": 7, "1": -1, "2": -2}})
    rows = queries.read_all(startingOffsets=offsets)
    assert sorted((row.partition, row.offset) for row in rows) == [
        *((0, offset) for offset in range(7, 10)),
        *((2, offset) for offset in range(10)),
    ]
    assert queries.committed()[1] == 10


def test_times_say_where_partitions_begin(queries: Scene) -> None:
    for number in range(2):
        with Producer(zookeeper=queries.zookeeper) as producer:
            for stamp in range(1000, 1010 + number):
                producer.send(queries.topic, b"1", partition=number, timestamp=stamp)
    lenient = {"startingOffsetsByTimestampStrategy": "latest"}
    rows = queries.read_all(startingTimestamp=1008, **lenient)
    assert sorted((row.partition, row.offset) for row in rows) == [
        (0, 8),
        (0, 9),
        (1, 8),
        (1, 9),
        (1, 10),
    ]

    times = json.dumps({queries.topic: {"0": 1009, "1": 1010}})
    rows = queries.read_all(group=f"{queries.group}-2", startingOffsetsByTimestamp=times)
    assert sorted((row.partition, row.offset) for row in rows) == [(0, 9), (1, 10)]
    times = json.dumps({queries.topic: {"0": 1009, "1": 2000}})
    by_partition: dict[str, Option] = {"startingOffsetsByTimestamp": times, **lenient}
    rows = queries.read_all(group=f"{queries.group}-4", **by_partition)
    assert [(row.partition, row.offset) for row in rows] == [(0, 9)]
    strict = queries.query(group=f"{queries.group}-5", startingOffsetsByTimestamp=times)
    strict = strict.option("checkpointLocation", f"{queries.checkpoint}-5")
    said = failure(strict.trigger(availableNow=True).start())
    assert f"{queries.topic}-1 has no record of 2000 ms or later" in said

    too_late = queries.query(group=f"{queries.group}-3", startingTimestamp=1010)
    said = failure(too_late.trigger(availableNow=True).start())
    assert "has no record of 1010 ms or later" in said


def test_a_pattern_takes_topics_that_come_later(queries: Scene) -> None:
    queries.send(10)
    pattern = {"subscribe": None, "subscribePattern": f"{queries.topic}.*"}
    query = queries.query(**pattern).trigger(processingTime="100 milliseconds").start()
    eventually(lambda: len(queries.seen.records) == 10, LONG)
    other = f"{queries.topic}-more"
    queries.admin.create_topic(other, 2)
    with Producer(zookeeper=queries.zookeeper) as producer:
        producer.send(other, b"77")
    eventually(lambda: 77 in queries.seen.values, LONG)
    query.stop()


def test_assigned_partitions_are_read_without_a_group(queries: Scene) -> None:
    for number in range(3):
        queries.send(10, number)
    alone = {"group": None, "subscribe": None}
    assigned = json.dumps({queries.topic: [0, 2]})
    for round_ in range(2):
        queries.query(assign=assigned, **alone).trigger(availableNow=True).start().awaitTermination(
            LONG
        )
        assert {(p, o) for p, o, _ in queries.seen.records} == {
            (number, offset) for number in (0, 2) for offset in range(10 * (round_ + 1))
        }
        for number in range(3):
            queries.send(10, number)
    assert len(queries.seen.records) == 40
    assert set(queries.committed().values()) == {None}
    wrong = json.dumps({queries.topic: [PARTITIONS]})
    query = queries.into(queries.stream(assign=wrong, **alone), f"{queries.checkpoint}-2").start()
    assert f"has partitions 0 to {PARTITIONS - 1}" in failure(query)


def test_a_query_without_a_group_that_found_nothing_yet_goes_on_where_it_began(
    queries: Scene,
) -> None:
    queries.send(10, 0)
    assigned = {"group": None, "subscribe": None, "assign": json.dumps({queries.topic: [0]})}
    query = queries.query(**assigned, startingOffsets="latest").trigger(availableNow=True)
    query.start().awaitTermination(LONG)
    assert queries.seen.values == set()
    queries.send(5, 0)
    query.start().awaitTermination(LONG)
    assert queries.seen.values == set(range(10, 15))


def test_two_queries_of_an_app_are_two_members(queries: Scene) -> None:
    first = queries.query(clientId="left").trigger(processingTime="100 milliseconds").start()
    second = queries.into(queries.stream(clientId="right"), f"{queries.checkpoint}-2")
    second = second.trigger(processingTime="100 milliseconds").start()
    eventually(lambda: len(set(queries.owners().values())) == 2, LONG)
    assert {each.partition("-")[0] for each in queries.owners().values()} == {"left", "right"}
    queries.send(200)
    eventually(lambda: queries.seen.values == set(range(200)), LONG)
    assert len(queries.seen.records) == 200
    first.stop()
    second.stop()


def test_an_instance_id_keeps_the_partitions_while_a_query_starts_anew(queries: Scene) -> None:
    options: dict[str, Option] = {"instanceId": "spark-1", "rejoinTimeout": 60, "assignor": "range"}
    for _ in range(2):
        query = queries.query(**options).trigger(processingTime="100 milliseconds").start()
        queries.send(50)
        eventually(lambda: len(queries.seen.records) == queries.sent, LONG)
        assert set(queries.owners().values()) == {"spark-1="}
        assert queries.admin.describe_group(queries.group).assignor == "range"
        query.stop()


def test_the_schema_that_is_given_is_what_is_read(queries: Scene) -> None:
    queries.send(20)
    frame = queries.stream("value binary, offset long")
    assert frame.columns == ["value", "offset"]
    query = frame.writeStream.format("memory").queryName("pruned").trigger(availableNow=True)
    query.option("checkpointLocation", queries.checkpoint).start().awaitTermination(LONG)
    rows = queries.spark.table("pruned").collect()
    assert sorted(int(row.value) for row in rows) == list(range(20))
    wrong = queries.stream("value string").writeStream.format("noop")
    with pytest.raises(Exception, match="column 'value' is binary, not string"):
        wrong.option("checkpointLocation", f"{queries.checkpoint}-2").start().awaitTermination(LONG)


def test_headers_are_read_if_they_are_asked_for(queries: Scene) -> None:
    queries.send(1, 0, headers={"to": b"JFK"})
    queries.send(1, 0)
    first, second = sorted(queries.read_all(includeHeaders=True), key=lambda row: row.offset)
    assert [(each.key, each.value) for each in first.headers] == [("to", b"JFK")]
    assert second.headers is None


def test_records_divide_into_as_many_tasks_as_are_asked_for(queries: Scene) -> None:
    queries.send(600)
    tasks: list[list[int]] = []
    divided: tuple[dict[str, Option], ...]
    divided = {}, {"minPartitions": 12}, {"maxRecordsPerPartition": 50}
    for number, options in enumerate(divided, start=1):
        tasks.append([])  # of each batch: the first look may not know yet where all logs end
        frame = queries.stream(group=f"{queries.group}-{number}", **options)
        query = frame.writeStream.foreachBatch(
            lambda rows, _: tasks[-1].append(rows.rdd.getNumPartitions())
        )
        query = query.option("checkpointLocation", f"{queries.checkpoint}-{number}")
        query.trigger(availableNow=True).start().awaitTermination(LONG)
    first, second, third = tasks
    assert (set(first), max(second) >= 12, sum(third) >= 12) == ({1}, True, True)


def test_a_batch_holds_no_more_bytes_than_it_may(queries: Scene) -> None:
    queries.send(600)
    options: dict[str, Option] = {"maxBytesPerTrigger": 500, "maxOffsetsPerTrigger": None}
    queries.query(**options).trigger(availableNow=True).start().awaitTermination(LONG)
    assert len(queries.seen.records) == 600
    assert len(queries.seen.batches) >= 3


def test_a_batch_waits_for_records_and_then_no_longer(queries: Scene) -> None:
    def started(delay: str) -> StreamingQuery:
        options: dict[str, Option] = {"minOffsetsPerTrigger": 60, "maxTriggerDelay": delay}
        writer = queries.query(**options).trigger(processingTime="100 milliseconds")
        query: StreamingQuery = writer.start()
        return query

    queries.send(10)
    query = started("10m")
    eventually(lambda: queries.seen.records, LONG)
    # Perhaps not all ten: the first look may not know yet where all logs end.
    before = len(queries.seen.records)
    for count in (8, 8, 8, 8, 8, 20):
        queries.send(count)
    eventually(lambda: len(queries.seen.records) >= before + 60, LONG)
    # Spark begins with an empty batch where the first look finds nothing within its time.
    assert sum(any(rows) for rows in queries.seen.batches.values()) == 2
    query.stop()

    query = started("2s")
    for count in (1, 8):
        queries.send(count)
        eventually(lambda: len(queries.seen.values) == queries.sent, LONG)
    query.stop()


def test_progress_shows_lag_and_ends_as_kafkas_source_does(queries: Scene) -> None:
    queries.send(30)
    query = queries.query().trigger(availableNow=True).start()
    query.awaitTermination(LONG)
    progress = query.lastProgress
    assert progress is not None
    found = json.loads(progress.sources[0].latestOffset)
    ends = {str(number): end for number, end in queries.ends().items()}
    assert found["ends"] == {queries.topic: ends}
    assert set(found["lag"][queries.topic]) == set(ends)
    assert found["droppedCommits"] == {}
    assert found["generation"] > 0
    assert found["maxOffsetsBehindLatest"] >= found["minOffsetsBehindLatest"]


def test_records_that_retention_has_removed_are_told_of_or_passed_over(queries: Scene) -> None:
    queries.send(20, 0)
    query = queries.query().trigger(availableNow=True).start()
    query.awaitTermination(LONG)
    queries.send(20, 0)
    queries.admin.delete_records({queries.partition(0): 30})
    said = failure(queries.query().trigger(availableNow=True).start())
    assert f"{queries.topic}-0: records 20 to 29 are gone (retention)" in said
    query = queries.query(failOnDataLoss=False).trigger(availableNow=True).start()
    query.awaitTermination(LONG)
    assert {offset for _, offset, _ in queries.seen.records} == {*range(20), *range(30, 40)}
    assert queries.committed()[0] == 40


def test_an_engine_that_stays_away_gives_its_partitions_up(queries: Scene) -> None:
    queries.send(1)
    options = {"maxProcessingTime": 2, "revokeTimeout": 1}
    query = queries.query(**options).trigger(processingTime="20 seconds").start()
    eventually(lambda: len(queries.owners()) == PARTITIONS, LONG)
    eventually(lambda: not queries.owners(), LONG)
    events = queries.admin.group_events(queries.group)
    assert any("did not ask for records for too long" in str(each) for each in events)
    query.stop()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"kafka.bootstrap.servers": "b:1"}, "one of Kafka's"),
        ({"revoketimeouts": 3}, "did you mean 'revokeTimeout'"),
        ({"assign": "{}"}, "'subscribe' and 'assign' exclude each other"),
        ({"subscribe": None, "subscribePattern": "("}, "is no regular expression"),
    ],
)
def test_a_wrong_option_is_told_at_load(
    queries: Scene, options: dict[str, Option], said: str
) -> None:
    with pytest.raises(AnalysisException, match=said):
        queries.stream(**options)


def test_what_makes_a_start_impossible_is_told_in_one_line(queries: Scene) -> None:
    for options, said in (
        ({"startingOffsets": json.dumps({queries.topic: {"9": 1}})}, "has partitions 0 to 5"),
        ({"subscribe": "no-such-topic"}, "topic no-such-topic does not exist"),
        ({"subscribe": None, "subscribePattern": "no-such.*"}, "no topic matches 'no-such"),
        ({"zookeeper": "127.0.0.1:1"}, "127.0.0.1:1"),
        ({"listener": "inside"}, "no broker has a listener 'inside': they have client"),
    ):
        named = {"group": f"{queries.group}-{len(said)}"} | options
        checkpoint = f"{queries.checkpoint}-{len(said)}"
        query = queries.into(queries.stream(**named), checkpoint).trigger(availableNow=True).start()
        assert said in failure(query)


def test_a_checkpoint_of_another_group_or_version_is_refused(queries: Scene) -> None:
    queries.send(5)
    queries.query().trigger(availableNow=True).start().awaitTermination(LONG)
    query = queries.query(group="another").trigger(availableNow=True).start()
    assert "each group needs a checkpoint of its own" in failure(query)
    for offsets in Path(queries.checkpoint, "offsets").glob("[0-9]*"):
        offsets.write_text(offsets.read_text().replace(f'"v": {VERSION}', '"v": 99'))
        offsets.with_name(f".{offsets.name}.crc").unlink()
    query = queries.query().trigger(availableNow=True).start()
    assert "the checkpoint holds offsets of version 99" in failure(query)


def test_a_topic_that_was_created_anew_is_read_from_its_beginning(queries: Scene) -> None:
    for _ in range(2):
        queries.send(5, 0)
        queries.query().trigger(availableNow=True).start().awaitTermination(LONG)
        queries.admin.delete_topic(queries.topic)
        queries.admin.create_topic(queries.topic, PARTITIONS)
        await_partitions(queries.zookeeper, queries.topic, PARTITIONS)
    assert queries.seen.values == set(range(10))


def test_columns_that_there_are_not_are_told_of(queries: Scene) -> None:
    for schema, said in WRONG_COLUMNS:
        query = queries.into(queries.stream(schema)).trigger(availableNow=True).start()
        assert said in failure(query)


def test_a_query_goes_on_under_another_leader_that_has_what_was_read(
    start_cluster: Callable[..., EmbeddedCluster], spark: SparkSession, tmp_path: Path
) -> None:
    """The new leader is asked whether it has all before; what it says is believed."""
    cluster = start_cluster(brokers=3)
    with closing(Scene(cluster, spark, tmp_path, replicas=3)) as queries:
        queries.send(300)
        query = queries.query().trigger(processingTime="100 milliseconds").start()
        eventually(lambda: queries.committed() == queries.ends(), LONG)
        cluster.brokers[0].kill()
        queries.send(300)
        eventually(lambda: len(queries.seen.records) == 600, LONG)
        eventually(lambda: queries.committed() == queries.ends(), LONG)
        query.stop()
        # From the checkpoint, too, which has the epochs of the leaders of before.
        cluster.brokers[0].start()
        cluster.brokers[1].kill()
        queries.send(300)
        query = queries.query().trigger(availableNow=True).start()
        query.awaitTermination(LONG)
        assert query.exception() is None
    assert len(queries.seen.records) == len(queries.seen.values) == 900
