"""The broker's thread towards ZooKeeper: keeps it registered, and the view of the cluster fresh."""

import logging
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from threading import Thread
from typing import Final
from uuid import uuid4

from folkmoot.brokers.server.metadata_cache import ClusterView
from folkmoot.coordination import brokers, topics
from folkmoot.coordination.brokers import Registration
from folkmoot.coordination.topics import TopicInfo
from folkmoot.coordination.wakeup import Wakeup
from folkmoot.coordination.zookeeper.execute import execute
from folkmoot.coordination.zookeeper.operations import SessionLost, Sync
from folkmoot.coordination.zookeeper.recipes import Malformed, retry_on_connection_loss
from folkmoot.coordination.zookeeper.session import Connect, Session, SessionState
from folkmoot.protocol.errors import BrokerIdTaken, ClosedError, ZooKeeperUnreachable

logger = logging.getLogger(__name__)

RECONNECT_PAUSE: Final = 1.0
REMIND_AFTER: Final = 10.0
EXPIRY_SLACK: Final = 45.0
"""An earlier process may have had a longer session timeout: ZooKeeper's longest is 40 s by default."""

_BROKERS: Final = object()
_TOPICS: Final = object()


@dataclass(frozen=True, kw_only=True)
class Identity:
    """Who registers: `directory` is the data directory's own id, which outlives the process."""

    broker_id: int
    directory: str
    listeners: Mapping[str, str]
    session_timeout: float
    rack: str = ""


Show = Callable[[ClusterView, Sequence[str], frozenset[str]], None]
"""Gets a new view, the names of topics that differ from the former view's, and the ids of topics that
were deleted. Called on the watcher's thread; must not wait."""


class ClusterWatcher:
    """Registers the broker and watches brokers and topics, over one ZooKeeper session after another.

    A watch notes what to read again and wakes its owner; the thread reads that, once for any number of
    rings, and shows a new view if anything differs. Only topics that changed are read.

    A lost session: the broker goes on serving with the view it has, and opens a new session, also while
    it registers for the first time. That is safe while topics have one replica: nobody else can lead
    them, so nothing that it accepts or serves can contradict another broker. Clients that know its
    address notice nothing.

    A topic counts as deleted only if this very session has seen it before. A ZooKeeper that comes
    back empty, or the wrong one, starts a new session, and so never makes a broker delete data.

    Our own earlier registration (of a process that died, or of the lost session) is waited for until
    its session must have timed out. That begins anew whenever ZooKeeper was out of reach: a restarted
    one gives all sessions their whole time again. A registration of another data directory ends the
    broker, and so does one of our own that outlives all that: a broker runs on a copy of it.

    A session begins with a Sync: from a server that lags behind we could learn of an old topic whose
    name a new one has by now, and would take the new one's files for those of a deleted topic.

    Crash story: the registration is an ephemeral node. A death before it leaves nothing; after it, a
    node that goes with its session, for which the next process on the same directory waits.
    """

    def __init__(
        self,
        connect: Connect,
        identity: Identity,
        show: Show,
        failed: Callable[[Exception], None],
    ) -> None:
        """`failed` gets what ends the broker, on the watcher's thread."""
        self._connect = connect
        self._identity = identity
        self._show = show
        self._failed = failed
        self._wakeup = Wakeup()
        self._stopping = False
        self._thread = Thread(target=self._run, name="cluster-watcher", daemon=True)
        self._session: Session | None = None
        self._mine = Registration({}, "")
        self._stale: deque[object] = deque()
        self._brokers: dict[int, Registration] = {}
        self._topics: dict[str, TopicInfo] = {}
        self._view = ClusterView()
        self._wait_until = 0.0

    def start(self) -> None:
        """Connect, show a first view, register; then keep doing so on a thread of its own.

        Raises ZooKeeperUnreachable if no session can be opened, BrokerIdTaken.
        """
        self._open_session()
        while not self._serve_session(until_registered=True):
            self._reopen()
        self._thread.start()

    def close(self) -> None:
        """Leave: the session ends at once, and the registration with it.

        The thread that started it calls this; the watcher's own thread has ended when it returns.
        """
        self._stopping = True
        self._wakeup.wake()
        if self._session is not None:
            self._session.close()
        while self._thread.is_alive():
            self._thread.join(REMIND_AFTER)
            if self._thread.is_alive():
                logger.warning("stopping waits for an answer of ZooKeeper")
        if self._session is not None:
            self._session.close()  # one that the thread may have opened meanwhile
        self._wakeup.close()

    def _run(self) -> None:
        try:
            while not self._stopping:
                if not self._serve_session() and not self._stopping:
                    self._reopen()
        except ClosedError:
            pass
        except Exception as error:
            self._failed(error)

    def _serve_session(self, *, until_registered: bool = False) -> bool:
        """Keep up until the broker stops, or is registered. False when the session is lost."""
        session = self._session
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
            except ZooKeeperUnreachable as error:
                logger.warning("%s; trying again", error)
                self._wakeup.wait(RECONNECT_PAUSE)

    def _open_session(self) -> None:
        session = self._connect(self._identity.session_timeout)
        self._session = session
        if self._stopping:
            session.close()
            raise ClosedError("the broker stopped while it connected to ZooKeeper")
        mine = self._identity
        self._mine = Registration(dict(mine.listeners), uuid4().hex, mine.directory, mine.rack)
        self._brokers, self._topics = {}, {}
        self._stale = deque((_BROKERS, _TOPICS))
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
        number = self._identity.broker_id
        if self._brokers.get(number) != self._mine:
            execute(session, retry_on_connection_loss(Sync()))
        self._refresh(session)
        if self._brokers.get(number) == self._mine:
            return True
        gone = partial(self._changed, self._stale, _BROKERS)
        if not execute(session, brokers.register(number, self._mine, gone)):
            if time.monotonic() > self._wait_until:
                raise BrokerIdTaken(
                    f"broker id {number} is still registered for this data directory by another "
                    "session: stop the broker that runs on a copy of it"
                )
            logger.warning("broker id %d is registered by an earlier session: waiting", number)
            return False
        self._wait_anew(session)
        if _BROKERS not in self._stale:
            self._stale.append(_BROKERS)  # our own coming is news too, watch or no watch
        return self._keep_up(session)

    def _refresh(self, session: Session) -> None:
        """Read again what rang, and show what differs."""
        stale = self._stale
        rang: set[object] = set()
        while stale:
            rang.add(stale.popleft())
        if not rang:
            return
        if _BROKERS in rang:
            self._brokers = execute(session, brokers.live(partial(self._changed, stale, _BROKERS)))
        changed = {name for name in rang if isinstance(name, str)}
        if _TOPICS in rang:
            names = execute(session, topics.names(partial(self._changed, stale, _TOPICS)))
            changed |= self._topics.keys() ^ names
        deleted = set()
        for name in sorted(changed):
            before = self._topics.get(name)
            self._read_topic(session, name)
            now = self._topics.get(name)
            if before is not None and (now is None or now.topic_id != before.topic_id):
                deleted.add(before.topic_id)
        former = self._view
        differ = changed | (former.topics.keys() - self._topics.keys())
        differ = {name for name in differ if former.topics.get(name) != self._topics.get(name)}
        self._view = ClusterView(self._brokers, self._topics, former, differ)
        self._show(self._view, sorted(differ), frozenset(deleted))

    def _read_topic(self, session: Session, name: str) -> None:
        try:
            topic = execute(session, topics.read(name, partial(self._changed, self._stale, name)))
        except Malformed as error:
            logger.warning("%s; what was known of it stays", error)
            return
        if topic is None:
            self._topics.pop(name, None)
        else:
            self._topics[name] = topic

    def _changed(self, stale: deque[object], what: object) -> None:
        stale.append(what)
        self._wakeup.wake()

    def _wait_left(self) -> float:
        return max(0.0, self._wait_until - time.monotonic()) + 0.01
