"""A partition of one replica: led by its state and in leader epochs, as any other."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from folkmoot.brokers.storage.files.cluster_facts import PartitionFacts, save_facts
from folkmoot.brokers.storage.notes import load_notes
from folkmoot.brokers.storage.segment import headers_from
from folkmoot.coordination.partition_states import PartitionState, VersionedState
from folkmoot.protocol.errors import NotLeader, StorageError
from tests.brokers.hands import create
from tests.brokers.parts import fetch, out_of
from tests.brokers.replication.brokers import TOPIC_ID, Cluster, Node


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path, replicas=[1])
    yield made
    made.stop()


def isr(cluster: Cluster) -> tuple[int, ...]:
    return cluster.state.state.isr


def epoch(cluster: Cluster) -> int:
    return cluster.state.state.leader_epoch


def ends_at(node: Node) -> tuple[int, int]:
    return node.log.high_watermark, node.log.log_end


def restart(cluster: Cluster, number: int = 1) -> Node:
    cluster.kill(number)
    cluster.start(number)
    cluster.show()
    return cluster.nodes[number]


def lose_half(cluster: Cluster) -> None:
    """Of what was on the first broker's disk, while it is down."""
    (path,) = (cluster.directory / "1").glob("*/*.log")
    os.truncate(path, path.stat().st_size // 2)


def read_error(node: Node) -> list[int]:
    answer = node.ask(fetch(out_of(0, topic_id=TOPIC_ID, epoch=-1)))
    return [each.error for each in answer.results]


def test_what_comes_before_there_is_a_state_is_refused_for_now_and_taken_behind_it(
    tmp_path: Path,
) -> None:
    cluster = Cluster(tmp_path, replicas=[1])
    node = cluster.nodes[1]
    first = cluster.state
    cluster.state = VersionedState(PartitionState(-1, 0, (), 1), 0)
    restart(cluster)
    node = cluster.nodes[1]
    assert [each.error for each in node.produce(b"early")] == [NotLeader.code]
    assert read_error(node) == [NotLeader.code]
    assert node.log.log_end == 0, "its log is there, and nothing of the produce"
    cluster.state = VersionedState(first.state, 1)
    cluster.show()
    assert [each.error for each in node.produce(b"again")] == [0]
    cluster.stop()


def test_it_is_led_in_an_epoch_that_is_on_disk_and_commits_what_it_appends(
    cluster: Cluster,
) -> None:
    node = cluster.nodes[1]
    assert (epoch(cluster), isr(cluster)) == (1, (1,))
    assert [each.error for each in node.produce(b"a", b"b")] == [0]
    assert ends_at(node) == (2, 2)
    assert [header.leader_epoch for header in headers_from(node.log._readers(0), 0)] == [1]
    assert list(node.log.epoch_starts) == [(1, 0)]
    assert load_notes(cluster.directory / "1").leader_epochs == {f"{TOPIC_ID}-0": 1}


def test_a_restart_begins_the_next_epoch_with_all_that_was_there(cluster: Cluster) -> None:
    cluster.nodes[1].produce(b"a")
    node = restart(cluster)
    assert (epoch(cluster), ends_at(node)) == (2, (1, 1))
    node.produce(b"b")
    assert list(node.log.epoch_starts) == [(1, 0), (2, 1)]


@pytest.mark.parametrize("acks", [1, -1])
def test_where_its_topic_asks_for_the_disk_nothing_is_answered_or_read_before(
    tmp_path: Path, acks: int
) -> None:
    cluster = Cluster(tmp_path, {"durability": "fsync"}, replicas=[1])
    node = cluster.nodes[1]
    node.by_hand = True
    results = node.produce(b"a", acks=acks)
    node.hands.jobs[:] = [job for job in node.hands.jobs if job[0] != "index"]
    assert (results, ends_at(node)) == ([], (0, 1))
    node.hands.work_all()
    assert [each.error for each in results] == [0]
    assert ends_at(node) == (1, 1)
    cluster.stop()


def test_what_its_disk_has_lost_nobody_has_so_it_leads_says_so_and_gives_offsets_again(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    node = cluster.nodes[1]
    for number in range(8):
        node.produce(b"%d" % number)
    node.logs.close()
    lose_half(cluster)
    node = restart(cluster)
    assert epoch(cluster) == 2
    high_watermark, end = ends_at(node)
    assert 0 < end < 8
    assert high_watermark == end
    assert "lacks what this disk has lost" in caplog.text
    assert node.produce(b"again")[0].base_offset == end
    assert node.log.epoch_starts.latest == 2, "which tells who has read the lost ones"


def test_an_empty_disk_in_its_place_is_led_too(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.nodes[1].produce(b"a")
    cluster.kill(1)
    shutil.rmtree(cluster.directory / "1")
    cluster.start(1)
    cluster.show()
    node = cluster.nodes[1]
    assert (epoch(cluster), ends_at(node)) == (2, (0, 0))
    assert "lacks what this disk has lost" in caplog.text


def test_a_disk_that_says_it_is_alone_though_others_are_in_sync_does_not_lead(
    cluster: Cluster,
) -> None:
    """It was noted before the others came, and what has come with them since is not here."""
    node = cluster.nodes[1]
    for number in range(8):
        node.produce(b"%d" % number)
    alone = PartitionFacts.of(cluster.topic, 0)
    cluster.topic.partitions[0] = [1, 2]
    cluster.show()
    cluster.run()
    cluster.later(1.0)
    assert isr(cluster) == (1, 2)
    node.logs.close()
    save_facts(cluster.directory / "1" / f"{TOPIC_ID}-0", "t", alone)
    lose_half(cluster)
    cluster.kill(1)
    cluster.designate(1, 1, 2)
    cluster.start(1)
    cluster.show()
    assert isr(cluster) == (2,), "it has left, so that the other is designated"
    cluster.designate(2, 2)
    cluster.show()
    for _ in range(3):
        cluster.later(1.0)
        cluster.show()
    assert ends_at(cluster.nodes[1]) == ends_at(cluster.nodes[2]) == (8, 8)


def test_a_log_that_cannot_be_opened_says_why(cluster: Cluster) -> None:
    """Nobody else can ever lead: who asks is not to wait for another leader."""
    node = cluster.nodes[1]
    node.produce(b"a")
    create(node.logs, "other", "id-2", 0)
    node.logs.close()
    (path,) = (cluster.directory / "1" / f"{TOPIC_ID}-0").glob("*.log")
    path.rename(path.with_suffix(".kept"))
    path.mkdir()
    node = restart(cluster)
    cluster.later(1.0)
    assert [each.error for each in node.produce(b"b")] == [StorageError.code]
    assert read_error(node) == [StorageError.code]
