"""Fetching: what is there is told at once, else when there is something to tell."""

from collections.abc import Sequence
from typing import Final

from folkmoot.brokers.server.context import NO_OFFSET, Answer, Asked, Context, code_of
from folkmoot.brokers.server.purgatory import Parked
from folkmoot.brokers.server.scheduler import Now
from folkmoot.protocol.errors import FolkmootError, InvalidRequest, OffsetOutOfRange, UnknownFetch
from folkmoot.protocol.messages import (
    MAX_ENTRIES,
    FetchEntry,
    FetchRequest,
    FetchResponse,
    FetchResult,
)
from folkmoot.protocol.records import TopicPartition
from folkmoot.protocol.wire import message_of

MAX_WAIT: Final = 30.0
MAX_ANSWER_BYTES: Final = 32 * 1024 * 1024
KEEP_FOR: Final = 10.0
"""So long at most one fetch goes on with another; then its client names all partitions again."""
FORGET_AFTER: Final = 30.0
"""So long what is left of a fetch is kept for the next one."""


def fetch(asked: Asked, now: Now, context: Context) -> Answer | None:
    """Read batches. None: it waits, and `wake` has the answer. Raises FolkmootError for the whole of it.

    ```
    7: fetch a b c, keep ─► waits ─ append to b ─► answer: b; kept are a and c, still watched
    8: fetch b, after 7, keep ─► waits on a, b and c
    ```

    So a fetch costs what has changed, and not the number of partitions: their offsets are named once,
    and what is at its end is looked at again only when something has happened to it. What is kept
    belongs to one connection and is gone on with once; where it is not known (any more: the broker was
    started anew, or needed the room) the client is told UnknownFetch and names all partitions again.
    """
    request = asked.request
    assert isinstance(request, FetchRequest)
    parked = _begun(asked, now, context)
    try:
        if len(parked.entries) + len(request.entries) > MAX_ENTRIES:
            raise InvalidRequest(f"a fetch of more than {MAX_ENTRIES} partitions: name fewer")
        results, chunks, failed = _read(request, [*parked.news(), *request.entries], context)
        waits = parked.entries or request.entries
        found = sum(map(len, chunks))
        if failed or found >= request.min_bytes or request.max_wait <= 0 or not waits:
            if request.keep:
                parked.name(request.entries)
            return _told(parked, asked, results, chunks, now, context)
        parked.name(request.entries)
        parked.touched = dict.fromkeys(map(_partition_of, results))
    except BaseException:
        context.parked.release(parked)
        raise
    deadline = now.monotonic + min(request.max_wait, MAX_WAIT)
    context.parked.park(parked, deadline, request.min_bytes - found, asked)
    return None


def wake(parked: Parked, now: Now, context: Context) -> Answer:
    """The answer to a fetch that has waited."""
    asked: Asked = parked.request
    try:
        results, chunks, _ = _read(asked.request, parked.news(), context)
    except BaseException:
        context.parked.release(parked)
        raise
    return _told(parked, asked, results, chunks, now, context)


def _begun(asked: Asked, now: Now, context: Context) -> Parked:
    """What the fetch goes on with, or a new one."""
    after = asked.request.after
    if after is None:
        return Parked(now.monotonic)
    parked = context.parked.resume((asked.peer, after))
    if parked is None:
        raise UnknownFetch(f"nothing is kept here of fetch {after}: name all partitions again")
    return parked


def _told(
    parked: Parked,
    asked: Asked,
    results: list[FetchResult],
    chunks: Sequence[bytes | memoryview],
    now: Now,
    context: Context,
) -> Answer:
    """The answer; what it does not tell of is kept, if the client wants that."""
    kept = False
    if asked.request.keep:
        parked.looked_at([*map(_partition_of, results)])
    if asked.request.keep and parked.entries and now.monotonic - parked.begun < KEEP_FOR:
        key = asked.peer, asked.correlation_id
        kept = context.parked.keep(parked, key, now.monotonic + FORGET_AFTER)
    else:
        context.parked.release(parked)
    return Answer(FetchResponse(results, kept), chunks)


def _partition_of(result: FetchResult) -> TopicPartition:
    return TopicPartition(result.topic, result.partition)


def _read(
    request: FetchRequest, entries: Sequence[FetchEntry], context: Context
) -> tuple[list[FetchResult], list[bytes | memoryview], bool]:
    """What there is to tell of these entries, and whether one failed (which is said at once)."""
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
                    *(entry.topic, entry.partition, code_of(error), message_of(error), start, end),
                    leader=context.hint(entry, error),
                )
            )
        chunks.append(chunk)
        found += len(chunk)
    return results, chunks, failed
