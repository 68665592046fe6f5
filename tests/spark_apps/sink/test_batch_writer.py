"""Rounds of rows on real brokers: what runs again adds what is missing, and a zombie adds nothing."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any
from unittest.mock import Mock
from uuid import uuid4

import msgspec
import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, StructType

from folkmoot.admin.admin import Admin
from folkmoot.console.running.processes import EmbeddedCluster
from folkmoot.coordination.zookeeper.session import SessionState
from folkmoot.producers import producer
from folkmoot.protocol.compression import Codec
from folkmoot.protocol.errors import (
    MissingExtra,
    OutOfOrderSequence,
    ProducerFenced,
    RowsChanged,
    StaleTopicId,
    UnknownTopicOrPartition,
)
from folkmoot.protocol.records import TopicPartition
from folkmoot.spark_apps.options.config import SinkConfig
from folkmoot.spark_apps.sink import attempt, batch_writer, written_rows
from folkmoot.spark_apps.sink import writer as writer_module
from folkmoot.spark_apps.sink.batch_of_query import BatchOfQuery
from folkmoot.spark_apps.sink.batch_writer import IdempotentBatchWriter
from folkmoot.spark_apps.sink.rows import Rows
from folkmoot.spark_apps.sink.writer import FolkmootStreamWriter, _TaskEnded
from folkmoot.spark_apps.tasks import worker_process
from folkmoot.spark_apps.tasks.worker_process import CACHED
from tests.memory_zookeeper import MemorySession, MemoryZooKeeper
from tests.spark_apps.sink.topics import await_partitions, contents

PARTITIONS = 3


def rows(first: int, end: int, **more: Any) -> Rows:
    keys = pa.array([b"key %d" % (number % 7) for number in range(first, end)])
    values = pa.array([b"%d" % number for number in range(first, end)])
    return Rows(**{"values": values, "keys": keys, **more})


class Scene:
    """A topic of its own, a name of its own, and writers that come and go."""

    def __init__(self, zookeeper: str) -> None:
        self.zookeeper = zookeeper
        self.topic = f"rounds-{uuid4().hex[:8]}"
        self.name = f"spark/{uuid4()}/0"
        self.writers: list[IdempotentBatchWriter] = []
        with Admin(zookeeper=zookeeper) as admin:
            admin.create_topic(self.topic, PARTITIONS)

    def writer(self, round_: int | None = None, *, named: bool = True) -> IdempotentBatchWriter:
        writer = IdempotentBatchWriter(
            self.zookeeper, client_id="spark", listener="client", named=named
        )
        self.writers.append(writer)
        if round_ is not None:
            writer.begin(self.name, round_)
        return writer

    def close(self, writer: IdempotentBatchWriter) -> None:
        self.writers.remove(writer)
        writer.close()

    def await_partitions(self, count: int) -> None:
        await_partitions(self.zookeeper, self.topic, count)

    def read(self, count: int = PARTITIONS) -> list[int]:
        """The numbers of all that is there, partition by partition."""
        partitions = [TopicPartition(self.topic, number) for number in range(count)]
        return [int(record.value or b"") for record in contents(self.zookeeper, partitions)]


def whole_round(writer: IdempotentBatchWriter, topic: str, given: Rows) -> None:
    writer.write(topic, given)
    writer.end()


@pytest.fixture
def scene(shared_cluster: EmbeddedCluster) -> Iterator[Scene]:
    made = Scene(shared_cluster.zookeeper)
    yield made
    for writer in made.writers:
        writer.close()


def test_rounds_that_follow_each_other_write_each_row_once(scene: Scene) -> None:
    writer = scene.writer()
    for number in range(3):
        writer.begin(scene.name, number)
        writer.write(scene.topic, rows(100 * number, 100 * number + 60))
        writer.write(scene.topic, rows(100 * number + 60, 100 * number + 100))
        writer.end()
    assert sorted(scene.read()) == list(range(300))


def test_a_writer_that_cannot_begin_leaves_no_session_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sessions: list[MemorySession] = []
    ensemble = MemoryZooKeeper()

    def connect(session_timeout: float) -> MemorySession:
        sessions.append(ensemble.connect(session_timeout))
        return sessions[-1]

    def missing(codec: Codec) -> None:
        raise MissingExtra("the codec's library is not installed")

    monkeypatch.setattr(producer, "require", missing)
    with pytest.raises(MissingExtra):
        IdempotentBatchWriter(connect, client_id="spark", listener="client", named=True)
    assert [each.state for each in sessions] == [SessionState.LOST]


def test_a_round_that_was_written_in_part_is_completed_by_whoever_runs_it_again(
    scene: Scene,
) -> None:
    dying = scene.writer(0)
    dying.write(scene.topic, rows(0, 250))
    dying.end()
    scene.close(dying)
    again = scene.writer(0)
    # The same rows, cut otherwise.
    for first in range(0, 400, 40):
        again.write(scene.topic, rows(first, first + 40))
    again.end()
    found = scene.read()
    assert sorted(found) == list(range(400))
    again.begin(scene.name, 0)
    again.write(scene.topic, rows(0, 400))
    again.end()
    assert scene.read() == found
    again.begin(scene.name, 1)
    again.write(scene.topic, rows(400, 410))
    again.end()
    assert sorted(scene.read()) == list(range(410))


def test_a_zombie_adds_nothing_once_another_has_taken_over(scene: Scene) -> None:
    zombie = scene.writer(0)
    zombie.write(scene.topic, rows(0, 100))
    zombie.end()
    heir = scene.writer(0)
    heir.write(scene.topic, rows(0, 200))
    heir.end()
    zombie.write(scene.topic, rows(100, 200))
    with pytest.raises((ProducerFenced, OutOfOrderSequence)):
        zombie.end()
    with pytest.raises(ProducerFenced):
        zombie.begin(scene.name, -1)
    assert sorted(scene.read()) == list(range(200))


def test_rows_in_another_order_are_told_and_then_written_all(scene: Scene) -> None:
    dying = scene.writer(0)
    dying.write(scene.topic, rows(0, 100))
    dying.end()
    again = scene.writer(0)
    with pytest.raises(RowsChanged, match=f"other rows for topic {scene.topic}"):
        whole_round(again, scene.topic, rows(1, 101))
    scene.close(again)
    last = scene.writer(0)
    last.write(scene.topic, rows(1, 101))
    last.end()
    found = scene.read()
    assert set(found) == set(range(101))
    assert len(found) >= 200


def test_fewer_rows_than_were_written_are_other_rows(scene: Scene) -> None:
    dying = scene.writer(0)
    dying.write(scene.topic, rows(0, 100))
    dying.end()
    again = scene.writer(0)
    again.write(scene.topic, rows(0, 50))
    with pytest.raises(RowsChanged):
        again.end()


def ended(scene: Scene, tasks: Sequence[int], run: str = "") -> None:
    """As the driver does when all tasks of a batch have ended, these of which had rows."""
    query = scene.name.split("/")[1]
    config = SinkConfig.of({"zookeeper": scene.zookeeper, "topic": scene.topic})
    writer = FolkmootStreamWriter(config, StructType().add("value", BinaryType()), False)
    batch = BatchOfQuery(query, 1, run)
    messages = [_TaskEnded(batch, task) for task in tasks] + [_TaskEnded(batch, None)]
    writer.commit(messages, batch.number)


@pytest.mark.parametrize("tasks", [(0,), (0, 1)], ids=["one task", "two tasks"])
def test_tasks_of_an_attempt_before_that_are_no_more_are_told_once(
    scene: Scene, tasks: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, parts = scene.name.removesuffix("0"), [(0, 20), (20, 40), (40, 60), (60, 80)]

    def write(task: int, first: int, end: int, round_: int = 1) -> None:
        writer = scene.writer()
        writer.begin(f"{whole}{task}", round_)
        whole_round(writer, scene.topic, rows(first, end))
        scene.close(writer)

    write(7, 95, 96, round_=0)  # a task of another batch
    write(0, 90, 91, round_=0)
    for task, part in enumerate(parts):
        write(task, *part)
    # The process dies here. What runs again has other tasks, of which the first rows fit.
    again = [(0, 80)] if len(tasks) == 1 else [(0, 20), (20, 80)]
    for task, part in zip(tasks, again, strict=True):
        write(task, *part)
    with monkeypatch.context() as patch:
        patch.setattr(attempt, "forget_starts", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):  # the process dies before it is put right
            ended(scene, tasks)
    with pytest.raises(RowsChanged, match=r"/2, .*/3"):
        ended(scene, tasks)
    for _ in range(2):
        for task, part in zip(tasks, again, strict=True):
            write(task, *part)
        ended(scene, tasks)
    found = Counter(scene.read())
    assert {number for number in range(80) if found[number] == 2} == set(
        range(again[-1][0] + 20, 80)
    )
    assert max(found.values()) == 2


def test_only_the_first_batch_of_a_run_is_looked_at(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(writer_module, "check_tasks", lambda *given: asked.append(given))
    for run in ("a", "a", "b", "", ""):
        ended(scene, (0,), run)
    assert len(asked) == 4


def test_a_partition_that_is_added_between_attempts_takes_the_rows_that_name_it(
    scene: Scene,
) -> None:
    dying = scene.writer(0)
    dying.write(scene.topic, rows(0, 100))
    dying.end()
    named = Rows(values=pa.array([b"100"]), partitions=pa.array([4], pa.int32()))
    with pytest.raises(UnknownTopicOrPartition, match="has no partition 4, only 0 to 2"):
        dying.write(scene.topic, named)
    scene.close(dying)
    with Admin(zookeeper=scene.zookeeper) as admin:
        admin.add_partitions(scene.topic, 5)
    scene.await_partitions(5)
    for _ in range(2):
        again = scene.writer(0)
        again.write(scene.topic, rows(0, 100))
        whole_round(again, scene.topic, named)
        assert sorted(scene.read(5)) == list(range(101))
        scene.close(again)


def test_a_topic_that_is_created_anew_between_attempts_gets_all_rows_once(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_writer, "PATIENCE", 30.0)
    dying = scene.writer(0)
    whole_round(dying, scene.topic, rows(0, 100))
    scene.close(dying)
    with Admin(zookeeper=scene.zookeeper) as admin:
        admin.delete_topic(scene.topic)
        admin.create_topic(scene.topic, 1)
    scene.await_partitions(1)
    for _ in range(2):
        again = scene.writer(0)
        whole_round(again, scene.topic, rows(0, 100))
        assert sorted(scene.read(1)) == list(range(100))
        scene.close(again)


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("count", [1, 3, 5])
def test_a_writer_that_is_kept_goes_on_in_a_topic_that_was_created_anew(
    scene: Scene, named: bool, count: int
) -> None:
    writer, name = scene.writer(named=named), scene.name if named else ""
    writer.begin(name, 0)
    whole_round(writer, scene.topic, rows(0, 100))
    with Admin(zookeeper=scene.zookeeper) as admin:
        admin.delete_topic(scene.topic)
        admin.create_topic(scene.topic, count)
    scene.await_partitions(count)
    for number in (1, 2):
        writer.begin(name, number)
        whole_round(writer, scene.topic, rows(100 * number, 100 * number + 100))
    assert sorted(scene.read(count)) == list(range(100, 300))


def test_rows_of_another_topic_follow_those_before_when_a_topic_was_created_anew(
    scene: Scene,
) -> None:
    other = Scene(scene.zookeeper)
    writer = scene.writer(0)
    for topic in (scene.topic, other.topic):
        whole_round(writer, topic, rows(0, 100))
    with Admin(zookeeper=scene.zookeeper) as admin:
        admin.delete_topic(other.topic)
        admin.create_topic(other.topic, 1)
    other.await_partitions(1)
    writer.begin(scene.name, 1)
    writer.write(scene.topic, rows(100, 200))
    writer.write(other.topic, rows(100, 200))
    whole_round(writer, scene.topic, rows(200, 300))
    assert sorted(scene.read()) == list(range(300))
    assert sorted(other.read(1)) == list(range(100, 200))


@pytest.mark.parametrize("named", [True, False])
def test_a_writer_that_is_kept_finds_partitions_that_were_added(scene: Scene, named: bool) -> None:
    writer, name = scene.writer(named=named), scene.name if named else ""
    writer.begin(name, 0)
    whole_round(writer, scene.topic, rows(0, 100))
    with Admin(zookeeper=scene.zookeeper) as admin:
        admin.add_partitions(scene.topic, 5)
    scene.await_partitions(5)
    writer.begin(name, 1)
    row = Rows(values=pa.array([b"100"]), partitions=pa.array([4], pa.int32()))
    whole_round(writer, scene.topic, row)
    assert sorted(scene.read(5)) == list(range(101))


@pytest.mark.parametrize("named", [True, False])
def test_a_partition_that_was_added_within_a_round_takes_the_rows_that_name_it(
    scene: Scene, named: bool
) -> None:
    other = Scene(scene.zookeeper)
    for runs in (1, 2):
        writer = scene.writer(named=named)
        writer.begin(scene.name if named else "", 1)
        writer.write(other.topic, rows(0, 100))
        writer.write(scene.topic, rows(0, 100))
        if runs == 1:
            with Admin(zookeeper=scene.zookeeper) as admin:
                admin.add_partitions(scene.topic, 5)
            scene.await_partitions(5)
        writer.write(scene.topic, rows(100, 200, partitions=pa.array([4] * 100, pa.int32())))
        writer.write(scene.topic, rows(200, 300))
        whole_round(writer, other.topic, rows(100, 200))
        scene.close(writer)
        times = 1 if named else runs
        assert sorted(scene.read(5)) == sorted([*range(300)] * times)
        assert sorted(other.read()) == sorted([*range(200)] * times)


def test_a_broker_that_tells_of_the_topic_before_costs_no_task(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    describe, late = written_rows.describe_producer, [StaleTopicId("created anew")]

    def described(*asked: Any) -> list[Any]:
        if late:
            raise late.pop()
        return describe(*asked)

    monkeypatch.setattr(written_rows, "describe_producer", described)
    whole_round(scene.writer(0), scene.topic, rows(0, 100))
    assert sorted(scene.read()) == list(range(100))


def test_a_log_that_ends_before_the_round_began_is_written_anew_without_waiting(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = scene.writer(0)
    whole_round(writer, scene.topic, rows(0, 100))
    writer.begin(scene.name, 1)
    whole_round(writer, scene.topic, rows(100, 110))
    describe = written_rows.describe_producer

    def cut(*asked: Any) -> list[Any]:
        """As after an election of a leader that was not in sync."""
        return [
            msgspec.structs.replace(each, next_sequence=5, log_end=5) for each in describe(*asked)
        ]

    writer.begin(scene.name, 1)
    with monkeypatch.context() as patch:
        patch.setattr(written_rows, "describe_producer", cut)
        patch.setattr(written_rows, "read_batches", None)
        with pytest.raises(RowsChanged):
            writer.write(scene.topic, rows(100, 110))
    scene.close(writer)
    whole_round(scene.writer(1), scene.topic, rows(100, 110))
    assert set(scene.read()) == set(range(110))


def test_rows_of_the_round_before_are_not_taken_for_equal_ones_of_this_round(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = scene.writer(0)
    whole_round(writer, scene.topic, rows(0, 100))
    describe = written_rows.describe_producer

    def late(*asked: Any) -> list[Any]:
        """As a leader tells that was replaced before the round, and has not heard of it."""
        nothing = {"producer_epoch": -1, "next_sequence": 0, "log_end": 0}
        return [msgspec.structs.replace(each, **nothing) for each in describe(*asked)]

    writer.begin(scene.name, 1)
    with monkeypatch.context() as patch:
        patch.setattr(written_rows, "describe_producer", late)
        with pytest.raises(OutOfOrderSequence):
            whole_round(writer, scene.topic, rows(0, 100))
    scene.close(writer)
    again = scene.writer(1)
    with pytest.raises(RowsChanged):
        whole_round(again, scene.topic, rows(0, 100))
    scene.close(again)
    whole_round(scene.writer(1), scene.topic, rows(0, 100))
    assert Counter(scene.read()) == Counter([*range(100)] * 2)


def test_a_process_that_writes_with_ever_other_options_keeps_few_writers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    writers: list[Any] = []

    def made(*_: Any, **__: Any) -> Any:
        writers.append(Mock())
        return writers[-1]

    monkeypatch.setattr(batch_writer, "IdempotentBatchWriter", made)
    monkeypatch.setattr(worker_process, "_idle", {})
    row = pa.RecordBatch.from_pydict({"value": [b"x"]})
    for _ in range(2):
        for number in range(3 * CACHED):
            config = SinkConfig.of({"zookeeper": f"nowhere:{number}", "topic": "t"})
            writer_module._write(config, None, iter([row]), None)
    open_ = [each for each in writers if not each.close.called]
    assert len(open_) == CACHED


def test_rows_go_where_they_say_by_their_key_or_by_turns_that_do_not_change(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = pa.array([b"%d" % number for number in range(10_000)])
    writer = scene.writer(0)
    given = pa.array([0, 1, 2, None] * 2500, pa.int32())
    writer.write(scene.topic, Rows(values=values, partitions=given))
    writer.end()
    scene.close(writer)
    again = scene.writer(0)
    again.write(scene.topic, Rows(values=values, partitions=given))
    again.end()
    assert sorted(scene.read()) == list(range(10_000))
    again.begin(scene.name, 1)
    for wrong in (3, -1):
        one = Rows(values=pa.array([b"x"]), partitions=pa.array([wrong], pa.int32()))
        with pytest.raises(UnknownTopicOrPartition, match=f"has no partition {wrong}, only 0 to 2"):
            again.write(scene.topic, one)
    monkeypatch.setattr(batch_writer, "TOPIC_PATIENCE", 0.3)
    with pytest.raises(UnknownTopicOrPartition, match="no-such-topic does not exist"):
        again.write("no-such-topic", rows(0, 1))


def test_without_a_name_rows_are_written_and_nothing_is_kept(scene: Scene) -> None:
    for _ in range(2):
        writer = scene.writer(named=False)
        writer.begin()
        writer.write(scene.topic, rows(0, 10, headers=[[("a", b"b")]] * 10))
        writer.end()
    assert sorted(scene.read()) == sorted([*range(10), *range(10)])


def test_a_leader_that_is_killed_within_a_round_costs_no_row(
    start_cluster: Any,
) -> None:
    cluster = start_cluster(brokers=3)
    scene = Scene(cluster.zookeeper)
    with Admin(zookeeper=cluster.zookeeper) as admin:
        scene.topic = "replicated"
        admin.create_topic(scene.topic, PARTITIONS, replicas=3)
    writer = scene.writer(0)
    writer.write(scene.topic, rows(0, 1000))
    cluster.brokers[0].kill()
    writer.write(scene.topic, rows(1000, 2000))
    writer.end()
    heir = scene.writer(0)
    heir.write(scene.topic, rows(0, 2000))
    heir.end()
    assert sorted(scene.read()) == list(range(2000))
    for each in scene.writers:
        each.close()
