"""A member of the group: an ordinary consumer that notes what it was given before it asks for more.

Its notes (`notes.py`):

```
session ID PASSWORD                         a session was opened, and who acts as it
read TIME TOPIC PARTITION EPOCH FIRST LAST  records processed under an epoch
halted TOPIC/PARTITION/EPOCH/OFFSET…        the commit that it stopped in front of
outcome WHAT                                how that commit ended
refused                                     a commit of the application raised NotOwner
```

It becomes a zombie in the middle of the product's own commit: after SIGUSR1 the next transaction of
commits stops the process (SIGSTOP, all threads) when it has been decided and before it is sent.
"""

import signal
import time
from collections.abc import Callable
from typing import Any

import msgspec

from folkmoot.consumers.client.consumer import Consumer
from folkmoot.coordination import paths
from folkmoot.coordination.connector import connector
from folkmoot.coordination.groups.ownership import OffsetState
from folkmoot.coordination.zookeeper.kazoo_adapter import KazooSession
from folkmoot.coordination.zookeeper.operations import Check, Multi, MultiFailed, Operation, Set
from folkmoot.coordination.zookeeper.session import Connect, Outcome, Session
from folkmoot.protocol.errors import NotOwner, RequestTimeout
from folkmoot.protocol.records import Record
from tests.chaos.notes import Notes
from tests.forwarding_session import ForwardingSession

COMMIT_EVERY = 1.0


class Trap:
    """Set by a signal; the next commit of the group falls into it."""

    def __init__(self, notes: Notes, group: str) -> None:
        self.notes = notes
        self.is_set = False
        self._offsets = paths.all_offsets(group) + "/"

    def passes(
        self, operation: Operation, done: Callable[[Outcome], None]
    ) -> Callable[[Outcome], None]:
        """Stops the process in front of a commit if the trap is set; → what hears of its outcome."""
        commits = self._commits(operation) if self.is_set else []
        if not commits:
            return done
        self.is_set = False
        self.notes.write("halted", *(_place(each.path, each.data) for each in commits))
        # To this thread, which is stopped by it before it goes on; the whole process is.
        signal.raise_signal(signal.SIGSTOP)

        def heard(outcome: Outcome) -> None:
            error = outcome.error
            cause = error.cause if isinstance(error, MultiFailed) else error
            self.notes.write("outcome", "done" if cause is None else type(cause).__name__)
            done(outcome)

        return heard

    def _commits(self, operation: Operation) -> list[Set]:
        """What a commit writes; of any other transaction (a plan's note, a claim, a release) nothing."""
        if not isinstance(operation, Multi):
            return []
        writes = [write for write in operation.writes if not isinstance(write, Check)]
        commits = [each for each in writes if isinstance(each, Set)]
        ours = all(each.path.startswith(self._offsets) for each in commits)
        return commits if ours and len(commits) == len(writes) else []


def _place(path: str, data: bytes) -> str:
    state = msgspec.json.decode(data, type=OffsetState)
    return "/".join((*path.split("/")[-2:], str(state.epoch), str(state.offset)))


class TrappedSession(ForwardingSession):
    """A session whose commits pass the trap; all else is the session's own."""

    def __init__(self, session: Session, trap: Trap) -> None:
        super().__init__(session)
        self._trap = trap

    def submit(self, operation: Operation, done: Callable[[Outcome], None]) -> None:
        self._session.submit(operation, self._trap.passes(operation, done))


def _connecting(zookeeper: str, trap: Trap) -> Connect:
    guarded = connector(zookeeper, guarded=True)

    def connect(session_timeout: float) -> Session:
        session = guarded(session_timeout)
        assert isinstance(session, KazooSession)
        trap.notes.write("session", f"{session.session_id & (2**64 - 1):x}", session.password.hex())
        return TrappedSession(session, trap)

    return connect


def run(
    zookeeper: str, group: str, topics: list[str], name: str, notes: str, auto: bool, **options: Any
) -> None:
    trap = Trap(Notes(notes), group)
    consumer = Consumer(
        zookeeper=_connecting(zookeeper, trap),
        group=group,
        topics=topics,
        client_id=name,
        auto_commit=auto,
        commit_interval=COMMIT_EVERY,
        **options,
    )
    running = True

    def end(*_: object) -> None:
        nonlocal running
        running = False
        consumer.stop()

    def arm(*_: object) -> None:
        trap.is_set = True

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGUSR1, arm)
    commit_at = 0.0
    with consumer:
        while running:
            _note(consumer, consumer.poll(0.5), trap.notes)
            if not auto and time.monotonic() >= commit_at:
                try:
                    consumer.commit()
                except NotOwner:
                    trap.notes.write("refused")
                except RequestTimeout:
                    pass  # ZooKeeper had no leader for so long; the next one commits it
                commit_at = time.monotonic() + COMMIT_EVERY
        if not auto:
            _last_commit(consumer, trap.notes)


def _last_commit(consumer: Consumer, notes: Notes) -> None:
    try:
        consumer.commit(timeout=5.0)
    except (NotOwner, RequestTimeout):
        notes.write("refused")


def _note(consumer: Consumer, records: list[Record], notes: Notes) -> None:
    """Process: a line for each run of records of one partition, in the order handed out."""
    first = 0
    for index, record in enumerate(records):
        following = records[index + 1] if index + 1 < len(records) else None
        place = record.topic_partition
        if following is not None and (following.topic_partition, following.offset) == (
            place,
            record.offset + 1,
        ):
            continue
        epoch = consumer.fencing_token(place)
        notes.write("read", time.time(), *place, epoch, records[first].offset, record.offset)
        first = index + 1
