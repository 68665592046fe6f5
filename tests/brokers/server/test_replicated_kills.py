"""Three broker processes and a real ZooKeeper, disturbed again and again under acks=all load.

FOLKMOOT_KILLS=n sends so many SIGKILLs; FOLKMOOT_SEED=n chooses the same victims. `make kills` goes on for
as long as one likes.
"""

import contextlib
import json
import os
import random
import subprocess
import time
from collections.abc import Callable, Iterator

import pytest

from folkmoot.console.running.processes import BrokerProcess, EmbeddedCluster
from folkmoot.coordination import topics
from folkmoot.coordination.connector import connect
from folkmoot.coordination.zookeeper.execute import execute
from folkmoot.producers.producer import Producer
from folkmoot.protocol.errors import OutOfOrderSequence, UnknownProducer
from tests.replicated_load import TOPIC, Load, StateWatch, finish
from tests.seeds import new_seed
from tests.waiting import eventually

KILLS = int(os.environ.get("FOLKMOOT_KILLS", "11"))
PARTITIONS = 3
RECORDS_BETWEEN = 100
SESSION_TIMEOUT = 2.0
WITHIN = 60.0
DOOMED = 5


class Scene:
    """The cluster, its load, and how to disturb it; everybody is back in sync before the next time."""

    def __init__(self, cluster: EmbeddedCluster, zookeeper: str, source: random.Random) -> None:
        session = connect(zookeeper, 30.0)
        topic = execute(session, topics.create(TOPIC, PARTITIONS, [1, 2, 3], replicas=3))
        session.close()
        self.cluster = cluster
        self.source = source
        self.kills = 0
        self.load = Load(zookeeper, PARTITIONS)
        self.watch = StateWatch(zookeeper, topic.topic_id, PARTITIONS, self.load)
        self.hasty = Producer(zookeeper=zookeeper, acks=1, delivery_timeout=WITHIN)
        self.hasty.start()
        self._doomed = 0
        eventually(self.watch.all_in_sync, WITHIN)

    def disturb(self, how: Callable[["Scene"], None]) -> None:
        self.await_records()
        self.load.longest_silence = 0.0
        how(self)
        eventually(self.watch.all_in_sync, WITHIN)
        name = how.__name__.strip("_")
        print(f"{name}: silence of {self.load.longest_silence:.2f} s", flush=True)

    def leader(self) -> BrokerProcess:
        number = eventually(lambda: self.watch.leads(self.source.randrange(PARTITIONS)), WITHIN)
        assert number is not None
        return self.cluster.brokers[number - 1]

    def others(self, than: BrokerProcess) -> list[BrokerProcess]:
        others = [each for each in self.cluster.brokers if each is not than]
        return self.source.sample(others, len(others))

    def kill(self, *brokers: BrokerProcess) -> None:
        for each in brokers:
            self.kills += 1
            each.kill()

    def start(self, *brokers: BrokerProcess) -> None:
        for each in brokers:
            each.launch()
        for each in brokers:
            each.wait_until_ready()

    def await_records(self) -> None:
        wanted = self.load.acknowledged + RECORDS_BETWEEN
        eventually(lambda: self.load.failed or self.load.acknowledged > wanted, WITHIN)
        assert not self.load.failed

    def await_expiry(self) -> None:
        time.sleep(SESSION_TIMEOUT + self.source.uniform(0.2, 1.5))

    def write_what_will_be_lost(self, leader: BrokerProcess) -> None:
        """To the leader alone: nobody else hears of it."""
        led = [each for each in range(PARTITIONS) if self.watch.leads(each) == leader.broker_id]
        for number in range(DOOMED):
            self._doomed += 1
            partition = led[number % len(led)] if led else 0
            self.hasty.send(TOPIC, b"-%d" % self._doomed, partition=partition)
        # What it wrote before was cut, and its sequences with it: a batch whose answer is lost fails then.
        with contextlib.suppress(UnknownProducer, OutOfOrderSequence):
            self.hasty.flush()


def _kill_the_leader(scene: Scene) -> None:
    victim = scene.leader()
    scene.kill(victim)
    if scene.source.random() < 0.7:
        scene.await_records()
    scene.start(victim)


def _kill_two(scene: Scene) -> None:
    victim = scene.leader()
    victims = [victim, scene.others(victim)[0]]
    scene.kill(*victims)
    scene.start(*victims)


def _kill_all(scene: Scene) -> None:
    victims = scene.source.sample(scene.cluster.brokers, 3)
    scene.kill(*victims)
    scene.start(*victims)


def _stop_past_the_session(scene: Scene) -> None:
    victim = scene.leader()
    victim.pause()
    scene.await_records()
    time.sleep(scene.source.uniform(0.0, 1.0))
    victim.resume()


def _stop_then_kill(scene: Scene) -> None:
    victim = scene.leader()
    victim.pause()
    scene.await_expiry()
    scene.kill(victim)
    scene.start(victim)


def _stop_one_and_kill_another(scene: Scene) -> None:
    victim = scene.leader()
    other = scene.others(victim)[0]
    other.pause()
    scene.kill(victim)
    scene.await_expiry()
    other.resume()
    scene.start(victim)


def _stop_in_order(scene: Scene) -> None:
    victim = scene.leader()
    victim.stop()
    scene.await_records()
    scene.start(victim)


def _kill_who_alone_has_records(scene: Scene) -> None:
    """The others stand still meanwhile: what acks=1 was answered for is cut when it is back."""
    victim = scene.leader()
    others = scene.others(victim)
    for each in others:
        each.pause()
    try:
        scene.write_what_will_be_lost(victim)
    finally:
        scene.kill(victim)
        for each in others:
            each.resume()
    scene.start(victim)


DISTURBANCES = (
    *(_kill_the_leader, _kill_the_leader, _kill_two, _kill_all, _stop_past_the_session),
    *(_stop_then_kill, _stop_one_and_kill_another, _stop_in_order),
    *(_kill_who_alone_has_records, _kill_who_alone_has_records),
)


@pytest.fixture
def scene(start_cluster: Callable[..., EmbeddedCluster], chroot: str) -> Iterator[Scene]:
    source = random.Random(new_seed())
    made = Scene(start_cluster(brokers=3, session_timeout=SESSION_TIMEOUT), chroot, source)
    yield made
    made.watch.close()
    made.hasty.close()


@pytest.mark.chaos
@pytest.mark.timeout(0)
def test_nothing_acknowledged_is_lost_doubled_or_moved_when_brokers_are_killed_again_and_again(
    scene: Scene, chroot: str
) -> None:
    load, watch = scene.load, scene.watch
    load.start()
    while scene.kills < KILLS:
        for how in scene.source.sample(DISTURBANCES, len(DISTURBANCES)):
            scene.disturb(how)
    assert not finish(load, chroot, PARTITIONS)
    cuts = sum(
        broker.log.read_bytes().count(b": cut from offset") for broker in scene.cluster.brokers
    )
    figures = {
        "kills": scene.kills,
        "acknowledged": load.acknowledged,
        "seen": load.history.seen,
        "truncations": cuts,
        **watch.changes,
    }
    print("figures " + json.dumps(figures))
    # A run in which nothing of this has happened has shown nothing.
    assert load.acknowledged >= scene.kills * RECORDS_BETWEEN
    assert load.history.seen >= load.acknowledged
    assert cuts, "no log was truncated"
    for what in ("leader", "shrink", "expand"):
        assert watch.changes[what] >= scene.kills // 2, f"{what}: {watch.changes}"
    eventually(watch.all_in_sync, WITHIN)
    scene.cluster.stop()
    _compare_logs(scene.cluster)


def _compare_logs(cluster: EmbeddedCluster) -> None:
    """Every replica has the same bytes."""
    listings = {
        subprocess.run(
            "for d in *-[0-9]*/; do cat $d*.log | md5sum; done",
            shell=True,
            cwd=broker.data,
            check=True,
            capture_output=True,
        ).stdout
        for broker in cluster.brokers
    }
    assert len(listings) == 1
