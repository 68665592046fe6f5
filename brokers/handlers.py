"""What the broker does for each api: from a request to an answer, without a socket or a clock."""

from collections.abc import Callable, Container, Sequence
from typing import Any, Final

from folkmoot.brokers.context import NO_OFFSET, Answer, Context, Later, Wait, code_of
from folkmoot.brokers.producing import produce
from folkmoot.brokers.upkeep import Now
from folkmoot.protocol.errors import (
    FolkmootError,
    InvalidRequest,
    OffsetOutOfRange,
)
from folkmoot.protocol.records import TopicPartition
from folkmoot.protocol.requests import (
    APIS,
    EARLIEST,
    LATEST,
    ApiVersions,
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
    ProduceRequest,
    ReportDamageEntry,
    ReportDamageRequest,
    ReportDamageResponse,
    ReportDamageResult,
)

MAX_WAIT: Final = 30.0
MAX_ANSWER_BYTES: Final = 32 * 1024 * 1024


def handle(
    request: Any, payloads: Sequence[memoryview], now: Now, context: Context
) -> Answer | Wait | Later | None:
    """Carry a request out. None: it wants no answer. Raises FolkmootError for the whole of it."""
    expected = len(request.entries) if isinstance(request, ProduceRequest) else 0
    if len(payloads) != expected:
        raise InvalidRequest(f"{len(payloads)} payload frames came with {expected} batches")
    return _HANDLERS[type(request)](request, payloads, now, context)


def wake(request: Any, news: Container[TopicPartition] | None, context: Context) -> Answer:
    """The answer to a request that has waited; only of `news` there can be any. None: of all."""
    assert isinstance(request, FetchRequest)
    entries = request.entries
    if news is not None:
        entries = [each for each in entries if (each.topic, each.partition) in news]
    return _read(request, entries, context)[0]


# -- hello, metadata -------------------------------------------------------------------------------


def _hello(_request: HelloRequest, _p: Any, _now: Now, context: Context) -> Answer:
    apis = [ApiVersions(api, spec.lowest, spec.highest) for api, spec in APIS.items()]
    return Answer(HelloResponse(context.broker_id, context.max_batch_bytes, apis))


def _metadata(request: MetadataRequest, _p: Any, _now: Now, context: Context) -> Answer:
    return Answer(context.view.metadata(request.topics))


# -- fetch -----------------------------------------------------------------------------------------


def _fetch(request: FetchRequest, _p: Any, now: Now, context: Context) -> Answer | Wait:
    answer, found, failed = _read(request, request.entries, context)
    if failed or found >= request.min_bytes or request.max_wait <= 0 or not request.entries:
        return answer
    partitions = dict.fromkeys(
        TopicPartition(entry.topic, entry.partition) for entry in request.entries
    )
    deadline = now.monotonic + min(request.max_wait, MAX_WAIT)
    return Wait(deadline, request.min_bytes - found, tuple(partitions), found > 0)


def _read(
    request: FetchRequest, entries: Sequence[FetchEntry], context: Context
) -> tuple[Answer, int, bool]:
    """What is there now, its size, and whether an entry failed (which is said at once)."""
    room = min(request.max_bytes, MAX_ANSWER_BYTES)
    found, failed = 0, False
    results: list[FetchResult] = []
    chunks: list[bytes | memoryview] = []
    for entry in entries:
        chunk: bytes | memoryview = b""
        start = end = NO_OFFSET
        try:
            log = context.written(entry)
            end = 0 if log is None else log.end_offset
            if entry.offset == end:
                continue  # most often, of thousands
            start = 0 if log is None else log.start_offset
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
                    *(entry.topic, entry.partition, code_of(error), str(error), start, end),
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
        log = context.written(entry)
        if log is None:
            offset = 0
        elif entry.timestamp == EARLIEST:
            offset = log.start_offset
        elif entry.timestamp == LATEST:
            offset = log.end_offset
        else:
            offset = log.offset_for_time(entry.timestamp)
        return ListOffsetsResult(entry.topic, entry.partition, 0, "", offset)
    except FolkmootError as error:
        return ListOffsetsResult(
            *(entry.topic, entry.partition, code_of(error), str(error), NO_OFFSET),
            leader=context.hint(entry, error),
        )


# -- delete records --------------------------------------------------------------------------------


def _delete_records(request: DeleteRecordsRequest, _p: Any, _now: Now, context: Context) -> Answer:
    return Answer(DeleteRecordsResponse([_delete(entry, context) for entry in request.entries]))


def _delete(entry: DeleteRecordsEntry, context: Context) -> DeleteRecordsResult:
    try:
        log = context.written(entry)
        if log is None:
            if entry.offset not in (LATEST, 0):
                raise OffsetOutOfRange(f"{entry.topic}-{entry.partition} has no records yet")
            return DeleteRecordsResult(entry.topic, entry.partition, 0, "", 0)
        log.delete_before(log.end_offset if entry.offset == LATEST else entry.offset)
        return DeleteRecordsResult(entry.topic, entry.partition, 0, "", log.start_offset)
    except FolkmootError as error:
        return DeleteRecordsResult(
            *(entry.topic, entry.partition, code_of(error), str(error), NO_OFFSET),
            leader=context.hint(entry, error),
        )


# -- report damage ---------------------------------------------------------------------------------


def _report_damage(request: ReportDamageRequest, _p: Any, _now: Now, context: Context) -> Answer:
    return Answer(ReportDamageResponse([_report(entry, context) for entry in request.entries]))


def _report(entry: ReportDamageEntry, context: Context) -> ReportDamageResult:
    try:
        log = context.written(entry)
        if log is None:
            raise OffsetOutOfRange(f"{entry.topic}-{entry.partition} has no records yet")
        if not log.start_offset <= entry.offset < log.end_offset:
            raise OffsetOutOfRange(
                f"{log.name} has offsets {log.start_offset} to {log.end_offset}, not {entry.offset}"
            )
        context.suspects.report(log, entry.offset)
        return ReportDamageResult(entry.topic, entry.partition, 0, "")
    except FolkmootError as error:
        return ReportDamageResult(
            *(entry.topic, entry.partition, code_of(error), str(error)),
            leader=context.hint(entry, error),
        )


_Handler = Callable[[Any, Sequence[memoryview], Now, Context], Answer | Wait | Later | None]

_HANDLERS: Final[dict[type[Any], _Handler]] = {
    HelloRequest: _hello,
    MetadataRequest: _metadata,
    ProduceRequest: produce,
    FetchRequest: _fetch,
    ListOffsetsRequest: _list_offsets,
    DeleteRecordsRequest: _delete_records,
    ReportDamageRequest: _report_damage,
}
