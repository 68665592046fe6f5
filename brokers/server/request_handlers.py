"""The broker's answer to each api: from a request to a response, without a socket or a clock."""

from collections.abc import Callable, Generator, Hashable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, NamedTuple

from folkmoot.brokers.jobs.jobs import Job, JobGroup, Now, SharedJob, Submit
from folkmoot.brokers.replication.partition import Partition, WaitingProduce
from folkmoot.brokers.replication.partitions import Partitions
from folkmoot.brokers.server.fetch_sessions import ConsumerSession, FetchSessions
from folkmoot.brokers.server.metadata_cache import MetadataCache
from folkmoot.brokers.server.producer_ids import ProducerIds
from folkmoot.brokers.server.purgatory import (
    DelayedFetch,
    DelayedResponse,
    Purgatory,
    Request,
    Response,
)
from folkmoot.brokers.server.replica_fetches import ReplicaFetches
from folkmoot.brokers.server.request_counters import RequestCounters
from folkmoot.brokers.server.schemas import Schemas
from folkmoot.brokers.server.view_updates import ViewUpdates
from folkmoot.brokers.storage.damage_reports import damage_job
from folkmoot.brokers.storage.flusher import Flusher
from folkmoot.brokers.storage.leader_epochs import EpochEnd
from folkmoot.brokers.storage.log import Log
from folkmoot.brokers.storage.log_manager import LogManager
from folkmoot.brokers.storage.retention import Retention
from folkmoot.brokers.storage.segment import NotCached
from folkmoot.protocol import batch_header, messages
from folkmoot.protocol.errors import (
    CorruptBatch,
    FolkmootError,
    InvalidRequest,
    LogTruncated,
    NotLeader,
    OffsetNotAvailable,
    OffsetOutOfRange,
    Overloaded,
    UnknownFetch,
)
from folkmoot.protocol.messages import API_OF
from folkmoot.protocol.options import NONE
from folkmoot.protocol.wire import code_of, message_of

NO_OFFSET: Final = -1
_NO_DIVERGENCE: Final = EpochEnd(-1, -1)

MAX_WAIT: Final = 30.0
KEEP_FOR: Final = 10.0
"""Seconds after which a client has to name all of its partitions again."""
FORGET_AFTER: Final = 30.0
"""Seconds for which the rest of a fetch is kept for the next one."""

ENTRIES_PER_STEP: Final = 10
GROUPED_PER_STEP: Final = 500
PREPARED_AT_ONCE: Final = 250
"""At most as many entries of a request have their disk read by one trip to the background."""
MOST_REPORTS: Final = 100
"""Damaged batches that wait to be read again; further reports are refused."""
BYTES_PER_STEP: Final = 4 * 1024 * 1024

Outcome = Response | DelayedResponse | None
"""None: the request is delayed in the purgatory, or wants no response."""

JobGenerator = Generator[Job | None, None, Outcome]
"""A request in bounded steps. It yields a job to wait for, or None to give way, and returns the outcome."""

_Answer = Callable[[tuple[int, ...] | FolkmootError], None]
"""Takes the numbers of an entry's result, or why it has failed."""

# The numbers of a result whose entry has failed.
_NUMBERS_OF_FAILED: Final[dict[type[Any], tuple[int, ...]]] = {
    messages.ProduceResult: (NO_OFFSET, NO_OFFSET),
    messages.ListOffsetsResult: (NO_OFFSET,),
    messages.DeleteRecordsResult: (NO_OFFSET,),
    messages.DescribeProducersResult: (-1, 0, NO_OFFSET),
    messages.ReportDamageResult: (),
}


class _FetchOutcome(NamedTuple):
    """The answer to a fetch's entries, and their partitions."""

    results: list[messages.FetchResult]
    chunks: list[bytes | memoryview]
    answered: list[Partition]
    failed: bool
    preparing: int
    """The number of results without their bytes: a job reads those, and its end alters the partition. A
    client that gets such a result asks again."""


class _Produce(NamedTuple):
    """A PRODUCE that is carried out: the payload of an entry has the same number."""

    body: messages.ProduceRequest
    payloads: Sequence[memoryview]
    now: Now
    delayed: DelayedResponse
    refusals: dict[int, FolkmootError]
    """The errors of entries with another schema than their topic takes."""


@dataclass(eq=False, kw_only=True)
class RequestHandlers:
    """Carries requests out on the logs that this broker leads.

    The entries of a request succeed or fail one by one. No request holds up others for long: one of many
    entries gives way between them, and work that waits for a disk is a job beside the event loop.

    Owner: the event loop.
    """

    max_batch_bytes: int
    metadata: MetadataCache
    logs: LogManager
    flusher: Flusher
    retention: Retention
    producer_ids: ProducerIds
    schemas: Schemas
    purgatory: Purgatory
    partitions: Partitions
    submit: Submit
    counters: RequestCounters = field(default_factory=RequestCounters)
    sessions: FetchSessions = field(default_factory=FetchSessions, init=False)
    replica_fetches: ReplicaFetches = field(init=False)
    updates: ViewUpdates = field(init=False)
    _preparing: set[Job] = field(default_factory=set, init=False)
    _reports: dict[tuple[Log, int], list[_Answer]] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self.replica_fetches = ReplicaFetches(self.partitions, self.purgatory, self._begin)
        self.updates = ViewUpdates(self.metadata, self.logs, self.partitions)
        self.logs.files.may_wait = False

    def hello(self) -> Response:
        """Name this broker and the versions that it speaks."""
        apis = [
            messages.ApiVersions(api, spec.lowest, spec.highest)
            for api, spec in messages.APIS.items()
        ]
        return Response(messages.HelloResponse(self.metadata.broker_id, self.max_batch_bytes, apis))

    def describe_topics(self, body: messages.MetadataRequest) -> JobGenerator:
        if self.partitions.shared.is_replaced:
            raise NotLeader("ZooKeeper does not answer this broker, and others lead: ask them")
        return Response((yield from self.metadata.answer(body.topics)))

    def init_producer_id(self) -> Response:
        return Response(messages.InitProducerIdResponse(self.producer_ids.next()))

    def _failed(self, kind: type[Any], entry: Any, error: FolkmootError) -> Any:
        """The result of an entry that has failed."""
        self.counters.errors[type(error).__name__] += 1
        leader = self.metadata.current_leader(entry, error)
        failure = entry.topic, entry.partition, code_of(error), message_of(error)
        return kind(*failure, *_NUMBERS_OF_FAILED[kind], leader=leader)

    def _in_steps(
        self, todo: list[tuple[Hashable, Callable[[], None]]]
    ) -> Generator[Job | None, None, None]:
        """Do these, those with the same key in order, and give way between them. Those that raise NotCached
        are done again after one job for all of them."""
        while todo:
            cold: dict[Hashable, Job] = {}
            again: list[tuple[Hashable, Callable[[], None]]] = []
            for index, (key, work) in enumerate(todo[:PREPARED_AT_ONCE]):
                if index:
                    yield None
                try:
                    if key not in cold:
                        work()
                        continue
                except NotCached as error:
                    cold[key] = error.job
                again.append((key, work))
            todo = again + todo[PREPARED_AT_ONCE:]
            if cold:
                yield JobGroup(cold.values())

    # -- produce -----------------------------------------------------------------------------------------

    def produce(self, request: Request, payloads: Sequence[memoryview], now: Now) -> JobGenerator:
        """Append, partition by partition, in the order given."""
        body: messages.ProduceRequest = request.body
        delayed = DelayedResponse(len(body.entries), messages.ProduceResponse)
        produce = _Produce(body, payloads, now, delayed, {})
        subjects: dict[str, str | None] = {}
        schema_ids: dict[str, dict[int, int]] = {}
        groups: dict[tuple[str, str, int, int], list[int]] = {}
        for number, entry in enumerate(body.entries):
            key = entry.topic, entry.topic_id, entry.partition, entry.leader_epoch
            groups.setdefault(key, []).append(number)
            if entry.topic not in subjects:
                subjects[entry.topic] = self._value_schema(entry.topic)
            subject = subjects[entry.topic]
            if subject is not None:
                schema_id = batch_header.schema_of(payloads[number])
                schema_ids.setdefault(subject, {})[number] = schema_id
            if number % GROUPED_PER_STEP == GROUPED_PER_STEP - 1:
                yield None
        for subject, ids in schema_ids.items():
            produce.refusals.update((yield from self.schemas.refusals(subject, ids)))
        yield from self._in_steps(
            [
                (key, partial(self._append, produce, part))
                for key, numbers in groups.items()
                for part in _parts(numbers, payloads)
            ]
        )
        return delayed if body.acks else None

    def _value_schema(self, topic: str) -> str | None:
        """The subject of whose schemas the topic's values have to be."""
        known = self.metadata.view.topics.get(topic)
        subject = None if known is None else known.config.get("value_schema")
        if subject is None:
            return self.logs.config.value_schema
        return None if subject == NONE else subject

    def _append(self, produce: _Produce, numbers: Sequence[int]) -> None:
        """Append to one partition by one write; a batch that is refused does not hold up others.

        The answer comes now, or once the batches are committed: at all in-sync replicas, and on disk if
        their topic asks for that. With acks=1 only a topic of one replica waits, for its disk.

        Raises NotCached: nothing was done.
        """
        body, now = produce.body, produce.now
        entry = body.entries[numbers[0]]
        try:
            partition = self.metadata.find_led(entry, entry.leader_epoch)
            log = partition.log
            if (job := log.prepare_append()) is not None:
                raise NotCached(job)
            if body.acks < 0:
                partition.require_replicas()
            before = log.log_end
            batches = [produce.payloads[number] for number in numbers]
            refusals = {
                index: produce.refusals[number]
                for index, number in enumerate(numbers)
                if number in produce.refusals
            }
            outcomes = log.append_as_leader(batches, now.wall, log.leader_epoch, refusals)
        except FolkmootError as error:
            self._fail(produce, numbers, error)
            return
        size, results = 0, {}
        for number, outcome in zip(numbers, outcomes, strict=True):
            if isinstance(outcome, FolkmootError):
                self._fail(produce, [number], outcome)
                continue
            size += 0 if outcome.is_duplicate else len(produce.payloads[number])
            results[number] = messages.ProduceResult(
                *(entry.topic, entry.partition, 0, "", outcome.base_offset, now.wall)
            )
        if size:
            self.counters.bytes_in += size
            self.counters.records_in += log.log_end - before
            self.flusher.note_appended(log, size, now)
            partition.note_append(size, before)

        def committed(failure: FolkmootError | None) -> None:
            if failure is not None:
                self._fail(produce, list(results), failure)
                return
            for number, result in results.items():
                produce.delayed.put(number, result)

        is_committed = log.high_watermark >= log.log_end
        if is_committed or (body.acks >= 0 and not log.is_alone):
            committed(
                None
            )  # acks=1 keeps nothing here: the high watermark may stand for a long time
            return
        deadline, callback = now.monotonic + body.timeout, produce.delayed.later(committed)
        partition.wait(WaitingProduce(log.log_end, size, deadline, callback))

    def _fail(self, produce: _Produce, numbers: Sequence[int], error: FolkmootError) -> None:
        for number in numbers:
            entry = produce.body.entries[number]
            produce.delayed.put(number, self._failed(messages.ProduceResult, entry, error))

    # -- fetch -------------------------------------------------------------------------------------------

    def fetch(self, request: Request, now: Now) -> Response | None:
        """Read batches. None: it waits, and `_complete_fetch` answers it later.

        A kept fetch is continued once. UnknownFetch: the broker was restarted, or needed the room; the
        client has to name all partitions again.
        """
        body: messages.FetchRequest = request.body
        if body.after is None:
            session = ConsumerSession(self.purgatory, request.peer, now.monotonic)
        else:
            cached = self.sessions.resume(request.peer, body.after)
            if cached is None:
                raise UnknownFetch(
                    f"fetch {body.after} is not kept here: name all partitions again"
                )
            session = cached
        return self._serve_fetch(session, request, now, body.entries)

    def _complete_fetch(
        self, session: ConsumerSession, delayed: DelayedFetch, now: Now
    ) -> Response | None:
        session.delayed = None
        return self._serve_fetch(session, delayed.request, now, deadline=delayed.deadline)

    def _serve_fetch(
        self,
        session: ConsumerSession,
        request: Request,
        now: Now,
        entries: Sequence[messages.FetchEntry] = (),
        deadline: float | None = None,
    ) -> Response | None:
        """Answer a fetch, or let it wait (None). `deadline`: it has waited already."""
        body: messages.FetchRequest = request.body
        try:
            if len(session.entries) + len(entries) > messages.MAX_ENTRIES:
                raise InvalidRequest(
                    f"a fetch of more than {messages.MAX_ENTRIES} partitions: name fewer"
                )
            read = self._read(body, session, [*session.take_changed(), *entries])
            waits, missing = False, 1
            if deadline is None:
                missing = body.min_bytes - sum(map(len, read.chunks))
                waits = missing > 0 and body.max_wait > 0 and bool(session.entries)
                waits = waits and not read.failed and not session.changed
                wait = MAX_WAIT if read.preparing else min(body.max_wait, MAX_WAIT)
                deadline = now.monotonic + wait
            if not waits and 0 < read.preparing == len(read.results):
                waits = (
                    now.monotonic < deadline
                )  # jobs have to end before there is anything to answer
            if waits:
                self.purgatory.require_room(request.peer)
                self.sessions.require_room(session)
                session.changed = dict.fromkeys(read.answered)
                session.missing = missing
                session.delay(request, deadline, partial(self._complete_fetch, session))
                return None
            session.forget(*read.answered)
            is_cached = (
                bool(body.keep and session.entries)
                and now.monotonic - session.created_at < KEEP_FOR
            )
            if is_cached:
                forget_at = now.monotonic + FORGET_AFTER
                is_cached = self.sessions.keep(session, request.correlation_id, forget_at)
            else:
                self.sessions.release(session)
            return Response(messages.FetchResponse(read.results, is_cached), read.chunks)
        except BaseException:
            self.sessions.release(session)
            raise

    def _read(
        self,
        body: messages.FetchRequest,
        session: ConsumerSession,
        entries: Sequence[messages.FetchEntry],
    ) -> _FetchOutcome:
        """Read until the room is used up; the other entries then count as changed. The session watches all
        that can be read here."""
        room = min(body.max_bytes, messages.MAX_FETCH_BYTES)
        found, preparing, failed, is_full = 0, 0, False, False
        results: list[messages.FetchResult] = []
        chunks: list[bytes | memoryview] = []
        answered: list[Partition] = []
        for entry in entries:
            chunk: bytes | memoryview = b""
            start = end = NO_OFFSET
            failure: tuple[int, str] = 0, ""
            diverging = _NO_DIVERGENCE
            leader: messages.BrokerInfo | None = None
            partition: Partition | None = None
            try:
                partition = self.metadata.find_readable(entry)
                session.watch(partition, entry)
                log = partition.log
                end = log.high_watermark
                if entry.offset == end:
                    continue  # most often, of thousands
                start = log.log_start
                diverging = _divergence(log, entry)
                if diverging is not _NO_DIVERGENCE:
                    raise LogTruncated(f"{log.name}: has other records from there on")
                if end < entry.offset <= log.log_end:
                    continue  # this replica does not know yet that it is committed
                if entry.offset > end and not log.is_led:
                    raise OffsetNotAvailable(f"{log.name} has no offset {entry.offset} here yet")
                # The first batch found comes whole, however large, so that it can be read at all.
                most = max(0, min(entry.max_bytes, room - found))
                if not is_full:
                    chunk = log.read(entry.offset, most, at_least_one=not found)
                    is_full = not chunk and room - found < entry.max_bytes and entry.offset < end
                if is_full:
                    session.changed[partition] = None
                    continue
            except NotCached as cold:
                assert partition is not None
                self._begin(partition, cold.job)
                preparing += 1
            except FolkmootError as error:
                failed = True
                self.counters.errors[type(error).__name__] += 1
                leader = self.metadata.current_leader(entry, error)
                failure = code_of(error), message_of(error)
            if partition is not None:
                answered.append(partition)
            result = entry.topic, entry.partition, *failure, start, end
            results.append(messages.FetchResult(*result, leader, *diverging))
            chunks.append(chunk)
            found += len(chunk)
        return _FetchOutcome(results, chunks, answered, failed, preparing)

    def _begin(self, partition: Partition, job: SharedJob) -> None:
        """Begin a job that a read waits for; its end wakes the partition's sessions."""
        if job in self._preparing:
            return

        def prepared(result: Any) -> None:
            self._preparing.discard(job)
            try:
                job.finish(result)
            finally:
                partition.wake_all()

        self._preparing.add(job)
        try:
            self.submit(job.lane, job.run, prepared)
        except Overloaded:
            self._preparing.discard(job)  # the next read asks again
            raise

    # -- list offsets, delete records, describe producers, report damage ---------------------------------

    def _run_entries(
        self, body: Any, kind: type[Any], carry_out: Callable[[Any, _Answer], None]
    ) -> JobGenerator:
        """Carry out the entries of a request one by one: `carry_out` answers now or later, or raises."""
        delayed = DelayedResponse(len(body.entries), messages.APIS[API_OF[type(body)]].response)

        def answer(number: int, entry: Any, outcome: tuple[int, ...] | FolkmootError) -> None:
            if isinstance(outcome, FolkmootError):
                result = self._failed(kind, entry, outcome)
            else:
                result = kind(entry.topic, entry.partition, 0, "", *outcome)
            delayed.put(number, result)

        def work(number: int, entry: Any) -> None:
            answered = delayed.later(answer, number, entry)
            try:
                carry_out(entry, answered)
            except FolkmootError as error:
                answered(error)

        yield from self._in_steps(
            [(number, partial(work, number, entry)) for number, entry in enumerate(body.entries)]
        )
        return delayed

    def list_offsets(self, body: messages.ListOffsetsRequest) -> JobGenerator:
        return self._run_entries(body, messages.ListOffsetsResult, self._list_offset)

    def delete_records(self, body: messages.DeleteRecordsRequest) -> JobGenerator:
        return self._run_entries(body, messages.DeleteRecordsResult, self._delete_records)

    def report_damage(self, body: messages.ReportDamageRequest) -> JobGenerator:
        return self._run_entries(body, messages.ReportDamageResult, self._report_damage)

    def describe_producers(self, body: messages.DescribeProducersRequest, now: Now) -> JobGenerator:
        describe = partial(self._describe_producer, now.monotonic + body.timeout)
        return self._run_entries(body, messages.DescribeProducersResult, describe)

    def _list_offset(self, entry: messages.ListOffsetsEntry, answer: _Answer) -> None:
        partition = self.metadata.find_led(entry)
        log = partition.log
        if entry.timestamp == messages.EARLIEST:
            offset = log.log_start
        elif entry.timestamp == messages.LATEST:
            offset = partition.latest()
        else:
            offset = log.offset_for_time(entry.timestamp)
            if offset == log.high_watermark:  # no committed record is of that time
                offset = partition.latest()
        answer((offset,))

    def _delete_records(self, entry: messages.DeleteRecordsEntry, answer: _Answer) -> None:
        partition = self.metadata.find_led(entry, entry.leader_epoch)
        log, end = partition.log, partition.latest()
        offset = end if entry.offset == messages.LATEST else entry.offset
        if offset > end:
            raise OffsetOutOfRange(
                f"{entry.topic}-{entry.partition} ends with offset {end}, before {offset}"
            )

        def deleted(error: FolkmootError | None) -> None:
            answer(error or (log.log_start,))

        def after_deletion(error: FolkmootError | None) -> None:
            if error is not None:
                deleted(error)
                return
            partition.wake_all()  # followers have to learn where the log begins
            partition.when_deleted_before(offset, deleted)

        self.retention.delete_records(log, offset, after_deletion)

    def _describe_producer(
        self, deadline: float, entry: messages.DescribeProducersEntry, answer: _Answer
    ) -> None:
        """Answer once all that is in the log is committed: the rest may be lost with this leader."""
        partition = self.metadata.find_led(entry, entry.leader_epoch)
        log = partition.log
        if (job := log.prepare_append()) is not None:
            raise NotCached(job)
        found = *log.producers().next_of(entry.producer_id), log.log_end
        if log.high_watermark >= log.log_end:
            answer(found)
        else:
            partition.wait(
                WaitingProduce(log.log_end, 0, deadline, lambda error: answer(error or found))
            )

    def _report_damage(self, entry: messages.ReportDamageEntry, answer: _Answer) -> None:
        """Answer once the batch was read again. Later requests of the same peer do not wait for that."""
        partition = self.partitions.find(entry.topic_id, entry.partition)  # a follower's, too
        log = (partition or self.metadata.find_led(entry)).log
        if not log.log_start <= entry.offset < log.log_end:
            raise OffsetOutOfRange(f"{entry.topic}-{entry.partition} has no offset {entry.offset}")
        report = log, entry.offset
        if (waiting := self._reports.get(report)) is not None:
            waiting.append(answer)
            return
        if len(self._reports) >= MOST_REPORTS:
            raise Overloaded(f"{MOST_REPORTS} batches wait to be read again: retry later")
        if (job := damage_job(*report)) is None:
            answer(())
            return

        def checked(outcome: Any) -> None:
            waiting = self._reports.pop(report)
            job.finish(outcome)
            for each in waiting:
                each(())

        self._reports[report] = [answer]
        try:
            self.submit(job.lane, job.run, checked)
        except Overloaded:
            del self._reports[report]
            raise

    def get_schema(self, body: messages.GetSchemaRequest) -> JobGenerator:
        return Response((yield from self.schemas.resolve((body.context, body.schema_id))))

    def describe_logs(self, body: messages.LogSizesRequest) -> JobGenerator:
        wanted = None if body.topics is None else frozenset(body.topics)
        found = []
        for number, log in enumerate(list(self.logs), 1):
            topic, partition = log.name
            if wanted is None or topic in wanted:
                sizes = log.size, log.log_start, log.log_end
                found.append(messages.LogSize(topic, log.topic_id, partition, *sizes))
            if number % GROUPED_PER_STEP == 0:
                yield None
        return Response(messages.LogSizesResponse(found))


def _divergence(log: Log, entry: messages.FetchEntry) -> EpochEnd:
    """The end of what the log and the client's records have in common, or _NO_DIVERGENCE.

    A replica may lack batches of an epoch that compaction has emptied: then the batch of the record
    before `entry.offset` counts, if that is still there.
    """
    starts, epoch = log.epoch_starts, entry.last_epoch
    if epoch < 0 or entry.offset <= log.log_start:
        return _NO_DIVERGENCE
    if epoch == starts.latest and entry.offset <= log.log_end:
        return _NO_DIVERGENCE  # nearly always
    end = starts.end_of(epoch, log.log_end)
    if entry.offset > end.offset:
        return end
    is_other = end.epoch != epoch and _is_of_other_epoch(log, entry.offset - 1, epoch)
    return end if is_other else _NO_DIVERGENCE


def _is_of_other_epoch(log: Log, offset: int, epoch: int) -> bool:
    """True if the log has that offset from another leader epoch; False if compaction has removed it.

    Raises OffsetNotAvailable where it is about to be copied anew, StorageError.
    """
    with suppress(CorruptBatch):  # it can be read nowhere
        header = batch_header.read_header(log.read(offset, 1, committed=False))
        return header.base_offset <= offset and header.leader_epoch != epoch
    return False


def _parts(numbers: list[int], payloads: Sequence[memoryview]) -> Iterator[list[int]]:
    """Entries of one partition in order, as many as one write and one step may take."""
    part: list[int] = []
    length = 0
    for number in numbers:
        if part and (
            len(part) >= ENTRIES_PER_STEP or length + len(payloads[number]) > BYTES_PER_STEP
        ):
            yield part
            part, length = [], 0
        part.append(number)
        length += len(payloads[number])
    yield part
