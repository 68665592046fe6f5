"""The source in a real query: real ZooKeeper, real brokers, a real Spark session."""

import os
import socket
import sys
import threading
from collections import Counter
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from folkmoot.consumers.client.consumer import Consumer
from folkmoot.producers.producer import Producer
from folkmoot.spark_apps.session import stop_gracefully
from tests.spark_apps.queries import LONG, PARTITIONS, Scene
from tests.waiting import eventually

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


class PlainMember:
    """A consumer of the same group in a thread of this process."""

    def __init__(self, scene: Scene) -> None:
        self.values: set[int] = set()
        self.partitions: set[int] = set()
        self._consumer = Consumer(
            zookeeper=scene.zookeeper, group=scene.group, topics=[scene.topic]
        )
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        with self._consumer as consumer:
            for record in consumer:
                self.values.add(int(record.value or b"-1"))
                self.partitions.add(record.partition)

    def close(self) -> None:
        self._consumer.stop()
        self._thread.join()


def test_a_query_shares_a_group_with_a_plain_member(queries: Scene) -> None:
    queries.send(300)
    query: StreamingQuery = queries.query().trigger(processingTime="100 milliseconds").start()
    plain = None
    try:
        eventually(lambda: len(queries.seen.values) == 300, LONG)
        eventually(lambda: queries.committed() == queries.ends(), LONG)
        assert len(set(queries.owners().values())) == 1

        plain = PlainMember(queries)
        half = PARTITIONS // 2
        eventually(lambda: [*Counter(queries.owners().values()).values()] == [half] * 2, LONG)
        queries.send(500)
        eventually(lambda: len(queries.seen.values | plain.values) == 800, LONG)
        assert len(plain.partitions) == half
        plain.close()

        eventually(lambda: len(queries.owners()) == PARTITIONS, LONG)
        before = len(queries.seen.records)
        queries.send(400)
        eventually(lambda: len(queries.seen.records) == before + 400, LONG)

        queries.send(300)
        assert stop_gracefully(query)
        assert queries.committed() == {
            number: 1 + max((o for p, o, _ in queries.seen.records if p == number), default=-1)
            for number in range(PARTITIONS)
        }
        eventually(lambda: not queries.owners(), LONG)
    finally:
        query.stop()
        if plain is not None:
            plain.close()
    assert len(queries.seen.records) == len(set(queries.seen.records))
    assert all(len(batch) <= 200 for batches in queries.seen.batches.values() for batch in batches)
    progress = query.lastProgress
    assert progress is not None
    assert '"generation"' in progress.sources[0].latestOffset


def test_a_query_stops_gracefully_under_constant_input_also_from_another_machine(
    queries: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        socket, "gethostname", lambda: "elsewhere"
    )  # of this process, not of Spark's
    over = threading.Event()

    def keep_sending() -> None:
        with Producer(zookeeper=queries.zookeeper) as producer:
            while not over.wait(0.005):
                producer.send(queries.topic, b"1")

    sending = threading.Thread(target=keep_sending)
    sending.start()
    try:
        query = queries.query().trigger(processingTime="100 milliseconds").start()
        eventually(lambda: query.lastProgress is not None, LONG)
        assert stop_gracefully(query, LONG)
    finally:
        over.set()
        sending.join()
    assert queries.committed() == {
        number: 1 + max((o for p, o, _ in queries.seen.records if p == number), default=-1)
        for number in range(PARTITIONS)
    }


def test_available_now_reads_all_there_was_within_the_limit_and_commits_it(queries: Scene) -> None:
    for round_ in range(2):
        queries.send(300)
        query = queries.query().trigger(availableNow=True).start()
        query.awaitTermination(LONG)
        assert not query.isActive
        assert queries.seen.values == set(range(300 * (round_ + 1)))
        assert queries.committed() == queries.ends()
    assert len(queries.seen.records) == 600
    assert len(queries.seen.batches) >= 4


def test_a_batch_that_failed_is_replayed_whole_from_the_checkpoint(queries: Scene) -> None:
    queries.send(500)
    queries.seen.fail_at = 1
    query = queries.query().trigger(availableNow=True).start()
    with pytest.raises(StreamingQueryException, match="the sink is full"):
        query.awaitTermination(LONG)
    queries.query().trigger(availableNow=True).start().awaitTermination(LONG)
    first, second = queries.seen.batches[1]
    assert first == second
    assert queries.seen.values == set(range(500))
    assert len(queries.seen.records) == 500
    assert queries.committed() == queries.ends()


def test_a_wrong_option_is_told_when_the_stream_is_loaded(queries: Scene) -> None:
    with pytest.raises(AnalysisException, match="did you mean 'revokeTimeout'"):
        queries.query(revoketimeouts=3)


def test_workers_run_on_this_very_python_and_its_unzipped_pyspark(spark: SparkSession) -> None:
    assert spark.sparkContext.pythonExec == sys.executable
    assert not list(Path(os.environ["SPARK_HOME"], "python", "lib").iterdir())
