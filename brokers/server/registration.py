"""The broker's thread for ZooKeeper: it keeps the broker registered, and the view of the cluster fresh."""

import logging
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import islice
from math import inf
from threading import Event, Thread
from typing import Final
from uuid import uuid4

from msgspec.structs import replace

from folkmoot.brokers.controller.cluster_reader import BROKERS, TOPICS, ClusterReader
from folkmoot.brokers.replication.shared import Written
from folkmoot.brokers.server.metadata_cache import ClusterChange, ClusterView
from folkmoot.brokers.server.zookeeper_link import ZooKeeperLink
from folkmoot.coordination import brokers, deletions, partition_states
from folkmoot.coordination.brokers import Registration
from folkmoot.coordination.deletions import FORGOTTEN_AFTER
from folkmoot.coordination.partition_states import (
    STATES_PER_TRANSACTION,
    Answer,
    StateWrite,
    Superseded,
    TopicIdPartition,
)
from folkmoot.coordination.zookeeper.execute import execute, execute_all
from folkmoot.coordination.zookeeper.operations import SessionLost, Sync, ZooKeeperError
from folkmoot.coordination.zookeeper.recipes import Malformed, retry_on_connection_loss
from folkmoot.coordination.zookeeper.session import Connect, Session, SessionState
from folkmoot.protocol.errors import (
    BrokerIdTaken,
    ClosedError,
    ConfigError,
    ZooKeeperUnreachable,
)

logger = logging.getLogger(__name__)

RECONNECT_PAUSE: Final = 1.0
LONGEST_PAUSE: Final = 60.0
"""The pause between sessions in which ZooKeeper refuses something doubles up to this."""
REMIND_AFTER: Final = 10.0
EXPIRY_SLACK: Final = 45.0
"""An earlier process may have had a longer session timeout: ZooKeeper's longest is 40 s by default."""


class ClusterWatcher:
    """Registers the broker and watches brokers and topics, over one ZooKeeper session after another.

    A watch notes what to read again and wakes the thread, which reads it once for any number of events
    and shows a change if anything differs.

    **A lost session.** The broker serves with the view it has, and the thread opens a new session, also
    while the broker registers for the first time. Appends as a leader that was replaced are never
    committed (LeaderState). Each session begins with a Sync: a server that lags behind might show an old
    topic whose name a new one has by now. A refusal of ZooKeeper that is not foreseen (throttling, a
    quota) ends the session.

    **Writes.** States of partitions are written between two refreshes. If the session ends meanwhile,
    their outcome is not known. The first view of the next session shows it: later, no write of the ended
    session takes effect.

    **Deletions.** A topic counts as deleted only by the record of its deletion (deletions.py): no missing
    node, and no emptied, older or wrong ZooKeeper, makes a broker delete data. Deletions that were
    carried out are noted in the record between two refreshes; after an unknown outcome the next session
    reads the record again.

    **Earlier registrations.** A registration for this data directory, of a process that died or of the
    lost session, is waited for until its session must have timed out. The wait begins anew whenever
    ZooKeeper was out of reach, since a restarted one gives all sessions their whole time again. A
    registration that outlives the wait, or is for another directory, ends the broker. If another
    directory had the id last, records that it acknowledged may be missing here: `on_new_directory` is called
    before the broker registers. A broker that has lost its id to another directory ends, even if that
    one is gone again.

    Crash story: the registration is an ephemeral node. A death before it leaves nothing; after it, a
    node that ends with its session, for which the next process on the same directory waits.
    """

    def __init__(
        self,
        connect: Connect,
        link: ZooKeeperLink,
        broker_id: int,
        mine: Registration,
        session_timeout: float,
        show: Callable[[ClusterChange], None],
        post: Callable[[Callable[[], None]], None],
        failed: Callable[[Exception], None],
        stop_requested: Callable[[], None],
        on_new_directory: Callable[[], None],
    ) -> None:
        """`link` gets each session, and has the writes that wait.

        `mine` is registered, with another nonce in each session. `post` has something done on the event
        loop. On the watcher's thread: `show` gets each change and must not wait; `failed` gets the error
        that ends the broker; `stop_requested` is called when its registration says `leaving`;
        `on_new_directory` before any view has the broker registered."""
        self._connect = connect
        self._link = link
        self._broker_id = broker_id
        self._session_timeout = session_timeout
        self._show = show
        self._post = post
        self._failed = failed
        self._stop_requested = stop_requested
        self._on_new_directory = on_new_directory
        self._former: str | None = None
        """The data directory that had the id last, once this broker has registered."""
        self._wakeup = link.wakeup
        self._stopping = False
        self._leaving = False
        self._has_left = Event()
        self._thread = Thread(target=self._run, name="cluster-watcher", daemon=True)
        self.sessions_opened = 0
        self._mine = mine
        self._reader = self._shown = ClusterReader(self._wakeup.wake)
        self._is_fresh = True
        self._wait_until = 0.0

    def start(self) -> None:
        """Connect, show a first view, register; then start the thread that keeps both up to date.

        Raises ZooKeeperUnreachable if no session can be opened, BrokerIdTaken.
        """
        self._open_session()
        while not self._serve_session(until_registered=True):
            self._reopen()
        self._thread.start()

    @property
    def is_registered(self) -> bool:
        """True if this session has read the broker's registration. From any thread."""
        found = self._reader.brokers.get(self._broker_id)
        return found is not None and found.nonce == self._mine.nonce

    def leave(self, timeout: float) -> bool:
        """Have others lead its partitions where they can, and wait until they do, at most `timeout` seconds.

        False if that took longer, as without a controller, or if ZooKeeper is out of reach. True at once
        if it has no replicas.
        """
        if not self._reader.states:
            return True
        if not self._link.is_connected:
            return False
        self._leaving = True
        self._wakeup.wake()
        return self._has_left.wait(timeout)

    def close(self) -> None:
        """End the session, and the registration with it, and the thread.

        The thread that called `start` calls this.
        """
        self._stopping = True
        self._wakeup.wake()
        self._link.close_session()
        while self._thread.is_alive():
            self._thread.join(REMIND_AFTER)
            if self._thread.is_alive():
                logger.warning("stopping waits for an answer of ZooKeeper")
        self._link.close()  # with a session that the thread may have opened meanwhile

    def _run(self) -> None:
        pause, refused_at = RECONNECT_PAUSE, -inf
        try:
            while not self._stopping:
                try:
                    if not self._serve_session() and not self._stopping:
                        self._reopen()
                except ZooKeeperError as error:
                    now = time.monotonic()
                    was_stable = now > refused_at + 2 * LONGEST_PAUSE
                    pause = RECONNECT_PAUSE if was_stable else min(2 * pause, LONGEST_PAUSE)
                    refused_at = now
                    logger.error("ZooKeeper: %s; another session is opened in %g s", error, pause)
                    while (left := now + pause - time.monotonic()) > 0 and not self._stopping:
                        self._wakeup.wait(left)
                    self._link.close_session()
                    self._reopen()
        except ClosedError:
            pass
        except Exception as error:
            self._failed(error)

    def _serve_session(self, *, until_registered: bool = False) -> bool:
        """Keep up until the broker stops, or is registered. False when the session is lost."""
        session = self._link.session
        assert session is not None
        try:
            while not self._stopping:
                registered = self._keep_up(session)
                if registered and until_registered:
                    return True
                left = max(0.0, self._wait_until - time.monotonic()) + 0.01
                self._wakeup.wait(None if registered else left)
        except SessionLost:
            if not self._stopping:
                logger.warning("the ZooKeeper session is lost; opening another one")
            return False
        return True

    def _reopen(self) -> None:
        while not self._stopping:
            try:
                self._open_session()
                return
            except (ZooKeeperUnreachable, ZooKeeperError, ConfigError) as error:
                # A ConfigError: this ZooKeeper is another cluster's, or was emptied.
                is_wrong = isinstance(error, ConfigError)
                logger.log(
                    logging.ERROR if is_wrong else logging.WARNING, "%s; trying again", error
                )
                self._wakeup.wait(RECONNECT_PAUSE)

    def _open_session(self) -> None:
        session = self._connect(self._session_timeout)
        self._link.session = session
        self.sessions_opened += 1
        if self._stopping:
            session.close()
            raise ClosedError("the broker stopped while it connected to ZooKeeper")
        self._mine = replace(self._mine, nonce=uuid4().hex)
        self._reader, self._is_fresh = ClusterReader(self._wakeup.wake, self._shown), True
        self._reader.note(BROKERS, TOPICS)
        self._state_changed(session)
        session.listen(partial(self._state_changed, session))

    def _state_changed(self, session: Session, _state: SessionState | None = None) -> None:
        """From here on an earlier registration has its whole session timeout left."""
        self._wait_until = time.monotonic() + session.session_timeout + EXPIRY_SLACK
        self._wakeup.wake()

    def _keep_up(self, session: Session) -> bool:
        """Read and show changes, and register if need be. True if the broker is registered."""
        if session.state is SessionState.LOST:
            raise SessionLost("the session is over")
        number = self._broker_id
        if not self.is_registered:
            execute(session, retry_on_connection_loss(Sync()))
        self._refresh(session)
        while self._link.finished_deletions:
            topic_id = self._link.finished_deletions.popleft()
            self._reader.deletions.pop(topic_id, None)
            with suppress(Malformed):
                execute(session, deletions.mark_carried_out(topic_id, [number]))
        if self.is_registered:
            self._write_states(session)
            if self._leaving:
                self._leave(session)
            elif self._reader.brokers[number].leaving:
                self._stop_requested()
            return True
        directory = self._mine.directory
        if self._former is None:
            former = execute(session, brokers.last_directory(number))
            if former not in ("", directory):
                self._on_new_directory()
            self._former = former
        mine = brokers.register(number, self._mine, self._reader.on_brokers_changed, self._former)
        if execute(session, mine) is None:
            if time.monotonic() > self._wait_until:
                raise BrokerIdTaken(
                    f"broker id {number} is still registered for this data directory by another "
                    "session: stop the broker that runs on a copy of it"
                )
            logger.warning("broker id %d is registered by an earlier session: waiting", number)
            return False
        self._former = directory
        execute(session, deletions.forget(time.time() - FORGOTTEN_AFTER))
        self._state_changed(session)
        self._reader.note(BROKERS)  # our own registration is a change too, with a watch or without
        return self._keep_up(session)

    def _write_states(self, session: Session) -> None:
        """Write the states that wait, a hundred in a transaction, transactions side by side; a second write
        of a state follows the first."""
        while self._link.writes:
            wanted: dict[TopicIdPartition, StateWrite] = {}
            callbacks: list[Written] = []
            while self._link.writes and wanted.keys().isdisjoint(self._link.writes[0][0]):
                writes, callback = self._link.writes.popleft()
                wanted |= writes
                callbacks.append(callback)
            # Others have led since. Versions may repeat: where states were put back, they begin anew.
            answers: dict[TopicIdPartition, Answer] = {
                key: Superseded(known)
                for key, write in wanted.items()
                if (known := self._reader.states.get(key)) is not None
                and known.state.leader_epoch > write.state.leader_epoch
            }
            items, parts = iter([item for item in wanted.items() if item[0] not in answers]), []
            while part := dict(islice(items, STATES_PER_TRANSACTION)):
                parts.append(partition_states.write(part))
            try:
                for answered in execute_all(session, parts):
                    answers |= answered
            except BaseException:
                for callback in callbacks:
                    self._post(partial(callback, None))
                raise
            for callback in callbacks:
                self._post(partial(callback, answers))

    def _leave(self, session: Session) -> None:
        """Register as leaving if it has leaderships to move, and notice when it has none left."""
        number = self._broker_id
        live = self._reader.brokers
        others = {other for other, found in live.items() if not found.leaving} - {number}
        for known in self._reader.states.values():
            state = known.state
            is_ours = state.leader == number or (not state.active and number in state.isr)
            if is_ours and others.intersection(state.isr):
                mine = live[number]
                if not mine.leaving and execute(session, brokers.leave(number, mine)):
                    live[number] = replace(mine, leaving=True)
                return
        self._has_left.set()

    def _refresh(self, session: Session) -> None:
        """Read again what has changed, and show it."""
        reader = self._reader
        if not reader.listen():
            return
        while reads := reader.reads():
            execute_all(session, reads)
        changed, reader.changed = reader.changed, {}
        known = {topic.topic_id for topic in reader.topics.values()} if reader.deletions else set()
        deleted = {
            topic_id: found
            for topic_id, found in reader.deletions.items()
            if self._broker_id in found.pending and topic_id not in known
        }
        full_view, topics, states = None, {}, {}
        if self._is_fresh:
            full_view = ClusterView(reader.brokers, reader.topics, reader.states)
        else:
            for key in changed:
                if isinstance(key, str) and key not in reader.malformed:
                    topics[key] = reader.topics.get(key)
                elif isinstance(key, TopicIdPartition):
                    states[key] = reader.states.get(key)
        change = ClusterChange(
            brokers=dict(reader.brokers),
            topics=topics,
            states=states,
            full_view=full_view,
            deleted=deleted,
            is_settled=self._is_fresh,
            is_registered=self.is_registered,
        )
        self._is_fresh, self._shown = False, reader
        self._show(change)
