"""Rounds of rows on real brokers: what runs again adds what is missing, and a zombie adds nothing."""

from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest

from folkmoot.console.processes import EmbeddedCluster
from folkmoot.consumers.admin.admin import Admin
from folkmoot.protocol.errors import (
    OutOfOrderSequence,
    ProducerFenced,
    RowsChanged,
    UnknownTopicOrPartition,
)
from folkmoot.protocol.records import TopicPartition
from folkmoot.spark_apps.sink.rounds import RoundWriter, Rows
from tests.spark_apps.sink.topics import contents

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
        self.writers: list[RoundWriter] = []
        with Admin(zookeeper=zookeeper) as admin:
            admin.create_topic(self.topic, PARTITIONS)

    def writer(self, round_: int | None = None, *, named: bool = True) -> RoundWriter:
        writer = RoundWriter(self.zookeeper, client_id="spark", listener="client", named=named)
        self.writers.append(writer)
        if round_ is not None:
            writer.begin(self.name, round_)
        return writer

    def close(self, writer: RoundWriter) -> None:
        self.writers.remove(writer)
        writer.close()

    def read(self) -> list[int]:
        """The numbers of all that is there, partition by partition."""
        partitions = [TopicPartition(self.topic, number) for number in range(PARTITIONS)]
        return [int(record.value or b"") for record in contents(self.zookeeper, partitions)]


def whole_round(writer: RoundWriter, topic: str, given: Rows) -> None:
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


def test_rows_go_where_they_say_by_their_key_or_by_turns_that_do_not_change(scene: Scene) -> None:
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
    with pytest.raises(UnknownTopicOrPartition, match="has no partition 3, only 0 to 2"):
        again.write(
            scene.topic, Rows(values=pa.array([b"x"]), partitions=pa.array([3], pa.int32()))
        )
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
