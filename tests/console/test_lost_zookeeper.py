"""A cluster whose ZooKeeper loses something, or all: no records go, and commands put back what is lost."""

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError, NotEmptyError

from folkmoot.admin.admin import Admin
from folkmoot.brokers.server import registration
from folkmoot.brokers.server.broker import Broker
from folkmoot.brokers.server.config import BrokerConfig
from folkmoot.brokers.storage.log_manager import cluster_of
from folkmoot.console.main import main
from folkmoot.consumers.client.consumer import Consumer
from folkmoot.coordination import paths
from folkmoot.coordination.connector import connect
from folkmoot.coordination.topic_config import LogConfig
from folkmoot.coordination.zookeeper.session import Session
from folkmoot.producers.producer import Producer
from folkmoot.protocol.errors import ConfigError
from folkmoot.protocol.records import TopicPartition
from tests.waiting import eventually

RECORDS = 20
NUMBERS = (1, 2)
TOPICS = {"orders": (2, 2), "sole": (1, 1)}
"""Partitions and replicas of each."""


class Lost:
    """Two brokers in this process, with records in each topic, and what may become of their ZooKeeper."""

    def __init__(self, chroot: str, root: KazooClient, data: Path) -> None:
        self.address = chroot
        self.path = chroot[chroot.index("/") :]
        self.root = root
        self.directories = [data / str(number) for number in NUMBERS]
        self._stack = ExitStack()
        self.sent: dict[str, list[bytes]] = {}

    def start(self) -> None:
        for number, directory in zip(NUMBERS, self.directories, strict=True):
            config = BrokerConfig(
                broker_id=number,
                data=directory,
                zookeeper=self.address,
                session_timeout=4.0,
                log=LogConfig(delete_delay=0.0),
            )

            def connects(session_timeout: float, directory: Path = directory) -> Session:
                return connect(self.address, session_timeout, create=not cluster_of(directory))

            self._stack.enter_context(Broker(config, connects))

    def stop(self) -> None:
        self._stack.close()

    def restart(self) -> None:
        self.stop()
        self.start()

    def create(self, name: str, partitions: int, replicas: int) -> None:
        with Admin(zookeeper=self.address) as admin:
            admin.create_topic(name, partitions, replicas=replicas)
        self.send(name)

    def send(self, name: str) -> None:
        values = [b"%s %d" % (name.encode(), number) for number in range(RECORDS)]
        with Producer(zookeeper=self.address) as producer:
            for value in values:
                producer.send(name, value)
        self.sent.setdefault(name, []).extend(values)

    def check(self, **names: str) -> None:
        """All that was acknowledged is there, by the names that topics have now, and may be added to."""
        for name, values in self.sent.items():
            with Consumer(zookeeper=self.address, auto_offset_reset="earliest") as consumer:
                name = names.get(name, name)
                found: list[bytes | None] = []

                def has_all(
                    consumer: Consumer = consumer,
                    found: list[bytes | None] = found,
                    count: int = len(values),
                ) -> bool:
                    found += [each.value for each in consumer.poll(0.2)]
                    return len(found) >= count

                consumer.assign([TopicPartition(name, each) for each in range(self.count(name))])
                eventually(has_all)
                assert sorted(map(bytes, filter(None, found))) == sorted(values)

    def count(self, name: str) -> int:
        data, _ = self.root.get(self.path + paths.topic(name))
        return len(json.loads(data)["partitions"])

    def folders(self) -> set[Path]:
        """Those of partitions that have records."""
        return {
            log.parent
            for each in self.directories
            for log in each.glob("*-*/*.log")
            if log.stat().st_size
        }

    def delete_all(self, path: str) -> None:
        """As `deleteall` does it; brokers that run may write meanwhile."""

        def is_gone() -> bool:
            with suppress(NotEmptyError, NoNodeError):
                self._delete_all(path)
                return True
            return False

        eventually(is_gone)

    def _delete_all(self, path: str) -> None:
        for child in (
            self.root.get_children(self.path + path) if self.root.exists(self.path + path) else ()
        ):
            self.root.delete(f"{self.path}{path}/{child}", recursive=True)
        if path:
            self.root.delete(self.path + path, recursive=True)

    def copy(self, path: str = "") -> dict[str, bytes]:
        """What would be in a backup."""
        data, stat = self.root.get(self.path + path)
        found = {} if stat.ephemeralOwner else {path: data}
        for child in self.root.get_children(self.path + path):
            found |= self.copy(f"{path}/{child}")
        return found

    def put_back(self, copy: dict[str, bytes]) -> None:
        self.delete_all("")
        for path, data in sorted(copy.items()):
            if path:
                self.root.create(self.path + path, data)

    def run(self, *words: str) -> int:
        return main([*words, *map(str, self.directories), "--zookeeper", self.address])


@pytest.fixture
def lost(
    empty_chroot: str,
    zookeeper_root: KazooClient,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Lost]:
    monkeypatch.setattr(registration, "RECONNECT_PAUSE", 0.1)
    made = Lost(empty_chroot, zookeeper_root, tmp_path)
    made.start()
    try:
        for name, (partitions, replicas) in TOPICS.items():
            made.create(name, partitions, replicas)
        yield made
    finally:
        made.stop()


@pytest.mark.parametrize("restarted", [False, True])
def test_topics_that_are_gone_keep_their_records_and_come_back(
    lost: Lost, caplog: pytest.LogCaptureFixture, restarted: bool
) -> None:
    before = lost.folders()
    lost.delete_all(paths.TOPICS)
    if restarted:
        lost.restart()
        eventually(lambda: "topics that have logs" in caplog.text)
    else:
        eventually(lambda: caplog.text.count("is gone from ZooKeeper") >= 3)
    assert lost.folders() == before
    for name in TOPICS:
        assert lost.run("topic", "restore", name) == 0
        assert lost.run("topic", "restore", name) == 0, "it may be done again"
    lost.check()
    lost.send("orders")
    lost.check()


def test_states_that_are_gone_come_back(lost: Lost, caplog: pytest.LogCaptureFixture) -> None:
    before = lost.folders()
    lost.delete_all(paths.PARTITIONS)
    eventually(lambda: "states of its partitions are gone" in caplog.text)
    lost.restart()
    assert lost.folders() == before
    for name in TOPICS:
        assert lost.run("topic", "restore", name) == 0
    lost.check()
    lost.send("orders")
    lost.check()


def test_an_emptied_zookeeper_is_put_back_once_brokers_are_stopped(
    lost: Lost, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    before = lost.folders()
    lost.delete_all("")
    eventually(lambda: caplog.text.count("is gone from ZooKeeper") >= 3)
    assert lost.run("cluster", "restore") == 4, "its brokers run"
    lost.stop()
    lost.delete_all("")
    with pytest.raises(ConfigError, match="folkmoot cluster restore"):
        lost.start()
    assert lost.folders() == before
    for state in ("is restored", "was there already"):
        assert lost.run("cluster", "restore") == 0
        assert capsys.readouterr().out.count(state) == len(TOPICS)
    lost.start()
    lost.check()
    lost.send("orders")
    lost.check()
    assert lost.folders() >= before


def test_a_topic_that_was_deleted_while_its_brokers_were_stopped_stays_deleted(
    lost: Lost, capsys: pytest.CaptureFixture[str]
) -> None:
    lost.stop()
    with Admin(zookeeper=lost.address) as admin:
        admin.delete_topic("sole")
    assert lost.run("cluster", "restore") == 0
    assert capsys.readouterr().out.count("was deleted") == 1
    with Admin(zookeeper=lost.address) as admin:
        assert "sole" not in admin.topics()
    lost.start()


def test_topics_made_again_by_name_put_the_old_ones_aside_and_those_come_back_under_another_name(
    lost: Lost, caplog: pytest.LogCaptureFixture
) -> None:
    before = lost.folders()
    data, _ = lost.root.get(lost.path + paths.topic("orders"))
    old = json.loads(data)["id"]
    lost.delete_all(paths.TOPICS)
    with Admin(zookeeper=lost.address) as admin:
        admin.create_topic("orders", 1, replicas=1)
    lost.restart()
    assert lost.folders() == before
    assert lost.run("topic", "restore", "orders") in (1, 2), "which one, and by which name?"
    assert lost.run("topic", "restore", "orders", "--id", old) == 1, "the name is taken"
    assert lost.run("topic", "restore", "orders", "--id", old, "--as", "orders-before") == 0
    assert lost.run("topic", "restore", "sole") == 0
    lost.check(orders="orders-before")


@pytest.mark.parametrize("restarted", [False, True])
def test_a_zookeeper_of_an_hour_ago_takes_no_records_and_is_brought_up_to_date(
    lost: Lost, caplog: pytest.LogCaptureFixture, restarted: bool
) -> None:
    hour_ago = lost.copy()
    with Admin(zookeeper=lost.address) as admin:
        admin.set_topic_options("orders", {"retention": None})
        admin.add_partitions("orders", 3)
    lost.create("late", 1, 2)
    lost.send("orders")
    before = lost.folders()
    lost.stop()
    lost.put_back(hour_ago)
    lost.start()
    eventually(lambda: caplog.text.count("topic orders comes back older") >= 2)
    assert lost.folders() == before
    if restarted:
        lost.restart()
    for name in ("orders", "late"):
        assert lost.run("topic", "restore", name) == 0
    lost.check()
    lost.send("orders")
    lost.check()


@pytest.mark.parametrize(
    "restart", [lambda lost: None, lambda lost: lost.restart()], ids=["running", "restarted"]
)
def test_nothing_else_that_is_lost_takes_records(
    lost: Lost, restart: Callable[[Lost], None]
) -> None:
    before = lost.folders()
    for path in ("/groups", "/producers", "/schemas", "/deletions", "/controller", "/brokers"):
        lost.delete_all(path)
    restart(lost)
    lost.check()
    lost.send("orders")
    lost.check()
    assert lost.folders() >= before
