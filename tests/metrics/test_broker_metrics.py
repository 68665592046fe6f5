"""What a broker tells Prometheus and probes, over real brokers in this process."""

from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from threading import Event

import pytest

from folkmoot.brokers.controller.thread import ControllerThread
from folkmoot.brokers.server.broker import Broker
from folkmoot.brokers.server.config import BrokerConfig
from folkmoot.consumers.client.consumer import Consumer
from folkmoot.coordination import topics
from folkmoot.coordination.cluster.controllers import ALONE
from folkmoot.coordination.zookeeper.execute import execute
from folkmoot.metrics import broker as module
from folkmoot.metrics import names
from folkmoot.metrics.broker import BrokerMetrics, ControllerMetrics
from folkmoot.metrics.pages import serve_metrics
from folkmoot.producers.producer import Producer
from folkmoot.protocol.errors import AddressTaken
from folkmoot.protocol.records import TopicPartition
from tests.memory_zookeeper import MemorySession, MemoryZooKeeper
from tests.metrics.scrape import Scraped, health, page
from tests.waiting import eventually

LOCAL = "127.0.0.1"
T0 = TopicPartition("t", 0)
ALL_OF_A_BROKER = (
    *names.BROKER,
    *(names.REQUESTS, names.REQUEST_BYTES, names.RESPONSE_BYTES, names.REQUEST_SECONDS),
    *(names.ERRORS, names.PURGATORY, names.FLUSH_SECONDS, names.LEFT_OUT),
    *names.LED,
    *names.REPLICA,
)


class Scene:
    """Two brokers, and the address of each one's pages."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        self.ensemble = MemoryZooKeeper()
        self.session = self.ensemble.connect()
        self.sessions: dict[int, list[MemorySession]] = {1: [], 2: []}
        self.brokers: dict[int, Broker] = {}
        self.pages: dict[int, str] = {}
        for number in self.sessions:
            config = BrokerConfig(
                broker_id=number,
                data=directory / f"b{number}",
                zookeeper="in.memory:1",
                session_timeout=5.0,
            )
            self.brokers[number] = Broker(config, partial(self._connect, number))
            stack.enter_context(self.brokers[number])
            metrics = BrokerMetrics(self.brokers[number], timeout=20.0)
            self.pages[number] = stack.enter_context(serve_metrics(LOCAL, 0, metrics))

    def _connect(self, number: int, session_timeout: float) -> MemorySession:
        self.sessions[number].append(self.ensemble.connect(session_timeout))
        return self.sessions[number][-1]

    def of(self, number: int) -> Scraped:
        return Scraped(self.pages[number])

    def shows(self, number: int, name: str, value: float) -> bool:
        return self.of(number)(name) == value

    def create(self, name: str = "t", partitions: int = 1) -> None:
        execute(self.session, topics.create(name, partitions, [1, 2], replicas=2))
        eventually(lambda: self.sum("folkmoot_broker_leader_partitions") == partitions)
        eventually(lambda: not self.sum("folkmoot_broker_under_replicated_partitions"))

    def sum(self, name: str) -> float:
        return sum(self.of(number)(name) or 0.0 for number in self.pages)

    @property
    def bootstrap(self) -> str:
        return ",".join(each.listeners["client"] for each in self.brokers.values())


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    with ExitStack() as stack:
        yield Scene(tmp_path, stack)


def test_what_is_produced_and_consumed_shows_with_all_that_is_declared(scene: Scene) -> None:
    scene.create()
    with Producer(bootstrap=scene.bootstrap) as producer:
        for _ in range(10):
            producer.send("t", b"value", partition=0)
        producer.flush(10)
    with Consumer(bootstrap=scene.bootstrap) as consumer:
        consumer.assign([("t", 0)])
        eventually(lambda: consumer.poll(0.1) == [] and consumer.position(T0) == 10)
    leader = next(n for n in scene.pages if scene.of(n)("folkmoot_broker_leader_partitions"))
    eventually(lambda: scene.of(leader)("kafka_topic_partition_current_offset", topic="t") == 10)
    scene.brokers[leader].event_loop.requests.errors["NotLeader"] += 1
    shown = scene.of(leader)
    shown.assert_declared(ALL_OF_A_BROKER)
    assert shown("folkmoot_broker_records_in_total") == 10
    size = shown("folkmoot_log_size_bytes", topic="t", partition="0")
    assert size is not None
    assert size > 0
    assert (
        shown("folkmoot_broker_bytes_in_total") == shown("folkmoot_broker_log_size_bytes") == size
    )
    assert shown("folkmoot_broker_response_bytes_total", api="fetch") == size
    for api in ("produce", "fetch", "replica_fetch", "metadata"):
        asked = shown("folkmoot_broker_requests_total", api=api)
        answered = shown("folkmoot_broker_request_seconds_count", api=api)
        assert asked
        assert answered
        assert asked >= answered
    assert shown("folkmoot_broker_flush_seconds_count")
    assert shown("kafka_topic_partition_in_sync_replica", topic="t", partition="0") == 2
    follower = scene.of(3 - leader)
    assert follower("kafka_topic_partition_current_offset", topic="t") is None
    assert follower("folkmoot_log_size_bytes", topic="t") == size
    for name, value in {
        "kafka_brokers": 2,
        "folkmoot_topics": 1,
        "folkmoot_partitions": 1,
        "folkmoot_leaderless_partitions": 0,
    }.items():
        assert shown(name) == value
        eventually(partial(scene.shows, 3 - leader, name, value))
    assert scene.sum("folkmoot_controller_active") == 1


def test_a_broker_that_dies_shows_in_what_the_other_tells(scene: Scene) -> None:
    scene.create(partitions=4)
    assert scene.sum("folkmoot_broker_isr_expands_total") == 4
    scene.brokers[2].close()
    del scene.pages[2]
    eventually(lambda: scene.sum("folkmoot_broker_under_replicated_partitions") == 4)
    eventually(lambda: scene.of(1)("kafka_brokers") == 1)
    shown = scene.of(1)
    assert shown("folkmoot_broker_leader_partitions") == 4
    assert (shown("folkmoot_broker_leader_elections_total") or 0) >= 4
    assert shown("kafka_topic_partition_under_replicated_partition", partition="3") == 1


def test_a_partition_that_nobody_serves_shows_at_the_others(scene: Scene) -> None:
    execute(scene.session, topics.create("alone", 1, [2]))
    eventually(
        lambda: (
            scene.of(1)("folkmoot_partitions") == 1
            and scene.of(1)("folkmoot_leaderless_partitions") == 0
        )
    )
    scene.brokers[2].close()
    eventually(lambda: scene.of(1)("folkmoot_leaderless_partitions") == 1)


def test_too_many_partitions_are_counted_and_have_no_metrics_of_their_own(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.create("many", 5)
    monkeypatch.setattr(module, "MOST_PARTITIONS", 3)
    shown = scene.of(1)
    assert shown("folkmoot_broker_partitions") == 5
    assert shown("folkmoot_broker_partitions_left_out") == 2
    assert shown("folkmoot_log_segments", partition="2") is not None
    assert shown("folkmoot_log_segments", partition="3") is None


def test_a_broker_without_zookeeper_lives_and_is_not_ready(scene: Scene) -> None:
    assert health(scene.pages[1], "readyz") == (
        200,
        {"ok": True}
        | dict.fromkeys(("event_loop", "started", "registered", "zookeeper", "view"), True),
    )
    for session in scene.sessions[1]:
        scene.ensemble.suspend(session)
    status, said = health(scene.pages[1], "readyz")
    assert (status, said["ok"], said["zookeeper"]) == (503, False, False)
    assert health(scene.pages[1], "healthz")[0] == 200
    assert scene.of(1)("folkmoot_zookeeper_connected") == 0


def test_an_event_loop_that_stands_still_is_told_of(scene: Scene) -> None:
    entered, leave = Event(), Event()

    def stand_still() -> None:
        entered.set()
        leave.wait(60)

    scene.brokers[1].event_loop.post(stand_still)
    assert entered.wait(10)
    try:
        with serve_metrics(LOCAL, 0, BrokerMetrics(scene.brokers[1], timeout=0.2)) as impatient:
            status, said = health(impatient, "healthz")
            assert (status, said["event_loop"]) == (503, False)
            status, text = page(impatient, "metrics")
        assert status == 503
        assert "event loop" in text
    finally:
        leave.set()
    assert health(scene.pages[1], "healthz")[0] == 200
    # A step is counted at its end, and the page above may have been asked for within this one.
    eventually(lambda: scene.of(1)("folkmoot_broker_event_loop_slow_steps_total"))


def test_before_its_start_a_broker_lives_and_is_not_ready(tmp_path: Path) -> None:
    config = BrokerConfig(broker_id=1, data=tmp_path / "b", zookeeper="in.memory:1")
    with serve_metrics(
        LOCAL, 0, BrokerMetrics(Broker(config, MemoryZooKeeper().connect))
    ) as address:
        assert health(address, "healthz")[0] == 200
        status, said = health(address, "readyz")
        assert (status, said["started"], said["registered"]) == (503, False, False)
        assert page(address, "metrics")[0] == 503


def test_a_controller_alone_tells_whether_it_is_elected() -> None:
    controller = ControllerThread(MemoryZooKeeper().connect, ALONE, 5.0)
    with serve_metrics(LOCAL, 0, ControllerMetrics(controller)) as address:
        assert health(address, "readyz") == (
            503,
            {"ok": False, "zookeeper": False, "elected": False},
        )
        controller.start()
        try:
            eventually(lambda: Scraped(address)("folkmoot_controller_active") == 1)
            assert health(address, "readyz")[0] == health(address, "healthz")[0] == 200
            Scraped(address).assert_declared(names.CONTROLLER)
        finally:
            controller.close()


def test_a_page_that_does_not_exist_names_those_that_do(tmp_path: Path) -> None:
    controller = ControllerThread(MemoryZooKeeper().connect, ALONE, 5.0)
    with serve_metrics(LOCAL, 0, ControllerMetrics(controller)) as address:
        assert health(address, "nothing") == (
            404,
            {"ok": False, "pages": ["/metrics", "/healthz", "/readyz"]},
        )
        host, _, port = address.rpartition(":")
        with pytest.raises(
            AddressTaken, match=f"cannot be served at {host}:{port}: .*choose another"
        ):
            serve_metrics(host, int(port), ControllerMetrics(controller)).__enter__()
    controller.close()
