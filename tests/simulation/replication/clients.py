"""A producer and a consumer as they are, less their threads and sockets, and what they have seen."""

from collections.abc import Callable
from functools import partial
from typing import Any, cast

from folkmoot.consumers.config import ConsumerConfig
from folkmoot.consumers.fetch.fetcher import Fetcher
from folkmoot.coordination.wakeup import Wakeup
from folkmoot.network.ask_leaders import LeaderRequests
from folkmoot.network.client import Connections
from folkmoot.network.cluster import Cluster
from folkmoot.producers.accumulator import Accumulator
from folkmoot.producers.appender import Delivery
from folkmoot.producers.config import ProducerConfig
from folkmoot.producers.sender import Sender
from folkmoot.producers.sender_state import SenderState
from folkmoot.protocol.messages import (
    EARLIEST,
    Api,
    DeleteRecordsEntry,
    DeleteRecordsRequest,
)
from folkmoot.protocol.options import build
from folkmoot.protocol.records import TopicPartition
from tests.client_history import Seen
from tests.simulation.checks import Violation
from tests.simulation.replication.checks import ReplicationChecks
from tests.simulation.replication.coordination import PARTITION as TOPIC_PARTITION
from tests.simulation.replication.coordination import TOPIC
from tests.simulation.replication.network import Client, Network
from tests.simulation.world import World

PARTITION = TopicPartition(TOPIC, 0)
ROUND = 0.05
REQUEST_TIMEOUT = 0.6
DELIVERY_TIMEOUT = 30.0


class _Bell:
    """What a sender's thread is woken by, which has none here."""

    def clear(self) -> None:
        pass

    def wake(self) -> None:
        pass


class _Driven:
    """Something that has a round to do when it was woken, and from time to time."""

    def __init__(self, world: World, network: Network, name: str) -> None:
        self.world = world
        self.name = name
        self._woken = False
        client = Client(network, name, self.wake)
        self.cluster = Cluster(
            cast(Connections, client), lambda: ["1", "2", "3", "4"], clock=world.clock
        )
        world.after(ROUND, self._tick)

    def wake(self) -> None:
        if not self._woken:
            self._woken = True
            self.world.after(0.0005 * self.world.random.random(), self._round)

    def _tick(self) -> None:
        self.wake()
        self.world.after(ROUND, self._tick)

    def _round(self) -> None:
        self._woken = False
        self.work()

    def work(self) -> None:
        raise NotImplementedError


class SimulatedProducer(_Driven):
    """The real sender, over the real accumulator. `acknowledged` is told value and offset."""

    def __init__(
        self,
        world: World,
        network: Network,
        name: str,
        values: Callable[[], int],
        acknowledged: Callable[[int, int], None],
        **options: Any,
    ) -> None:
        super().__init__(world, network, name)
        self._values = values
        self._acknowledged = acknowledged
        self.unanswered = 0
        self.failed: list[Exception] = []
        settings = {
            "compression": "none",
            "request_timeout": REQUEST_TIMEOUT,
            "delivery_timeout": DELIVERY_TIMEOUT,
            "max_block": 0.0,
            **options,
        }
        config = build(ProducerConfig, {"zookeeper": "nowhere:1", **settings})
        self._accumulator = Accumulator(config, _Bell().wake, world.clock, world.random)
        self._accumulator.open()
        self._sender = Sender(config, self._accumulator, cast(Wakeup, _Bell()), lambda: ())
        self._state = SenderState(config, self.cluster, world.random)

    def send(self, count: int) -> None:
        """Append some records, once the topic is known."""
        partitions = len(self.cluster.partitions(TOPIC))
        if partitions and TOPIC not in self._accumulator.counts:
            self._sender._set_partitions(self.cluster, TOPIC, partitions)
        if TOPIC in self._accumulator.counts:
            for _ in range(count):
                value = self._values()
                self.unanswered += 1
                self._accumulator.appender.send(
                    *(TOPIC, b"%d" % value, None, 0, None, round(self.world.now * 1000)),
                    partial(self._delivered, value),
                )
        self.wake()

    def work(self) -> None:
        self._sender._run_once(self.cluster, self._state)

    def _delivered(self, value: int, delivery: Delivery) -> None:
        self.unanswered -= 1
        try:
            offset = delivery.result(0).offset
        except Exception as error:
            self.failed.append(error)
            return
        self._acknowledged(value, offset)


class SimulatedConsumer(_Driven):
    """The real fetcher; it reads from the beginning, and is never to be sent elsewhere but by who has
    deleted what it was about to read: to the earliest offset of who leads then, and that may be another
    one, which has not deleted as much yet."""

    def __init__(
        self, world: World, network: Network, name: str, checks: ReplicationChecks
    ) -> None:
        super().__init__(world, network, name)
        self.position = self._resets = 0
        self._since: int | None = None
        self._checks = checks
        self._history = checks.clients
        config = ConsumerConfig(
            zookeeper="nowhere:1",
            auto_offset_reset="earliest",
            request_timeout=REQUEST_TIMEOUT,
            fetch_max_wait=0.2,
        )
        self._fetcher = Fetcher(config, self.cluster, world.clock)
        self._fetcher.add(PARTITION, 0)

    def seek(self, moment: int) -> None:
        """Go on at the first record of this time (ms) or later."""
        self.position, self._since = 0, moment
        self._history.move(self.name)
        self._fetcher.seek(PARTITION, EARLIEST, moment)

    def work(self) -> None:
        self._fetcher.rotation.keep()  # what was taken before is in the application's hands
        self._fetcher.poll(0.0)
        found: list[Seen] = []
        while (view := self._fetcher.take_view(500)) is not None:
            found += [seen_of(each) for each in view.records()]
        if found:
            if self._resets < (resets := self._fetcher.counters.offset_resets):
                self._resets = resets
                if self.position >= self._checks.to_be_deleted:
                    raise Violation(f"{self.name} was sent away from {self.position}")
                self.world.seen["sent past deleted records"] += 1
                self._history.move(self.name)
            elif self._since is not None:
                self.world.seen["found by time"] += 1
                self._checks.sought(self.name, self._since, found[0].offset)
            self._since = None
            self.position = found[-1].offset + 1
            self.world.seen["consumed"] += len(found)
            self._history.poll(self.name, found)
        try:
            self._fetcher.check()
        except Exception as error:
            raise Violation(f"{self.name} cannot read on: {error}") from error
        self._fetcher.ask()


class SimulatedAdministrator(_Driven):
    """Deletes records by the real requests to leaders. `deleted` is told the leader epoch and the start."""

    def __init__(
        self, world: World, network: Network, name: str, deleted: Callable[[int, int], None]
    ) -> None:
        super().__init__(world, network, name)
        self._deleted = deleted
        self._asked: list[tuple[LeaderRequests, list[int]]] = []

    def delete(self, offset: int) -> None:
        epochs: list[int] = []

        def entry(epoch: int) -> DeleteRecordsEntry:
            epochs.append(epoch)
            return DeleteRecordsEntry(TOPIC, TOPIC_PARTITION.topic_id, 0, epoch, offset)

        asked = LeaderRequests(
            *(self.cluster, Api.DELETE_RECORDS, {PARTITION: entry}),
            lambda entries, _: DeleteRecordsRequest(entries),
            clock=self.world.clock,
        )
        self._asked.append((asked, epochs))
        self.wake()

    def work(self) -> None:
        if not self._asked:
            return
        asked, epochs = self._asked[0]
        for reply in self.cluster.poll(0.0):
            asked.take(reply)
        if PARTITION in asked.results:
            self.world.seen["records deleted"] += 1
            self._deleted(epochs[-1], asked.results[PARTITION].log_start)
        else:
            asked.ask(REQUEST_TIMEOUT)
        if asked.is_done:
            del self._asked[0]


def seen_of(record: Any) -> Seen:
    return Seen(record.partition, record.offset, int(record.value or b"0"))
