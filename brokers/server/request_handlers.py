"""What the broker does for each api: from a request to an answer, without a socket or a clock."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from folkmoot.brokers.server.context import (
    NO_OFFSET,
    Answer,
    Asked,
    Context,
    Gathered,
    Later,
    code_of,
)
from folkmoot.brokers.server.fetching import fetch
from folkmoot.brokers.server.producing import produce
from folkmoot.brokers.server.scheduler import Now
from folkmoot.brokers.storage.log import Log
from folkmoot.protocol.errors import FolkmootError, InvalidRequest, OffsetOutOfRange
from folkmoot.protocol.messages import (
    APIS,
    EARLIEST,
    LATEST,
    ApiVersions,
    DeleteRecordsEntry,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsResult,
    FetchRequest,
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
from folkmoot.protocol.wire import message_of


def handle(
    asked: Asked, payloads: Sequence[memoryview], now: Now, context: Context
) -> Answer | Later | None:
    """Carry a request out. None: it waits, or wants no answer. Raises FolkmootError for the whole of it."""
    request = asked.request
    expected = len(request.entries) if isinstance(request, ProduceRequest) else 0
    if len(payloads) != expected:
        raise InvalidRequest(f"{len(payloads)} payload frames came with {expected} batches")
    if type(request) is FetchRequest:
        return fetch(asked, now, context)
    return _HANDLERS[type(request)](request, payloads, now, context)


# -- hello, metadata -------------------------------------------------------------------------------


def _hello(_request: HelloRequest, _p: Any, _now: Now, context: Context) -> Answer:
    apis = [ApiVersions(api, spec.lowest, spec.highest) for api, spec in APIS.items()]
    return Answer(HelloResponse(context.broker_id, context.max_batch_bytes, apis))


def _metadata(request: MetadataRequest, _p: Any, _now: Now, context: Context) -> Answer:
    return Answer(context.view.metadata(request.topics))


# -- list offsets ----------------------------------------------------------------------------------


def _list_offsets(
    request: ListOffsetsRequest, _p: Any, _now: Now, context: Context
) -> Answer | Later:
    outcome = Gathered(len(request.entries), ListOffsetsResponse)
    for number, entry in enumerate(request.entries):
        _list(entry, partial(_listed, number, entry, outcome, context), context)
    return outcome.so_far()


def _list(
    entry: ListOffsetsEntry, then: Callable[[int | FolkmootError], None], context: Context
) -> None:
    try:
        log = context.written(entry)
        if log is None:
            then(0)
        elif entry.timestamp == EARLIEST:
            then(log.start_offset)
        elif entry.timestamp == LATEST:
            then(log.end_offset)
        else:
            context.times.ask(log, entry.timestamp, then)
    except FolkmootError as error:
        then(error)


def _listed(
    number: int,
    entry: ListOffsetsEntry,
    outcome: Gathered,
    context: Context,
    found: int | FolkmootError,
) -> None:
    if isinstance(found, FolkmootError):
        result = ListOffsetsResult(
            *(entry.topic, entry.partition, code_of(found), message_of(found), NO_OFFSET),
            leader=context.hint(entry, found),
        )
    else:
        result = ListOffsetsResult(entry.topic, entry.partition, 0, "", found)
    outcome.add({number: result})


# -- delete records --------------------------------------------------------------------------------


def _delete_records(
    request: DeleteRecordsRequest, _p: Any, _now: Now, context: Context
) -> Answer | Later:
    outcome = Gathered(len(request.entries), DeleteRecordsResponse)
    for number, entry in enumerate(request.entries):
        _delete(number, entry, outcome, context)
    return outcome.so_far()


def _delete(number: int, entry: DeleteRecordsEntry, outcome: Gathered, context: Context) -> None:
    try:
        log = context.written(entry)
        end = 0 if log is None else log.end_offset
        offset = end if entry.offset == LATEST else entry.offset
        if offset > end:
            raise OffsetOutOfRange(
                f"{entry.topic}-{entry.partition} ends with offset {end}: {offset} is behind it"
            )
        if log is None:
            outcome.add({number: DeleteRecordsResult(entry.topic, entry.partition, 0, "", 0)})
        else:
            done = partial(_deleted, number, entry, outcome, context, log)
            context.deletions.ask(log, offset, done)
    except FolkmootError as error:
        outcome.add({number: _not_deleted(entry, error, context)})


def _deleted(
    number: int,
    entry: DeleteRecordsEntry,
    outcome: Gathered,
    context: Context,
    log: Log,
    error: FolkmootError | None,
) -> None:
    result = DeleteRecordsResult(entry.topic, entry.partition, 0, "", log.start_offset)
    outcome.add({number: _not_deleted(entry, error, context) if error else result})


def _not_deleted(
    entry: DeleteRecordsEntry, error: FolkmootError, context: Context
) -> DeleteRecordsResult:
    return DeleteRecordsResult(
        *(entry.topic, entry.partition, code_of(error), message_of(error), NO_OFFSET),
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
            *(entry.topic, entry.partition, code_of(error), message_of(error)),
            leader=context.hint(entry, error),
        )


_Handler = Callable[[Any, Sequence[memoryview], Now, Context], Answer | Later | None]

_HANDLERS: Final[dict[type[Any], _Handler]] = {
    HelloRequest: _hello,
    MetadataRequest: _metadata,
    ProduceRequest: produce,
    ListOffsetsRequest: _list_offsets,
    DeleteRecordsRequest: _delete_records,
    ReportDamageRequest: _report_damage,
}
