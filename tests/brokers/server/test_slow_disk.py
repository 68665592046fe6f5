"""A disk that takes a second for each flush, rename, removal, listing and check of an index."""

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
from folkmoot.brokers.storage.atomic_file import read_checked
from folkmoot.brokers.storage.compaction import log_cleaner
from folkmoot.brokers.storage.log_manager import LogManager
from folkmoot.brokers.storage.segment_index import SegmentIndex
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
SMALL = LogConfig(segment_bytes=2048, index_interval_bytes=256, retention=None)


class SlowDisk:
    """Who waited for the disk, by thread; from `slow` on each call takes a second, until `end`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.waited: list[tuple[str, str]] = []
        self._is_slow = False
        self._end = threading.Event()
        for name in CALLS:
            monkeypatch.setattr(os, name, self._wrapped(name, getattr(os, name)))
        for name in ("load_sealed", "load_unsealed", "load_summary"):
            check = getattr(SegmentIndex, name)
            monkeypatch.setattr(SegmentIndex, name, self._wrapped(name, check))
        read = self._wrapped("read a snapshot", read_checked)
        monkeypatch.setattr(producer_state, "read_checked", read)

    def _wrapped(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def slow(*args: Any, **kwargs: Any) -> Any:
            if self._is_slow:
                self.waited.append((threading.current_thread().name, name))
                self._end.wait(1.0)
            return call(*args, **kwargs)

        return slow

    def calls(self) -> set[str]:
        """Those for which anybody has waited."""
        return {call for _, call in list(self.waited)}

    def slow(self) -> None:
        self._is_slow = True

    def end(self) -> None:
        self._is_slow = False
        self._end.set()


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
        entries = [into(number, "doomed", doomed.topic_id) for number in range(PARTITIONS)]
        large = [make_batch(b"x" * 1500)] * PARTITIONS
        for _ in range(3):
            peer.call(Api.PRODUCE, produce(*entries), large)
        stack.callback(disk.end)
        disk.slow()
        ask_for_everything(peer, flushed.topic_id, doomed.topic_id)
        execute(user, topics.create("newcomer", PARTITIONS, [1]))
        execute(user, topics.delete("doomed"))
        expected = {"fdatasync", "fsync", "replace", "load_sealed"}
        longest = longest_hello(watcher, lambda: expected <= disk.calls(), 4.0)
    assert [call for thread, call in disk.waited if thread == "event-loop"] == []
    assert expected <= disk.calls()
    assert longest < 0.9, "a step of the loop waited for the disk"


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
        eventually(lambda: b"cold" in bytes(_metadata(peer)))
        stack.callback(disk.end)
        disk.slow()
        end, places = BATCHES - 1, range(PARTITIONS)
        if what == "produce":
            entries = [into(number, "cold", "id-cold") for number in places]
            peer.ask(Api.PRODUCE, produce(*entries), [make_batch(b"x")] * PARTITIONS)
        elif what == "fetch":
            wanted = [out_of(number, end, 4096, "cold", "id-cold") for number in places]
            peer.ask(Api.FETCH, fetch(*wanted, max_wait=30.0, min_bytes=900 * PARTITIONS))
        else:
            look_ups = [
                ListOffsetsEntry("cold", "id-cold", number, 1000 + end) for number in places
            ]
            peer.ask(Api.LIST_OFFSETS, ListOffsetsRequest(look_ups))
        opened = {"load_sealed", "read a snapshot"} if stop == "orderly" else {"load_unsealed"}
        if what == "look up":
            opened = set()
        longest = longest_hello(watcher, lambda: opened <= disk.calls())
        disk.end()
        envelope, payloads = peer.receive()
    assert not envelope.error
    assert what != "fetch" or len(payloads) > 0
    assert [call for thread, call in disk.waited if thread == "event-loop"] == []
    assert opened <= disk.calls()
    assert longest < 0.9, "a step of the loop waited for the disk"


def longest_hello(peer: Peer, enough: Callable[[], bool], seconds: float = 1.2) -> float:
    """How long a client waits at most that says hello again and again, for some seconds or more, until
    the disk has kept enough others waiting."""
    longest, begun = 0.0, time.monotonic()
    while (passed := time.monotonic() - begun) < seconds or (passed < 20.0 and not enough()):
        began = time.monotonic()
        peer.call(Api.HELLO, HelloRequest("how long does it take?"))
        longest = max(longest, time.monotonic() - began)
        time.sleep(0.005)  # the others need the processor, too
    return longest


def _metadata(peer: Peer) -> bytes:
    response, _ = peer.call(Api.METADATA, MetadataRequest(None))
    return repr(response).encode()


def ask_for_everything(peer: Peer, flushed: str, doomed: str) -> None:
    """Requests whose answers need the disk; nobody waits for them."""
    peer.ask(Api.PRODUCE, produce(into(0, "flushed", flushed)), [make_batch(b"x" * 1500)])
    peer.ask(Api.FETCH, fetch(*(out_of(n, 1, 4096, "cold", "id-cold") for n in range(PARTITIONS))))
    look_ups = [ListOffsetsEntry("cold", "id-cold", number, 1003) for number in range(PARTITIONS)]
    peer.ask(Api.LIST_OFFSETS, ListOffsetsRequest(look_ups))
    deletions = [DeleteRecordsEntry("doomed", doomed, number, 0, 1) for number in range(PARTITIONS)]
    peer.ask(Api.DELETE_RECORDS, DeleteRecordsRequest(deletions))
