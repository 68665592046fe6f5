"""A disk whose flushes, renames, removals, listings and checks of an index take until a client, which asks
while they are under way, is answered."""

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from folkmoot.brokers.server.broker import Broker
from folkmoot.brokers.server.config import BrokerConfig
from folkmoot.brokers.storage import producer_state, retention
from folkmoot.brokers.storage.compaction import log_cleaner
from folkmoot.brokers.storage.files.atomic_file import read_checked
from folkmoot.brokers.storage.log_manager import LogManager
from folkmoot.brokers.storage.segment import SegmentReader
from folkmoot.coordination import topics
from folkmoot.coordination.topic_config import LogConfig
from folkmoot.coordination.topics import TopicInfo
from folkmoot.coordination.zookeeper.execute import execute
from folkmoot.protocol import record_batch
from folkmoot.protocol.columns import Columns
from folkmoot.protocol.compression import Codec
from folkmoot.protocol.messages import (
    Api,
    DeleteRecordsEntry,
    DeleteRecordsRequest,
    HelloRequest,
    ListOffsetsEntry,
    ListOffsetsRequest,
    MetadataRequest,
)
from tests.brokers.batches import append
from tests.brokers.hands import create
from tests.brokers.killed_broker import create as create_topic
from tests.brokers.parts import Peer, fetch, into, make_batch, out_of, produce
from tests.memory_zookeeper import MemoryZooKeeper
from tests.waiting import eventually

CALLS = (
    "fsync",
    "fdatasync",
    "rename",
    "replace",
    "unlink",
    "remove",
    "rmdir",
    "listdir",
    "scandir",
)
PARTITIONS = 20
BATCHES = 6
PATIENCE = 30.0
SMALL = LogConfig(segment_bytes=2048, index_interval_bytes=256, retention=None, delete_delay=0.0)


class SlowDisk:
    """Who waited for the disk, by thread; from `slow` on each call takes until a hello that was said behind
    its beginning is answered (`answers`), or until `end`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.waited: list[tuple[str, str]] = []
        self._is_slow = False
        self._said = self._answered = 0
        self._news = threading.Condition()
        for name in CALLS:
            monkeypatch.setattr(os, name, self._wrapped(name, getattr(os, name)))
        load = self._wrapped("load_index", SegmentReader.load_index)
        monkeypatch.setattr(SegmentReader, "load_index", load)
        read = self._wrapped("read a snapshot", read_checked)
        monkeypatch.setattr(producer_state, "read_checked", read)

    def _wrapped(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def slow(*args: Any, **kwargs: Any) -> Any:
            if self._is_slow:
                thread = threading.current_thread().name
                self.waited.append((thread, name))
                if thread != "event-loop":
                    self._wait_for_an_answer()
            return call(*args, **kwargs)

        return slow

    def _wait_for_an_answer(self) -> None:
        with self._news:
            next_one = self._said + 1
            self._news.wait_for(lambda: self._answered >= next_one or not self._is_slow)

    def answers(self, peer: Peer) -> None:
        """Say hello to the broker; no call that the disk has begun by then ends before it is answered."""
        with self._news:
            self._said += 1
        peer.ask(Api.HELLO, HelloRequest("does anything hold you up?"))
        assert not peer.hears_nothing(PATIENCE), "a step of the loop waits for the disk"
        peer.receive()
        with self._news:
            self._answered = self._said
            self._news.notify_all()

    def calls(self) -> set[str]:
        """Those for which anybody has waited."""
        return {call for _, call in list(self.waited)}

    def slow(self) -> None:
        self._is_slow = True

    def end(self) -> None:
        with self._news:
            self._is_slow = False
            self._news.notify_all()


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[SlowDisk]:
    for module, name in ((retention, "RETENTION_INTERVAL"), (log_cleaner, "COMPACTION_INTERVAL")):
        monkeypatch.setattr(module, name, 0.05)
    made = SlowDisk(monkeypatch)
    yield made
    made.end()


def fill_cold_logs(data: Path, *, killed: bool = False) -> None:
    """A topic from an earlier life: some sealed segments in each of its partitions."""
    logs = LogManager(data, 1, SMALL)
    logs.start()
    for partition in range(PARTITIONS):
        log = create(logs, "cold", "id-cold", partition)
        for number in range(BATCHES):
            append(
                log,
                record_batch.encode(Columns(1, None, [b"x" * 900], 1000 + number), Codec.NONE),
            )
    if killed:
        logs.abandon()
    else:
        logs.close()


def test_the_loop_answers_whatever_waits_for_the_disk(tmp_path: Path, disk: SlowDisk) -> None:
    fill_cold_logs(tmp_path / "data")
    ensemble = MemoryZooKeeper()
    user = ensemble.connect()
    options = {"cleanup_policy": "compact,delete", "retention": "0.001"}
    execute(user, create_topic("cold", TopicInfo("id-cold", [[1]] * PARTITIONS)))
    config = BrokerConfig(broker_id=1, data=tmp_path / "data", zookeeper="in.memory:1", log=SMALL)
    broker = Broker(config, ensemble.connect)
    with ExitStack() as stack:
        stack.enter_context(broker)
        peer, watcher = (stack.enter_context(Peer(broker.listeners["client"])) for _ in range(2))
        flushed = execute(user, topics.create("flushed", 3, [1], {"durability": "fsync"}))
        doomed = execute(user, topics.create("doomed", PARTITIONS, [1], options))
        eventually(lambda: b"doomed" in bytes(_metadata(peer)))
        entries = [into(number, "doomed", doomed.topic_id, -1) for number in range(PARTITIONS)]
        large = [make_batch(b"x" * 1500)] * PARTITIONS
        for _ in range(3):
            peer.call_leader(Api.PRODUCE, produce(*entries), large)
        stack.callback(disk.end)
        disk.slow()
        ask_for_everything(peer, flushed.topic_id, doomed.topic_id)
        execute(user, topics.create("newcomer", PARTITIONS, [1]))
        execute(user, topics.delete("doomed"))
        expected = {"fdatasync", "fsync", "replace", "load_index"}
        say_hello(disk, watcher, lambda: expected <= disk.calls())
    assert [call for thread, call in disk.waited if thread == "event-loop"] == []
    assert expected <= disk.calls()


@pytest.mark.parametrize(
    ("what", "stop"),
    [("produce", "kill"), ("fetch", "kill"), ("look up", "kill"), ("produce", "orderly")],
)
def test_the_loop_answers_while_what_a_stop_has_left_is_opened(
    tmp_path: Path, disk: SlowDisk, what: str, stop: str
) -> None:
    """The first append, fetch or look-up in the active segment of each partition of a new life."""
    fill_cold_logs(tmp_path / "data", killed=stop == "kill")
    ensemble = MemoryZooKeeper()
    execute(ensemble.connect(), create_topic("cold", TopicInfo("id-cold", [[1]] * PARTITIONS)))
    config = BrokerConfig(broker_id=1, data=tmp_path / "data", zookeeper="in.memory:1", log=SMALL)
    with ExitStack() as stack:
        broker = stack.enter_context(Broker(config, ensemble.connect))
        peer, watcher = (stack.enter_context(Peer(broker.listeners["client"])) for _ in range(2))
        peer.wait_until_led("cold", "id-cold", PARTITIONS)
        stack.callback(disk.end)
        disk.slow()
        end, places = BATCHES - 1, range(PARTITIONS)
        if what == "produce":
            entries = [into(number, "cold", "id-cold", -1) for number in places]
            peer.ask(Api.PRODUCE, produce(*entries), [make_batch(b"x")] * PARTITIONS)
        elif what == "fetch":
            wanted = [out_of(number, end, 4096, "cold", "id-cold", -1) for number in places]
            peer.ask(Api.FETCH, fetch(*wanted, max_wait=30.0, min_bytes=900 * PARTITIONS))
        else:
            look_ups = [
                ListOffsetsEntry("cold", "id-cold", number, 1000 + end) for number in places
            ]
            peer.ask(Api.LIST_OFFSETS, ListOffsetsRequest(look_ups))
        opened = {"load_index", *(["read a snapshot"] if stop == "orderly" else [])}
        if what == "look up":
            opened = set()
        say_hello(disk, watcher, lambda: opened <= disk.calls())
        disk.end()
        envelope, payloads = peer.receive()
    assert not envelope.error
    assert what != "fetch" or len(payloads) > 0
    assert [call for thread, call in disk.waited if thread == "event-loop"] == []
    assert opened <= disk.calls()


def say_hello(disk: SlowDisk, peer: Peer, enough: Callable[[], bool]) -> None:
    """Again and again, for a second or more, until the disk has kept enough others waiting."""
    begun = time.monotonic()
    while (passed := time.monotonic() - begun) < 1.2 or (passed < PATIENCE and not enough()):
        disk.answers(peer)
        time.sleep(0.005)  # the others need the processor, too


def _metadata(peer: Peer) -> bytes:
    response, _ = peer.call(Api.METADATA, MetadataRequest(None))
    return repr(response).encode()


def ask_for_everything(peer: Peer, flushed: str, doomed: str) -> None:
    """Requests whose answers need the disk; nobody waits for them."""
    peer.ask(Api.PRODUCE, produce(into(0, "flushed", flushed, -1)), [make_batch(b"x" * 1500)])
    peer.ask(
        Api.FETCH, fetch(*(out_of(n, 1, 4096, "cold", "id-cold", -1) for n in range(PARTITIONS)))
    )
    look_ups = [ListOffsetsEntry("cold", "id-cold", number, 1003) for number in range(PARTITIONS)]
    peer.ask(Api.LIST_OFFSETS, ListOffsetsRequest(look_ups))
    deletions = [
        DeleteRecordsEntry("doomed", doomed, number, -1, 1) for number in range(PARTITIONS)
    ]
    peer.ask(Api.DELETE_RECORDS, DeleteRecordsRequest(deletions))
