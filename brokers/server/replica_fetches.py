"""A leader's answers to its followers' fetches, and the sessions of those that wait."""

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
NOTIFY_WITHIN: Final = 0.01
"""Seconds within which a waiting follower learns of a new high watermark: consumers read there, too."""
MAX_RESPONSE_BYTES: Final = 16 * 1024 * 1024
_NO_CHUNK: Final = memoryview(b"")
_NO_DIVERGENCE: Final = EpochEnd(-1, -1)

Answer = tuple[ReplicaFetchResult, bytes | memoryview]


class News(NamedTuple):
    """The state of the leader's log besides records; `has_committed`: the follower has all committed ones."""

    log_start: int
    high_watermark: int
    has_committed: bool


class FollowerSession(FetchSession[ReplicaFetchEntry]):
    """A follower's session. Partitions in `moved` have a new high watermark and nothing else: a fetch waits
    up to NOTIFY_WITHIN longer for more."""

    __slots__ = ("answered", "broker_epoch", "follower", "moved")

    def __init__(self, purgatory: Purgatory, peer: bytes, follower: int, broker_epoch: int) -> None:
        super().__init__(purgatory, peer)
        self.follower = follower
        self.broker_epoch = broker_epoch
        self.moved: dict[Partition, None] = {}
        # Weak, so that the log of a replica that is gone goes too. With the leader epoch, since a follower
        # begins each epoch without the news of earlier ones.
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
            self.wake()  # to wait no longer than NOTIFY_WITHIN
        self.moved[partition] = None

    def forget(self, *partitions: Partition) -> None:
        super().forget(*partitions)
        for partition in partitions:
            self.moved.pop(partition, None)

    def supersede(self) -> None:
        """Answer the fetch that waits with nothing: the follower has fetched again."""
        self.wake()
        self.delayed = None

    def result(
        self, entry: ReplicaFetchEntry, partition: Partition, diverging: EpochEnd = _NO_DIVERGENCE
    ) -> ReplicaFetchResult:
        return ReplicaFetchResult(
            *(entry.topic, entry.partition, 0, "", entry.leader_epoch, entry.log_end),
            *(*diverging, *self.news_of(partition)),
        )

    def answer(self, partition: Partition, chunk: memoryview = _NO_CHUNK) -> Answer:
        """The answer for a partition, which is named again by the follower's next fetch."""
        entry = self.entries[partition]
        self.answered[partition] = entry.leader_epoch, self.news_of(partition)
        return self.result(entry, partition), chunk


class ReplicaFetches:
    """The followers' sessions, one for each broker with replicas of partitions that this one leads.

    An entry of a fetch acknowledges a position, at once. If there are records or news for it, they are
    the answer. Else the entry is kept, and the fetch waits for an append, for its deadline, or for the
    follower's next fetch, which takes over all kept entries. New high watermarks alone are answered
    NOTIFY_WITHIN later.

    A follower has to be registered under its id with its nonce, as far as this broker knows: that
    refuses a process that was replaced. A session belongs to one connection; a new connection begins
    with all partitions.

    Owner: the event loop.
    """

    def __init__(
        self,
        partitions: Partitions,
        purgatory: Purgatory,
        begin: Callable[[Partition, SharedJob], None],
    ) -> None:
        """`begin` begins a job that a read waits for; the partition wakes its sessions after it."""
        self._partitions = partitions
        self._purgatory = purgatory
        self._begin = begin
        self._sessions: dict[int, FollowerSession] = {}

    @property
    def waiting(self) -> int:
        """The number of followers' fetches that wait."""
        waiting = [session.delayed for session in self._sessions.values()]
        return sum(delayed is not None and delayed.waits for delayed in waiting)

    def fetch(self, request: Request, now: float) -> Response | None:
        """Acknowledge and answer, or None: it waits. Raises UnknownReplica, UnknownFetch."""
        body: ReplicaFetchRequest = request.body
        follower, partitions = body.replica, self._partitions
        found = partitions.live.get(follower)
        if found is None or found.nonce != body.nonce or follower == partitions.broker_id:
            raise UnknownReplica(f"no broker {follower} is registered with that nonce")
        session = self._sessions.get(follower)
        if body.begins:
            if session is not None:
                session.supersede()
                session.forget(*session.entries)
            session = FollowerSession(self._purgatory, request.peer, follower, found.epoch)
            self._sessions[follower] = session
        if session is None or session.peer != request.peer or session.broker_epoch != found.epoch:
            raise UnknownFetch("no earlier fetch is kept here: name all partitions again")
        session.supersede()
        named = [self._acknowledge(session, entry) for entry in body.entries]
        answers = [answer for answer in named if answer is not None]
        self._read(session, body.max_bytes, answers)
        if answers:
            return _response(answers)
        self._delay(session, request, now + min(body.max_wait, MAX_WAIT), now)
        return None

    def _delay(
        self, session: FollowerSession, request: Request, deadline: float, now: float
    ) -> None:
        if session.moved:
            deadline = min(deadline, now + NOTIFY_WITHIN)
        session.delay(request, deadline, partial(self._complete, session))

    def _complete(
        self, session: FollowerSession, delayed: DelayedFetch, now: Now
    ) -> Response | None:
        """Answer a fetch that has waited. None: there is nothing yet, it waits again."""
        answers: list[Answer] = []
        if session.delayed is not delayed:
            return _response(answers)  # the follower has fetched again
        session.delayed, request = None, delayed.request
        self._read(session, request.body.max_bytes, answers)
        if not answers and delayed.deadline > now.monotonic:
            self._delay(session, request, delayed.deadline, now.monotonic)
            return None
        if not answers:
            for partition in list(session.moved):
                answers.append(session.answer(partition))
                session.forget(partition)
        return _response(answers)

    def _acknowledge(self, session: FollowerSession, entry: ReplicaFetchEntry) -> Answer | None:
        """Acknowledge a position and watch its partition; or answer why not."""
        partition = self._partitions.find(entry.topic_id, entry.partition)
        try:
            if partition is None:
                raise NotLeader(f"{entry.topic}-{entry.partition} has no partition here")
            position = Position(entry.leader_epoch, entry.last_epoch, entry.log_end)
            diverging = partition.handle_fetch(
                *(session.follower, session.broker_epoch, position, entry.deleted_before),
                is_damaged=entry.is_damaged,
            )
        except FolkmootError as error:
            return _failed(entry, error, -1 if partition is None else partition.log.log_start)
        if diverging is not None:
            return session.result(entry, partition, diverging), _NO_CHUNK
        session.watch(partition, entry)
        if entry.log_end < partition.log.log_end or entry.is_damaged:
            session.changed[partition] = None
        elif session.answered.get(partition) != (entry.leader_epoch, session.news_of(partition)):
            session.moved[partition] = None
        return None

    def _read(self, session: FollowerSession, max_bytes: int, answers: list[Answer]) -> None:
        """Answer for changed partitions as far as there is room; at least one whole batch if there is any.

        Partitions in which the follower is in sync come first: producers wait for those.
        """
        found, max_bytes = 0, min(max_bytes, MAX_RESPONSE_BYTES)
        for partition in sorted(
            session.changed,
            key=lambda each: each.leader is None or session.follower not in each.leader.isr,
        ):
            if found >= max_bytes:
                return
            entry, log, leader = session.entries[partition], partition.log, partition.leader
            del session.changed[partition]  # a job that ends meanwhile adds it again
            try:
                if leader is None or leader.epoch != entry.leader_epoch:
                    raise NotLeader(f"{log.name} is not led here any more")
                if entry.log_end < log.log_start:
                    raise OffsetOutOfRange(f"{log.name} begins with offset {log.log_start}")
                try:
                    chunk = log.read(
                        *(entry.log_end, max_bytes - found), at_least_one=not found, committed=False
                    )
                except NotCached as cold:
                    self._begin(partition, cold.job)
                    continue
                if found and not len(chunk) and entry.log_end < log.log_end:
                    session.changed[partition] = None  # there is no room for its next batch
                    return
                answer = session.answer(partition, chunk)
            except FolkmootError as error:
                answer = _failed(entry, error, log.log_start)
            answers.append(answer)
            found += len(answer[1])
            session.forget(partition)


def _failed(entry: ReplicaFetchEntry, error: FolkmootError, log_start: int) -> Answer:
    failure = entry.topic, entry.partition, code_of(error), message_of(error)
    return ReplicaFetchResult(
        *failure, entry.leader_epoch, entry.log_end, *_NO_DIVERGENCE, log_start, -1, False
    ), _NO_CHUNK


def _response(answers: Sequence[Answer]) -> Response:
    results = [result for result, _ in answers]
    return Response(ReplicaFetchResponse(results), [chunk for _, chunk in answers])
