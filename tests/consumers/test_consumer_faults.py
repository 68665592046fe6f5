"""Consumers while brokers and ZooKeeper stop, die and come back, and while topics go and come again."""

import time
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from folkmoot.console.running.children import free_port
from folkmoot.console.running.embedded import EmbeddedZooKeeper
from folkmoot.console.running.processes import BrokerProcess, EmbeddedCluster
from folkmoot.consumers.client.consumer import Consumer
from folkmoot.coordination import discovery
from folkmoot.coordination.zookeeper import execute as carrying_out
from folkmoot.protocol.errors import NotOwner, RequestTimeout, ZooKeeperUnreachable
from folkmoot.protocol.records import TopicPartition
from tests.consumers.parts import PARTITIONS, Bench, take, until, values
from tests.memory_zookeeper import MemoryZooKeeper, Request
from tests.waiting import eventually

StartCluster = Callable[..., EmbeddedCluster]
BenchOn = Callable[[str], Bench]


def test_a_broker_that_restarts_is_read_from_again_without_a_gap(
    start_cluster: StartCluster, bench_on: BenchOn
) -> None:
    cluster = start_cluster(brokers=1, session_timeout=2.0)
    bench = bench_on(cluster.zookeeper)
    with bench.member() as consumer:
        bench.send(range(100))
        got = take(consumer, 50)
        cluster.brokers[0].kill()
        assert len(consumer.poll(0.5)) <= 50
        consumer.seek(bench.partition(0), 50)
        cluster.brokers[0].start()
        bench.send(range(100, 200))
        got += take(consumer, 150)
        assert got == list(range(200))


def test_a_broker_that_comes_back_elsewhere_is_found(
    start_cluster: StartCluster, bench_on: BenchOn
) -> None:
    cluster = start_cluster(brokers=1, session_timeout=2.0)
    bench = bench_on(cluster.zookeeper)
    with bench.reader() as consumer:
        bench.send(range(10))
        got = take(consumer, 10)
        before = cluster.brokers[0]
        before.stop()
        listeners = [f"client=127.0.0.1:{free_port()}"]
        with BrokerProcess(1, before.data, cluster.zookeeper, listeners) as elsewhere:
            assert elsewhere.address != before.address
            bench.send(range(10, 20))
            assert got + take(consumer, 10) == list(range(20))


def test_with_all_brokers_dead_a_poll_returns_in_time_and_close_commits(
    start_cluster: StartCluster, bench_on: BenchOn
) -> None:
    cluster = start_cluster(brokers=1)
    bench = bench_on(cluster.zookeeper)
    bench.send(range(10))
    with bench.member() as consumer:
        assert take(consumer, 4) == [0, 1, 2, 3]
        cluster.brokers[0].kill()
        consumer.poll(0.1, max_records=1)
        begun = time.monotonic()
        until(consumer, lambda: time.monotonic() > begun + 1.0)
        begun = time.monotonic()
        consumer.poll(0.2)
        assert time.monotonic() - begun < 15.0  # and no request's 30 s
        begun = time.monotonic()
        consumer.close(60.0)
        assert time.monotonic() - begun < 30.0
    assert (bench.committed() or 0) >= 4


@pytest.mark.parametrize("fault", [EmbeddedZooKeeper.kill, EmbeddedZooKeeper.pause])
def test_close_ends_within_its_timeout_with_zookeeper_and_the_brokers_dead(
    start_cluster: StartCluster,
    private_zookeeper: EmbeddedZooKeeper,
    fault: Callable[[EmbeddedZooKeeper], None],
    bench_on: BenchOn,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("folkmoot.coordination.discovery.ANSWER_WAIT", 0.5)
    cluster = start_cluster(brokers=1, zookeeper=private_zookeeper.address)
    bench = bench_on(cluster.zookeeper)
    bench.send(range(10))
    member = bench.member(session_timeout=3.0).start()
    reader = bench.reader()
    for consumer in (member, reader):
        assert take(consumer, 4) == [0, 1, 2, 3]
    fault(private_zookeeper)
    cluster.brokers[0].kill()
    for consumer in (member, reader):
        consumer.poll(0.2, max_records=1)
    with pytest.raises((RequestTimeout, NotOwner)):
        # By name: on a slow machine it may have let go of all by now, and have nothing to commit.
        member.commit({bench.partition(0): 4}, timeout=0.5)
    with pytest.raises(ZooKeeperUnreachable):
        member.committed(bench.partition(0))
    for consumer in (member, reader):
        begun = time.monotonic()
        consumer.close(timeout=2.0)
        assert time.monotonic() - begun < 8.0
    private_zookeeper.resume()  # so that its fixture can stop it


def test_a_member_that_zookeeper_has_forgotten_loses_its_partitions_and_gets_them_back(
    start_cluster: StartCluster, private_zookeeper: EmbeddedZooKeeper, bench_on: BenchOn
) -> None:
    bench = bench_on(start_cluster(brokers=1, zookeeper=private_zookeeper.address).zookeeper)
    bench.send(range(10))
    lost: list[TopicPartition] = []

    def on_lost(consumer: Consumer, partitions: list[TopicPartition]) -> None:
        lost.extend(partitions)

    with bench.member(session_timeout=2.0, commit_interval=0.1, on_lost=on_lost) as consumer:
        assert take(consumer, 4) == [0, 1, 2, 3]
        until(consumer, lambda: len(consumer.assignment()) == PARTITIONS)
        private_zookeeper.pause()
        until(consumer, lambda: not consumer.assignment())
        assert set(lost) == {bench.partition(number) for number in range(PARTITIONS)}
        with pytest.raises(NotOwner):
            consumer.commit({bench.partition(0): 4}, timeout=20.0)
        private_zookeeper.resume()
        until(consumer, lambda: len(consumer.assignment()) == PARTITIONS)
        bench.send([10])
        until(consumer, lambda: consumer.position(bench.partition(0)) == 11)


def test_a_topic_created_anew_is_read_from_its_start_by_a_group_that_had_the_old_one(
    bench: Bench,
) -> None:
    bench.send(range(100))
    with bench.member() as consumer:
        assert take(consumer, 100) == list(range(100))
        consumer.commit()
        bench.delete_topic()
        until(consumer, lambda: not consumer.assignment())
        bench.create_topic()
        until(consumer, lambda: len(consumer.assignment()) == PARTITIONS)
        bench.send([7])
        assert take(consumer, 1) == [7]
        assert consumer.position(bench.partition(0)) == 1


def test_brokers_are_asked_no_more_about_a_topic_that_was_deleted(bench: Bench) -> None:
    other = Bench(bench.zookeeper, bench.producer)
    both = f"{bench.topic}|{other.topic}"
    with bench.member(topics=[], pattern=both) as consumer:
        until(consumer, lambda: len(consumer.assignment()) == 2 * PARTITIONS)
        other.delete_topic()
        until(consumer, lambda: len(consumer.assignment()) == PARTITIONS)
        assert consumer._core.cluster._metadata._wanted == {bench.topic}


def test_offsets_of_a_topic_that_was_deleted_mean_nothing_for_the_new_one(bench: Bench) -> None:
    bench.send(range(100))
    with bench.member() as consumer:
        assert take(consumer, 50) == list(range(50))
    bench.delete_topic()
    bench.create_topic()
    eventually(lambda: resent(bench), 20.0)
    with bench.member() as consumer:
        assert take(consumer, 1) == [7]


def resent(bench: Bench) -> bool:
    """Send a 7 and see it at the new topic's start; brokers forget the old topic a moment later."""
    bench.send([7])
    with bench.reader() as consumer:
        return values(consumer.poll(1.0, max_records=1)) == [7]


def test_of_a_thousand_partitions_is_told_what_is_committed_though_each_takes_its_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All together more than ZooKeeper has for one answer."""
    now = 0.0

    def deliver(request: Request) -> None:
        nonlocal now
        now += 0.01
        request.execute()
        request.reply()

    monkeypatch.setattr(carrying_out, "time", SimpleNamespace(monotonic=lambda: now))
    wanted = [TopicPartition("flights", number) for number in range(1000)]
    connect = MemoryZooKeeper(deliver=deliver).connect
    with Consumer(zookeeper=connect, group="g") as consumer:
        assert consumer.committed(wanted) == dict.fromkeys(wanted)
    assert now > 2 * discovery.ANSWER_WAIT
