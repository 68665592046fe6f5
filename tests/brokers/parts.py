"""Batches, contexts and a raw peer for the brokers' tests."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, Self

import pytest
import zmq

from folkmoot.brokers.jobs.jobs import Lane, Now, SharedJob, Submit, at_once, result_of
from folkmoot.brokers.replication.partitions import Partitions
from folkmoot.brokers.replication.replica_fetcher import ReplicaFetcher
from folkmoot.brokers.replication.shared import Shared, WriteStates, Written
from folkmoot.brokers.server.metadata_cache import ClusterChange, ClusterView, MetadataCache
from folkmoot.brokers.server.producer_ids import ProducerIds
from folkmoot.brokers.server.purgatory import DelayedResponse, Purgatory, Request, Response
from folkmoot.brokers.server.request_handlers import RequestHandlers
from folkmoot.brokers.server.request_table import handle
from folkmoot.brokers.server.schemas import Key, Schemas
from folkmoot.brokers.storage.flusher import Flusher
from folkmoot.brokers.storage.log import Log
from folkmoot.brokers.storage.log_manager import LogManager
from folkmoot.brokers.storage.partition_creation import PartitionCreation
from folkmoot.brokers.storage.retention import Retention
from folkmoot.brokers.storage.segment import NotCached
from folkmoot.coordination.brokers import Registration
from folkmoot.coordination.deletions import CONTROLLER, Deletion
from folkmoot.coordination.partition_states import (
    PartitionState,
    StateWrite,
    TopicIdPartition,
    VersionedState,
)
from folkmoot.coordination.schemas.lookups import unknown_id
from folkmoot.coordination.topic_config import LogConfig
from folkmoot.coordination.topics import TopicInfo
from folkmoot.network.client import Connections
from folkmoot.protocol import record_batch, wire
from folkmoot.protocol.columns import Columns
from folkmoot.protocol.compression import Codec
from folkmoot.protocol.errors import NotLeader, UnknownTopicOrPartition
from folkmoot.protocol.messages import (
    LATEST,
    Api,
    FetchEntry,
    FetchRequest,
    ListOffsetsEntry,
    ListOffsetsRequest,
    ProduceEntry,
    ProduceRequest,
)
from tests.waiting import eventually

ME = 1
OTHER = 2
TOPIC = TopicInfo("id-1", [[ME], [ME], [OTHER], [3], []])
BROKERS = {
    ME: Registration({"client": "127.0.0.1:9001"}, "n1", "d1"),
    OTHER: Registration({"client": "127.0.0.1:9002"}, "n2", "d2"),
}
VIEW = ClusterView(BROKERS, {"t": TOPIC})
DELETED = {"id-1": Deletion("t", 0.0, "ann@host", (ME, CONTROLLER))}


def make_batch(*values: bytes, codec: int = Codec.NONE) -> bytes:
    return record_batch.encode(Columns(len(values), None, list(values), 1000), codec)


def make_handlers(
    logs: LogManager,
    view: ClusterView = VIEW,
    submit: Submit = at_once,
    max_batch_bytes: int | None = None,
    take_ids: Callable[[int], range] | None = None,
    *,
    broker_id: int = ME,
    clock: Callable[[], float] = lambda: 0.0,
    schemas: Schemas | None = None,
    fetcher: ReplicaFetcher | None = None,
    write_states: WriteStates | None = None,
) -> RequestHandlers:
    """What answers requests, with all that it needs, and leads what the view says that it does; jobs are
    done at once until then, and behind it unless told otherwise."""
    jobs = _Jobs()
    own, submit = submit, jobs.submit
    logs._submit, logs.run_job = submit, partial(submit, Lane.DISK)
    logs.run_note = partial(submit, Lane.NOTES)
    for log in logs:
        log.queue._run_job = logs.run_job
    flusher = Flusher(logs)
    creation = PartitionCreation(logs, submit)
    retention = Retention(logs, flusher, submit)
    fetcher = fetcher or ReplicaFetcher(broker_id, Connections(f"broker-{broker_id}"))
    shared = Shared(
        *(broker_id, logs, flusher, retention, fetcher),
        *(write_states or _write_states, lambda work: work(), clock),
    )
    partitions = Partitions(shared, creation)
    metadata = MetadataCache(broker_id, partitions)
    handlers = RequestHandlers(
        max_batch_bytes=max_batch_bytes or logs.config.max_batch_bytes,
        metadata=metadata,
        logs=logs,
        flusher=flusher,
        retention=retention,
        producer_ids=ProducerIds(submit, take_ids or range),
        schemas=schemas or no_schemas(),
        purgatory=Purgatory(),
        partitions=partitions,
        submit=submit,
    )
    if view.topics:
        show(handlers, view)
    metadata.view = led(view, broker_id)
    jobs.submit_to = own
    return handlers


class _Jobs:
    def __init__(self) -> None:
        self.submit_to: Submit = at_once

    def submit(self, lane: Lane, work: Callable[[], Any], done: Callable[[Any], None], /) -> None:
        self.submit_to(lane, work, done)


def _write_states(writes: Mapping[TopicIdPartition, StateWrite], done: Written) -> None:
    """As ZooKeeper, where nobody else writes."""
    done({each: VersionedState(it.state, it.stands_on + 1) for each, it in writes.items()})


def led(view: ClusterView, broker_id: int = ME, *, active: bool = True) -> ClusterView:
    """The view with the states that it lacks: first replicas lead in epoch 1, or are to, if they are this
    broker's and not `active` yet."""
    states: dict[TopicIdPartition, VersionedState] = {}
    for topic in view.topics.values():
        states |= states_of(view, topic) or {
            TopicIdPartition(topic.topic_id, number): state_of(
                replicas[0], active=active or replicas[0] != broker_id
            )
            for number, replicas in enumerate(topic.partitions)
            if replicas
        }
    return ClusterView(view.registrations, view.topics, states)


def states_of(view: ClusterView, topic: TopicInfo) -> dict[TopicIdPartition, VersionedState]:
    return {each: found for each, found in view.states.items() if each.topic_id == topic.topic_id}


def state_of(leader: int, *, active: bool = True, epoch: int = 1) -> VersionedState:
    """Of a partition that this broker leads in this epoch, or is to lead."""
    state = PartitionState(leader, epoch - 1, (leader,), 1)
    return VersionedState(state.activate(), epoch) if active else VersionedState(state, epoch - 1)


def no_schemas() -> Schemas:
    """As of a registry without any."""

    def schema(key: Key) -> NoReturn:
        raise unknown_id(*key)

    return Schemas(lambda *_: (), schema, at_once, lambda _seconds: None)


def show(
    handlers: RequestHandlers, view: ClusterView, deleted: Mapping[str, Deletion] = {}
) -> None:
    """Have another view taken over, with all that follows; first replicas lead, where it has no states."""
    number = handlers.metadata.broker_id
    for active in (False, True):
        whole = led(view, number, active=active)
        handlers.updates.show(
            ClusterChange(full_view=whole, deleted=deleted, is_registered=True), lambda work: work()
        )


def make_logs(data: Path, config: LogConfig | None = None) -> LogManager:
    return LogManager(data, ME, config or LogConfig(delete_delay=0.0))


def the_log(logs: LogManager, partition: int, topic_id: str = "id-1") -> Log:
    """The log of a partition that exists."""
    log = logs.find(topic_id, partition)
    assert log is not None
    return log


def produce(*entries: ProduceEntry, acks: int = 1) -> ProduceRequest:
    return ProduceRequest(acks, 1.0, list(entries))


def into(partition: int, topic: str = "t", topic_id: str = "id-1", epoch: int = 1) -> ProduceEntry:
    return ProduceEntry(topic, topic_id, partition, epoch)


def carried_out(
    request: Any,
    payloads: Sequence[bytes],
    now: Now,
    handlers: RequestHandlers,
    *,
    peer: bytes = b"peer",
    number: int = 1,
) -> Response | DelayedResponse | None:
    """What a request of this peer, with this correlation id, comes to in the end or waits for."""
    views = [memoryview(each) for each in payloads]
    outcome = handle(handlers, Request(peer, number, request), views, now)
    if outcome is None or isinstance(outcome, Response | DelayedResponse):
        return outcome
    ended: Response | DelayedResponse | None = None
    try:
        while True:
            job = next(outcome)
            if job is not None:
                job.finish(result_of(job.run))
    except StopIteration as end:
        ended = end.value
    if isinstance(ended, DelayedResponse) and not ended.missing:
        return ended.response()
    return ended


def fetch(
    *entries: FetchEntry,
    max_wait: float = 0.0,
    min_bytes: int = 1,
    max_bytes: int = 2**20,
    keep: bool = False,
    after: int | None = None,
) -> FetchRequest:
    return FetchRequest(max_wait, min_bytes, max_bytes, list(entries), keep, after)


def out_of(
    partition: int,
    offset: int = 0,
    max_bytes: int = 2**20,
    topic: str = "t",
    topic_id: str = "id-1",
    epoch: int = 1,
) -> FetchEntry:
    return FetchEntry(topic, topic_id, partition, epoch, offset, max_bytes)


class Peer:
    """A client that can also send what no client would."""

    def __init__(self, address: str) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.set(zmq.LINGER, 0)
        self._socket.set(zmq.RCVTIMEO, 30_000)
        self._socket.connect(f"tcp://{address}")
        self._last = 0

    def send(self, *frames: bytes) -> None:
        self._socket.send_multipart(frames)

    def ask(self, api: Api, request: Any, payloads: Sequence[bytes] = ()) -> int:
        """Send a request; → its correlation id."""
        self._last += 1
        self.send(wire.encode_request(api, self._last, "peer", request), *payloads)
        return self._last

    def receive(self) -> tuple[wire.ResponseEnvelope, list[bytes]]:
        first, *payloads = self._socket.recv_multipart()
        return wire.decode_response(first), payloads

    def call(
        self, api: Api, request: Any, payloads: Sequence[bytes] = ()
    ) -> tuple[Any, list[bytes]]:
        """The response to a request; raises what the broker answered."""
        asked = self.ask(api, request, payloads)
        envelope, frames = self.receive()
        assert envelope.correlation_id == asked
        return wire.response_body(api, envelope), frames

    def call_leader(
        self, api: Api, request: Any, payloads: Sequence[bytes] = ()
    ) -> tuple[Any, list[bytes]]:
        """As `call`, again while the topic is not known, or nobody leads a partition of it yet."""
        early = {NotLeader.code, UnknownTopicOrPartition.code}
        found: list[tuple[Any, list[bytes]]] = []

        def is_led() -> bool:
            found.append(self.call(api, request, payloads))
            return early.isdisjoint(each.error for each in found[-1][0].results)

        eventually(is_led)
        return found[-1]

    def wait_until_led(self, topic: str, topic_id: str, partitions: int = 1) -> None:
        """Until this broker leads the topic's first partitions."""
        asked = [ListOffsetsEntry(topic, topic_id, number, LATEST) for number in range(partitions)]
        self.call_leader(Api.LIST_OFFSETS, ListOffsetsRequest(asked))

    def hears_nothing(self, within: float) -> bool:
        return not self._socket.poll(round(within * 1000))

    def close(self) -> None:
        self._context.destroy(linger=0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def make_cold(patch: pytest.MonkeyPatch, cold: Log) -> None:
    """Have a log's reads wait for a job, however often one ends."""
    read = Log.read

    def look(log: Log, *arguments: Any, **options: Any) -> memoryview:
        if log is cold:
            raise NotCached(SharedJob(lambda: None, lambda job, outcome: None))
        return read(log, *arguments, **options)

    patch.setattr(Log, "read", look)
