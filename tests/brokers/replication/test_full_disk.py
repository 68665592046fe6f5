"""Brokers whose replicas have filled their disks evenly: they start, serve, and records can be deleted."""

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from folkmoot.brokers.storage.disk_room import QUIET
from folkmoot.protocol.errors import DiskFull
from tests.brokers.batches import read_all
from tests.brokers.full_disk import FILL, mounted
from tests.brokers.replication.brokers import REPLICAS, Cluster

RECORDS = 40


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with mounted(tmp_path / "disk", "size=4m,nr_inodes=1000") as disk:
        yield disk


@pytest.mark.parametrize("stop", ["in order", "by a kill"])
@pytest.mark.parametrize("lacking", FILL)
@pytest.mark.parametrize("is_cut", [False, True], ids=["", "a log is cut"])
def test_brokers_that_were_stopped_start_on_full_disks_and_lead_and_delete_records(
    small_disk: Path, stop: str, lacking: str, is_cut: bool
) -> None:
    cluster = Cluster(small_disk, {"min_in_sync": "2"})
    leader = cluster.nodes[1]
    for number in range(RECORDS):
        acked = leader.produce(b"%d" % number * 400)
        cluster.run()
        assert acked[0].error == 0
    if is_cut:  # a record on the old leader's disk alone, and noted as being there
        cluster.cut.update((other, 1) for other in (2, 3))
        leader.produce(b"alone", acks=1)
        leader.handlers.flusher.flush(leader.log)
        leader.handlers.flusher.note()
    for node in cluster.nodes.values():
        node.logs.close() if stop == "in order" else node.logs.abandon()
    cluster.cut.clear()
    FILL[lacking](small_disk)

    for number in REPLICAS:
        cluster.start(number)
    cluster.designate(2, *REPLICAS)
    for _ in range(8):
        cluster.show()
        cluster.later(1.0)
    leader = cluster.nodes[2]
    assert leader.replica.leader is not None
    assert leader.log.high_watermark == RECORDS
    assert sorted(cluster.state.state.isr) == [1, 2, 3]
    assert [offset for offset, _ in read_all(leader.log)] == list(range(RECORDS))
    FILL[lacking](small_disk)  # again: what was cut has left some
    if lacking == "blocks":
        refused = leader.produce(b"x" * 3000)
        assert refused[0].error == DiskFull.code
    deleted = leader.delete_records(30)
    for _ in range(4):
        cluster.later(1.0)
    assert deleted[0].error == 0
    for node in cluster.nodes.values():
        assert node.log.log_start == 30
    acked = leader.produce(b"goes on" * 100)
    cluster.later(1.0)
    assert acked[0].error == 0
    cluster.stop()


@pytest.mark.parametrize("lacking", FILL)
def test_a_full_disk_is_one_line_in_the_log_and_one_when_there_is_room_again(
    small_disk: Path, lacking: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever meets it, and however often: producers, followers, flushes, deletions, new partitions."""
    caplog.set_level(logging.WARNING)

    def go_on(seconds: int) -> None:
        for _ in range(seconds):
            cluster.later(1.0)
            for node in cluster.nodes.values():
                node.handlers.flusher.task(node.now)
                node.logs.room.task(node.now)

    cluster = Cluster(small_disk, {"min_in_sync": "2"})
    leader = cluster.nodes[1]
    leader.produce(b"before")
    go_on(2)
    for episode in range(3):
        caplog.clear()
        FILL[lacking](small_disk)
        for number in range(40):
            leader.produce(b"%d" % number * 900)
            leader.produce(b"%d" % number * 10, acks=1)
            go_on(1)
            if number % 10 == 0:
                leader.delete_records(leader.log.high_watermark)
                leader.partitions.creation.when_created("u", f"{episode}", number, lambda _: None)
                FILL[lacking](small_disk)
        lines = [each.getMessage() for each in caplog.records]
        assert [line for line in lines if "the disk is full" not in line] == []
        directories = [line.partition(":")[0] for line in lines]
        assert f"{leader.logs.data}" in directories
        assert len(set(directories)) == len(directories)
        caplog.clear()
        for path in small_disk.iterdir():
            if path.is_file():
                path.unlink()
        go_on(2 * int(QUIET))
        lines = [each.getMessage() for each in caplog.records]
        assert [line for line in lines if "has room again" not in line] == []
        assert f"{leader.logs.data}: the disk has room again" in lines
        acked = leader.produce(b"goes on")
        go_on(2)
        assert acked[0].error == 0
    cluster.stop()
