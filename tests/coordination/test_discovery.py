"""Finding brokers while ZooKeeper takes long to answer: who polls or closes does not wait for it."""

import asyncio
import time
from collections.abc import Iterator
from threading import Event

import msgspec
import pytest

from folkmoot.consumers.client.async_consumer import AsyncConsumer
from folkmoot.consumers.client.consumer import Consumer
from folkmoot.coordination import discovery as discovery_module
from folkmoot.coordination import paths
from folkmoot.coordination.brokers import addresses
from folkmoot.coordination.discovery import ZooKeeperDiscovery
from folkmoot.coordination.zookeeper.execute import execute
from folkmoot.coordination.zookeeper.operations import Create
from folkmoot.coordination.zookeeper.recipes import ensure
from folkmoot.coordination.zookeeper.session import Session, SessionState
from folkmoot.producers.producer import Producer
from folkmoot.protocol.errors import RetriableError, ZooKeeperUnreachable
from folkmoot.protocol.records import TopicPartition
from tests.memory_zookeeper import MemorySession, MemoryZooKeeper
from tests.waiting import eventually

PATIENT = 20.0


class SlowServers:
    """Opens sessions at once, until they are `slow`: then each waits for a word."""

    def __init__(self) -> None:
        self.zookeeper = MemoryZooKeeper()
        self.sessions: list[MemorySession] = []
        self.slow, self.asked, self.word = False, Event(), Event()
        admin = self.zookeeper.connect()
        listeners = {"client": "127.0.0.1:1"}
        broker = {"listeners": listeners, "nonce": "n", "directory": "", "rack": ""}
        execute(admin, ensure("/brokers/ids"))
        execute(admin, Create(paths.broker(1), msgspec.json.encode(broker)))

    def connect(self, session_timeout: float) -> Session:
        if self.slow:
            self.asked.set()
            assert self.word.wait(PATIENT)
        self.sessions.append(self.zookeeper.connect(session_timeout))
        return self.sessions[-1]

    def become_slow(self) -> None:
        """Every session has to be opened anew, and that takes long."""
        self.slow = True
        for session in self.sessions:
            self.zookeeper.expire(session)


@pytest.fixture
def servers() -> Iterator[SlowServers]:
    servers = SlowServers()
    yield servers
    servers.word.set()


def test_a_look_for_brokers_does_not_wait_for_a_session_and_has_them_later(
    servers: SlowServers,
) -> None:
    discovery = ZooKeeperDiscovery(servers.connect, 6.0, "client")
    discovery.open()
    assert eventually(discovery) == ["127.0.0.1:1"]
    servers.become_slow()
    began = time.monotonic()
    assert [discovery(), discovery()] == [None, None]
    with pytest.raises(ZooKeeperUnreachable, match=r"within 0\.1 s"):
        discovery.ask(addresses("client"), 0.1)
    assert time.monotonic() - began < 5.0
    servers.word.set()
    assert eventually(discovery) == ["127.0.0.1:1"]
    assert len(servers.sessions) == 2
    discovery.close()


def test_a_look_that_is_answered_in_time_has_the_brokers_at_once(
    servers: SlowServers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(discovery_module, "LOOK_WAIT", PATIENT)
    discovery = ZooKeeperDiscovery(servers.connect, 6.0, "client")
    discovery.open()
    assert discovery() == ["127.0.0.1:1"]
    discovery.close()


def test_a_look_on_an_event_loop_waits_for_nothing(
    servers: SlowServers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(discovery_module, "LOOK_WAIT", PATIENT)
    servers.become_slow()

    async def poll() -> None:
        consumer = AsyncConsumer(zookeeper=servers.connect)
        looked = consumer._core.discovery()
        assert looked is None
        servers.word.set()

    began = time.monotonic()
    asyncio.run(poll())
    assert time.monotonic() - began < PATIENT / 2


def test_a_session_that_is_opened_after_the_close_is_closed(servers: SlowServers) -> None:
    discovery = ZooKeeperDiscovery(servers.connect, 6.0, "client")
    servers.become_slow()
    assert discovery() is None
    discovery.close()
    servers.word.set()
    eventually(lambda: servers.sessions)
    eventually(lambda: servers.sessions[0].state is SessionState.LOST)


def test_a_producers_close_ends_in_time_while_a_session_is_opened_and_leaves_none(
    servers: SlowServers,
) -> None:
    producer = Producer(zookeeper=servers.connect, max_block=0.2)
    producer.start()
    servers.become_slow()
    assert servers.asked.wait(PATIENT)  # no broker is there: it looks for others
    began = time.monotonic()
    producer.close(0.5)
    assert time.monotonic() - began < 5.0
    assert producer._thread is not None
    assert not producer._thread.is_alive()
    servers.word.set()
    eventually(lambda: len(servers.sessions) == 2)
    eventually(lambda: servers.sessions[1].state is SessionState.LOST)


def test_a_consumers_calls_end_in_time_while_a_session_is_opened_and_leave_none(
    servers: SlowServers,
) -> None:
    with Consumer(zookeeper=servers.connect) as consumer:
        servers.become_slow()
        consumer._core.fetcher.add(TopicPartition("t", 0), 0)
        began = time.monotonic()
        while not servers.asked.is_set():
            consumer.poll(0.1)
        consumer.poll(0.1)
        with pytest.raises(RetriableError):
            consumer.partitions_of("t", 0.3)
        assert time.monotonic() - began < 10.0
    servers.word.set()
    eventually(lambda: len(servers.sessions) == 2)
    eventually(lambda: servers.sessions[1].state is SessionState.LOST)
