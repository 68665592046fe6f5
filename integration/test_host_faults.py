"""Three brokers as hosts under acks=all load: killed, stopped, cut off, with full disks, alone and together.

FOLKMOOT_HOST_FAULTS=n does so many things to them; FOLKMOOT_SEED=n chooses the same.
"""

import json
import os
import random
import time
from collections.abc import Callable, Iterator

import pytest
from docker.models.containers import Container

from folkmoot.coordination import topics
from folkmoot.coordination.connector import connect
from folkmoot.coordination.zookeeper.execute import execute
from folkmoot.integration.hosts import CLIENTS, NUMBERS, PEERS, ZOOKEEPER, Hosts
from tests.replicated_load import TOPIC, Load, StateWatch, finish
from tests.seeds import new_seed
from tests.waiting import eventually

pytestmark = [pytest.mark.docker, pytest.mark.chaos]

FAULTS = int(os.environ.get("FOLKMOOT_HOST_FAULTS", "15"))
PARTITIONS = 3
RECORDS_BETWEEN = 100
SESSION_TIMEOUT = 2.0
LAG = 10.0
"""A follower that is behind for so long leaves the ISR."""
WITHIN = 90.0


class Scene:
    """The hosts, their load, and who leads; everybody is back in sync before the next fault."""

    def __init__(self, hosts: Hosts, source: random.Random) -> None:
        session = connect(hosts.connect_string, 5.0)
        topic = execute(session, topics.create(TOPIC, PARTITIONS, NUMBERS, replicas=3))
        session.close()
        self.hosts = hosts
        self.source = source
        self.load = Load(hosts.connect_string, PARTITIONS)
        self.watch = StateWatch(hosts.connect_string, topic.topic_id, PARTITIONS, self.load)
        eventually(self.watch.all_in_sync, WITHIN)

    def disturb(self, fault: Callable[["Scene"], None]) -> None:
        self.await_records()
        self.load.longest_silence = 0.0
        started_at = time.monotonic()
        fault(self)
        ended = self.hosts.heal()
        self.await_sync()
        self.await_records()
        took = time.monotonic() - started_at
        silence = f"silence of {self.load.longest_silence:.1f} s, {took:.0f} s in all"
        print(f"{fault.__name__.strip('_')}: {silence}; exit codes {ended}", flush=True)

    def leader(self) -> int:
        return eventually(lambda: self.watch.leads(self.source.randrange(PARTITIONS)), WITHIN) or 0

    def zookeepers_leader(self) -> Container:
        found = eventually(self.hosts.leading_zookeeper, WITHIN)
        assert found is not None
        return found

    def another(self, than: int) -> int:
        return self.source.choice([number for number in NUMBERS if number != than])

    def await_records(self) -> None:
        target = self.load.acknowledged + RECORDS_BETWEEN
        eventually(lambda: self.load.failed or self.load.acknowledged > target, WITHIN)
        assert not self.load.failed

    def await_sync(self) -> None:
        eventually(lambda: self.load.failed or self.watch.all_in_sync(), WITHIN)
        assert not self.load.failed

    def await_expiry(self) -> None:
        time.sleep(SESSION_TIMEOUT + self.source.uniform(0.2, 2.0))


def _kill_a_leader(scene: Scene) -> None:
    scene.hosts.kill(scene.hosts.brokers[scene.leader()])
    scene.await_records()


def _kill_two(scene: Scene) -> None:
    first = scene.leader()
    scene.hosts.kill(scene.hosts.brokers[first], scene.hosts.brokers[scene.another(first)])


def _kill_all(scene: Scene) -> None:
    scene.hosts.kill(*scene.hosts.brokers.values())


def _stop_past_the_session(scene: Scene) -> None:
    scene.hosts.pause(scene.leader())
    scene.await_expiry()
    scene.await_records()


def _cut_from_peers(scene: Scene) -> None:
    scene.hosts.cut(scene.leader(), PEERS)
    time.sleep(LAG + scene.source.uniform(1.0, 4.0))


def _cut_from_zookeeper(scene: Scene) -> None:
    """Others lead, and it hears of that from them alone."""
    zombie = scene.leader()
    scene.hosts.cut(zombie, ZOOKEEPER)
    scene.await_expiry()
    eventually(lambda: zombie not in map(scene.watch.leads, range(PARTITIONS)), WITHIN)
    scene.await_records()


def _cut_from_clients(scene: Scene) -> None:
    scene.hosts.cut(scene.leader(), CLIENTS)
    scene.await_expiry()


def _cut_from_everybody(scene: Scene) -> None:
    leader = scene.leader()
    for network in (PEERS, ZOOKEEPER, CLIENTS):
        scene.hosts.cut(leader, network)
    scene.await_expiry()
    scene.await_records()


def _cut_one_from_peers_and_another_from_zookeeper(scene: Scene) -> None:
    first = scene.leader()
    scene.hosts.cut(first, PEERS)
    scene.hosts.cut(scene.another(first), ZOOKEEPER)
    scene.await_expiry()


def _cut_one_from_peers_and_kill_another(scene: Scene) -> None:
    first = scene.leader()
    scene.hosts.cut(first, PEERS)
    scene.hosts.kill(scene.hosts.brokers[scene.another(first)])
    scene.await_expiry()


def _kill_zookeepers_leader(scene: Scene) -> None:
    scene.hosts.kill(scene.zookeepers_leader())
    scene.await_records()


def _kill_zookeepers_leader_and_a_broker(scene: Scene) -> None:
    scene.hosts.kill(scene.zookeepers_leader(), scene.hosts.brokers[scene.leader()])
    scene.await_records()


def _fill_a_leaders_disk(scene: Scene) -> None:
    scene.hosts.fill_disk(scene.leader())
    time.sleep(scene.source.uniform(2.0, 4.0))


def _fill_a_followers_disk_and_kill_its_leader(scene: Scene) -> None:
    leader = scene.leader()
    scene.hosts.fill_disk(scene.another(leader))
    time.sleep(scene.source.uniform(1.0, 3.0))
    scene.hosts.kill(scene.hosts.brokers[leader])


def _restart_one_after_the_other(scene: Scene) -> None:
    for number in NUMBERS:
        assert scene.hosts.terminate(number) == 0
        scene.hosts.start(number)
        scene.await_sync()


KINDS = (
    *(_kill_a_leader, _kill_two, _kill_all, _stop_past_the_session),
    *(_cut_from_peers, _cut_from_zookeeper, _cut_from_clients, _cut_from_everybody),
    *(_cut_one_from_peers_and_another_from_zookeeper, _cut_one_from_peers_and_kill_another),
    *(_kill_zookeepers_leader, _kill_zookeepers_leader_and_a_broker),
    *(_fill_a_leaders_disk, _fill_a_followers_disk_and_kill_its_leader),
    _restart_one_after_the_other,
)


@pytest.fixture
def scene() -> Iterator[Scene]:
    source = random.Random(new_seed())
    with Hosts(SESSION_TIMEOUT) as hosts:
        instance = Scene(hosts, source)
        yield instance
        instance.watch.close()


@pytest.mark.timeout(0)
def test_nothing_acknowledged_is_lost_doubled_or_moved_whatever_happens_to_hosts(
    scene: Scene,
) -> None:
    load, watch = scene.load, scene.watch
    load.start()
    count = 0
    while count < FAULTS:
        for fault in scene.source.sample(KINDS, min(len(KINDS), FAULTS - count)):
            scene.disturb(fault)
            count += 1
    assert not finish(load, scene.hosts.connect_string, PARTITIONS)
    figures = {"acknowledged": load.acknowledged, "seen": load.history.seen, **watch.changes}
    print("figures " + json.dumps(figures))
    # A run in which nothing of this has happened has shown nothing.
    assert load.acknowledged >= count * RECORDS_BETWEEN
    assert load.history.seen >= load.acknowledged
    for change in ("leader", "shrink", "expand"):
        assert watch.changes[change] >= count // 2, f"{change}: {watch.changes}"
