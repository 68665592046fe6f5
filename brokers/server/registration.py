"""The broker's thread towards ZooKeeper: keeps it registered, and the view of the cluster fresh."""

import logging
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from itertools import islice
from math import inf
from threading import Event, Thread
from typing import Final, TypeVar
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

_T = TypeVar("_T")

RECONNECT_PAUSE: Final = 1.0
LONGEST_PAUSE: Final = 60.0
"""Between sessions in which ZooKeeper refuses something: each is twice as long as the one before."""
REMIND_AFTER: Final = 10.0
EXPIRY_SLACK: Final = 45.0
"""An earlier process may have had a longer session timeout: ZooKeeper's longest is 40 s by default."""


Show = Callable[[ClusterChange], None]
"""Gets what has changed. Called on the watcher's thread; must not wait."""


class ClusterWatcher:
    """Registers the broker and watches brokers and topics, over one ZooKeeper session after another.

    A watch notes what to read again and wakes its owner; the thread reads that, once for any number of
    rings, and shows a new view if anything differs. Only topics that changed are read.

    A lost session: the broker goes on serving with the view it has, and opens a new session, also while
    it registers for the first time. What it accepts as a leader that was replaced is never committed
    (LeaderState). Clients that know its address notice nothing.

    States of partitions are written here, too, between two refreshes. If the session ends meanwhile,
    what was written is not known, and the first view of the next one says it: what an ended session had
    under way was done before that, or never will be.

    A topic counts as deleted only by the record of its deletion (deletions.py). A node that is gone, a
    ZooKeeper that comes back empty or older, or the wrong one, never makes a broker delete data. What was
    carried out is noted in the record between two refreshes; an outcome that is not known is asked for
    again by the next session, which reads the record again.

    Our own earlier registration (of a process that died, or of the lost session) is waited for until
    its session must have timed out. That begins anew whenever ZooKeeper was out of reach: a restarted
    one gives all sessions their whole time again. A registration of another data directory ends the
    broker, and so does one of our own that outlives all that: a broker runs on a copy of it.

    If another data directory had the id last, what that one has acked may be missing here: `takes_over`
    is called before the broker registers. One that was registered before, and has lost the id to
    another directory since, ends though that is gone again: it does this when it is started anew.

    What ZooKeeper refuses without being foreseen (it is throttled, a quota is used up) ends the session:
    its outcomes are not known, and all is read again in the next one.

    A session begins with a Sync: from a server that lags behind we could learn of an old topic whose
    name a new one has by now, and would take the new one's files for those of a deleted topic.

    Crash story: the registration is an ephemeral node. A death before it leaves nothing; after it, a
    node that goes with its session, for which the next process on the same directory waits.
    """

    def __init__(
        self,
        connect: Connect,
        link: ZooKeeperLink,
        broker_id: int,
        mine: Registration,
        session_timeout: float,
        show: Show,
        post: Callable[[Callable[[], None]], None],
        failed: Callable[[Exception], None],
        told_to_stop: Callable[[], None] = lambda: None,
        takes_over: Callable[[], None] = lambda: None,
    ) -> None:
        """`link` gets each session, and has what waits to be written.

        `mine` is registered, with a nonce of its own in each session; `post` has something done on
        the event loop; `failed` gets what ends the broker, on the watcher's thread, and so
        `told_to_stop` is called when its registration says `leaving`; `takes_over` has been called
        before any view says that the broker is registered."""
        self._connect = connect
        self._link = link
        self._broker_id = broker_id
        self._session_timeout = session_timeout
        self._show = show
        self._post = post
        self._failed = failed
        self._told_to_stop = told_to_stop
        self._takes_over = takes_over
        self._former: str | None = None
        self._wakeup = link.wakeup
        self._stopping = False
        self._leaving = False
        self._handed_over = Event()
        self._thread = Thread(target=self._run, name="cluster-watcher", daemon=True)
        self.sessions_opened = 0
        self._mine = mine
        self._reader = self._shown = self._new_reader()
        self._is_fresh = True
        self._wait_until = 0.0

    def start(self) -> None:
        """Connect, show a first view, register; then keep doing so on a thread of its own.

        Raises ZooKeeperUnreachable if no session can be opened, BrokerIdTaken.
        """
        self._open_session()
        while not self._serve_session(until_registered=True):
            self._reopen()
        self._thread.start()

    @property
    def is_registered(self) -> bool:
        """Whether the broker is, as far as this session has read. From any thread."""
        found = self._reader.brokers.get(self._broker_id)
        return found is not None and found.nonce == self._mine.nonce

    def leave(self, timeout: float) -> bool:
        """Have others lead what they can lead, and wait until they do, at most `timeout` seconds.

        False if that took longer, as where there is no controller, or if ZooKeeper is out of reach: then
        they lead when we are gone. With no replicas there is nothing to wait for.
        """
        if not self._reader.states:
            return True
        if not self._link.is_connected:
            return False
        self._leaving = True
        self._wakeup.wake()
        return self._handed_over.wait(timeout)

    def close(self) -> None:
        """Leave: the session ends at once, and the registration with it.

        The thread that started it calls this; the watcher's own thread has ended when it returns.
        """
        self._stopping = True
        self._wakeup.wake()
        self._close_session()
        while self._thread.is_alive():
            self._thread.join(REMIND_AFTER)
            if self._thread.is_alive():
                logger.warning("stopping waits for an answer of ZooKeeper")
        self._link.close()  # with a session that the thread may have opened meanwhile

    def _close_session(self) -> None:
        if self._link.session is not None:
            self._link.session.close()

    def _run(self) -> None:
        pause, refused_at = RECONNECT_PAUSE, -inf
        try:
            while not self._stopping:
                try:
                    if not self._serve_session() and not self._stopping:
                        self._reopen()
                except ZooKeeperError as error:
                    # It may refuse anything for a while, as where it is throttled or a quota is used up.
                    has_gone_well = time.monotonic() > refused_at + 2 * LONGEST_PAUSE
                    pause = RECONNECT_PAUSE if has_gone_well else min(2 * pause, LONGEST_PAUSE)
                    refused_at = time.monotonic()
                    logger.error("ZooKeeper: %s; another session is opened in %g s", error, pause)
                    self._rest(pause)
                    self._close_session()
                    self._reopen()
        except ClosedError:
            pass
        except Exception as error:
            self._failed(error)

    def _rest(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not self._stopping and (left := deadline - time.monotonic()) > 0:
            self._wakeup.wait(left)

    def _serve_session(self, *, until_registered: bool = False) -> bool:
        """Keep up until the broker stops, or is registered. False when the session is lost."""
        session = self._link.session
        assert session is not None
        try:
            while not self._stopping:
                registered = self._keep_up(session)
                if registered and until_registered:
                    return True
                self._wakeup.wait(None if registered else self._wait_left())
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
                # It serves what it knows; of another ZooKeeper, or an emptied one, it takes nothing.
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
        self._reader, self._is_fresh = self._new_reader(self._shown), True
        self._wait_anew(session)
        session.listen(partial(self._state_changed, session))

    def _state_changed(self, session: Session, _state: SessionState) -> None:
        self._wait_anew(session)
        self._wakeup.wake()

    def _wait_anew(self, session: Session) -> None:
        """An earlier registration of ours has its whole session timeout left."""
        self._wait_until = time.monotonic() + session.session_timeout + EXPIRY_SLACK

    def _keep_up(self, session: Session) -> bool:
        """Read what changed, publish it, and register if we are not. True if we are registered."""
        if session.state is SessionState.LOST:
            raise SessionLost("the session is over")
        number = self._broker_id
        if not self.is_registered:
            execute(session, retry_on_connection_loss(Sync()))
        self._refresh(session)
        while self._link.carried_out:
            topic_id = self._link.carried_out.popleft()
            self._reader.deletions.pop(topic_id, None)
            with suppress(Malformed):
                execute(session, deletions.carried_out(topic_id, [number]))
        if self.is_registered:
            self._carry_out(session)
            if self._leaving:
                self._leave(session)
            elif self._reader.brokers[number].leaving:
                self._told_to_stop()
            return True
        directory = self._mine.directory
        if self._former is None:
            former = execute(session, brokers.last_directory(number))
            if former not in ("", directory):
                self._takes_over()
            self._former = former
        mine = brokers.register(number, self._mine, self._reader.brokers_rang, self._former)
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
        self._wait_anew(session)
        self._reader.note(BROKERS)  # our own coming is news too, watch or no watch
        return self._keep_up(session)

    def _carry_out(self, session: Session) -> None:
        """Write the states that were asked for, each hundred in a transaction, side by side; a second
        write of a state comes behind the first."""
        while self._link.writes:
            wanted: dict[TopicIdPartition, StateWrite] = {}
            dones: list[Written] = []
            while self._link.writes and wanted.keys().isdisjoint(self._link.writes[0][0]):
                writes, done = self._link.writes.popleft()
                wanted |= writes
                dones.append(done)
            answers = self._outdated(wanted)
            items, parts = iter([each for each in wanted.items() if each[0] not in answers]), []
            while part := dict(islice(items, STATES_PER_TRANSACTION)):
                parts.append(partition_states.write(part))
            try:
                for answered in execute_all(session, parts):
                    answers |= answered
            except BaseException:
                for done in dones:
                    self._post(partial(done, None))
                raise
            for done in dones:
                self._post(partial(done, answers))

    def _outdated(
        self, writes: Mapping[TopicIdPartition, StateWrite]
    ) -> dict[TopicIdPartition, Answer]:
        """Those that have waited while others led. The version that they stand on may have come again:
        where states were put back, it begins anew."""
        found = ((each, self._reader.states.get(each), write) for each, write in writes.items())
        return {
            each: Superseded(known)
            for each, known, write in found
            if known is not None and known.state.leader_epoch > write.state.leader_epoch
        }

    def _leave(self, session: Session) -> None:
        """Say that we leave, if there is something to hand over, and notice when there is no more."""
        number = self._broker_id
        live = self._reader.brokers
        others = {each for each, found in live.items() if not found.leaving} - {number}
        for known in self._reader.states.values():
            state = known.state
            is_ours = state.leader == number or (not state.active and number in state.isr)
            if is_ours and others.intersection(state.isr):
                mine = live[number]
                if not mine.leaving and execute(session, brokers.leave(number, mine)):
                    live[number] = replace(mine, leaving=True)
                return
        self._handed_over.set()

    def _refresh(self, session: Session) -> None:
        """Read again what rang, and show it."""
        reader = self._reader
        if not reader.listen():
            return
        while reads := reader.reads():
            execute_all(session, reads)
        changed, reader.changed = reader.changed, {}
        deleted = {
            topic_id: found
            for topic_id, found in reader.deletions.items()
            if self._broker_id in found.pending
        }
        if deleted:
            for topic in reader.topics.values():
                deleted.pop(topic.topic_id, None)
        whole, topics, states = None, {}, {}
        if self._is_fresh:
            whole = ClusterView(reader.brokers, reader.topics, reader.states)
        else:
            for each in changed:
                if isinstance(each, str) and each not in reader.illegible:
                    topics[each] = reader.topics.get(each)
                elif isinstance(each, TopicIdPartition):
                    states[each] = reader.states.get(each)
        change = ClusterChange(
            brokers=dict(reader.brokers),
            topics=topics,
            states=states,
            whole=whole,
            deleted=deleted,
            is_settled=self._is_fresh,
            is_registered=self.is_registered,
        )
        self._is_fresh, self._shown = False, reader
        self._show(change)

    def _new_reader(self, former: ClusterReader | None = None) -> ClusterReader:
        reader = ClusterReader(self._wakeup.wake, former)
        reader.note(BROKERS, TOPICS)
        return reader

    def _wait_left(self) -> float:
        return max(0.0, self._wait_until - time.monotonic()) + 0.01
