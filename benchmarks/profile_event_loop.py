"""How long a broker's event loop stands still: `python -m benchmarks.profile_event_loop [partitions]`.

A broker with ten thousand partitions whose files are cold is asked for everything at once: one request
with a batch for each, another that begins a segment in each, reads and look-ups of times in all of them,
half of the topics deleted, retention due for the rest. A second client says hello all the time and
measures what it waits. Both clients are threads of the same process, whose work counts into the steps.
"""

import os
import resource
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

import zmq

from folkmoot.brokers.server.broker import Broker
from folkmoot.brokers.server.config import BrokerConfig
from folkmoot.brokers.server.event_loop import SLOW_STEP, EventLoop
from folkmoot.brokers.server.garbage_collection import SurvivorsFrozen
from folkmoot.brokers.server.metadata_cache import ANY_EPOCH
from folkmoot.brokers.storage import retention
from folkmoot.brokers.storage.files.cluster_facts import load_facts
from folkmoot.brokers.storage.log_manager import LogManager, partition_directories
from folkmoot.brokers.storage.partition_creation import PartitionCreation
from folkmoot.coordination import topics
from folkmoot.coordination.topic_config import LogConfig
from folkmoot.coordination.topics import TopicInfo
from folkmoot.coordination.zookeeper.execute import execute
from folkmoot.protocol import record_batch, wire
from folkmoot.protocol.columns import Columns
from folkmoot.protocol.messages import (
    LATEST,
    Api,
    FetchEntry,
    FetchRequest,
    HelloRequest,
    ListOffsetsEntry,
    ListOffsetsRequest,
    ProduceEntry,
    ProduceRequest,
)
from tests.brokers.killed_broker import create
from tests.memory_zookeeper import MemorySession, MemoryZooKeeper

PARTITIONS: Final = 10_000
PER_TOPIC: Final = 100
SMALL: Final = LogConfig(segment_bytes=4096, index_interval_bytes=512, retention=None)
BATCHES: Final = 5
"""Two for each segment: the active one has room for another."""


class Client:
    """One connection, one request at a time."""

    def __init__(self, address: str) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.connect(f"tcp://{address}")
        self._number = 0

    def call(self, api: Api, request: Any, payloads: tuple[bytes, ...] = ()) -> Any:
        self._number += 1
        envelope = wire.encode_request(api, self._number, "benchmark", request)
        self._socket.send_multipart((envelope, *payloads))
        body = wire.response_body(api, wire.decode_response(self._socket.recv_multipart()[0]))
        for each in getattr(body, "results", ()):
            assert not each.error, (
                f"{each.topic}-{each.partition}: error {each.error}, {each.message}"
            )
        return body

    def close(self) -> None:
        self._context.destroy(linger=0)


def a_batch(timestamp: int) -> bytes:
    return record_batch.encode(Columns(1, None, [os.urandom(1500)], timestamp))


def prepare(data: Path, names: list[str]) -> None:
    """Logs of an earlier life: some sealed segments each, nothing of them known to the next start."""
    payloads = [a_batch(1_000 + number) for number in range(BATCHES)]
    now = time.time_ns() // 1_000_000
    with LogManager(data, 1, SMALL) as logs:
        creation = PartitionCreation(logs)
        for name in names:
            for number in range(PER_TOPIC):
                creation.when_created(name, f"id-{name}", number, lambda error: None)
        for log in logs:
            logs.notes.leader_epochs[log.directory.name] = 0  # else its disk counts as a new one
            for payload in payloads:
                log.append_as_leader([payload], now, 0)


def create_topics(store: MemorySession, names: list[str]) -> None:
    for name in names:
        execute(store, create(name, TopicInfo(f"id-{name}", [[1]] * PER_TOPIC)))


class Hello:
    """A client that says hello again and again, and how long it has waited at most."""

    def __init__(self, address: str) -> None:
        self.longest = 0.0
        self._client = Client(address)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopping.is_set():
            began = time.perf_counter()
            self._client.call(Api.HELLO, HelloRequest("benchmark"))
            self.longest = max(self.longest, time.perf_counter() - began)
            self._stopping.wait(0.001)

    def close(self) -> None:
        self._stopping.set()
        self._thread.join()
        self._client.close()


class ProcessorTime:
    """What the longest step of an event loop takes of a processor, whoever else has it meanwhile."""

    def __init__(self, loop: EventLoop) -> None:
        self.longest = 0.0
        self._before = 0.0
        ended = loop._step_ended

        def step_ended(kind: str, what: Any = None) -> None:
            now = time.thread_time()
            self.longest = max(self.longest, now - self._before)
            self._before = now
            ended(kind, what)

        loop._step_ended = step_ended  # type: ignore[method-assign]
        time.sleep(0.5)  # until it has begun to count


def measured(
    what: str, loop: EventLoop, used: ProcessorTime, hello: Hello, work: Callable[[], object]
) -> None:
    slow, loop.longest_step, hello.longest, used.longest = loop.slow_steps, 0.0, 0.0, 0.0
    began = time.perf_counter()
    work()
    took = time.perf_counter() - began
    print(
        f"{what:56s} {took:7.2f} s   longest step {loop.longest_step * 1e3:6.1f} ms"
        f" ({used.longest * 1e3:5.1f} of a processor)   {loop.slow_steps - slow:3d} above"
        f" {SLOW_STEP * 1e3:.0f} ms   longest hello {hello.longest * 1e3:6.1f} ms"
    )


def main(partitions: int) -> None:
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    names = [f"topic-{number}" for number in range(partitions // PER_TOPIC)]
    places = [(name, f"id-{name}", number) for name in names for number in range(PER_TOPIC)]
    scratch = Path(tempfile.mkdtemp(prefix="folkmoot-event-loop-"))
    ensemble = MemoryZooKeeper()
    user = ensemble.connect()
    retention.RETENTION_INTERVAL = 1.0  # type: ignore[misc]
    try:
        prepare(scratch / "data", names)
        create_topics(user, names)
        config = BrokerConfig(
            broker_id=1, data=scratch / "data", zookeeper="in.memory:1", log=SMALL
        )
        with Broker(config, ensemble.connect) as broker:
            SurvivorsFrozen().begin()  # as `folkmoot broker` does
            loop, address = broker.event_loop, broker.listeners["client"]
            client, hello, used = Client(address), Hello(address), ProcessorTime(loop)
            tell = partial(measured, loop=loop, used=used, hello=hello)
            reads = [FetchEntry(*each, ANY_EPOCH, 1, 2**20) for each in places]
            looks = [ListOffsetsEntry(*each, 1_003) for each in places]
            ends = [ListOffsetsEntry(*each, LATEST) for each in places]
            writes = [ProduceEntry(*each, ANY_EPOCH) for each in places]
            payloads = (a_batch(2_000),) * len(writes)
            directories = list(partition_directories(config.data))

            def read() -> None:
                for first in range(0, len(reads), 100):
                    request = FetchRequest(5.0, 2**20, 2**25, reads[first : first + 100])
                    client.call(Api.FETCH, request)

            def expire() -> None:
                for name in names[partitions // PER_TOPIC // 2 :]:
                    execute(user, topics.configure(name, {"retention": "0.001"}))
                time.sleep(10.0)

            def delete() -> None:
                for name in names[: partitions // PER_TOPIC // 2]:
                    execute(user, topics.delete(name))
                time.sleep(5.0)

            def until_led() -> None:
                while True:
                    time.sleep(0.1)
                    with suppress(AssertionError):
                        client.call(Api.LIST_OFFSETS, ListOffsetsRequest(ends))
                        return

            def until_noted() -> None:
                while any(load_facts(each.path)[1] is None for each in directories):
                    time.sleep(0.1)

            tell("all partitions are led", work=until_led)
            tell("what the cluster says of each is noted", work=until_noted)
            produce = partial(client.call, Api.PRODUCE, ProduceRequest(1, 30.0, writes), payloads)
            for what in ("cold", "warm, in new segments", "warm"):
                tell(f"one request with a batch for each, {what}", work=produce)
            tell("a fetch of each cold partition", work=read)
            for what, entries in (("ends", ends), ("times, cold", looks), ("times, warm", looks)):
                look_up = partial(client.call, Api.LIST_OFFSETS, ListOffsetsRequest(entries))
                tell(f"one request for all {what}", work=look_up)
            tell("half of the topics deleted", work=delete)
            tell("retention due for the others", work=expire)
            hello.close()
            client.close()
    finally:
        shutil.rmtree(scratch)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else PARTITIONS)
