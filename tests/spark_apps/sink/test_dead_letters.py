"""Dead letters on real brokers: what they say, and that each is there once, whoever dies in between."""

import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest

from folkmoot.admin.admin import Admin
from folkmoot.console.running.processes import EmbeddedCluster
from folkmoot.producers.producer import Producer
from folkmoot.protocol.errors import ProducerFenced, UnknownTopicOrPartition
from folkmoot.protocol.records import Record, TopicPartition
from folkmoot.schemas.columns.deserializer import BadRow
from folkmoot.schemas.columns.serializer import ColumnEncoder
from folkmoot.schemas.registry.schema_registry import SchemaRegistry
from folkmoot.spark_apps import batch
from folkmoot.spark_apps.config import BatchConfig
from folkmoot.spark_apps.planning import Task
from folkmoot.spark_apps.sink import dead_letters
from folkmoot.spark_apps.sink.batch_of_query import BatchOfQuery
from folkmoot.spark_apps.sink.dead_letters import read_with_letters
from folkmoot.spark_apps.sink.rounds import RoundWriter
from folkmoot.spark_apps.typed import decoding
from folkmoot.spark_apps.typed.decoding import KnownSchema
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
    """A topic of which every third record cannot be read, one for dead letters, and a query's name."""

    def __init__(self, cluster: EmbeddedCluster) -> None:
        self.zookeeper = cluster.zookeeper
        self.topic = f"letters-{uuid4().hex[:8]}"
        self.dead = f"{self.topic}-dead"
        self.batch: BatchOfQuery | None = BatchOfQuery(str(uuid4()), 0)
        with Admin(zookeeper=self.zookeeper) as admin:
            admin.create_topic(self.topic, 1)
            admin.create_topic(self.dead, 2)
        with SchemaRegistry(self.zookeeper) as registry:
            self.schema = KnownSchema(TEXT, registry.register(self.topic, TEXT).id)
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
        return read_with_letters(0, task, config, names, self.schema)

    def buried(self) -> list[Record]:
        return contents(self.zookeeper, [TopicPartition(self.dead, number) for number in (0, 1)])


def bad_value(number: int) -> bytes:
    return UNKNOWN + b"6" if number == 6 else b"no Avro %d" % number


GOOD = [number for number in range(COUNT) if number % 3]
BAD = [number for number in range(COUNT) if number % 3 == 0]


@pytest.fixture
def scene(shared_cluster: EmbeddedCluster, monkeypatch: pytest.MonkeyPatch) -> Scene:
    made = Scene(shared_cluster)
    monkeypatch.setattr(dead_letters, "batch_of_query", lambda: made.batch)
    return made


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


def test_a_batch_that_runs_again_adds_nothing_and_the_next_one_its_own(scene: Scene) -> None:
    for _ in range(3):
        assert [row["number"] for row in scene.read()] == GOOD
    assert len(scene.buried()) == len(BAD)
    assert scene.batch is not None
    scene.batch = scene.batch._replace(number=5)
    scene.read()
    assert len(scene.buried()) == 2 * len(BAD)


STEPS: list[tuple[str, bool]] = [
    (step, after)
    for step in ("begin", "write", "flush", "_ask", "_described")
    for after in (False, True)
]


@pytest.mark.parametrize(("step", "after"), STEPS)
def test_a_task_that_dies_at_any_step_leaves_each_letter_once_when_it_runs_again(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, step: str, after: bool
) -> None:
    monkeypatch.setattr("folkmoot.spark_apps.arrow.ROWS", 1)  # so that letters go in several parts
    whole: Callable[..., Any] = getattr(RoundWriter, step)
    for times in (1, 2):
        left = [times]

        def dies(*given: Any, left: list[int] = left, **named: Any) -> Any:
            left[0] -= 1
            if not left[0] and not after:
                raise Dead
            found = whole(*given, **named)
            if not left[0]:
                raise Dead
            return found

        with monkeypatch.context() as patch:
            patch.setattr(RoundWriter, step, dies)
            with pytest.raises(Dead) if times == 1 else suppress(Dead):
                scene.read()
    assert [row["number"] for row in scene.read()] == GOOD
    assert Counter(each.value for each in scene.buried()) == Counter(map(bad_value, BAD))


def test_no_row_is_handed_on_before_the_letters_in_front_of_it_are_acknowledged(
    scene: Scene,
) -> None:
    config = scene.config()
    (task,) = batch.tasks(config)
    rows = scene.letters(task, config, ("number",))
    next(rows)
    assert len(scene.buried()) == len(BAD)
    rows.close()  # type: ignore[attr-defined]


def test_the_same_task_twice_at_a_time_writes_each_letter_once(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("folkmoot.spark_apps.arrow.ROWS", 1)
    config = scene.config()
    (task,) = batch.tasks(config)
    one = scene.letters(task, config, ("number",))
    found = next(one).to_pylist()
    assert 0 < len(scene.buried()) < len(BAD)
    assert [row["number"] for row in scene.read()] == GOOD  # which fences the first one
    found += [row for each in one for row in each.to_pylist()]
    assert [row["number"] for row in found] == GOOD
    assert len(scene.buried()) == len(BAD)


def test_two_sources_of_a_query_that_share_a_group_lose_no_letter(scene: Scene) -> None:
    """Their tasks have the same names, and other records: one of few letters must not take those of the
    other one for its own."""
    config = scene.config()
    (task,) = batch.tasks(config)
    (whole,) = task
    for part in (whole._replace(end=25), whole._replace(first=25)):
        rows = [
            row for each in scene.letters((part,), config, ("number",)) for row in each.to_pylist()
        ]
        assert [row["number"] for row in rows] == [
            each for each in GOOD if part.first <= each < part.end
        ]
    assert {each.value for each in scene.buried()} == set(map(bad_value, BAD))


def test_a_value_that_can_be_read_when_its_batch_runs_again_is_a_row_by_then(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.read()
    with monkeypatch.context() as patch:
        patch.setattr(dead_letters, "letters", None)
        patch.setattr(
            "folkmoot.spark_apps.typed.decoding._decoded", lambda values, _: all_read(values)
        )
        assert len(scene.read()) == COUNT
    assert len(scene.buried()) == len(BAD)


@pytest.mark.parametrize("is_lost", [False, True])
def test_a_task_that_begins_again_hands_each_row_on_once_whatever_can_be_read_by_then(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, is_lost: bool
) -> None:
    """A schema that was missing is there at the second attempt, or one that was there is lost."""
    monkeypatch.setattr("folkmoot.spark_apps.arrow.ROWS", 1)
    decoded, write = decoding._decoded, RoundWriter.write

    def otherwise(values: Any, decode: Any) -> tuple[pa.RecordBatch, list[BadRow]]:
        """The first five values are all bad, or all good."""
        fields, bad = decoded(values, decode)
        if values[0].as_py() == bad_value(0):
            bad = [BadRow(row, None, "no") for row in range(len(values))] if is_lost else []
        return fields, bad

    def fenced(writer: RoundWriter, topic: str, rows: Any) -> None:
        if scene.buried():
            monkeypatch.setattr(RoundWriter, "write", write)
            monkeypatch.setattr(decoding, "_decoded", otherwise)
            raise ProducerFenced("another attempt has begun")
        write(writer, topic, rows)

    monkeypatch.setattr(RoundWriter, "write", fenced)
    offsets = [row["_offset"] for row in scene.read(("_offset",))]
    letters = {int(dict(each.headers)["dead-letter-offset"] or b"") for each in scene.buried()}
    assert offsets == sorted(set(offsets))
    assert letters | set(offsets) == set(range(COUNT))


def all_read(values: Any) -> tuple[pa.RecordBatch, list[Any]]:
    return pa.record_batch({"number": pa.array(range(len(values)))}), []


def test_a_batch_read_writes_them_each_time(scene: Scene) -> None:
    scene.batch = None
    for _ in range(2):
        scene.read()
    assert len(scene.buried()) == 2 * len(BAD)


def test_a_topic_of_dead_letters_that_is_not_there_is_told_when_the_query_is_made(
    scene: Scene,
) -> None:
    with pytest.raises(UnknownTopicOrPartition, match="topic nowhere does not exist: create it"):
        check_dead_letters(scene.config(deadLetterTopic="nowhere"))
