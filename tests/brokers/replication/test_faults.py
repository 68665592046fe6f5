"""A fault of one partition stays with it: it is tried again once at a time, and the others go on."""

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from folkmoot.brokers.replication.partition import DISK_AGAIN_AFTER
from folkmoot.brokers.server.replica_fetches import TELL_WITHIN
from folkmoot.brokers.storage.log import Log
from folkmoot.brokers.storage.retention import Retention
from folkmoot.brokers.storage.segment import Segment
from folkmoot.protocol.errors import DiskFull, StorageError
from tests.brokers.replication.brokers import Cluster, Node


@pytest.fixture(autouse=True)
def silence() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path)
    yield made
    made.stop()


def timers(node: Node) -> int:
    return len(node.partitions.shared._timers)


def tell_of_deletions(cluster: Cluster) -> None:
    cluster.now += TELL_WITHIN
    cluster.run()


# -- tried again ----------------------------------------------------------------------------------------


def test_flushes_that_fail_are_tried_again_by_one_timer_and_answered_when_one_succeeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Cluster(tmp_path, {"durability": "fsync"})
    one = cluster.nodes[1]
    real, has_descriptors = Segment.descriptor_to_flush, False

    def descriptor(segment: Segment) -> int:
        if segment.directory == one.log.directory and not has_descriptors:
            raise StorageError("too many open files")
        return real(segment)

    monkeypatch.setattr(Segment, "descriptor_to_flush", descriptor)
    answers = []
    for _ in range(5):
        answers.append(one.produce(b"a"))
        cluster.run()
    assert timers(one) == 1
    cluster.later(DISK_AGAIN_AFTER)
    assert (timers(one), answers) == (1, [[]] * 5)
    has_descriptors = True
    cluster.later(DISK_AGAIN_AFTER)
    assert (timers(one), [each[0].error for each in answers]) == (0, [0] * 5)
    cluster.stop()


def test_a_deletion_that_fails_is_tried_again_by_one_timer_however_often_the_leader_answers(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, three = cluster.nodes[1], cluster.nodes[3]
    for _ in range(4):
        one.produce(b"a")
        cluster.run()
    real, tried, is_full = Retention.give_up_before, list[int](), True

    async def give_up_before(retention: Retention, log: Log, offset: int) -> None:
        if log is three.log:
            tried.append(offset)
            if is_full:
                raise DiskFull("no room")
        await real(retention, log, offset)

    monkeypatch.setattr(Retention, "give_up_before", give_up_before)
    one.delete_records(2)
    tell_of_deletions(cluster)
    one.delete_records(3)
    for _ in range(5):
        one.produce(b"a")
        cluster.run()
    assert (tried, timers(three)) == ([2], 1)
    cluster.later(DISK_AGAIN_AFTER)
    assert (tried, timers(three)) == ([2, 3], 1)
    is_full = False
    cluster.later(DISK_AGAIN_AFTER)
    assert (tried, timers(three), three.log.log_start) == ([2, 3, 3], 0, 3)


def test_one_operation_deletes_what_a_leader_has_deleted_until_it_has_ended(
    tmp_path: Path,
) -> None:
    cluster = Cluster(tmp_path, {"durability": "page-cache"})
    one, three = cluster.nodes[1], cluster.nodes[3]
    for _ in range(4):
        one.produce(b"a")
        cluster.run()
    three.by_hand = True
    for start in (2, 3):
        one.delete_records(start)
        tell_of_deletions(cluster)
        for _ in range(3):
            one.produce(b"a")
            cluster.run()
    assert len(three.log.queue._waiting) == 0, "the one that runs takes the last start"
    three.by_hand = False
    three.hands.work_all()
    assert (three.log.log_start, three.log.queue.is_idle) == (3, True)
    cluster.stop()
