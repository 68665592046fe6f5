"""A session with a real ZooKeeper, on kazoo without its worker threads, its retries and its next session."""

import logging
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from kazoo import exceptions as refused
from kazoo.client import KazooClient
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol import serialization as wire
from kazoo.protocol.states import Callback, KazooState, ZnodeStat
from kazoo.retry import KazooRetry
from kazoo.security import OPEN_ACL_UNSAFE

from folkmoot.coordination.zookeeper import connect_string
from folkmoot.coordination.zookeeper import operations as zk
from folkmoot.coordination.zookeeper.execute import execute
from folkmoot.coordination.zookeeper.operations import ConnectionLost, Operation, SessionLost
from folkmoot.coordination.zookeeper.recipes import ensure, retry_on_connection_loss
from folkmoot.coordination.zookeeper.session import (
    LONGEST_SESSION,
    SHORTEST_SESSION,
    Outcome,
    SessionState,
)
from folkmoot.protocol.addresses import HostNames
from folkmoot.protocol.errors import ConfigError, ZooKeeperUnreachable
from folkmoot.protocol.process.thread_log import LibraryLog, thread_log

CONNECT_TIMEOUT = 15.0
CLOSE_TIMEOUT = 1.5
FIRST_ANSWER_WAIT = 1.0
"""Seconds that a loaded server has at least to answer the first message of a connection."""
RECONNECT_DELAY = 0.5
"""Seconds between two attempts to connect, at most."""
REFUSALS = 10
"""Connections that are closed unanswered before the log says why that may be."""
MAX_IN_FLIGHT = 128
"""Requests in kazoo's hands; the socket pair by which it is woken has room for a byte for each."""

log = thread_log(__name__)
_details = LibraryLog(logging.getLogger(__name__), {})
# kazoo warns of every attempt to connect, and logs the session's password.
_SILENT = logging.Logger("kazoo", logging.CRITICAL + 1)  # noqa: LOG001


def connect(
    zookeeper: str,
    session_timeout: float,
    *,
    connect_timeout: float = CONNECT_TIMEOUT,
    create: bool = False,
) -> "KazooSession":
    """Open a session; with `create`, a missing chroot is created.

    Raises ConfigError for a wrong connect string or session timeout, ZooKeeperUnreachable when no server
    has answered within `connect_timeout`.
    """
    servers, chroot, addresses = connect_string.parse(zookeeper)
    if not SHORTEST_SESSION <= session_timeout <= LONGEST_SESSION:
        raise ConfigError(
            f"session_timeout={session_timeout:g} is not possible: use {SHORTEST_SESSION:g} to "
            f"{LONGEST_SESSION:g} seconds"
        )
    names = HostNames(host for host, _ in addresses)
    session = KazooSession(servers, session_timeout)
    try:
        session.start()
        execute(session, _find_chroot(chroot, create), connect_timeout)
        session.chroot = chroot
        log.info("ZooKeeper session 0x%x at %s", session.session_id, servers)
        return session
    except BaseException as error:
        session.close()
        if not isinstance(error, ZooKeeperUnreachable):
            raise
        why = names.unresolved() or "start it, or give the address of one that runs"
        raise ZooKeeperUnreachable(
            f"no ZooKeeper server answers at {servers} within {connect_timeout:g} s: {why}"
        ) from None


class KazooSession:
    """One ZooKeeper session, from `start` until it is closed or lost.

    **One thread.** kazoo's connection thread does all the work: it reads answers and watch events in the
    order in which ZooKeeper wrote them, and calls watches, callbacks and listeners. A watch is called before
    any answer that shows the change. A callback must not wait, least of all for an answer of this session.
    (An operation that is refused at once is answered on the thread that submits.)

    **Operations** wait in `_waiting` while there is no connection; kazoo has at most MAX_IN_FLIGHT of them
    (`_in_flight`), and gets each once. A broken connection ends those in flight with ConnectionLost; the
    end of the session ends all with SessionLost.

    **The end.** kazoo would open a next session. So `is_ended` is set under the lock under which a session
    gives operations to kazoo: every attempt to connect is refused from then on. Another thread stops the
    client, since the connection thread cannot wait for itself.

    **Silence.** While no server answers, the session may live or not. A paused server ends old sessions
    when it resumes. A restarted one gives each its full time again. So the session stays
    SUSPENDED until a server decides. A holder must not wait for that: it fences itself when
    `last_acknowledged()` plus its share of the session timeout has passed. Pings do not count there: a
    holder sends an operation now and then.

    **Watches** are one-shot. When the connection breaks, kazoo drops and calls all of them; the owner reads
    again, and that read waits for the next connection.

    Not usable in a forked child.
    """

    def __init__(self, servers: str, session_timeout: float) -> None:
        self.session_timeout = session_timeout
        """Seconds without contact after which ZooKeeper ends the session; from `start` as negotiated."""
        self.session_id = 0
        self.password = b""
        """With the id it allows to act as this session: keep it off disks and logs."""
        self._servers = servers
        self.chroot = ""
        # Reentrant, since a signal handler may submit while the thread that it interrupts does.
        self._lock = threading.RLock()
        self.state = SessionState.SUSPENDED
        self.is_ended = False
        self._refusals = 0  # connections closed without an answer, one after the other
        self._listeners: list[Callable[[SessionState], None]] = []
        self._waiting: deque[_Request] = deque()
        self._in_flight: dict[_Request, None] = {}
        self._last_acknowledged = 0.0
        self._client: Any = _client(self, servers, session_timeout)

    def start(self) -> None:
        """Begin to connect."""
        self._client.start_async()

    @property
    def is_refused(self) -> bool:
        """Servers run, and take no connection of this session."""
        return self._refusals >= REFUSALS

    def last_acknowledged(self) -> float:
        """`time.monotonic()` at which the last operation that was answered had been *sent*."""
        return self._last_acknowledged

    def listen(self, listener: Callable[[SessionState], None]) -> None:
        with self._lock:
            self._listeners.append(listener)

    def submit(self, operation: Operation, callback: Callable[[Outcome], None]) -> None:
        """Start an operation. Raises ValueError for a path that cannot be one."""
        error: zk.ZooKeeperError | None = zk.refusal(operation, self.chroot)
        with self._lock:
            if self.is_ended:
                error = _session_over()
            elif error is None:
                self._waiting.append(_Request(self, operation, callback))
        if error is not None:
            callback(Outcome(None, error))
        else:
            self._send_waiting()

    def close(self) -> None:
        """End the session. Operations in flight are answered before that, waiting ones are not sent."""
        with self._lock:
            if self.is_ended:
                return
            self.is_ended = True
        stopper = self._stop_client()
        if self.state is SessionState.CONNECTED:
            stopper.join(CLOSE_TIMEOUT)
        self._end()

    # -- operations -----------------------------------------------------------------------------

    def _send_waiting(self) -> None:
        """Put operations into kazoo's queue, past its own checks."""
        with self._lock:
            while (
                self._waiting
                and self.state is SessionState.CONNECTED
                and not self.is_ended
                and len(self._in_flight) < MAX_IN_FLIGHT
            ):
                request = self._waiting.popleft()
                request.sent = time.monotonic()
                self._in_flight[request] = None
                self._client._queue.append((request.encoded, request))
                with suppress(BlockingIOError):  # enough bytes: kazoo reads one for each request
                    self._client._connection._write_sock.send(b"\0")

    def answered(self, request: "_Request", outcome: Outcome) -> None:
        """kazoo is done with a request."""
        with self._lock:
            if request not in self._in_flight:
                return  # it ended with the session
            del self._in_flight[request]
            if not isinstance(outcome.error, ConnectionLost | SessionLost):
                self._last_acknowledged = max(self._last_acknowledged, request.sent)
        _call("what is done after an operation", request.callback, outcome)
        if isinstance(outcome.error, SessionLost):
            self._lose()
        else:
            self._send_waiting()

    # -- the connection thread ------------------------------------------------------------------

    def connection_changed(self, kazoo_state: str) -> None:
        if kazoo_state == KazooState.LOST:
            self._lose()
            return
        connected = kazoo_state == KazooState.CONNECTED
        with self._lock:
            if self.state is SessionState.LOST or (self.is_ended and connected):
                return
            self.state = SessionState.CONNECTED if connected else SessionState.SUSPENDED
            if connected:
                self._refusals = 0
                self.session_id, self.password = self._client.client_id
        if not connected:
            servers, session_id = self._servers, self.session_id
            log.warning(
                "no ZooKeeper server at %s answers session 0x%x for now", servers, session_id
            )
        self._notify_listeners()
        self._send_waiting()

    def refused(self) -> None:
        """A server has closed a connection without an answer, perhaps since it is just starting.

        ZooKeeper does not take back a session that has seen a newer state than it has.
        """
        self._refusals += 1
        if self._refusals == REFUSALS:
            log.error(
                "ZooKeeper at %s refuses session 0x%x: it has no quorum, or was set back or emptied",
                *(self._servers, self.session_id),
            )

    # -- the end --------------------------------------------------------------------------------

    def _lose(self) -> None:
        with self._lock:
            if self.is_ended:
                return
            self.is_ended = True
        log.warning("ZooKeeper session 0x%x was lost", self.session_id)
        self._end()
        self._stop_client()

    def _end(self) -> None:
        with self._lock:
            if self.state is SessionState.LOST:
                return
            self.state = SessionState.LOST
            unfinished = [*self._in_flight, *self._waiting]
            self._in_flight.clear()
            self._waiting.clear()
        for request in unfinished:
            _call(
                "what is done after an operation", request.callback, Outcome(None, _session_over())
            )
        self._notify_listeners()

    def _stop_client(self) -> threading.Thread:
        def stop() -> None:
            try:
                try:
                    self._client.stop()
                finally:
                    self._client.close()
            except Exception:
                log.debug("kazoo did not stop cleanly", exc_info=True)

        stopper = threading.Thread(target=stop, name="folkmoot-zookeeper-end", daemon=True)
        stopper.start()
        return stopper

    def _notify_listeners(self) -> None:
        with self._lock:
            state, listeners = self.state, list(self._listeners)
        for listener in listeners:
            _call("a listener of the session", listener, state)


def _find_chroot(chroot: str, create: bool) -> zk.Recipe[None]:
    found = yield from retry_on_connection_loss(zk.Exists(chroot or "/"))
    if found is None and create:
        yield from ensure(chroot)


def _session_over() -> SessionLost:
    return SessionLost("the ZooKeeper session is over")


def _call(what: str, callback: Callable[..., object], *arguments: object) -> None:
    """Call a callback whose error must not end the connection thread."""
    try:
        callback(*arguments)
    except Exception:
        log.exception("%s failed", what)


# -- operations as requests of kazoo, and its answers as outcomes -----------------------------------

# The errors of a refused transaction's other writes.
_BYSTANDERS = (refused.RolledBackError, refused.RuntimeInconsistency)

_REFUSALS: dict[type[BaseException], tuple[type[zk.ZooKeeperError], str]] = {
    refused.NoNodeError: (zk.NoNode, "no such node"),
    refused.NodeExistsError: (zk.NodeExists, "the node exists"),
    refused.BadVersionError: (zk.BadVersion, "the node was written since the version named"),
    refused.NotEmptyError: (zk.NotEmpty, "the node has children"),
    refused.NoAuthError: (
        zk.Refused,
        "an ACL does not permit it: see `getAcl` in ZooKeeper's shell",
    ),
    refused.InvalidACLError: (zk.Refused, "ZooKeeper does not take the ACL of an open node"),
    refused.BadArgumentsError: (zk.Refused, "ZooKeeper takes the arguments for wrong"),
}
# ZooKeeper may leave an answer out when another process ends the session: kazoo's thread then ends with a
# RuntimeError, and so the session.
_CONNECTION = (
    *(refused.ConnectionLoss, refused.ConnectionDropped, refused.OperationTimeoutError),
    *(refused.SessionMovedError, RuntimeError),
)


class _Request:
    """An operation under way. kazoo takes it for the result that it has to fill in."""

    def __init__(
        self, session: KazooSession, operation: Operation, callback: Callable[[Outcome], None]
    ) -> None:
        self.callback = callback
        self.sent = 0.0
        self._session = session
        self._chroot = session.chroot
        self._operation = operation
        self.encoded = _encode(operation, self._chroot)

    def set(self, answer: Any) -> None:
        try:
            outcome = Outcome(_result(self._operation, self._chroot, answer), None)
        except zk.MultiFailed as refusal:
            outcome = Outcome(None, refusal)
        self._session.answered(self, outcome)

    def set_exception(self, failure: BaseException) -> None:
        operation = self._operation
        subject = "transaction" if isinstance(operation, zk.Multi) else operation.path
        self._session.answered(self, Outcome(None, _error(subject, failure)))


def _encode(operation: Operation | zk.Check, chroot: str) -> Any:
    if isinstance(operation, zk.Multi):
        return wire.Transaction([_encode(write, chroot) for write in operation.writes])
    path = chroot if chroot and operation.path == "/" else chroot + operation.path
    match operation:
        case zk.Get(_, watch):
            return wire.GetData(path, watch)
        case zk.Exists(_, watch):
            return wire.Exists(path, watch)
        case zk.Children(_, watch):
            return wire.GetChildren(path, watch)
        case zk.Sync():
            return wire.Sync(path)
        case zk.Create(_, data, ephemeral, sequence):
            return wire.Create(path, data, OPEN_ACL_UNSAFE, ephemeral | sequence << 1)
        case zk.Set(_, data, version):
            return wire.SetData(path, data, version)
        case zk.Delete(_, version):
            return wire.Delete(path, version)
        case zk.Check(_, version):
            return wire.CheckVersion(path, version)


def _result(operation: Operation | zk.Check, chroot: str, answer: Any) -> Any:
    """Convert kazoo's answer to an operation's result. Raises MultiFailed."""
    match operation:
        case zk.Get():
            return zk.Node(answer[0] or b"", _stat(answer[1]))
        case zk.Exists():
            return None if answer is None else _stat(answer)
        case zk.Children():
            return answer
        case zk.Create():
            return str(answer).removeprefix(chroot)
        case zk.Set():
            return int(answer.version)
        case zk.Multi(writes):
            for index, part in enumerate(answer):
                if isinstance(part, Exception) and not isinstance(part, _BYSTANDERS):
                    raise zk.MultiFailed(index, _error(writes[index].path, part))
            pairs = zip(writes, answer, strict=True)
            return [_result(write, chroot, part) for write, part in pairs]
        case _:
            return None


def _error(subject: str, failure: BaseException) -> zk.ZooKeeperError:
    kind, why = _REFUSALS.get(type(failure), (None, ""))
    if kind is not None:
        return kind(f"{subject}: {why}")
    if isinstance(failure, refused.SessionExpiredError):
        return _session_over()
    if isinstance(failure, _CONNECTION):
        return ConnectionLost(f"{subject}: the connection to ZooKeeper broke before the answer")
    return zk.ZooKeeperError(
        f"{subject}: ZooKeeper refused: {type(failure).__name__} {failure}".rstrip()
    )


def _stat(stat: ZnodeStat) -> zk.Stat:
    return zk.Stat(
        *(stat.version, stat.czxid, stat.ctime, stat.ephemeralOwner, stat.mtime),
        *(stat.cversion, stat.numChildren),
    )


# -- kazoo's client ---------------------------------------------------------------------------------


def _client(session: KazooSession, servers: str, session_timeout: float) -> Any:
    """A client that is not started. Only this and `_send_waiting` use kazoo's private fields.

    An attempt to connect takes `patience` seconds at most. A ZooKeeper that is just starting can swallow the
    first message and keep the connection open, and kazoo would wait until the session is over.
    """
    patience = max(FIRST_ANSWER_WAIT, session_timeout / 3)
    client: Any = KazooClient(
        hosts=servers,
        timeout=session_timeout,
        handler=_OneThread(patience),
        # For connecting only: what `_send_waiting` gives never sees a retry.
        connection_retry=KazooRetry(
            max_tries=-1, delay=0.05, backoff=2, max_delay=RECONNECT_DELAY, ignore_expire=False
        ),
        logger=_SILENT,
    )
    connection = client._connection
    kazoo_connect, kazoo_invoke = connection._connect, connection._invoke

    def connect_if_allowed(*address: Any) -> tuple[float, float]:
        if session.is_ended:
            raise refused.SessionExpiredError("the session is over")
        _details.debug("connecting to ZooKeeper at %s (%s:%s)", *address)
        try:
            read_timeout_ms, connect_timeout_ms = kazoo_connect(*address)
        except Exception as error:
            _details.debug("no connection to ZooKeeper at %s (%s:%s): %s", *address, error)
            was_accepted = connection._socket is not None
            if was_accepted and isinstance(error, refused.ConnectionDropped) and client.last_zxid:
                session.refused()
            raise
        session.session_timeout = read_timeout_ms * 1.5 / 1000  # kazoo reads for two thirds of it
        return read_timeout_ms, connect_timeout_ms

    def invoke_impatiently(timeout: float, *args: Any, **options: Any) -> Any:
        return kazoo_invoke(min(timeout, patience), *args, **options)

    connection._connect = connect_if_allowed
    connection._invoke = invoke_impatiently
    client.add_listener(session.connection_changed)
    return client


class _OneThread(SequentialThreadingHandler):
    """Runs watches on the connection thread, at once and in order; it has no worker threads.

    An attempt to open a connection takes `patience` seconds at most.
    """

    def __init__(self, patience: float) -> None:
        super().__init__()
        self._patience = patience

    def start(self) -> None:
        pass

    def stop(self) -> None:
        pass

    def dispatch_callback(self, callback: Callback) -> None:
        _call("a watch", callback.func)  # without kazoo's event

    def select(self, rlist: Any, wlist: Any, _: Any, timeout: float | None = None) -> Any:
        """kazoo makes an epoll object for each call, and it calls three times for each answer."""
        poll = select.poll()
        for reader in rlist:
            poll.register(reader, select.POLLIN)
        for writer in wlist:
            poll.register(writer, select.POLLOUT)
        ready = dict(poll.poll(None if timeout is None else timeout * 1000))
        return *([each for each in x if each.fileno() in ready] for x in (rlist, wlist)), []

    def create_connection(self, *args: Any, **options: Any) -> socket.socket:
        options["timeout"] = min(options["timeout"], self._patience)
        return super().create_connection(*args, **options)

    def create_socket_pair(self) -> tuple[socket.socket, socket.socket]:
        """Each broken connection leaves bytes in the pair; a full one must not block who submits."""
        reader, writer = socket.socketpair()
        writer.setblocking(False)
        return reader, writer
