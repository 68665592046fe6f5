"""Clients of a replicated topic, all of whose doings end in a ClientHistory, and its partitions' states."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from folkmoot.consumers.client.consumer import Consumer
from folkmoot.coordination import partition_states
from folkmoot.coordination.connector import connect
from folkmoot.coordination.partition_states import TopicIdPartition, VersionedState
from folkmoot.coordination.zookeeper.execute import execute_all
from folkmoot.producers.producer import Producer
from folkmoot.protocol.records import Record, RecordMetadata
from tests.client_history import ClientHistory, Seen
from tests.waiting import eventually

TOPIC = "t"
PRODUCERS = 2
PACE = 0.005
LOOK = 0.02
PATIENCE = 60.0


class Load:
    """Idempotent producers with acks=all that write numbers, a consumer that reads all, and a group."""

    def __init__(self, zookeeper: str, partitions: int) -> None:
        self.history = ClientHistory()
        self.lock = threading.Lock()
        self.longest_silence = 0.0
        self.failed: list[Exception] = []
        self.seen_by_group: set[Seen] = set()
        self._zookeeper = zookeeper
        self._partitions = [(TOPIC, number) for number in range(partitions)]
        self._last = time.monotonic()
        self._writing, self._reading = threading.Event(), threading.Event()
        self._producers = [
            Producer(zookeeper=zookeeper, acks="all", delivery_timeout=PATIENCE)
            for _ in range(PRODUCERS)
        ]
        readers: list[tuple[Callable[..., None], str]] = [
            (self._read, "alone"),
            *((self._consume, f"member {number}") for number in range(2)),
        ]
        self._writers = [self._thread(self._write, each) for each in range(PRODUCERS)]
        self._readers = [self._thread(*each) for each in readers]

    def _thread(self, work: Callable[..., None], *given: Any) -> threading.Thread:
        def run() -> None:
            try:
                work(*given)
            except Exception as error:
                self.failed.append(error)

        return threading.Thread(target=run, daemon=True)

    def start(self) -> None:
        self._last = time.monotonic()
        for thread in (*self._writers, *self._readers):
            thread.start()

    def stop_writing(self) -> None:
        """Returns when all is acknowledged, or has failed."""
        self._writing.set()
        for thread in self._writers:
            thread.join()
        for producer in self._producers:
            producer.close()

    def stop_reading(self) -> None:
        self._reading.set()
        for thread in self._readers:
            thread.join()

    @property
    def acknowledged(self) -> int:
        return len(self.history.acknowledged)

    def group_lacks(self) -> int:
        """How many acknowledged records no member of the group was given."""
        with self.lock:
            seen = {(each.partition, each.offset) for each in self.seen_by_group}
            return len(self.history.acknowledged.keys() - seen)

    # -- threads ------------------------------------------------------------------------------------

    def _write(self, producer: int) -> None:
        sender = self._producers[producer]
        sender.start()
        number = 0
        while not self._writing.wait(PACE):
            number += 1
            value = number * PRODUCERS + producer
            partition = number % len(self._partitions)

            def delivered(delivery: Any, number: int = number, value: int = value) -> None:
                self._delivered(f"producer {producer}", number, value, delivery)

            sender.send(TOPIC, b"%d" % value, partition=partition, on_delivery=delivered)

    def _delivered(self, producer: str, number: int, value: int, delivery: Any) -> None:
        try:
            where: RecordMetadata = delivery.result(0)
        except Exception as error:
            self.failed.append(error)
            return
        now = time.monotonic()
        with self.lock:
            self.longest_silence = max(self.longest_silence, now - self._last)
            self._last = now
            self.history.acknowledge(producer, number, 0, where.partition, where.offset, value)

    def _read(self, name: str) -> None:
        with Consumer(zookeeper=self._zookeeper, auto_offset_reset="earliest") as consumer:
            consumer.assign(self._partitions)
            while not self._reading.is_set():
                self._seen(name, consumer.poll(timeout=0.1))

    def _consume(self, name: str) -> None:
        def moved(*_: object) -> None:
            with self.lock:
                self.history.move(name)

        consumer = Consumer(
            zookeeper=self._zookeeper,
            group="group",
            topics=[TOPIC],
            commit_interval=0.5,
            on_assign=moved,
        )
        with consumer:
            while not self._reading.is_set():
                seen = self._seen(name, consumer.poll(timeout=0.1))
                with self.lock:
                    self.seen_by_group.update(seen)

    def _seen(self, name: str, records: list[Record]) -> list[Seen]:
        some = [Seen(each.partition, each.offset, int(each.value or b"")) for each in records]
        with self.lock:
            self.history.poll(name, some)
        return some


def finish(load: Load, zookeeper: str, partitions: int) -> Mapping[str, Sequence[str]]:
    """Ends the load when its group has read everything; what is wrong then, kind → what."""
    load.stop_writing()
    eventually(lambda: load.failed or not load.group_lacks(), PATIENCE)
    load.stop_reading()
    assert not load.failed
    ends: dict[int, int] = {}
    for partition, offset in load.history.acknowledged:
        ends[partition] = max(ends.get(partition, 0), offset)
    load.history.finally_read(read_all(zookeeper, partitions, ends))
    return load.history.faults()


def read_all(zookeeper: str, partitions: int, ends: dict[int, int]) -> list[Seen]:
    """All that consumers can read, up to these offsets at least."""
    found: list[Seen] = []
    deadline = time.monotonic() + PATIENCE
    missing = dict(ends)
    with Consumer(zookeeper=zookeeper, auto_offset_reset="earliest") as consumer:
        consumer.assign([(TOPIC, number) for number in range(partitions)])
        while missing and time.monotonic() < deadline:
            for record in consumer.poll(timeout=0.5):
                assert record.value is not None
                found.append(Seen(record.partition, record.offset, int(record.value)))
                if record.offset >= missing.get(record.partition, record.offset + 1):
                    del missing[record.partition]
    return found


class StateWatch:
    """Looks at the partitions' states all the time: what they are, and what has happened to them."""

    def __init__(self, zookeeper: str, topic_id: str, partitions: int, load: Load) -> None:
        self.changes: Counter[str] = Counter()
        self._session = connect(zookeeper, 30.0)
        self._keys = [TopicIdPartition(topic_id, number) for number in range(partitions)]
        self._load = load
        self._known: list[VersionedState | None] = [None] * partitions
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stopping.set()
        self._thread.join()
        self._session.close()

    def leads(self, partition: int) -> int | None:
        found = self._known[partition]
        return found.state.leader if found is not None and found.state.active else None

    def all_in_sync(self) -> bool:
        return all(each and each.state.active and len(each.state.isr) == 3 for each in self._known)

    def look(self) -> None:
        """See what the states are now."""
        found = execute_all(self._session, map(partition_states.read, self._keys))
        for number, (before, now) in enumerate(zip(self._known, found, strict=True)):
            if before is not None and now is not None:
                self.changes["leader"] += before.state.leader_epoch != now.state.leader_epoch
                shrank = set(before.state.isr) - set(now.state.isr)
                self.changes["shrink"] += bool(shrank)
                self.changes["expand"] += bool(set(now.state.isr) - set(before.state.isr))
            if now is not None:
                epoch = now.state.leader_epoch
                with self._load.lock:
                    self._load.history.leader_epoch(f"partition {number}", epoch)
        self._known = list(found)

    def _run(self) -> None:
        while not self._stopping.wait(LOOK):
            try:
                self.look()
            except Exception as error:
                self._load.failed.append(error)
                return
