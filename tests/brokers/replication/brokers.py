"""Brokers that replicate to each other in one process: real logs and handlers, no sockets, no threads."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from functools import partial
from math import inf
from pathlib import Path
from typing import Any

from folkmoot.brokers.jobs.jobs import Now
from folkmoot.brokers.replication.partition import Partition
from folkmoot.brokers.replication.replica_fetcher import ReplicaFetcher
from folkmoot.brokers.replication.shared import Written
from folkmoot.brokers.server.metadata_cache import ClusterChange, ClusterView
from folkmoot.brokers.server.purgatory import DelayedResponse, Request, Response
from folkmoot.brokers.storage.log import Log
from folkmoot.brokers.storage.log_manager import LogManager
from folkmoot.coordination.brokers import Registration
from folkmoot.coordination.partition_states import (
    Answer,
    BrokerReplaced,
    PartitionState,
    StateWrite,
    Superseded,
    TopicIdPartition,
    VersionedState,
)
from folkmoot.coordination.topics import TopicInfo
from folkmoot.network.client import Reply
from folkmoot.protocol.errors import BrokerUnreachable, FolkmootError, RequestTimeout
from folkmoot.protocol.messages import (
    Api,
    DeleteRecordsEntry,
    DeleteRecordsRequest,
    DescribeProducersEntry,
    DescribeProducersRequest,
    ProduceRequest,
    ReplicaFetchRequest,
)
from tests.brokers.batches import SMALL
from tests.brokers.hands import Hands
from tests.brokers.parts import carried_out, make_batch, make_handlers
from tests.brokers.parts import into as entry
from tests.processes import open_below

TOPIC_ID = "id-1"
PARTITION = TopicIdPartition(TOPIC_ID, 0)
REPLICAS = (1, 2, 3)
PRODUCE_TIMEOUT = 10_000.0


class Wire:
    """What a broker's fetcher takes for its connections: requests go straight to the others' handlers."""

    def __init__(self, cluster: Cluster, owner: int) -> None:
        self._cluster = cluster
        self._owner = owner
        self.sent = 0
        self._replies: list[Reply] = []
        self._waiting: dict[int, int] = {}

    def send(self, address: str, api: Api, request: Any, *, timeout: float) -> int:
        self.sent += 1
        number = self.sent
        self._waiting[number] = int(address)
        self._cluster.deliver(self._owner, int(address), number, request)
        return number

    def broke(self, receiver: int, error: FolkmootError) -> None:
        """What that broker has not answered it never will."""
        for number, address in list(self._waiting.items()):
            if address == receiver:
                self.reply(number, error)

    def reply(self, number: int, response: Response | FolkmootError) -> None:
        if self._waiting.pop(number, None) is None:
            return
        if isinstance(response, FolkmootError):
            reply = Reply(number, "", Api.REPLICA_FETCH, None, response, [])
        else:
            payloads = [memoryview(bytes(each)) for each in response.payloads]
            reply = Reply(number, "", Api.REPLICA_FETCH, response.body, None, payloads)
        self._replies.append(reply)

    def handle_events(self, events: Mapping[Any, int]) -> list[Reply]:
        replies, self._replies = self._replies, []
        return replies

    def next_event(self) -> float:
        return inf


class Node:
    """One broker: `hands` does its jobs, at once unless `by_hand`."""

    def __init__(self, cluster: Cluster, number: int, data: Path) -> None:
        self.cluster = cluster
        self.number = number
        self.hands = Hands()
        self.by_hand = False
        self.wire = Wire(cluster, number)
        self.logs = LogManager(data, number, SMALL, submit=self._submit)
        self.logs.start()
        self.fetcher = ReplicaFetcher(number, self.wire)  # type: ignore[arg-type]
        self.handlers = make_handlers(
            *(self.logs, ClusterView(), self._submit),
            broker_id=number,
            clock=lambda: cluster.now,
            fetcher=self.fetcher,
            write_states=partial(cluster.write, self),
        )
        self.partitions = self.handlers.partitions
        self.consumed: list[Response] = []
        """What was answered to fetches of a consumer that have waited."""
        self.is_settled = True
        """False: its session was lost while it wrote, and it has not read everything anew yet."""

    def _submit(self, key: Any, work: Any, done: Any, /) -> None:
        self.hands.submit(key, work, done)
        if not self.by_hand:
            self.hands.work_all()

    @property
    def now(self) -> Now:
        return Now(self.cluster.now, round(self.cluster.now * 1000))

    @property
    def replica(self) -> Partition:
        found = self.partitions.find(*PARTITION)
        assert found is not None
        return found

    @property
    def log(self) -> Log:
        found = self.logs.find(*PARTITION)
        assert found is not None
        return found

    def ask(self, request: Any, *payloads: bytes, peer: bytes = b"client") -> Any:
        """The answer of this broker, or what waits for it."""
        outcome = carried_out(request, payloads, self.now, self.handlers, peer=peer)
        return outcome.body if isinstance(outcome, Response) else outcome

    def produce(self, *values: bytes, acks: int = -1, epoch: int = -1) -> list[Any]:
        """Produce a batch → where its result will be, or is."""
        return self.send(make_batch(*values), acks=acks, epoch=epoch)

    def send(self, batch: bytes, *, acks: int = -1, epoch: int = -1) -> list[Any]:
        """The same with a batch that was made."""
        asked = [entry(0, topic_id=TOPIC_ID, epoch=epoch)]
        return self._results(ProduceRequest(acks, PRODUCE_TIMEOUT, asked), batch)

    def describe_producer(self, producer_id: int) -> list[Any]:
        """Ask how far it got → where the result will be, or is."""
        asked = DescribeProducersEntry("t", TOPIC_ID, 0, -1, producer_id)
        return self._results(DescribeProducersRequest(30.0, [asked]))

    def delete_records(self, offset: int) -> list[Any]:
        """Give up what lies before an offset → where the result will be, or is."""
        asked = DeleteRecordsEntry("t", TOPIC_ID, 0, -1, offset)
        return self._results(DeleteRecordsRequest([asked]))

    def _results(self, request: Any, *payloads: bytes) -> list[Any]:
        results: list[Any] = []
        outcome = carried_out(request, payloads, self.now, self.handlers)
        if isinstance(outcome, DelayedResponse):

            def answered(response: Response | Exception) -> None:
                assert isinstance(response, Response)
                results.append(response.body.results[0])

            outcome.send = answered
        else:
            assert outcome is not None
            results.append(outcome.body.results[0])
        return results

    def turn(self) -> None:
        """What its event loop does in a turn."""
        self.partitions.replicate({}, self.now)
        for delayed in self.handlers.purgatory.take_completed(self.cluster.now, 100):
            response = delayed.complete(self.now)
            if response is not None and delayed.request.peer == b"consumer":
                self.consumed.append(response)
            elif response is not None:
                self.cluster.answer(delayed.request, response)

    def tend(self) -> None:
        """What its event loop does from time to time."""
        self.partitions.shared.run_timers(self.cluster.now)
        self.partitions.task(self.now)


class Cluster:
    """Three brokers, with a replica each or not, and the partition's state, which a test designates in."""

    def __init__(
        self,
        directory: Path,
        config: Mapping[str, str] | None = None,
        replicas: Sequence[int] = REPLICAS,
    ) -> None:
        self.directory = directory
        self.now = 100.0
        self.registrations: dict[int, Registration] = {}
        self.nodes: dict[int, Node] = {}
        self.topic = TopicInfo(TOPIC_ID, [list(replicas)], dict(config or {}))
        self.state = VersionedState(PartitionState(1, 0, tuple(replicas), 1), 0)
        self.writes: list[StateWrite] = []
        self.lose_answers = False
        self.cut: set[tuple[int, int]] = set()
        for number in REPLICAS:
            self.start(number)
        self.show()
        self.run()

    def start(self, number: int) -> None:
        former = self.registrations.get(number)
        epoch = 1 if former is None else former.epoch + 1
        listeners = {"client": str(number)}
        self.registrations[number] = Registration(listeners, f"n{number}-{epoch}", epoch=epoch)
        self.nodes[number] = Node(self, number, self.directory / f"{number}")

    def kill(self, number: int) -> None:
        """It is gone, and not registered any more."""
        self.nodes.pop(number).logs.abandon()
        for node in self.nodes.values():
            node.wire.broke(number, BrokerUnreachable("it is gone"))

    def stop(self) -> None:
        for node in self.nodes.values():
            node.logs.close()
        assert open_below(self.directory) == []

    # -- ZooKeeper ----------------------------------------------------------------------------------

    def write(
        self, node: Node, writes: Mapping[TopicIdPartition, StateWrite], done: Written
    ) -> None:
        [wanted] = writes.values()
        self.writes.append(wanted)
        answer = self._written(wanted)
        node.is_settled = node.is_settled and not self.lose_answers
        done({PARTITION: answer} if node.is_settled else None)

    def _written(self, wanted: StateWrite) -> Answer:
        for broker, epoch in wanted.in_sync.items():
            if self.registrations[broker].epoch != epoch:
                return BrokerReplaced(broker)
        if wanted.stands_on != self.state.partition_epoch:
            return Superseded(self.state)
        self.state = VersionedState(wanted.state, wanted.stands_on + 1)
        return self.state

    def designate(self, leader: int, *isr: int) -> None:
        designated = self.state.state.designate(leader, isr, 1)
        self.state = VersionedState(designated, self.state.partition_epoch + 1)

    def show(self, *numbers: int, registered: bool = True) -> None:
        """These brokers, or all, read everything, and what they write by that, too."""
        shown = self.state
        self._show(numbers or tuple(self.nodes), registered=registered)
        if self.state != shown and not self.lose_answers:
            self._show(numbers or tuple(self.nodes), registered=registered)

    def _show(self, numbers: Sequence[int], *, registered: bool) -> None:
        live = {number: self.registrations[number] for number in self.nodes}
        topic = copy.deepcopy(self.topic)  # tests change it in place
        states = {TopicIdPartition(TOPIC_ID, 0): self.state}
        for number in numbers:
            node = self.nodes[number]
            settled, node.is_settled = not node.is_settled, True
            change = ClusterChange(
                brokers=live,
                topics={"t": topic},
                states=states,
                full_view=ClusterView(live, {"t": topic}, states) if settled else None,
                is_settled=settled,
                is_registered=registered,
            )
            node.handlers.updates.show(change, lambda work: work())

    # -- the network --------------------------------------------------------------------------------

    def deliver(self, sender: int, receiver: int, number: int, body: Any) -> None:
        node = self.nodes.get(receiver)
        if node is None:
            self.nodes[sender].wire.reply(number, BrokerUnreachable("nobody listens there"))
            return
        if (sender, receiver) in self.cut:
            return
        request = Request(b"%d" % sender, number, body)
        response: Any
        try:
            if isinstance(body, ReplicaFetchRequest):
                response = node.handlers.replica_fetches.fetch(request, self.now)
            else:
                response = carried_out(body, (), node.now, node.handlers, peer=request.peer)
        except FolkmootError as error:
            self.nodes[sender].wire.reply(number, error)
            return
        if response is not None:
            self.answer(request, response)

    def answer(self, request: Request, response: Response) -> None:
        node = self.nodes.get(int(request.peer))
        if node is not None and request.correlation_id:
            node.wire.reply(request.correlation_id, response)

    def run(self, turns: int = 12) -> None:
        """Let all of them work until nothing moves any more."""
        for _ in range(turns):
            for node in list(self.nodes.values()):
                node.turn()

    def later(self, seconds: float) -> None:
        """Let time pass, tasks included."""
        self.now += seconds
        self._time_out()
        for node in list(self.nodes.values()):
            node.tend()
        self.run()

    def mend(self) -> None:
        """All reach each other again."""
        self._time_out()
        self.cut.clear()

    def _time_out(self) -> None:
        """Who has lost an answer is told that there is none."""
        for sender, receiver in self.cut:
            if sender in self.nodes:
                self.nodes[sender].wire.broke(receiver, RequestTimeout("it did not answer"))

    def ends(self) -> Sequence[int]:
        logs = [node.logs.find(*PARTITION) for node in self.nodes.values()]
        return [-1 if log is None else log.log_end for log in logs]
