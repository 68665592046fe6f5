"""What the broker does for each api: from a request to a response, without a socket or a clock."""

import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

from folkmoot.brokers.jobs.jobs import Job, JobGroup, Now, SharedJob, Submit
from folkmoot.brokers.replication.partition import Partition, WaitingProduce
from folkmoot.brokers.replication.partitions import Partitions
from folkmoot.brokers.server.fetch_sessions import ConsumerSession, FetchSessions
from folkmoot.brokers.server.metadata_cache import ClusterChange, MetadataCache
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
from folkmoot.brokers.storage.damage_reports import damage_job
from folkmoot.brokers.storage.flusher import Flusher
from folkmoot.brokers.storage.leader_epochs import EpochEnd
from folkmoot.brokers.storage.log import Log
from folkmoot.brokers.storage.log_manager import LogManager
from folkmoot.brokers.storage.retention import Done, Retention
from folkmoot.brokers.storage.segment import NotCached
from folkmoot.coordination.partition_states import TopicIdPartition
from folkmoot.coordination.topics import TopicInfo
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
from folkmoot.protocol.options import NONE
from folkmoot.protocol.wire import code_of, message_of

logger = logging.getLogger(__name__)

NO_OFFSET: Final = -1
_NOWHERE: Final = EpochEnd(-1, -1)

MAX_WAIT: Final = 30.0
KEEP_FOR: Final = 10.0
"""So long at most one fetch goes on with another; then its client names all partitions again."""
FORGET_AFTER: Final = 30.0
"""So long what is left of a fetch is kept for the next one."""


TOPICS_PER_STEP: Final = 50
PARTITIONS_PER_STEP: Final = 500
ENTRIES_PER_STEP: Final = 10
GROUPED_PER_STEP: Final = 500
PREPARED_AT_ONCE: Final = 250
"""At most as many entries of a request have their disk read by one trip to the background."""
BYTES_PER_STEP: Final = 4 * 1024 * 1024

Outcome = Response | DelayedResponse | None
"""None: the request is delayed in the purgatory, or wants no response."""

Steps = Generator[Job | None, None, Outcome]
"""A request carried out in bounded steps: it gives way, or waits for a job, where it yields."""

_T = TypeVar("_T")
_Said = tuple[int, ...] | FolkmootError
"""What the result of an entry says behind its name and error."""
_Answer = Callable[[_Said], None]
_CarryOut = Callable[[Any, _Answer], None]

_RESPONSES: Final = {spec.request: spec.response for spec in messages.APIS.values()}

# What a result says in place of its numbers when its entry has failed.
_NOTHING: Final[dict[type[Any], tuple[int, ...]]] = {
    messages.ProduceResult: (NO_OFFSET, NO_OFFSET),
    messages.ListOffsetsResult: (NO_OFFSET,),
    messages.DeleteRecordsResult: (NO_OFFSET,),
    messages.DescribeProducersResult: (-1, 0, NO_OFFSET),
    messages.ReportDamageResult: (),
}


class _Read(NamedTuple):
    """What there is to answer to a fetch's entries, and of which partitions."""

    results: list[messages.FetchResult]
    chunks: list[bytes | memoryview]
    answered: list[Partition]
    failed: bool
    preparing: int
    """The number of results without their bytes: a job reads first what is not cached, and its end alters the
    partition. Where that is not waited for, who asks hears that there is something, and asks again."""

    @property
    def has_to_wait(self) -> bool:
        """Whether jobs have to end before there is anything to answer."""
        return 0 < self.preparing == len(self.results)


class _Produce(NamedTuple):
    """A PRODUCE that is carried out: the payload of an entry has the same number."""

    delayed: DelayedResponse
    entries: Sequence[messages.ProduceEntry]
    payloads: Sequence[memoryview]
    now: Now
    peer: bytes
    acks: int
    timeout: float
    refusals: dict[int, FolkmootError]
    """Of entries whose topic asks for another schema."""

    def bytes_of(self, numbers: Sequence[int]) -> int:
        return sum(len(self.payloads[number]) for number in numbers)


@dataclass(eq=False, kw_only=True)
class RequestHandlers:
    """Carries requests out on the logs that this broker leads.

    A request's entries succeed or fail each by itself. A request of many entries may be interrupted
    after every ENTRIES_PER_STEP of them, and whatever waits for a disk is a job beside the event loop:
    so no request holds up others for long. All of it belongs to the event loop.
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
    _preparing: set[Job] = field(default_factory=set, init=False)
    _saw_view: bool = field(default=False, init=False)
    _was_registered: bool = field(default=False, init=False)
    _unseen: OrderedDict[str | TopicIdPartition, int] = field(
        default_factory=OrderedDict, init=False
    )
    """Topics and states that partitions have not learnt of yet; of each, when it was settled."""
    _walk: Iterator[None] | None = field(default=None, init=False)
    sessions: FetchSessions = field(default_factory=FetchSessions, init=False)
    replica_fetches: ReplicaFetches = field(init=False)

    def __post_init__(self) -> None:
        self.replica_fetches = ReplicaFetches(self.partitions, self.purgatory, self._begin)
        self.logs.files.may_wait = False

    def hello(self) -> Response:
        """Name this broker and the versions that it speaks."""
        apis = [
            messages.ApiVersions(api, spec.lowest, spec.highest)
            for api, spec in messages.APIS.items()
        ]
        return Response(messages.HelloResponse(self.metadata.broker_id, self.max_batch_bytes, apis))

    def describe_topics(self, body: messages.MetadataRequest) -> Steps:
        if self.partitions.shared.is_replaced:
            raise NotLeader("ZooKeeper does not answer this broker, and others lead: ask them")
        return Response((yield from self.metadata.answer(body.topics)))

    def init_producer_id(self) -> Response:
        return Response(messages.InitProducerIdResponse(self.producer_ids.next()))

    def _refused(self, kind: type[Any], entry: Any, error: FolkmootError) -> Any:
        """The result of an entry that has failed."""
        self.counters.errors[type(error).__name__] += 1
        leader = self.metadata.current_leader(entry, error)
        said = entry.topic, entry.partition, code_of(error), message_of(error), *_NOTHING[kind]
        return kind(*said, leader=leader)

    # -- the view of the cluster -------------------------------------------------------------------------

    def show(
        self,
        change: ClusterChange,
        post: Callable[[Callable[[], None]], None],
    ) -> None:
        """Take over what has changed. The partitions follow in bounded steps: the first one at once, so
        that a fetch which comes next is not woken by it; what follows is posted.

        Replicas begin when the broker has registered: by what was read before, an earlier incarnation
        of it, which had what this disk has lost, might still come into an ISR."""
        metadata, deleted = self.metadata, change.deleted
        changed: list[str | TopicIdPartition]
        if change.whole is None:
            changed = metadata.view.apply(change)
        else:
            changed = sorted({*metadata.view.topics, *change.whole.topics})
            metadata.view = change.whole
        view = metadata.view
        self.partitions.brokers_are(view.registrations, is_registered=change.is_registered)
        is_first = change.is_registered and not self._was_registered
        self._was_registered |= is_first
        if is_first:
            changed = [*sorted(view.topics), *changed]
        for topic_id in self.logs.scheduled():
            if topic_id not in deleted:  # `folkmoot topic restore` has taken the deletion back
                self.logs.keep(topic_id)
        for topic_id, deletion in deleted.items():
            self.logs.delete_later(topic_id, deletion)
            post(partial(self._topic_deleted, topic_id))
        if not self._saw_view:
            self._saw_view = True
            self.logs.report_orphans({topic.topic_id for topic in view.topics.values()})
        unknown = self.partitions.counters.unknown_outcomes if change.is_settled else -1
        for each in changed:
            self._unseen[each] = max(unknown, self._unseen.get(each, -1))
        if self._walk is None:
            self._walk = self._take_over()
            self._go_on(post)

    def _go_on(self, post: Callable[[Callable[[], None]], None]) -> None:
        walk, self._walk = self._walk, None
        for _ in walk or ():
            self._walk = walk
            post(partial(self._go_on, post))
            return

    def _take_over(self) -> Iterator[None]:
        """Have partitions learn what has changed, as the view says by then. Give way after each bounded
        step."""
        room = PARTITIONS_PER_STEP
        while self._unseen:
            if room <= 0:
                room = PARTITIONS_PER_STEP
                yield
                continue
            changed, settled_at = self._unseen.popitem(last=False)
            try:
                if isinstance(changed, TopicIdPartition):
                    room -= 1
                    self._state_changed(changed, settled_at)
                else:
                    room = yield from self._topic_changed(changed, settled_at, room)
            except Exception:
                logger.exception("%s: not all that has changed of it was taken over", changed)

    def _topic_changed(self, name: str, settled_at: int, room: int) -> Generator[None, None, int]:
        """→ how many partitions the step still has room for."""
        room -= PARTITIONS_PER_STEP // TOPICS_PER_STEP
        topic = self.metadata.view.topics.get(name)
        for former in self.logs.ids_of(name) - {"" if topic is None else topic.topic_id}:
            self._topic_lost(former, topic)
        if topic is None or self._is_set_back(name, topic):
            return room
        self.logs.configure(name, topic.topic_id, topic.config, topic)
        for first in range(0, len(topic.partitions), PARTITIONS_PER_STEP):
            if first:
                room = PARTITIONS_PER_STEP
                yield
            now = self.metadata.view.topics.get(name)
            if now is None or now.topic_id != topic.topic_id or self._is_set_back(name, now):
                break  # what that view has changed follows
            numbers = range(first, min(first + PARTITIONS_PER_STEP, len(topic.partitions)))
            self._partitions_are(name, now, numbers, settled_at)
            room -= len(numbers)
        return room

    def _state_changed(self, key: TopicIdPartition, settled_at: int) -> None:
        found = self.metadata.view.find(key)
        if found is not None and not self._is_set_back(*found):
            self._partitions_are(*found, [key.partition], settled_at)

    def _partitions_are(
        self, name: str, topic: TopicInfo, numbers: Sequence[int], settled_at: int
    ) -> None:
        """`settled_at`: the number of unknown outcomes when a settled view was shown, or -1. What was
        written since, with an outcome that is not known, waits for the next one that is settled."""
        if self._was_registered:
            settled = settled_at == self.partitions.counters.unknown_outcomes
            states = self.metadata.view.states
            self.partitions.topic_is(name, topic, states, numbers=numbers, settled=settled)

    def _topic_deleted(self, topic_id: str) -> None:
        """Serve nothing of it any more; its directories go later."""
        self.partitions.topic_gone(topic_id)

    def _is_set_back(self, name: str, topic: TopicInfo) -> bool:
        """Whether a topic's node is older than what this disk knows: then nothing of it is believed, since
        its retention, its partitions and its replicas may be others by now."""
        known, number = self.logs.revision_of(topic.topic_id), self.metadata.broker_id
        if topic.revision >= known:
            self.metadata.out_of_use.discard(topic.topic_id)
            return False
        self.metadata.out_of_use.add(topic.topic_id)
        self.partitions.topic_gone(topic.topic_id)
        if self.logs.lose(topic.topic_id):
            logger.error(
                "topic %s comes back older from ZooKeeper (revision %d) than broker %d knows it (%d): was "
                "ZooKeeper set back? It is out of use here, and all of its files are kept. `folkmoot topic "
                "restore %s` puts it back as the brokers know it",
                *(name, topic.revision, number, known, name),
            )
        return True

    def _topic_lost(self, topic_id: str, now: TopicInfo | None) -> None:
        """ZooKeeper does not know a topic any more, though nobody has deleted it: nothing of it is served,
        and all of it is kept. `now`: a later one has its name."""
        self.partitions.topic_gone(topic_id)
        name, count = self.logs.name_of(topic_id), self.logs.lose(topic_id)
        if count and now is None:
            logger.error(
                "topic %s (id %s) is gone from ZooKeeper, and was not deleted: its %d partitions here are "
                "out of use, and their files are kept. `folkmoot topic restore %s` puts it back",
                *(name, topic_id, count, name),
            )
        elif count and now is not None:
            logger.error(
                "topic %s has the id %s now, and the one with the id %s was not deleted: its %d partitions "
                "here are put aside. `folkmoot log orphans` lists them, `folkmoot topic restore %s --id %s` "
                "puts it back under another name",
                *(name, now.topic_id, topic_id, count, name, topic_id),
            )

    # -- produce -----------------------------------------------------------------------------------------

    def produce(self, request: Request, payloads: Sequence[memoryview], now: Now) -> Steps:
        """Append, partition by partition, in the order given."""
        entries = request.body.entries
        delayed = DelayedResponse(len(entries), messages.ProduceResponse)
        body = request.body
        produce = _Produce(
            delayed, entries, payloads, now, request.peer, body.acks, body.timeout, {}
        )
        subjects: dict[str, str | None] = {}
        asked: dict[str, dict[int, int]] = {}
        groups: dict[tuple[str, str, int, int], list[int]] = {}
        for number, entry in enumerate(entries):
            key = entry.topic, entry.topic_id, entry.partition, entry.leader_epoch
            groups.setdefault(key, []).append(number)
            subject = subjects.get(entry.topic, "")
            if subject == "":
                subject = subjects[entry.topic] = self._value_schema(entry.topic)
            if subject is not None:
                asked.setdefault(subject, {})[number] = batch_header.schema_of(payloads[number])
            if number % GROUPED_PER_STEP == GROUPED_PER_STEP - 1:
                yield None
        for subject, ids in asked.items():
            produce.refusals.update((yield from self.schemas.refusals(subject, ids)))
        count = length = 0
        todo = [deque(_shares(numbers, payloads)) for numbers in groups.values()]
        while todo:
            cold: list[tuple[deque[list[int]], Job]] = []
            for parts in todo[:PREPARED_AT_ONCE]:
                try:
                    while parts:
                        if count >= ENTRIES_PER_STEP or length >= BYTES_PER_STEP:
                            count = length = 0
                            yield None
                        self._append(produce, parts[0])
                        part = parts.popleft()
                        count, length = count + len(part), length + produce.bytes_of(part)
                except NotCached as error:
                    cold.append((parts, error.job))
            todo = [parts for parts, _ in cold] + todo[PREPARED_AT_ONCE:]
            if cold:
                yield JobGroup(job for _, job in cold)
        return delayed if request.body.acks else None

    def _value_schema(self, topic: str) -> str | None:
        """The subject that a topic asks for."""
        known = self.metadata.view.topics.get(topic)
        given = None if known is None else known.config.get("value_schema")
        if given is None:
            return self.logs.config.value_schema
        return None if given == NONE else given

    def _append(self, produce: _Produce, numbers: Sequence[int]) -> None:
        """Append to one partition by one write; a batch that cannot be taken does not hold up others.

        Raises NotCached: nothing was done.
        """
        entry = produce.entries[numbers[0]]
        try:
            partition = self.metadata.led(entry, entry.leader_epoch)
            log = partition.log
            _require_prepared(log)
            batches = [produce.payloads[number] for number in numbers]
            if produce.acks < 0:
                partition.require_replicas()
            before = log.log_end
            refusals = {
                place: produce.refusals[number]
                for place, number in enumerate(numbers)
                if number in produce.refusals
            }
            outcomes = log.append_as_leader(batches, produce.now.wall, log.leader_epoch, refusals)
        except FolkmootError as error:
            self._refuse_all(produce, numbers, error)
            return
        size, results = 0, {}
        for number, outcome in zip(numbers, outcomes, strict=True):
            if isinstance(outcome, FolkmootError):
                self._refuse_all(produce, [number], outcome)
                continue
            size += 0 if outcome.is_duplicate else len(produce.payloads[number])
            results[number] = messages.ProduceResult(
                *(entry.topic, entry.partition, 0, "", outcome.base_offset, produce.now.wall)
            )
        if size:
            self.counters.bytes_in += size
            self.counters.records_in += log.log_end - before
            self.flusher.appended(log, size, produce.now)
            partition.appended(size, before)
        self._acknowledge(partition, size, produce, results)

    def _acknowledge(
        self,
        partition: Partition,
        size: int,
        produce: _Produce,
        results: dict[int, messages.ProduceResult],
    ) -> None:
        """Answer for what was appended, now or when it is committed: on disk, if its topic asks for that,
        and at all in-sync replicas. acks=1 waits for the disk alone, and only of one replica."""
        log = partition.log

        def committed(failure: FolkmootError | None) -> None:
            if failure is not None:
                self._refuse_all(produce, list(results), failure)
                return
            for number, result in results.items():
                produce.delayed.put(number, result)

        is_committed = log.high_watermark >= log.log_end
        if is_committed or (produce.acks >= 0 and not log.is_alone):
            # Nothing of acks=1 is kept: the high watermark may stand for a long time.
            committed(None)
            return
        deadline = produce.now.monotonic + produce.timeout
        partition.wait(
            WaitingProduce(log.log_end, size, deadline, produce.delayed.later(committed))
        )

    def _refuse_all(self, produce: _Produce, numbers: Sequence[int], error: FolkmootError) -> None:
        for number in numbers:
            entry = produce.entries[number]
            produce.delayed.put(number, self._refused(messages.ProduceResult, entry, error))

    # -- fetch -------------------------------------------------------------------------------------------

    def fetch(self, request: Request, now: Now) -> Response | None:
        """Read batches. None: it waits, and `_complete_fetch` has the response.

        What is kept of a fetch is gone on with once; where it is not known (any more: the broker was
        started anew, or needed the room) the client is told UnknownFetch and names all partitions again.
        """
        body = request.body
        if body.after is None:
            session = ConsumerSession(self.purgatory, request.peer, now.monotonic)
        else:
            kept = self.sessions.resume(request.peer, body.after)
            if kept is None:
                raise UnknownFetch(
                    f"nothing is kept here of fetch {body.after}: name all partitions again"
                )
            session = kept
        try:
            if len(session.entries) + len(body.entries) > messages.MAX_ENTRIES:
                raise InvalidRequest(
                    f"a fetch of more than {messages.MAX_ENTRIES} partitions: name fewer"
                )
            read = self._read(body, session, [*session.take_changed(), *body.entries])
            lacking = body.min_bytes - sum(map(len, read.chunks))
            waits = lacking > 0 and body.max_wait > 0 and session.entries
            waits = waits and not read.failed and not session.changed
            if not waits and not read.has_to_wait:
                return self._fetched(session, request, read, now)
            wait = MAX_WAIT if read.preparing else min(body.max_wait, MAX_WAIT)
            self._delay_fetch(session, request, read, now.monotonic + wait, lacking)
            return None
        except BaseException:
            self.sessions.release(session)
            raise

    def _delay_fetch(
        self,
        session: ConsumerSession,
        request: Request,
        read: _Read,
        deadline: float,
        missing: int,
    ) -> None:
        """Let a fetch wait. Raises Overloaded."""
        self.purgatory.require_room(request.peer)
        self.sessions.require_room(session)
        session.changed = dict.fromkeys(read.answered)
        session.missing = missing
        session.delay(request, deadline, partial(self._complete_fetch, session))

    def _complete_fetch(
        self, session: ConsumerSession, delayed: DelayedFetch, now: Now
    ) -> Response | None:
        """The response to a fetch that has waited, None if it has to wait for another index."""
        session.delayed, request = None, delayed.request
        try:
            read = self._read(request.body, session, session.take_changed())
            if read.has_to_wait and now.monotonic < delayed.deadline:
                self._delay_fetch(session, request, read, delayed.deadline, 1)
                return None
            return self._fetched(session, request, read, now)
        except BaseException:
            self.sessions.release(session)
            raise

    def _fetched(
        self, session: ConsumerSession, request: Request, read: _Read, now: Now
    ) -> Response:
        """The response; what it does not answer is kept, if the client wants that."""
        kept = False
        session.forget(*read.answered)
        if request.body.keep and session.entries and now.monotonic - session.begun < KEEP_FOR:
            forget_at = now.monotonic + FORGET_AFTER
            kept = self.sessions.keep(session, request.correlation_id, forget_at)
        else:
            self.sessions.release(session)
        return Response(messages.FetchResponse(read.results, kept), read.chunks)

    def _read(
        self,
        body: messages.FetchRequest,
        session: ConsumerSession,
        entries: Sequence[messages.FetchEntry],
    ) -> _Read:
        """Read until the room is used up: what is left then counts as changed. The session watches all that
        can be read here."""
        room = min(body.max_bytes, messages.MAX_FETCH_BYTES)
        found, preparing, failed, is_full = 0, 0, False, False
        results: list[messages.FetchResult] = []
        chunks: list[bytes | memoryview] = []
        answered: list[Partition] = []
        for entry in entries:
            chunk: bytes | memoryview = b""
            start = end = NO_OFFSET
            refused: tuple[int, str] = 0, ""
            parts = _NOWHERE
            leader: messages.BrokerInfo | None = None
            partition: Partition | None = None
            try:
                partition = self.metadata.readable(entry)
                session.watch(partition, entry)
                log = partition.log
                end = log.high_watermark
                if entry.offset == end:
                    continue  # most often, of thousands
                start = log.log_start
                parts = _parts(log, entry)
                if parts is not _NOWHERE:
                    raise LogTruncated(f"{log.name}: other records than read from there on")
                if end < entry.offset <= log.log_end:
                    continue  # it does not know yet that it is committed
                if entry.offset > end and not log.is_led:
                    raise OffsetNotAvailable(f"{log.name} has no offset {entry.offset} here yet")
                # The first batch found comes whole, however large: else nobody could ever read it.
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
                refused = code_of(error), message_of(error)
            if partition is not None:
                answered.append(partition)
            said = entry.topic, entry.partition, *refused, start, end
            results.append(messages.FetchResult(*said, leader, *parts))
            chunks.append(chunk)
            found += len(chunk)
        return _Read(results, chunks, answered, failed, preparing)

    def _begin(self, partition: Partition, job: SharedJob) -> None:
        """Have done what a read waits for. Its end wakes who waits for the partition."""
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

    def _each(self, body: Any, kind: type[Any], carry_out: _CarryOut) -> Steps:
        """Carry out a request's entries, one by one: `carry_out` hands on what the result of its own is
        to say, now or later, or raises why not; NotCached: it is called again."""
        delayed = DelayedResponse(len(body.entries), _RESPONSES[type(body)])

        def answer(number: int, entry: Any, outcome: _Said) -> None:
            if isinstance(outcome, FolkmootError):
                result = self._refused(kind, entry, outcome)
            else:
                result = kind(entry.topic, entry.partition, 0, "", *outcome)
            delayed.put(number, result)

        todo = list(enumerate(body.entries))
        while todo:
            cold: list[tuple[tuple[int, Any], Job]] = []
            for place, (number, entry) in enumerate(todo[:PREPARED_AT_ONCE], start=1):
                answered = delayed.later(answer, number, entry)
                try:
                    carry_out(entry, answered)
                except NotCached as error:
                    cold.append(((number, entry), error.job))
                except FolkmootError as error:
                    answered(error)
                if place % ENTRIES_PER_STEP == 0:
                    yield None
            todo = [each for each, _ in cold] + todo[PREPARED_AT_ONCE:]
            if cold:
                yield JobGroup(job for _, job in cold)
        return delayed

    def list_offsets(self, body: messages.ListOffsetsRequest) -> Steps:
        return self._each(body, messages.ListOffsetsResult, self._list_offset)

    def delete_records(self, body: messages.DeleteRecordsRequest) -> Steps:
        return self._each(body, messages.DeleteRecordsResult, self._delete_records)

    def report_damage(self, body: messages.ReportDamageRequest) -> Steps:
        report = partial(self._report_damage, set())
        return self._each(body, messages.ReportDamageResult, report)

    def describe_producers(self, body: messages.DescribeProducersRequest, now: Now) -> Steps:
        describe = partial(self._describe_producer, now.monotonic + body.timeout)
        return self._each(body, messages.DescribeProducersResult, describe)

    def _list_offset(self, entry: messages.ListOffsetsEntry, answer: _Answer) -> None:
        partition = self.metadata.led(entry)
        log = partition.log
        if entry.timestamp == messages.EARLIEST:
            offset = log.log_start
        elif entry.timestamp == messages.LATEST:
            offset = partition.latest()
        else:
            offset = log.offset_for_time(entry.timestamp)
            if offset == log.high_watermark:  # nothing is of that time, as far as is known
                offset = partition.latest()
        answer((offset,))

    def _delete_records(self, entry: messages.DeleteRecordsEntry, answer: _Answer) -> None:
        partition = self.metadata.led(entry, entry.leader_epoch)
        log, end = partition.log, partition.latest()
        offset = end if entry.offset == messages.LATEST else entry.offset
        if offset > end:
            raise OffsetOutOfRange(
                f"{entry.topic}-{entry.partition} ends with offset {end}: {offset} is behind it"
            )
        done = partial(_deleted, log, answer)
        self.retention.delete_records(log, offset, partial(_given_up, partition, offset, done))

    def _describe_producer(
        self, deadline: float, entry: messages.DescribeProducersEntry, answer: _Answer
    ) -> None:
        """What is not committed yet may be lost with this leader: an answer that tells of it waits."""
        partition = self.metadata.led(entry, entry.leader_epoch)
        log = partition.log
        _require_prepared(log)
        found = *log.producers().next_of(entry.producer_id), log.log_end
        if log.high_watermark >= log.log_end:
            answer(found)
        else:
            partition.wait(
                WaitingProduce(log.log_end, 0, deadline, lambda error: answer(error or found))
            )

    def _report_damage(
        self,
        checked: set[tuple[Log, int]],
        entry: messages.ReportDamageEntry,
        answer: _Answer,
    ) -> None:
        """`checked`: the batches that this request has had read again already."""
        partition = self.partitions.find(entry.topic_id, entry.partition)  # that follows, too
        log = (partition or self.metadata.led(entry)).log
        if not log.log_start <= entry.offset < log.log_end:
            raise OffsetOutOfRange(f"{entry.topic}-{entry.partition} has no offset {entry.offset}")
        report = log, entry.offset
        if report not in checked and (job := damage_job(*report)) is not None:
            checked.add(report)
            raise NotCached(job)
        answer(())

    def get_schema(self, body: messages.GetSchemaRequest) -> Steps:
        return Response((yield from self.schemas.resolve((body.context, body.schema_id))))

    def describe_logs(self, body: messages.LogSizesRequest) -> Steps:
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


def _require_prepared(log: Log) -> None:
    """Raises NotCached before the first append of a life."""
    job = log.prepare_append()
    if job is not None:
        raise NotCached(job)


def _given_up(partition: Partition, offset: int, done: Done, error: FolkmootError | None) -> None:
    if error is not None:
        done(error)
        return
    partition.wake_all()  # followers are to know where the log begins
    partition.when_given_up(offset, done)


def _deleted(log: Log, answer: _Answer, error: FolkmootError | None) -> None:
    answer(error or (log.log_start,))


def _parts(log: Log, entry: messages.FetchEntry) -> EpochEnd:
    """Where a replica's log and what the client has read part, _NOWHERE if they do not.

    A replica may never have seen batches of an epoch that compaction has left nothing of: then it is
    asked who wrote the batch of the record before `entry.offset`, if that is still there.
    """
    starts, epoch = log.epoch_starts, entry.last_epoch
    if epoch < 0 or entry.offset <= log.log_start:
        return _NOWHERE
    if epoch == starts.latest and entry.offset <= log.log_end:
        return _NOWHERE  # nearly always
    end = starts.end_of(epoch, log.log_end)
    if entry.offset > end.offset:
        return end
    return end if end.epoch != epoch and _is_of_others(log, entry.offset - 1, epoch) else _NOWHERE


def _is_of_others(log: Log, offset: int, epoch: int) -> bool:
    """Whether the log has that offset from another leader epoch; False where compaction has removed it.

    Raises OffsetNotAvailable where it is about to be copied anew, StorageError.
    """
    with suppress(CorruptBatch):  # nobody has it any more
        header = batch_header.read_header(log.read(offset, 1, committed=False))
        return header.base_offset <= offset and header.leader_epoch != epoch
    return False


def _shares(numbers: list[int], payloads: Sequence[memoryview]) -> Generator[list[int], None, None]:
    """Entries of one partition in order, as many as one write and one step are to take."""
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
