"""What a leader answers to its followers' fetches, and what it keeps of them until there is an answer."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NamedTuple
from weakref import WeakKeyDictionary

from folkmoot.brokers.jobs.jobs import Now, SharedJob
from folkmoot.brokers.replication.leader_state import Position
from folkmoot.brokers.replication.partition import Partition
from folkmoot.brokers.replication.partitions import Partitions
from folkmoot.brokers.server.fetch_sessions import FetchSession
from folkmoot.brokers.server.purgatory import DelayedFetch, Purgatory, Request, Response
from folkmoot.brokers.storage.leader_epochs import EpochEnd
from folkmoot.brokers.storage.segment import NotCached
from folkmoot.coordination.brokers import Registration
from folkmoot.protocol.errors import (
    FolkmootError,
    NotLeader,
    OffsetOutOfRange,
    UnknownFetch,
    UnknownReplica,
)
from folkmoot.protocol.messages import (
    ReplicaFetchEntry,
    ReplicaFetchRequest,
    ReplicaFetchResponse,
    ReplicaFetchResult,
)
from folkmoot.protocol.wire import code_of, message_of

MAX_WAIT: Final = 5.0
TELL_WITHIN: Final = 0.01
"""So soon followers that wait hear of a high watermark that has moved: consumers read there, too."""
MAX_RESPONSE_BYTES: Final = 16 * 1024 * 1024
_NO_CHUNK: Final = memoryview(b"")
_ON_THE_LOG: Final = EpochEnd(-1, -1)

Answer = tuple[ReplicaFetchResult, bytes | memoryview]


class News(NamedTuple):
    """What a follower learns of the leader's log besides records; `has_committed`: it has all of that."""

    log_start: int
    high_watermark: int
    has_committed: bool


class FollowerSession(FetchSession[ReplicaFetchEntry]):
    """Of a follower's fetches. Of partitions in `moved` there is a new high watermark alone: for that a
    fetch waits TELL_WITHIN longer."""

    __slots__ = ("answered", "broker_epoch", "follower", "moved")

    def __init__(self, purgatory: Purgatory, peer: bytes, follower: int, broker_epoch: int) -> None:
        super().__init__(purgatory, peer)
        self.follower = follower
        self.broker_epoch = broker_epoch
        self.moved: dict[Partition, None] = {}
        # Weak, since a replica that is gone is not named again, and its log is to go with it.
        # With the leader epoch: a follower begins each with nothing that it has learned before.
        self.answered: WeakKeyDictionary[Partition, tuple[int, News]] = WeakKeyDictionary()

    def news_of(self, partition: Partition) -> News:
        leader, log = partition.leader, partition.log
        has_committed = leader is not None and leader.has_committed(self.follower)
        return News(log.log_start, log.high_watermark, has_committed)

    def appended(self, partition: Partition) -> None:
        self.changed[partition] = None
        self.wake()

    altered = appended

    def committed(self, partition: Partition, _size: float) -> None:
        if not self.moved:
            self.wake()  # to wait no longer than TELL_WITHIN
        self.moved[partition] = None

    def note_answered(self, partition: Partition, entry: ReplicaFetchEntry) -> None:
        self.answered[partition] = entry.leader_epoch, self.news_of(partition)

    def forget(self, *partitions: Partition) -> None:
        super().forget(*partitions)
        for partition in partitions:
            self.moved.pop(partition, None)

    def supersede(self) -> None:
        """The fetch that waits is answered with nothing: the follower has fetched again."""
        self.wake()
        self.delayed = None

    def is_catching_up(self, partition: Partition) -> bool:
        return partition.leader is None or self.follower not in partition.leader.isr


class ReplicaFetches:
    """The followers' sessions, one for each broker that has replicas of what this one leads.

    What a fetch names is acknowledged by that alone, at once. What there is to tell of is answered; the
    rest is kept, and the fetch waits for an append, for its deadline, or for the follower's next fetch,
    which takes over what is kept. High watermarks that have moved are told of TELL_WITHIN later.

    Who fetches must be registered under that id with that nonce, as far as this broker knows: that
    keeps a process out that has been replaced, and a client that takes itself for a partition. A session
    belongs to one connection; a new connection begins with all partitions.

    Owner: the event loop.
    """

    def __init__(
        self,
        partitions: Partitions,
        purgatory: Purgatory,
        begin: Callable[[Partition, SharedJob], None],
    ) -> None:
        """`begin` begins a job that a read asks for. The partition wakes its followers behind that."""
        self._partitions = partitions
        self._purgatory = purgatory
        self._begin = begin
        self._sessions: dict[int, FollowerSession] = {}

    @property
    def waiting(self) -> int:
        """How many followers' fetches wait."""
        waiting = [each.delayed for each in self._sessions.values()]
        return sum(each is not None and each.waits for each in waiting)

    def fetch(self, request: Request, now: float) -> Response | None:
        """Acknowledge and answer, or None: it waits. Raises UnknownReplica, UnknownFetch."""
        body: ReplicaFetchRequest = request.body
        registered = self._require_registered(body)
        session = self._sessions.get(body.replica)
        if body.begins:
            self._forget(body.replica)
            session = self._sessions[body.replica] = FollowerSession(
                self._purgatory, request.peer, body.replica, registered.epoch
            )
        if (
            session is None
            or session.peer != request.peer
            or session.broker_epoch != registered.epoch
        ):
            raise UnknownFetch(
                "nothing is kept here of an earlier fetch: name all partitions again"
            )
        session.supersede()
        answers = [
            answer for entry in body.entries if (answer := self._named(session, entry)) is not None
        ]
        self._read(session, body.max_bytes, answers)
        if answers:
            return _response(answers)
        self._delay(session, request, now + min(body.max_wait, MAX_WAIT), now)
        return None

    def _delay(
        self, session: FollowerSession, request: Request, deadline: float, now: float
    ) -> None:
        if session.moved:
            deadline = min(deadline, now + TELL_WITHIN)
        session.delay(request, deadline, partial(self._complete, session))

    def _complete(
        self, session: FollowerSession, delayed: DelayedFetch, now: Now
    ) -> Response | None:
        """What has come meanwhile. None: nothing yet, it waits on."""
        answers: list[Answer] = []
        if session.delayed is not delayed:
            return _response(answers)  # the follower has fetched again
        session.delayed, request = None, delayed.request
        self._read(session, request.body.max_bytes, answers)
        if not answers and delayed.deadline > now.monotonic:
            self._delay(session, request, delayed.deadline, now.monotonic)
            return None
        if not answers:
            self._tell_moved(session, answers)
        return _response(answers)

    def _require_registered(self, body: ReplicaFetchRequest) -> Registration:
        """Raises UnknownReplica."""
        found = self._partitions.live.get(body.replica)
        if found is None or found.nonce != body.nonce or body.replica == self._partitions.broker_id:
            raise UnknownReplica(f"no broker {body.replica} is registered with that nonce")
        return found

    def _forget(self, replica: int) -> None:
        session = self._sessions.pop(replica, None)
        if session is not None:
            session.supersede()
            session.forget(*session.entries)

    # -- answers ------------------------------------------------------------------------------------

    def _named(self, session: FollowerSession, entry: ReplicaFetchEntry) -> Answer | None:
        """Acknowledge a position, and watch for what follows it; or why not."""
        partition = self._partitions.find(entry.topic_id, entry.partition)
        try:
            if partition is None:
                raise NotLeader(f"{entry.topic}-{entry.partition} has no partition here")
            position = Position(entry.leader_epoch, entry.last_epoch, entry.log_end)
            end = partition.fetched(
                *(session.follower, session.broker_epoch, position, entry.given_up),
                gives_up=entry.gives_up,
            )
        except FolkmootError as error:
            return _refused(entry, error, -1 if partition is None else partition.log.log_start)
        if end is not None:
            return _result(session, entry, partition, end), _NO_CHUNK
        session.watch(partition, entry)
        if _lacks(entry, partition) or entry.gives_up:
            session.changed[partition] = None
        elif session.answered.get(partition) != (entry.leader_epoch, session.news_of(partition)):
            session.moved[partition] = None
        return None

    def _read(self, session: FollowerSession, max_bytes: int, answers: list[Answer]) -> None:
        """What has changed, as far as there is room; at least one whole batch if there is any.

        First what the follower is in sync with: producers wait for that, and nobody for the rest.
        """
        found, max_bytes = 0, min(max_bytes, MAX_RESPONSE_BYTES)
        for partition in sorted(session.changed, key=session.is_catching_up):
            if found >= max_bytes:
                return
            entry = session.entries[partition]
            del session.changed[partition]  # a job that ends meanwhile notes it again
            try:
                chunk = self._chunk(partition, entry, max_bytes - found, at_least_one=not found)
                if chunk is None:
                    continue
                if found and not len(chunk) and _lacks(entry, partition):
                    session.changed[partition] = None  # there is no room for its next batch
                    return
                answer: Answer = _result(session, entry, partition), chunk
                session.note_answered(partition, entry)
            except FolkmootError as error:
                answer = _refused(entry, error, partition.log.log_start)
            answers.append(answer)
            found += len(answer[1])
            session.forget(partition)

    def _chunk(
        self, partition: Partition, entry: ReplicaFetchEntry, room: int, *, at_least_one: bool
    ) -> memoryview | None:
        """None: a job has to end first. Raises NotLeader, OffsetOutOfRange, StorageError."""
        log, leader = partition.log, partition.leader
        if leader is None or leader.epoch != entry.leader_epoch:
            raise NotLeader(f"{log.name} is not led here any more")
        if entry.log_end < log.log_start:
            raise OffsetOutOfRange(f"{log.name} begins with offset {log.log_start}")
        try:
            return log.read(entry.log_end, room, at_least_one=at_least_one, committed=False)
        except NotCached as cold:
            self._begin(partition, cold.job)
            return None

    def _tell_moved(self, session: FollowerSession, answers: list[Answer]) -> None:
        """High watermarks that have moved, without records."""
        for partition in list(session.moved):
            entry = session.entries[partition]
            answers.append((_result(session, entry, partition), _NO_CHUNK))
            session.note_answered(partition, entry)
            session.forget(partition)


def _result(
    session: FollowerSession,
    entry: ReplicaFetchEntry,
    partition: Partition,
    end: EpochEnd = _ON_THE_LOG,
) -> ReplicaFetchResult:
    return ReplicaFetchResult(
        *(entry.topic, entry.partition, 0, "", entry.leader_epoch, entry.log_end),
        *(*end, *session.news_of(partition)),
    )


def _lacks(entry: ReplicaFetchEntry, partition: Partition) -> bool:
    return entry.log_end < partition.log.log_end


def _refused(entry: ReplicaFetchEntry, error: FolkmootError, log_start: int = -1) -> Answer:
    said = entry.topic, entry.partition, code_of(error), message_of(error)
    return ReplicaFetchResult(
        *said, entry.leader_epoch, entry.log_end, *_ON_THE_LOG, log_start, -1, False
    ), _NO_CHUNK


def _response(answers: Sequence[Answer]) -> Response:
    results = [result for result, _ in answers]
    return Response(ReplicaFetchResponse(results), [chunk for _, chunk in answers])
