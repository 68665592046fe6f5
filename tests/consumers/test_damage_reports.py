"""A batch that rots in a running broker: its reader reports it, and the broker serves it no more."""

import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from folkmoot.admin.admin import Admin
from folkmoot.brokers.storage.files.cluster_facts import topic_in
from folkmoot.console.running.processes import EmbeddedCluster
from folkmoot.protocol import batch_header
from folkmoot.protocol.errors import CorruptBatch
from tests.consumers.parts import Bench, take
from tests.waiting import eventually


def rot(log: Path, number: int) -> None:
    """Flip a bit in the body of one of the batches."""
    data = log.read_bytes()
    headers = [header for header, _ in batch_header.split(data)]
    position = sum(header.length for header in headers[: number + 1]) - 1
    with log.open("r+b") as file:
        file.seek(position)
        file.write(bytes([data[position] ^ 1]))


def error_of(bench: Bench, offset: int) -> str:
    """What a new reader that begins there is told."""
    with bench.reader() as consumer:
        consumer.seek(bench.partition(0), offset)
        with pytest.raises(CorruptBatch) as caught:
            take(consumer, 1)
    return str(caught.value)


def test_a_reader_that_finds_a_bad_batch_has_it_taken_out_of_service(
    start_cluster: Callable[..., EmbeddedCluster], bench_on: Callable[[str], Bench]
) -> None:
    cluster = start_cluster()
    bench = bench_on(cluster.zookeeper)
    for number in range(5):
        bench.send([number])
    data = cluster.brokers[0].data
    (log,) = (each for each in data.glob("*-0/*.log") if topic_in(each.parent) == bench.topic)
    rot(log, 2)
    assert "does not match its checksum" in error_of(bench, 2)
    eventually(lambda: "go on at" in error_of(bench, 2), 20.0)
    found = re.search(r"go on at (\d+)", error_of(bench, 2))
    assert found is not None
    with bench.reader() as consumer:
        consumer.seek(bench.partition(0), int(found[1]))
        assert take(consumer, 2) == [3, 4]
        consumer.seek(bench.partition(0), 0)
        assert take(consumer, 2) == [0, 1]


def test_a_group_that_is_stuck_at_a_bad_batch_is_described_without_waiting_for_it(
    start_cluster: Callable[..., EmbeddedCluster], bench_on: Callable[[str], Bench]
) -> None:
    cluster = start_cluster()
    bench = bench_on(cluster.zookeeper)
    for number in range(3):
        bench.send([number])
    with bench.member() as consumer:
        assert take(consumer, 2) == [0, 1]
    data = cluster.brokers[0].data
    (log,) = (each for each in data.glob("*-0/*.log") if topic_in(each.parent) == bench.topic)
    rot(log, 2)
    with Admin(zookeeper=bench.zookeeper) as admin:
        began = time.monotonic()
        (stuck, *_) = admin.describe_group(bench.group, timeout=90.0).partitions
        assert time.monotonic() - began < 60.0
    assert (stuck.committed, stuck.lag, stuck.behind) == (2, 1, None)


def test_a_report_of_what_is_not_there_harms_nobody(bench: Bench) -> None:
    bench.send(range(5))
    with bench.reader() as consumer:
        assert take(consumer, 1) == [0]
        cluster, partition = consumer._core.cluster, bench.partition(0)
        address = cluster.leader_address(partition)
        assert address is not None
        cluster.report_damage(address, partition, cluster.topic_id(partition.topic) or "", 3)
        cluster.report_damage(address, partition, "another", 10**12)
        cluster.report_damage("no address", partition, "", 0)
        assert take(consumer, 4) == [1, 2, 3, 4]
