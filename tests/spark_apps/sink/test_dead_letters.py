"""Dead letters on real brokers: what they say, and that each is there, whatever dies in between."""

import json
from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest

from folkmoot.admin.admin import Admin
from folkmoot.console.running.processes import EmbeddedCluster
from folkmoot.producers.producer import Producer
from folkmoot.protocol.errors import UnknownTopicOrPartition
from folkmoot.protocol.records import Record, TopicPartition
from folkmoot.schemas.columns.serializer import ColumnEncoder
from folkmoot.schemas.registry.schema_registry import SchemaRegistry
from folkmoot.spark_apps import batch
from folkmoot.spark_apps.options.config import BatchConfig
from folkmoot.spark_apps.sink.batch_writer import IdempotentBatchWriter
from folkmoot.spark_apps.sink.dead_letters import read_with_letters
from folkmoot.spark_apps.tasks.planning import Task
from folkmoot.spark_apps.typed.decoding import ResolvedSchema
from folkmoot.spark_apps.typed.reader_schema import check_dead_letters
from tests.spark_apps.sink.topics import contents

FIELDS = [{"name": "number", "type": "long"}]
TEXT = json.dumps({"type": "record", "name": "R", "fields": FIELDS})
COUNT = 30
UNKNOWN = b"\0\x7f\xff\xff\xff"
"""A schema id that nobody has given."""


class Dead(BaseException):
    """The process ends here."""


class Scene:
    """A topic of which every third record cannot be read, and one for dead letters."""

    def __init__(self, cluster: EmbeddedCluster) -> None:
        self.zookeeper = cluster.zookeeper
        self.topic = f"letters-{uuid4().hex[:8]}"
        self.dead = f"{self.topic}-dead"
        with Admin(zookeeper=self.zookeeper) as admin:
            admin.create_topic(self.topic, 1)
            admin.create_topic(self.dead, 2)
        with SchemaRegistry(self.zookeeper) as registry:
            self.schema = ResolvedSchema(TEXT, registry.register(self.topic, TEXT).id)
        self.send(COUNT)

    def send(self, count: int) -> None:
        column = pa.array(range(count), pa.int64())
        values = (
            ColumnEncoder(*self.schema)(pa.table({"number": column})).combine_chunks().to_pylist()
        )
        with Producer(zookeeper=self.zookeeper) as producer:
            for number, value in enumerate(values):
                if number % 5 == 0:
                    producer.flush()  # batches of five
                bad = number % 3 == 0
                producer.send(
                    self.topic,
                    bad_value(number) if bad else value,
                    *(b"key %d" % number, None, [("trace", b"%d" % number)], 1000 + number),
                )

    def config(self, **options: str) -> BatchConfig:
        given = {"zookeeper": self.zookeeper, "subscribe": self.topic, "valueFormat": "avro"}
        given |= {"onDecodeError": "deadLetter", "deadLetterTopic": self.dead}
        return BatchConfig.of(given | {"readerSchema": TEXT} | options)

    def read(self, names: tuple[str, ...] = ("number",)) -> list[dict[str, Any]]:
        """The rows of one task that reads all there is."""
        config = self.config()
        (task,) = batch.tasks(config)
        return [row for each in self.letters(task, config, names) for row in each.to_pylist()]

    def letters(
        self, task: Task, config: BatchConfig, names: tuple[str, ...]
    ) -> Iterator[pa.RecordBatch]:
        return read_with_letters(task, config, names, self.schema)

    def buried(self) -> list[Record]:
        return contents(self.zookeeper, [TopicPartition(self.dead, number) for number in (0, 1)])


def bad_value(number: int) -> bytes:
    return UNKNOWN + b"6" if number == 6 else b"no Avro %d" % number


GOOD = [number for number in range(COUNT) if number % 3]
BAD = [number for number in range(COUNT) if number % 3 == 0]


@pytest.fixture
def scene(shared_cluster: EmbeddedCluster) -> Scene:
    return Scene(shared_cluster)


def test_a_record_that_cannot_be_read_is_kept_with_where_it_was_and_why(scene: Scene) -> None:
    rows = scene.read(("number", "_offset"))
    assert [(row["number"], row["_offset"]) for row in rows] == [(each, each) for each in GOOD]
    found = {record.key: record for record in scene.buried()}
    assert found.keys() == {b"key %d" % number for number in BAD}
    letter = found[b"key 6"]
    assert letter.value == bad_value(6)
    headers = dict(letter.headers)
    assert headers.pop("dead-letter-error")
    assert headers == {
        "trace": b"6",
        "dead-letter-topic": scene.topic.encode(),
        "dead-letter-partition": b"0",
        "dead-letter-offset": b"6",
        "dead-letter-timestamp": b"1006",
        "dead-letter-schema-id": b"2147483647",
    }
    assert "dead-letter-schema-id" not in dict(found[b"key 9"].headers)
    assert letter.timestamp > 10**12  # retention counts from now on


def test_a_record_of_a_time_that_python_has_no_datetime_for_is_kept_as_others_are(
    scene: Scene,
) -> None:
    """Of an application that gives microseconds in place of milliseconds, say."""
    far = 1_000_000_000_000_000
    with Producer(zookeeper=scene.zookeeper) as producer:
        producer.send(scene.topic, b"no Avro", b"far", timestamp=far)
    assert [row["number"] for row in scene.read()] == GOOD
    (letter,) = [each for each in scene.buried() if each.key == b"far"]
    assert dict(letter.headers)["dead-letter-timestamp"] == b"%d" % far


@pytest.mark.parametrize("step", ["begin", "write", "end"])
@pytest.mark.parametrize("after", [False, True])
def test_a_task_that_dies_at_any_step_leaves_each_letter_when_it_runs_again(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, step: str, after: bool
) -> None:
    monkeypatch.setattr(
        "folkmoot.spark_apps.tasks.arrow.ROWS", 1
    )  # so that letters go in several parts
    whole: Callable[..., Any] = getattr(IdempotentBatchWriter, step)
    left = 2

    def dies(*given: Any, **named: Any) -> Any:
        nonlocal left
        left -= 1
        if not left and not after:
            raise Dead
        found = whole(*given, **named)
        if not left:
            raise Dead
        return found

    with monkeypatch.context() as patch:
        patch.setattr(IdempotentBatchWriter, step, dies)
        with pytest.raises(Dead):
            scene.read()
    assert [row["number"] for row in scene.read()] == GOOD
    assert {each.value for each in scene.buried()} == set(map(bad_value, BAD))


def test_no_row_is_handed_on_before_the_letters_in_front_of_it_are_acknowledged(
    scene: Scene,
) -> None:
    config = scene.config()
    (task,) = batch.tasks(config)
    rows = scene.letters(task, config, ("number",))
    next(rows)
    assert len(scene.buried()) == len(BAD)
    rows.close()  # type: ignore[attr-defined]


def test_letters_without_a_key_go_to_all_partitions(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("folkmoot.spark_apps.tasks.arrow.ROWS", 1)
    with Producer(zookeeper=scene.zookeeper) as producer:
        for _ in range(40):
            producer.send(scene.topic, b"no Avro")
            producer.flush()
    scene.read()
    without_key = [each.partition for each in scene.buried() if each.key is None]
    assert len(without_key) == 40
    assert set(without_key) == {0, 1}


def test_each_read_writes_them_once_more(scene: Scene) -> None:
    for _ in range(2):
        scene.read()
    assert len(scene.buried()) == 2 * len(BAD)


def test_a_topic_of_dead_letters_that_is_not_there_is_told_when_the_query_is_made(
    scene: Scene,
) -> None:
    with pytest.raises(UnknownTopicOrPartition, match="topic nowhere does not exist: create it"):
        check_dead_letters(scene.config(deadLetterTopic="nowhere"))
