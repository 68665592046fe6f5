"""ZooKeeper in memory: the twin of the real one, without threads, sockets or clock of its own."""

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from itertools import count
from threading import RLock
from typing import Any

import msgspec

from folkmoot.coordination.zookeeper import operations
from folkmoot.coordination.zookeeper.operations import (
    ANY_VERSION,
    BadVersion,
    Check,
    Children,
    ConnectionLost,
    Create,
    Delete,
    Exists,
    Get,
    Multi,
    MultiFailed,
    Node,
    NodeExists,
    NoNode,
    NotEmpty,
    Operation,
    SessionLost,
    Set,
    Stat,
    Sync,
    WatchCallback,
    ZooKeeperError,
    refusal,
)
from folkmoot.coordination.zookeeper.session import Outcome, SessionState

_OVER = "the ZooKeeper session is over"


class Znode(msgspec.Struct, frozen=True):
    """A node. `births` counts all children ever created: the next sequence number below it."""

    data: bytes = b""
    version: int = 0
    czxid: int = 0
    ctime: int = 0
    mtime: int = 0
    owner: int = 0
    births: int = 0
    children: frozenset[str] = frozenset()

    def stat(self) -> Stat:
        return Stat(self.version, self.czxid, self.ctime, self.owner, self.mtime)


Tree = dict[str, Znode]
"""All nodes by path. Nodes are values, so that a shallow copy is the tree as it was."""


class Watched(Enum):
    """What of a node is watched. An absent node's data is its absence."""

    DATA = "data"
    CHILDREN = "children"


def seen(kind: Watched, znode: Znode | None) -> object:
    """What a watch of this kind is about; differs whenever it would have fired in between."""
    if znode is None:
        return None
    if kind is Watched.DATA:
        return znode.czxid, znode.version
    return znode.czxid, znode.births, znode.children


class Write:
    """One transaction being made: `changes` over a tree (None = deleted), `events` for watches.

    The tree itself is not touched, so a transaction that fails has done nothing. The order of the
    checks is ZooKeeper's, and so the error of a write that has two faults.
    """

    def __init__(self, tree: Mapping[str, Znode], zxid: int, now_ms: int, session_id: int) -> None:
        self.changes: dict[str, Znode | None] = {}
        self.events: list[tuple[Watched, str]] = []
        self._tree = tree
        self._zxid = zxid
        self._now_ms = now_ms
        self._session_id = session_id

    def carry_out(self, writes: Iterable[operations.Write]) -> list[Any]:
        """Their results. Raises MultiFailed."""
        results: list[Any] = []
        for index, write in enumerate(writes):
            try:
                results.append(self._carry_out_one(write))
            except ZooKeeperError as error:
                raise MultiFailed(index, error) from None
        return results

    def end_session(self) -> None:
        """Delete the session's ephemeral nodes."""
        for path in [path for path, node in self._tree.items() if node.owner == self._session_id]:
            self._remove(path)

    def _carry_out_one(self, write: operations.Write) -> str | int | None:
        match write:
            case Create():
                return self._create(write)
            case Set(path, data, version):
                node = self._existing(path, version)
                self._put(path, node, data=data, version=node.version + 1)
                self.events.append((Watched.DATA, path))
                return node.version + 1
            case Delete(path, version):
                if self._existing(path, version).children:
                    raise NotEmpty(f"{path}: the node has children")
                self._remove(path)
                return None
            case Check(path, version):
                self._existing(path, version)
                return None

    def _create(self, write: Create) -> str:
        path, (parent_path, name) = write.path, _split(write.path)
        parent = self._existing(parent_path, ANY_VERSION)
        if write.sequence:
            path, name = (f"{text}{parent.births:010d}" for text in (path, name))
        if self._find(path) is not None:
            raise NodeExists(f"{path}: the node exists")
        if parent.owner:
            raise ZooKeeperError(f"{path}: an ephemeral node has no children")
        owner = self._session_id if write.ephemeral else 0
        self.changes[path] = Znode(write.data, 0, self._zxid, self._now_ms, self._now_ms, owner)
        self._put(parent_path, parent, births=parent.births + 1, children=parent.children | {name})
        self.events += [(Watched.DATA, path), (Watched.CHILDREN, parent_path)]
        return path

    def _remove(self, path: str) -> None:
        parent_path, name = _split(path)
        parent = self._existing(parent_path, ANY_VERSION)
        self.changes[path] = None
        self._put(parent_path, parent, children=parent.children - {name})
        self.events += [
            (Watched.DATA, path),
            (Watched.CHILDREN, path),
            (Watched.CHILDREN, parent_path),
        ]

    def _find(self, path: str) -> Znode | None:
        return self.changes[path] if path in self.changes else self._tree.get(path)

    def _existing(self, path: str, version: int) -> Znode:
        node = self._find(path)
        if node is None:
            raise NoNode(f"{path}: no such node")
        if version not in (ANY_VERSION, node.version):
            raise BadVersion(f"{path}: the node was written since version {version}")
        return node

    def _put(self, path: str, node: Znode, **changed: Any) -> None:
        self.changes[path] = msgspec.structs.replace(node, **changed)


def _split(path: str) -> tuple[str, str]:
    parent, name = path.rsplit("/", 1)
    return parent or "/", name


class Request:
    """An operation on its way: executed by the ensemble, then answered, or lost before or after.

    The default delivery does both at once. A simulator keeps requests and calls `execute`, `reply`
    and `lose` when it likes: those of one session in their order, each at most once.
    """

    def __init__(
        self, session: "MemorySession", operation: Operation, done: Callable[[Outcome], None]
    ) -> None:
        self.session = session
        self.operation = operation
        self.sent = 0.0
        self._done = done
        self._outcome = Outcome(None, ConnectionLost("the request was not executed"))
        self._late: WatchCallback | None = None

    def execute(self, view: Tree | None = None) -> None:
        """Take effect now. With `view`, an older tree, a read is answered by a server that lags."""
        self._outcome, self._late = self.session.ensemble.execute(
            self.session, self.operation, view
        )

    def reply(self) -> None:
        """Tell the submitter how it ended, unless its connection or session has."""
        if self.session.forget(self, answered=True):
            self._done(self._outcome)
            if self._late is not None:
                self.session.ensemble.notify(self.session, self._late)

    def lose(self) -> None:
        """Tell the submitter that the connection broke; whether it was executed stays open."""
        self.end(ConnectionLost("the connection to ZooKeeper broke before the answer"))

    def end(self, error: ZooKeeperError) -> None:
        if self.session.forget(self, answered=False):
            self._done(Outcome(None, error))


class MemoryZooKeeper:
    """The ensemble: one tree, the sessions and their watches. Any thread may call, one lock.

    `deliver` gets every request when it may be sent, `notify` every ring when it is due; by default
    both happen at once, on the thread that caused them, after the lock is released: a write's rings
    first, then its answer. `clock` (seconds) gives creation times and `last_acknowledged()`.

    Everything is ordered (insertion order, counters): the same calls give the same history.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        deliver: Callable[[Request], None] | None = None,
        notify: Callable[["MemorySession", WatchCallback], None] | None = None,
    ) -> None:
        self.clock = clock
        self.deliver = deliver or _at_once
        self.notify = notify or _ring
        self.lock = RLock()
        self._tree: Tree = {"/": Znode()}
        self._zxid = 0
        self._session_ids = count(1)
        self._sessions: dict[int, MemorySession] = {}
        self._watches: dict[tuple[Watched, str], dict[tuple[int, WatchCallback], None]] = {}

    def connect(self, session_timeout: float = 10.0) -> "MemorySession":
        """Open a session. As `session.Connect` it is bound: `ensemble.connect`."""
        with self.lock:
            session = MemorySession(self, next(self._session_ids), session_timeout)
            self._sessions[session.session_id] = session
            return session

    def snapshot(self) -> Tree:
        """The tree as it is now, for reads from a server that will lag."""
        with self.lock:
            return dict(self._tree)

    def suspend(self, session: "MemorySession") -> None:
        """Break the connection: what is under way ends with ConnectionLost, watches are dropped."""
        session.disconnected()

    def resume(self, session: "MemorySession") -> None:
        """Connect again: to the session if it lives, else to learn that it does not."""
        if session.session_id in self._sessions:
            session.connected()
        else:
            session.lost()

    def expire(self, session: "MemorySession") -> None:
        """End the session. A connected holder learns it at once, a suspended one by `resume`."""
        self.end_session(session)
        if session.state is SessionState.CONNECTED:
            session.lost()

    # -- for sessions and requests ----------------------------------------------------------------

    def execute(
        self, session: "MemorySession", operation: Operation, view: Tree | None
    ) -> tuple[Outcome, WatchCallback | None]:
        """The outcome, and a ring that a read from an older view owes at once."""
        late: WatchCallback | None = None
        rings: list[tuple[MemorySession, WatchCallback]] = []
        with self.lock:
            try:
                if session.session_id not in self._sessions:
                    raise SessionLost(_OVER)
                if isinstance(operation, Sync):
                    outcome = Outcome(None, None)
                elif isinstance(operation, Get | Exists | Children):
                    tree = self._tree if view is None else view
                    outcome = Outcome(_read(tree, operation), None)
                    late = self._watch(session, operation, tree)
                else:
                    writes = operation.writes if isinstance(operation, Multi) else (operation,)
                    write = self._new_write(session.session_id)
                    results = write.carry_out(writes)
                    rings = self._commit(write)
                    outcome = Outcome(results if isinstance(operation, Multi) else results[0], None)
            except MultiFailed as error:
                known = error if isinstance(operation, Multi) else error.cause
                outcome = Outcome(None, known)
            except ZooKeeperError as error:
                outcome = Outcome(None, error)
        self._notify_all(rings)
        return outcome, late

    def end_session(self, session: "MemorySession") -> None:
        with self.lock:
            if self._sessions.pop(session.session_id, None) is None:
                return
            session.owed_rings += self.drop_watches(session)
            write = self._new_write(session.session_id)
            write.end_session()
            rings = self._commit(write)
        self._notify_all(rings)

    def drop_watches(self, session: "MemorySession") -> list[WatchCallback]:
        """Forget what a session watches; returns its rings, which are due now."""
        dropped: list[WatchCallback] = []
        with self.lock:
            for spot, watchers in list(self._watches.items()):
                for watcher in [known for known in watchers if known[0] == session.session_id]:
                    del watchers[watcher]
                    dropped.append(watcher[1])
                if not watchers:
                    del self._watches[spot]
        return dropped

    def _new_write(self, session_id: int) -> Write:
        self._zxid += 1
        return Write(self._tree, self._zxid, int(self.clock() * 1000), session_id)

    def _commit(self, write: Write) -> "list[tuple[MemorySession, WatchCallback]]":
        """Make a write the truth; the rings that it causes."""
        for path, znode in write.changes.items():
            if znode is None:
                self._tree.pop(path, None)
            else:
                self._tree[path] = znode
        rings: list[tuple[MemorySession, WatchCallback]] = []
        for spot in write.events:
            rings += [
                (self._sessions[watcher], ring) for watcher, ring in self._watches.pop(spot, {})
            ]
        return rings

    def _watch(
        self, session: "MemorySession", read: Get | Exists | Children, tree: Tree
    ) -> WatchCallback | None:
        """Arm the read's watch; if what it saw is not the truth any more, the ring is due at once."""
        if read.watch is None:
            return None
        kind = Watched.CHILDREN if isinstance(read, Children) else Watched.DATA
        if seen(kind, tree.get(read.path)) != seen(kind, self._tree.get(read.path)):
            return read.watch
        self._watches.setdefault((kind, read.path), {})[session.session_id, read.watch] = None
        return None

    def _notify_all(self, rings: "Iterable[tuple[MemorySession, WatchCallback]]") -> None:
        for session, ring in rings:
            self.notify(session, ring)


class MemorySession:
    """One session with a `MemoryZooKeeper`: a `session.Store`.

    Requests wait in `_waiting` while suspended and are delivered one after the other, by whichever
    thread finds them. A request submitted from a `done` is delivered after that returns, so that a
    long chain does not nest.
    """

    def __init__(self, ensemble: MemoryZooKeeper, session_id: int, session_timeout: float) -> None:
        self.ensemble = ensemble
        self.session_id = session_id
        self.session_timeout = session_timeout
        self.chroot = ""
        self._lock = ensemble.lock
        self._state = SessionState.CONNECTED
        self._listeners: list[Callable[[SessionState], None]] = []
        self._waiting: deque[Request] = deque()
        self._under_way: dict[Request, None] = {}
        self._delivering = False
        self._last_acknowledged = ensemble.clock()
        self.owed_rings: list[
            WatchCallback
        ] = []  # the session has ended and its holder does not know

    @property
    def state(self) -> SessionState:
        return self._state

    def last_acknowledged(self) -> float:
        return self._last_acknowledged

    def listen(self, listener: Callable[[SessionState], None]) -> None:
        with self._lock:
            self._listeners.append(listener)

    def submit(self, operation: Operation, done: Callable[[Outcome], None]) -> None:
        """Start an operation. Raises ValueError for a path that cannot be one."""
        error: ZooKeeperError | None = refusal(operation)
        with self._lock:
            if error is None and self._state is SessionState.LOST:
                error = SessionLost(_OVER)
            if error is None:
                self._waiting.append(Request(self, operation, done))
        if error is not None:
            done(Outcome(None, error))
            return
        self._deliver()

    def close(self) -> None:
        """End the session; while suspended it cannot be ended and remains until it expires."""
        if self._state is SessionState.CONNECTED:
            self.ensemble.end_session(self)
        self.lost()

    # -- for the ensemble and its requests ------------------------------------------------------

    def forget(self, request: Request, *, answered: bool) -> bool:
        """Whether the request was still under way; it no longer is."""
        with self._lock:
            if request not in self._under_way:
                return False
            del self._under_way[request]
            if answered:
                self._last_acknowledged = max(self._last_acknowledged, request.sent)
            return True

    def disconnected(self) -> None:
        with self._lock:
            if self._state is not SessionState.CONNECTED:
                return
            self._state = SessionState.SUSPENDED
            broken = list(self._under_way)
        for request in broken:
            request.lose()
        self._tell()
        self._ring_all()

    def connected(self) -> None:
        with self._lock:
            if self._state is not SessionState.SUSPENDED:
                return
            self._state = SessionState.CONNECTED
        self._tell()
        self._deliver()

    def lost(self) -> None:
        with self._lock:
            if self._state is SessionState.LOST:
                return
            self._state = SessionState.LOST
            for request in self._waiting:
                self._under_way[request] = None
            self._waiting.clear()
            unfinished = list(self._under_way)
        for request in unfinished:
            request.end(SessionLost(_OVER))
        self._tell()
        self._ring_all()

    def _deliver(self) -> None:
        with self._lock:
            if self._delivering:
                return
            self._delivering = True
        while True:
            with self._lock:
                if not self._waiting or self._state is not SessionState.CONNECTED:
                    self._delivering = False
                    return
                request = self._waiting.popleft()
                request.sent = self.ensemble.clock()
                self._under_way[request] = None
            try:
                self.ensemble.deliver(request)
            except BaseException:
                with self._lock:
                    self._delivering = False
                raise

    def _tell(self) -> None:
        with self._lock:
            state, listeners = self._state, list(self._listeners)
        for listener in listeners:
            listener(state)

    def _ring_all(self) -> None:
        rings = self.owed_rings + self.ensemble.drop_watches(self)
        self.owed_rings = []
        for ring in rings:
            self.ensemble.notify(self, ring)


def _read(tree: Tree, read: Get | Exists | Children) -> Node | Stat | list[str] | None:
    znode = tree.get(read.path)
    if isinstance(read, Exists):
        return None if znode is None else znode.stat()
    if znode is None:
        raise NoNode(f"{read.path}: no such node")
    if isinstance(read, Children):
        return sorted(znode.children)
    return Node(znode.data, znode.stat())


def _at_once(request: Request) -> None:
    request.execute()
    request.reply()


def _ring(_: MemorySession, ring: WatchCallback) -> None:
    ring()
