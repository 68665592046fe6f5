"""What the broker does for each api: from a request to an answer, without a socket or a clock."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from folkmoot.brokers.log import Log
from folkmoot.brokers.logs import Logs
from folkmoot.brokers.parked import ParkedRequests
from folkmoot.brokers.produced import Duplicate, Fresh
from folkmoot.brokers.suspects import Suspects
from folkmoot.brokers.upkeep import Now
from folkmoot.brokers.view import LEADER_EPOCH, NOBODY, ClusterView
from folkmoot.protocol.errors import (
    FolkmootError,
    InvalidRequest,
    NotLeader,
    OffsetOutOfRange,
    StaleTopicId,
    StorageError,
    UnknownServerError,
)
from folkmoot.protocol.records import TopicPartition
from folkmoot.protocol.requests import (
    APIS,
    EARLIEST,
    LATEST,
    ApiVersions,
    BrokerInfo,
    DeleteRecordsEntry,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsResult,
    FetchEntry,
    FetchRequest,
    FetchResponse,
    FetchResult,
    HelloRequest,
    HelloResponse,
    ListOffsetsEntry,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsResult,
    MetadataRequest,
    ProduceEntry,
    ProduceRequest,
    ProduceResponse,
    ProduceResult,
    ReportDamageEntry,
    ReportDamageRequest,
    ReportDamageResponse,
    ReportDamageResult,
)

logger = logging.getLogger(__name__)

MAX_WAIT: Final = 30.0
MAX_ANSWER_BYTES: Final = 32 * 1024 * 1024
NO_OFFSET: Final = -1
ANY_EPOCH: Final = -1

_EPOCHLESS = (ListOffsetsEntry, ReportDamageEntry)
_Entry = ProduceEntry | FetchEntry | ListOffsetsEntry | DeleteRecordsEntry | ReportDamageEntry


class Answer(NamedTuple):
    """What to send back; payloads travel as they are."""

    response: Any
    payloads: Sequence[bytes | memoryview] = ()


class Wait(NamedTuple):
    """Ask `wake` for the answer when so many bytes more are there, or at the deadline."""

    deadline: float
    missing: int
    partitions: tuple[TopicPartition, ...]


@dataclass(eq=False, slots=True)
class Context:
    """What handlers work on; all of it belongs to the reactor's thread."""

    broker_id: int
    logs: Logs
    max_batch_bytes: int
    view: ClusterView = field(default_factory=ClusterView)
    parked: ParkedRequests = field(default_factory=ParkedRequests)
    suspects: Suspects = field(default_factory=Suspects)

    def leading(self, entry: _Entry) -> Log:
        """The log that an entry is about. Raises what the entry's result shall say."""
        return self.logs.create(entry.topic, self._checked(entry), entry.partition)

    def written(self, entry: FetchEntry) -> Log | None:
        """The same, for one who only reads: None if nothing was written yet, and nothing is made."""
        return self.logs.find(entry.topic, self._checked(entry), entry.partition)

    def _checked(self, entry: _Entry) -> str:
        """The id of an entry's topic, if this broker leads its partition."""
        topic = self.view.topic(entry.topic, entry.partition)
        if entry.topic_id != topic.topic_id:
            raise StaleTopicId(f"topic {entry.topic} has another id: it was created anew")
        leader = self.view.leader(topic, entry.partition)
        epoch = ANY_EPOCH if isinstance(entry, _EPOCHLESS) else entry.leader_epoch
        if leader != self.broker_id or epoch not in (ANY_EPOCH, LEADER_EPOCH):
            who = "nobody" if leader == NOBODY else f"broker {leader}"
            raise NotLeader(f"{entry.topic}-{entry.partition} is led by {who}")
        return topic.topic_id

    def show(self, view: ClusterView, deleted: frozenset[str]) -> None:
        """Take over a new view; logs of deleted topics go, and who waits for a changed topic wakes."""
        before, self.view = self.view, view
        for name, topic in view.topics.items():
            if before.topics.get(name) != topic:
                self.logs.configure(topic.topic_id, topic.config)
        for name, topic in before.topics.items():
            if view.topics.get(name) != topic:
                self.parked.disturb(
                    TopicPartition(name, number) for number in range(len(topic.partitions))
                )
        for topic_id in deleted:
            try:
                self.logs.delete_topic(topic_id)
            except StorageError as error:
                logger.error("logs of a deleted topic are left behind: %s", error)

    def hint(self, entry: _Entry, error: FolkmootError) -> BrokerInfo | None:
        """Who leads, for those who asked the wrong broker."""
        if not isinstance(error, NotLeader):
            return None
        topic = self.view.topics[entry.topic]
        return self.view.brokers.get(self.view.leader(topic, entry.partition))


def handle(
    request: Any, payloads: Sequence[memoryview], now: Now, context: Context
) -> Answer | Wait | None:
    """Carry a request out. None: it wants no answer. Raises FolkmootError for the whole of it."""
    expected = len(request.entries) if isinstance(request, ProduceRequest) else 0
    if len(payloads) != expected:
        raise InvalidRequest(f"{len(payloads)} payload frames came with {expected} batches")
    return _HANDLERS[type(request)](request, payloads, now, context)


def wake(request: Any, context: Context) -> Answer:
    """The answer to a request that has waited."""
    assert isinstance(request, FetchRequest)
    return _read(request, context)[0]


# -- hello, metadata -------------------------------------------------------------------------------


def _hello(_request: HelloRequest, _p: Any, _now: Now, context: Context) -> Answer:
    apis = [ApiVersions(api, spec.lowest, spec.highest) for api, spec in APIS.items()]
    return Answer(HelloResponse(context.broker_id, context.max_batch_bytes, apis))


def _metadata(request: MetadataRequest, _p: Any, _now: Now, context: Context) -> Answer:
    return Answer(context.view.metadata(request.topics))


# -- produce ---------------------------------------------------------------------------------------


def _produce(
    request: ProduceRequest, payloads: Sequence[memoryview], now: Now, context: Context
) -> Answer | None:
    """Append, partition by partition, in the order given. acks=-1 is 1 while there is one replica."""
    results: dict[int, ProduceResult] = {}
    groups: dict[TopicPartition, list[int]] = {}
    for number, entry in enumerate(request.entries):
        groups.setdefault(TopicPartition(entry.topic, entry.partition), []).append(number)
    for partition, numbers in groups.items():
        batches = {number: payloads[number] for number in numbers}
        entries = {number: request.entries[number] for number in numbers}
        results.update(_append(partition, entries, batches, now, context))
    if request.acks == 0:
        return None
    return Answer(ProduceResponse([results[number] for number in range(len(payloads))]))


def _append(
    partition: TopicPartition,
    entries: Mapping[int, ProduceEntry],
    batches: Mapping[int, memoryview],
    now: Now,
    context: Context,
) -> dict[int, ProduceResult]:
    """Append to one partition by one write; a batch that cannot be taken does not hold up others."""
    results: dict[int, ProduceResult] = {}
    target: Log | None = None
    mine: list[int] = []
    for number, entry in entries.items():
        try:
            target = context.leading(entry)
            mine.append(number)
        except FolkmootError as error:
            results[number] = _not_produced(entry, error, context)
    if target is None:
        return results
    fresh: dict[int, Fresh] = {}
    try:
        admitted = target.admit([batches[number] for number in mine])
        for number, each in zip(mine, admitted, strict=True):
            if isinstance(each, Fresh):
                fresh[number] = each
            elif isinstance(each, Duplicate):
                results[number] = ProduceResult(*partition, 0, "", each.base_offset, now.wall)
            else:
                results[number] = _not_produced(entries[number], each, context)
        offsets = target.write(list(fresh.values()), now=now.wall, leader_epoch=LEADER_EPOCH)
    except FolkmootError as error:
        for number in mine:
            if number not in results:
                results[number] = _not_produced(entries[number], error, context)
        return results
    for number, offset in zip(fresh, offsets, strict=True):
        results[number] = ProduceResult(*partition, 0, "", offset, now.wall)
    appended = sum(each.header.length for each in fresh.values())
    context.logs.appended_bytes += appended
    context.parked.appended(partition, appended)
    return results


def _not_produced(entry: ProduceEntry, error: FolkmootError, context: Context) -> ProduceResult:
    return ProduceResult(
        *(entry.topic, entry.partition, _code(error), str(error), NO_OFFSET, NO_OFFSET),
        leader=context.hint(entry, error),
    )


# -- fetch -----------------------------------------------------------------------------------------


def _fetch(request: FetchRequest, _p: Any, now: Now, context: Context) -> Answer | Wait:
    answer, found, failed = _read(request, context)
    if failed or found >= request.min_bytes or request.max_wait <= 0 or not request.entries:
        return answer
    partitions = dict.fromkeys(
        TopicPartition(entry.topic, entry.partition) for entry in request.entries
    )
    deadline = now.monotonic + min(request.max_wait, MAX_WAIT)
    return Wait(deadline, request.min_bytes - found, tuple(partitions))


def _read(request: FetchRequest, context: Context) -> tuple[Answer, int, bool]:
    """What is there now, its size, and whether an entry failed (which is said at once)."""
    room = min(request.max_bytes, MAX_ANSWER_BYTES)
    found, failed = 0, False
    results: list[FetchResult] = []
    chunks: list[bytes | memoryview] = []
    for entry in request.entries:
        chunk: bytes | memoryview = b""
        start = end = NO_OFFSET
        try:
            log = context.written(entry)
            start, end = (0, 0) if log is None else (log.start_offset, log.end_offset)
            if entry.offset == end:
                continue  # most often, of thousands
            if log is None:
                raise OffsetOutOfRange(f"{entry.topic}-{entry.partition} has no records yet")
            # The first batch found comes whole, however large: else nobody could ever read it.
            most = min(entry.max_bytes, room - found)
            if most > 0 or not found or not start <= entry.offset <= end:
                chunk = log.read(entry.offset, max(most, 0))
                if found and len(chunk) > most:
                    chunk = b""
            results.append(FetchResult(entry.topic, entry.partition, 0, "", start, end))
        except FolkmootError as error:
            failed = True
            results.append(
                FetchResult(
                    *(entry.topic, entry.partition, _code(error), str(error), start, end),
                    leader=context.hint(entry, error),
                )
            )
        chunks.append(chunk)
        found += len(chunk)
    return Answer(FetchResponse(results), chunks), found, failed


# -- list offsets ----------------------------------------------------------------------------------


def _list_offsets(request: ListOffsetsRequest, _p: Any, _now: Now, context: Context) -> Answer:
    return Answer(ListOffsetsResponse([_offset(entry, context) for entry in request.entries]))


def _offset(entry: ListOffsetsEntry, context: Context) -> ListOffsetsResult:
    try:
        log = context.leading(entry)
        if entry.timestamp == EARLIEST:
            offset = log.start_offset
        elif entry.timestamp == LATEST:
            offset = log.end_offset
        else:
            offset = log.offset_for_time(entry.timestamp)
        return ListOffsetsResult(entry.topic, entry.partition, 0, "", offset)
    except FolkmootError as error:
        return ListOffsetsResult(
            *(entry.topic, entry.partition, _code(error), str(error), NO_OFFSET),
            leader=context.hint(entry, error),
        )


# -- delete records --------------------------------------------------------------------------------


def _delete_records(request: DeleteRecordsRequest, _p: Any, _now: Now, context: Context) -> Answer:
    return Answer(DeleteRecordsResponse([_delete(entry, context) for entry in request.entries]))


def _delete(entry: DeleteRecordsEntry, context: Context) -> DeleteRecordsResult:
    try:
        log = context.leading(entry)
        log.delete_before(log.end_offset if entry.offset == LATEST else entry.offset)
        return DeleteRecordsResult(entry.topic, entry.partition, 0, "", log.start_offset)
    except FolkmootError as error:
        return DeleteRecordsResult(
            *(entry.topic, entry.partition, _code(error), str(error), NO_OFFSET),
            leader=context.hint(entry, error),
        )


# -- report damage ---------------------------------------------------------------------------------


def _report_damage(request: ReportDamageRequest, _p: Any, _now: Now, context: Context) -> Answer:
    return Answer(ReportDamageResponse([_report(entry, context) for entry in request.entries]))


def _report(entry: ReportDamageEntry, context: Context) -> ReportDamageResult:
    try:
        log = context.leading(entry)
        if not log.start_offset <= entry.offset < log.end_offset:
            raise OffsetOutOfRange(
                f"{log.name} has offsets {log.start_offset} to {log.end_offset}, not {entry.offset}"
            )
        context.suspects.report(log, entry.offset)
        return ReportDamageResult(entry.topic, entry.partition, 0, "")
    except FolkmootError as error:
        return ReportDamageResult(
            *(entry.topic, entry.partition, _code(error), str(error)),
            leader=context.hint(entry, error),
        )


def _code(error: FolkmootError) -> int:
    return UnknownServerError.code if error.code is None else error.code


_Handler = Callable[[Any, Sequence[memoryview], Now, Context], Answer | Wait | None]

_HANDLERS: Final[dict[type[Any], _Handler]] = {
    HelloRequest: _hello,
    MetadataRequest: _metadata,
    ProduceRequest: _produce,
    FetchRequest: _fetch,
    ListOffsetsRequest: _list_offsets,
    DeleteRecordsRequest: _delete_records,
    ReportDamageRequest: _report_damage,
}
