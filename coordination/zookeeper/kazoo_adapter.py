"""A session with a real ZooKeeper, on kazoo; what kazoo would do on its own is switched off here."""

from __future__ import annotations  # kazoo's generic classes are so in the stubs only

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from kazoo.interfaces import IAsyncResult
from kazoo.protocol.states import KazooState

from folkmoot.coordination.zookeeper import connect_string, kazoo_calls, kazoo_client
from folkmoot.coordination.zookeeper.execute import execute
from folkmoot.coordination.zookeeper.operations import (
    ConnectionLost,
    Exists,
    Operation,
    Recipe,
    SessionLost,
    refusal,
)
from folkmoot.coordination.zookeeper.recipes import ensure
from folkmoot.coordination.zookeeper.session import Outcome, SessionState
from folkmoot.protocol.errors import ConfigError, ZooKeeperUnreachable

CLOSE_TIMEOUT = 1.5

_OVER = "the ZooKeeper session is over"

log = logging.getLogger(__name__)


def connect(
    zookeeper: str, session_timeout: float, *, connect_timeout: float = 15.0
) -> KazooSession:
    """Open a session; create the chroot if it is missing.

    Raises ConfigError for a connect string that is none, ZooKeeperUnreachable when no server has
    answered within `connect_timeout`.
    """
    servers, chroot = connect_string.parse(zookeeper)
    if not session_timeout > 0:
        raise ConfigError(f"session_timeout={session_timeout} must be more than 0 seconds")
    session = KazooSession(servers, session_timeout)
    session.start(chroot, connect_timeout)
    return session


class KazooSession:
    """One ZooKeeper session, from `start` until it is closed or lost.

    **One thread.** kazoo's connection thread does all the work: it reads answers and watch events
    in the order in which ZooKeeper wrote them, and calls rings, `done`s and listeners. A ring comes
    before any answer that shows the change, and perhaps before the answer of the read that armed
    it. None of them may wait for anything, an answer of this session least of all. (An answer that is
    there before its `done` is known is given to it on the thread that submitted.)

    **Operations** wait in `_waiting` while there is no connection; at most MAX_QUEUED are in kazoo's
    hands (`_in_flight`), each handed over once, never retried. A connection that breaks ends those
    in flight with ConnectionLost; a session that ends ends everything with SessionLost.

    **The end.** A session that is `_over` hands nothing to kazoo, and it becomes so under the lock
    under which it hands over, before kazoo empties its queue for the next session. kazoo would open
    that next session by itself: every attempt to connect is refused from then on, and the client is
    stopped on a thread of its own (its connection thread cannot wait for itself).

    **Silence.** While no server answers nobody knows whether the session lives. A server that is
    paused for longer than the session timeout ends its sessions when it resumes; one that restarts,
    or an ensemble that elects a new leader, gives each its full time again. So the session stays
    SUSPENDED, if need be for ever, until a server says which. A holder must not wait for that: it
    fences itself when `last_acknowledged()` plus its share of the session timeout has passed.
    kazoo's pings do not count there; who relies on it sends an operation now and then.

    **Watches** are one-shot. kazoo drops all of them when the connection breaks and calls them, so
    every ring rings then; the owner reads again, and that read waits for the next connection.

    Not usable in a forked child.
    """

    def __init__(self, servers: str, session_timeout: float) -> None:
        self._servers = servers
        self._chroot = ""
        self._lock = threading.Lock()
        self._idle = threading.Condition(self._lock)  # nothing is in flight, or not connected
        self._state = SessionState.SUSPENDED
        self._over = False
        self._listeners: list[Callable[[SessionState], None]] = []
        self._waiting: deque[_Request] = deque()
        self._in_flight: dict[_Request, None] = {}
        self._negotiated = session_timeout
        self._last_acknowledged = 0.0
        self._identity: tuple[int, bytes] = (0, b"")
        self._note: Callable[..., None] = _nobody
        self._client = kazoo_client.create(
            servers, session_timeout, self._may_connect, self._connected
        )
        self._client.add_listener(self._connection_changed)

    def start(self, chroot: str, connect_timeout: float) -> None:
        """Connect, and make sure of the chroot. Raises ZooKeeperUnreachable."""
        # Whatever this waits for ends when the session is closed.
        alarm = threading.Timer(connect_timeout, self.close)
        alarm.daemon = True
        alarm.start()
        try:
            self._client.start_async()
            execute(self, _make_sure_of(chroot))
            alarm.cancel()
            if self._over:
                raise SessionLost(_OVER)
        except SessionLost:
            raise ZooKeeperUnreachable(
                f"no ZooKeeper server answers at {self._servers}: "
                "start it, or give the address of one that runs"
            ) from None
        except BaseException:
            self.close()
            raise
        finally:
            alarm.cancel()
        self._chroot = chroot
        log.info("ZooKeeper session 0x%x at %s", self.session_id, self._servers)

    @property
    def state(self) -> SessionState:
        return self._state

    @property
    def session_timeout(self) -> float:
        """Seconds without contact after which ZooKeeper ends the session, as negotiated."""
        return self._negotiated

    @property
    def session_id(self) -> int:
        return self._identity[0]

    @property
    def password(self) -> bytes:
        """With the id, all that it takes to act as this session: keep it off disks and logs."""
        return self._identity[1]

    def last_acknowledged(self) -> float:
        """`time.monotonic()` at which the last operation that was answered had been *sent*."""
        return self._last_acknowledged

    def listen(self, listener: Callable[[SessionState], None]) -> None:
        with self._lock:
            self._listeners.append(listener)

    def guarded_by(self, note: Callable[..., None]) -> None:
        """From now on `note` is told what `note_death` is."""
        self._note = note

    def note_death(self, *paths: str) -> None:
        """Have the guardian, if there is one, make these nodes when the process has died."""
        self._note(*paths)

    def submit(self, operation: Operation, done: Callable[[Outcome], None]) -> None:
        """Start an operation. Raises ValueError for a path that cannot be one."""
        too_large = refusal(operation)
        if too_large is not None:
            done(Outcome(None, too_large))
            return
        with self._lock:
            if not self._over:
                self._waiting.append(_Request(operation, done))
                done = _nobody
        if done is not _nobody:
            done(Outcome(None, SessionLost(_OVER)))
            return
        self._hand_over()

    def close(self) -> None:
        """End the session. What is in flight may be answered first, what waits is not sent."""
        deadline = time.monotonic() + CLOSE_TIMEOUT
        with self._lock:
            if self._over:
                return
            self._over = True
            reachable = self._state is SessionState.CONNECTED
            self._idle.wait_for(self._is_idle, CLOSE_TIMEOUT)
        stopper = self._stop_client()
        if reachable:
            stopper.join(max(0.0, deadline - time.monotonic()))
        self._end()

    # -- the way of an operation ----------------------------------------------------------------

    def _hand_over(self) -> None:
        """Give kazoo what waits, as far as it may have it."""
        handed: list[tuple[_Request, IAsyncResult[Any]]] = []
        with self._lock:
            while (
                self._waiting
                and self._state is SessionState.CONNECTED
                and not self._over
                and len(self._in_flight) < kazoo_client.MAX_QUEUED
            ):
                request = self._waiting.popleft()
                request.sent = time.monotonic()
                result = kazoo_calls.begin(self._client, self._chroot, request.operation)
                self._in_flight[request] = None
                handed.append((request, result))
        # Not under the lock: the connection thread holds the result's lock when it takes ours.
        for request, result in handed:
            result.rawlink(partial(self._answered, request))

    def _answered(self, request: _Request, result: IAsyncResult[Any]) -> None:
        outcome = kazoo_calls.outcome(request.operation, self._chroot, result)
        with self._lock:
            if request not in self._in_flight:
                return  # it ended with the session
            del self._in_flight[request]
            if not isinstance(outcome.error, ConnectionLost | SessionLost):
                self._last_acknowledged = max(self._last_acknowledged, request.sent)
            self._idle.notify_all()
        request.finish(outcome)
        if isinstance(outcome.error, SessionLost):
            self._lose()
        else:
            self._hand_over()

    # -- the connection thread ------------------------------------------------------------------

    def _may_connect(self) -> bool:
        return not self._over

    def _connected(self, negotiated: float) -> None:
        self._negotiated = negotiated

    def _connection_changed(self, kazoo_state: str) -> None:
        if kazoo_state == KazooState.LOST:
            self._lose()
            return
        connected = kazoo_state == KazooState.CONNECTED
        with self._lock:
            if self._state is SessionState.LOST or (self._over and connected):
                return
            self._state = SessionState.CONNECTED if connected else SessionState.SUSPENDED
            self._idle.notify_all()
            if connected:
                self._identity = self._client.client_id or self._identity
        if not connected:
            log.warning("no ZooKeeper server answers session 0x%x for now", self.session_id)
        self._tell()
        self._hand_over()

    # -- the end --------------------------------------------------------------------------------

    def _lose(self) -> None:
        with self._lock:
            if self._over:
                return
            self._over = True
        log.warning("ZooKeeper session 0x%x was lost", self.session_id)
        self._end()
        self._stop_client()

    def _is_idle(self) -> bool:
        return not self._in_flight or self._state is not SessionState.CONNECTED

    def _end(self) -> None:
        with self._lock:
            if self._state is SessionState.LOST:
                return
            self._state = SessionState.LOST
            unfinished = [*self._in_flight, *self._waiting]
            self._in_flight.clear()
            self._waiting.clear()
        for request in unfinished:
            request.finish(Outcome(None, SessionLost(_OVER)))
        self._tell()

    def _stop_client(self) -> threading.Thread:
        stopper = threading.Thread(target=self._stop_kazoo, name="folkmoot-zookeeper-end")
        stopper.daemon = True
        stopper.start()
        return stopper

    def _stop_kazoo(self) -> None:
        try:
            self._client.stop()
            self._client.close()
        except Exception:
            log.debug("kazoo did not stop cleanly", exc_info=True)

    def _tell(self) -> None:
        with self._lock:
            state, listeners = self._state, list(self._listeners)
        for listener in listeners:
            try:
                listener(state)
            except Exception:
                log.exception("a listener of the session failed")


class _Request:
    """An operation under way, and when it was handed to kazoo."""

    __slots__ = ("done", "operation", "sent")

    def __init__(self, operation: Operation, done: Callable[[Outcome], None]) -> None:
        self.operation = operation
        self.done = done
        self.sent = 0.0

    def finish(self, outcome: Outcome) -> None:
        try:
            self.done(outcome)
        except Exception:  # it must not take the connection thread with it
            log.exception("what was to be done after %r failed", self.operation)


def _make_sure_of(chroot: str) -> Recipe[None]:
    while True:
        try:
            found = yield Exists(chroot or "/")
        except ConnectionLost:
            continue
        if found is None:
            yield from ensure(chroot)
        return


def _nobody(*_: object) -> None:
    pass
