"""ZooKeeper in memory: the twin of the real one, without threads, sockets or clock of its own."""

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import count
from threading import RLock
from typing import Any, Literal

import msgspec

from folkmoot.coordination.zookeeper import operations as zk
from folkmoot.coordination.zookeeper.operations import (
    ConnectionLost,
    Operation,
    SessionLost,
    WatchCallback,
    ZooKeeperError,
)
from folkmoot.coordination.zookeeper.session import Outcome, SessionState


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

    def stat(self) -> zk.Stat:
        children = len(self.children)
        return zk.Stat(
            *(self.version, self.czxid, self.ctime, self.owner, self.mtime),
            *(2 * self.births - children, children),
        )


Tree = dict[str, Znode]
"""All nodes by path. Nodes are values, so that a shallow copy is the tree as it was."""

_Watched = tuple[Literal["data", "children"], str]
"""What of which node is watched. An absent node's data is its absence."""


class Request:
    """An operation on its way: executed by the ensemble, then answered, or lost before or after.

    The default delivery does both at once. A simulator keeps requests and calls `execute`, `reply`
    and `lose` when it likes: those of one session in their order, each at most once.
    """

    def __init__(
        self, session: "MemorySession", operation: Operation, callback: Callable[[Outcome], None]
    ) -> None:
        self.session = session
        self.operation = operation
        self.sent = 0.0
        self._callback = callback
        self._outcome = Outcome(None, ConnectionLost("the request was not executed"))
        self._due: WatchCallback | None = None

    def execute(self, view: Tree | None = None) -> None:
        """Take effect now. With `view`, an older tree, a read is answered by a server that lags."""
        ensemble = self.session.ensemble
        self._outcome, self._due = ensemble.execute(self.session, self.operation, view)

    def reply(self) -> None:
        """Tell the submitter how it ended, unless its connection or session has."""
        if self.session.finish(self, answered=True):
            self._callback(self._outcome)
            if self._due is not None:
                self.session.ensemble.notify(self.session, self._due)

    def lose(self, error: ZooKeeperError | None = None) -> None:
        """Tell the submitter that the connection broke; whether it was executed stays open."""
        if self.session.finish(self, answered=False):
            broke = ConnectionLost("the connection to ZooKeeper broke before the answer")
            self._callback(Outcome(None, error or broke))


class MemoryZooKeeper:
    """The ensemble: one tree, the sessions and their watches. Any thread may call, one lock.

    `deliver` gets every request when it may be sent, `notify` every watch callback when it is due; by
    default both happen at once, on the thread that caused them, after the lock is released: a write's
    callbacks first, then its answer. `clock` (seconds) gives creation times and `last_acknowledged()`.

    Everything is ordered (insertion order, counters): the same calls give the same history.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        deliver: Callable[[Request], None] | None = None,
        notify: Callable[["MemorySession", WatchCallback], None] | None = None,
    ) -> None:
        self.clock = clock
        self.deliver = deliver or _deliver_at_once
        self.notify = notify or (lambda _, callback: callback())
        self.lock = RLock()
        self._tree: Tree = {"/": Znode()}
        self._zxid = 0
        self._session_ids = count(1)
        self._sessions: dict[int, MemorySession] = {}
        self._watches: dict[_Watched, dict[tuple[int, WatchCallback], None]] = {}

    def connect(self, session_timeout: float = 10.0) -> "MemorySession":
        """Open a session. As `Connect` it is bound: `ensemble.connect`."""
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

    # -- for sessions and requests --------------------------------------------------------------

    def execute(
        self, session: "MemorySession", operation: Operation, view: Tree | None
    ) -> tuple[Outcome, WatchCallback | None]:
        """The outcome, and a callback that a read from an older view owes at once."""
        due: WatchCallback | None = None
        result: Any = None
        callbacks: list[tuple[MemorySession, WatchCallback]] = []
        with self.lock:
            try:
                if session.session_id not in self._sessions:
                    raise _over()
                if isinstance(operation, zk.Get | zk.Exists | zk.Children):
                    tree = self._tree if view is None else view
                    result = _read(tree, operation)
                    due = self._watch(session, operation, tree)
                elif not isinstance(operation, zk.Sync):
                    transaction = self._begin(session)
                    result = transaction.apply(operation)
                    callbacks = self._commit(transaction)
                outcome = Outcome(result, None)
            except ZooKeeperError as error:
                outcome = Outcome(None, error)
        self._notify(callbacks)
        return outcome, due

    def end_session(self, session: "MemorySession") -> None:
        with self.lock:
            if self._sessions.pop(session.session_id, None) is None:
                return
            session.owed += self.drop_watches(session)
            transaction = self._begin(session)
            transaction.remove_owned()
            callbacks = self._commit(transaction)
        self._notify(callbacks)

    def drop_watches(self, session: "MemorySession") -> list[WatchCallback]:
        """Forget what a session watches; returns its callbacks, which are due now."""
        dropped: list[WatchCallback] = []
        with self.lock:
            for watched, watchers in list(self._watches.items()):
                for watcher in [each for each in watchers if each[0] == session.session_id]:
                    del watchers[watcher]
                    dropped.append(watcher[1])
                if not watchers:
                    del self._watches[watched]
        return dropped

    def _begin(self, session: "MemorySession") -> "_Transaction":
        now_ms = int(self.clock() * 1000)
        return _Transaction(self._tree, self._zxid + 1, now_ms, session.session_id)

    def _commit(self, transaction: "_Transaction") -> "list[tuple[MemorySession, WatchCallback]]":
        """Make a transaction the truth; the callbacks that it causes."""
        self._zxid += 1
        for path, znode in transaction.changes.items():
            if znode is None:
                self._tree.pop(path, None)
            else:
                self._tree[path] = znode
        return [
            (self._sessions[session_id], callback)
            for watched in transaction.changed
            for session_id, callback in self._watches.pop(watched, {})
        ]

    def _watch(
        self, session: "MemorySession", read: zk.Get | zk.Exists | zk.Children, tree: Tree
    ) -> WatchCallback | None:
        """Arm the read's watch; if what it saw is not the truth any more, it is due at once."""
        if read.watch is None:
            return None
        kind: Literal["data", "children"] = "children" if isinstance(read, zk.Children) else "data"
        if _watched(kind, tree.get(read.path)) != _watched(kind, self._tree.get(read.path)):
            return read.watch
        self._watches.setdefault((kind, read.path), {})[session.session_id, read.watch] = None
        return None

    def _notify(self, callbacks: "Iterable[tuple[MemorySession, WatchCallback]]") -> None:
        for session, callback in callbacks:
            self.notify(session, callback)


class MemorySession:
    """One session with a `MemoryZooKeeper`.

    Requests wait in `_waiting` while suspended and are delivered one after the other, by whichever
    thread finds them. A request submitted from a `callback` is delivered after that returns, so that a
    long chain does not nest.
    """

    def __init__(self, ensemble: MemoryZooKeeper, session_id: int, session_timeout: float) -> None:
        self.ensemble = ensemble
        self.session_id = session_id
        self.session_timeout = session_timeout
        self.chroot = ""
        self.state = SessionState.CONNECTED
        self.owed: list[WatchCallback] = []  # the session has ended and its holder does not know
        self._lock = ensemble.lock
        self._listeners: list[Callable[[SessionState], None]] = []
        self._waiting: deque[Request] = deque()
        self._under_way: dict[Request, None] = {}
        self._delivering = False
        self._last_acknowledged = ensemble.clock()

    def last_acknowledged(self) -> float:
        return self._last_acknowledged

    def listen(self, listener: Callable[[SessionState], None]) -> None:
        with self._lock:
            self._listeners.append(listener)

    def submit(self, operation: Operation, callback: Callable[[Outcome], None]) -> None:
        """Start an operation. Raises ValueError for a path that cannot be one."""
        error: ZooKeeperError | None = zk.refusal(operation)
        with self._lock:
            if error is None and self.state is SessionState.LOST:
                error = _over()
            if error is None:
                self._waiting.append(Request(self, operation, callback))
        if error is None:
            self._deliver()
        else:
            callback(Outcome(None, error))

    def close(self) -> None:
        """End the session; while suspended it cannot be ended and remains until it expires."""
        if self.state is SessionState.CONNECTED:
            self.ensemble.end_session(self)
        self.lost()

    # -- for the ensemble and its requests ------------------------------------------------------

    def finish(self, request: Request, *, answered: bool) -> bool:
        """Whether the request was still under way; it no longer is."""
        with self._lock:
            if request not in self._under_way:
                return False
            del self._under_way[request]
            if answered:
                self._last_acknowledged = max(self._last_acknowledged, request.sent)
            return True

    def disconnected(self) -> None:
        self._leave(SessionState.CONNECTED, SessionState.SUSPENDED, None)

    def lost(self) -> None:
        with self._lock:
            if self.state is not SessionState.LOST:
                self._under_way.update(dict.fromkeys(self._waiting))
                self._waiting.clear()
        self._leave(self.state, SessionState.LOST, _over())

    def connected(self) -> None:
        with self._lock:
            if self.state is not SessionState.SUSPENDED:
                return
            self.state = SessionState.CONNECTED
        self._tell()
        self._deliver()

    def _leave(
        self, before: SessionState, after: SessionState, error: ZooKeeperError | None
    ) -> None:
        """End what is under way, and call all watches: nothing is watched any more."""
        with self._lock:
            if self.state is not before or before is after:
                return
            self.state = after
            broken = list(self._under_way)
        for request in broken:
            request.lose(error)
        self._tell()
        callbacks, self.owed = self.owed + self.ensemble.drop_watches(self), []
        for callback in callbacks:
            self.ensemble.notify(self, callback)

    def _deliver(self) -> None:
        with self._lock:
            if self._delivering:
                return
            self._delivering = True
        try:
            while (request := self._next()) is not None:
                self.ensemble.deliver(request)
        except BaseException:
            self._delivering = False
            raise

    def _next(self) -> Request | None:
        """The next request that may be sent; None ends the delivery."""
        with self._lock:
            if not self._waiting or self.state is not SessionState.CONNECTED:
                self._delivering = False
                return None
            request = self._waiting.popleft()
            request.sent = self.ensemble.clock()
            self._under_way[request] = None
            return request

    def _tell(self) -> None:
        with self._lock:
            state, listeners = self.state, list(self._listeners)
        for listener in listeners:
            listener(state)


class _Transaction:
    """Writes being made: `changes` over a tree (None = deleted), and what they have `changed` for watches.

    The tree itself is not touched, so one that fails has done nothing. The order of the checks is
    ZooKeeper's, and so the error of a write that has two faults.
    """

    def __init__(self, tree: Tree, zxid: int, now_ms: int, session_id: int) -> None:
        self.changes: dict[str, Znode | None] = {}
        self.changed: list[_Watched] = []
        self._tree = tree
        self._zxid = zxid
        self._now_ms = now_ms
        self._session_id = session_id

    def apply(self, write: zk.Write | zk.Multi) -> Any:
        """Its result. Raises what ZooKeeper refuses it with."""
        match write:
            case zk.Multi(writes):
                return [self._apply_one_of(writes, index) for index in range(len(writes))]
            case zk.Create():
                return self._create(write)
            case zk.Set(path, data, version):
                node = self._existing(path, version)
                self._put(path, node, data=data, version=node.version + 1, mtime=self._now_ms)
                self.changed.append(("data", path))
                return node.version + 1
            case zk.Delete(path, version):
                if self._existing(path, version).children:
                    raise zk.NotEmpty(f"{path}: the node has children")
                self._remove(path)
            case zk.Check(path, version):
                self._existing(path, version)
        return None

    def _apply_one_of(self, writes: Sequence[zk.Write], index: int) -> Any:
        try:
            return self.apply(writes[index])
        except ZooKeeperError as error:
            raise zk.MultiFailed(index, error) from None

    def remove_owned(self) -> None:
        """Delete the session's ephemeral nodes."""
        for path in [path for path, node in self._tree.items() if node.owner == self._session_id]:
            self._remove(path)

    def _create(self, write: zk.Create) -> str:
        path, (parent_path, name) = write.path, _split(write.path)
        parent = self._existing(parent_path, zk.ANY_VERSION)
        if write.sequence:
            path, name = (f"{text}{parent.births:010d}" for text in (path, name))
        if self._find(path) is not None:
            raise zk.NodeExists(f"{path}: the node exists")
        if parent.owner:
            raise ZooKeeperError(f"{path}: an ephemeral node has no children")
        owner = self._session_id if write.ephemeral else 0
        self.changes[path] = Znode(write.data, 0, self._zxid, self._now_ms, self._now_ms, owner)
        self._put(parent_path, parent, births=parent.births + 1, children=parent.children | {name})
        self.changed += [("data", path), ("children", parent_path)]
        return path

    def _remove(self, path: str) -> None:
        parent_path, name = _split(path)
        parent = self._existing(parent_path, zk.ANY_VERSION)
        self.changes[path] = None
        self._put(parent_path, parent, children=parent.children - {name})
        self.changed += [("data", path), ("children", path), ("children", parent_path)]

    def _find(self, path: str) -> Znode | None:
        return self.changes[path] if path in self.changes else self._tree.get(path)

    def _existing(self, path: str, version: int) -> Znode:
        node = self._find(path)
        if node is None:
            raise zk.NoNode(f"{path}: no such node")
        if version not in (zk.ANY_VERSION, node.version):
            raise zk.BadVersion(f"{path}: the node was written since version {version}")
        return node

    def _put(self, path: str, node: Znode, **changed: Any) -> None:
        self.changes[path] = msgspec.structs.replace(node, **changed)


def _read(
    tree: Tree, read: zk.Get | zk.Exists | zk.Children
) -> zk.Node | zk.Stat | list[str] | None:
    znode = tree.get(read.path)
    if isinstance(read, zk.Exists):
        return None if znode is None else znode.stat()
    if znode is None:
        raise zk.NoNode(f"{read.path}: no such node")
    return (
        sorted(znode.children)
        if isinstance(read, zk.Children)
        else zk.Node(znode.data, znode.stat())
    )


def _watched(kind: Literal["data", "children"], znode: Znode | None) -> object:
    """What a watch of this kind is about; differs whenever it would have fired in between."""
    if znode is None:
        return None
    if kind == "data":
        return znode.czxid, znode.version
    return znode.czxid, znode.births, znode.children


def _split(path: str) -> tuple[str, str]:
    parent, name = path.rsplit("/", 1)
    return parent or "/", name


def _over() -> SessionLost:
    return SessionLost("the ZooKeeper session is over")


def _deliver_at_once(request: Request) -> None:
    request.execute()
    request.reply()
