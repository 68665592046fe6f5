"""ZooKeeper in memory: the twin of the real one, without threads, sockets or clock of its own."""

import time
from collections import deque
from collections.abc import Callable, Iterable
from itertools import count
from threading import RLock

from folkmoot.coordination.zookeeper.operations import (
    Children,
    ConnectionLost,
    Exists,
    Get,
    Multi,
    MultiFailed,
    Node,
    NoNode,
    Operation,
    Ring,
    SessionLost,
    Stat,
    StoreError,
    Sync,
    refusal,
)
from folkmoot.coordination.zookeeper.session import Outcome, SessionState
from folkmoot.coordination.zookeeper.tree import Tree, Watched, Write, Znode, seen

_OVER = "the ZooKeeper session is over"


class Request:
    """An operation on its way: executed by the ensemble, then answered, or lost before or after.

    The default delivery does both at once. A simulator keeps requests and calls `execute`, `reply`
    and `lose` when it likes: those of one store in their order, each at most once.
    """

    def __init__(
        self, store: "MemoryStore", operation: Operation, done: Callable[[Outcome], None]
    ) -> None:
        self.store = store
        self.operation = operation
        self.sent = 0.0
        self._done = done
        self._outcome = Outcome(None, ConnectionLost("the request was not executed"))
        self._late: Ring | None = None

    def execute(self, view: Tree | None = None) -> None:
        """Take effect now. With `view`, an older tree, a read is answered by a server that lags."""
        self._outcome, self._late = self.store.ensemble.execute(self.store, self.operation, view)

    def reply(self) -> None:
        """Tell the submitter how it ended, unless its connection or session has."""
        if self.store.forget(self, answered=True):
            self._done(self._outcome)
            if self._late is not None:
                self.store.ensemble.notify(self.store, self._late)

    def lose(self) -> None:
        """Tell the submitter that the connection broke; whether it was executed stays open."""
        self.end(ConnectionLost("the connection to ZooKeeper broke before the answer"))

    def end(self, error: StoreError) -> None:
        if self.store.forget(self, answered=False):
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
        notify: Callable[["MemoryStore", Ring], None] | None = None,
    ) -> None:
        self.clock = clock
        self.deliver = deliver or _at_once
        self.notify = notify or _ring
        self.lock = RLock()
        self._tree: Tree = {"/": Znode()}
        self._zxid = 0
        self._session_ids = count(1)
        self._sessions: dict[int, MemoryStore] = {}
        self._watches: dict[tuple[Watched, str], dict[tuple[int, Ring], None]] = {}

    def connect(self, session_timeout: float = 10.0) -> "MemoryStore":
        """Open a session. As `store.Connect` it is bound: `ensemble.connect`."""
        with self.lock:
            store = MemoryStore(self, next(self._session_ids), session_timeout)
            self._sessions[store.session_id] = store
            return store

    def snapshot(self) -> Tree:
        """The tree as it is now, for reads from a server that will lag."""
        with self.lock:
            return dict(self._tree)

    def suspend(self, store: "MemoryStore") -> None:
        """Break the connection: what is under way ends with ConnectionLost, watches are dropped."""
        store.disconnected()

    def resume(self, store: "MemoryStore") -> None:
        """Connect again: to the session if it lives, else to learn that it does not."""
        if store.session_id in self._sessions:
            store.connected()
        else:
            store.lost()

    def expire(self, store: "MemoryStore") -> None:
        """End the session. A connected holder learns it at once, a suspended one by `resume`."""
        self.end_session(store)
        if store.state is SessionState.CONNECTED:
            store.lost()

    # -- for stores and requests ----------------------------------------------------------------

    def execute(
        self, store: "MemoryStore", operation: Operation, view: Tree | None
    ) -> tuple[Outcome, Ring | None]:
        """The outcome, and a ring that a read from an older view owes at once."""
        late: Ring | None = None
        rings: list[tuple[MemoryStore, Ring]] = []
        with self.lock:
            try:
                if store.session_id not in self._sessions:
                    raise SessionLost(_OVER)
                if isinstance(operation, Sync):
                    outcome = Outcome(None, None)
                elif isinstance(operation, Get | Exists | Children):
                    tree = self._tree if view is None else view
                    outcome = Outcome(_read(tree, operation), None)
                    late = self._watch(store, operation, tree)
                else:
                    writes = operation.writes if isinstance(operation, Multi) else (operation,)
                    write = self._new_write(store.session_id)
                    results = write.carry_out(writes)
                    rings = self._commit(write)
                    outcome = Outcome(results if isinstance(operation, Multi) else results[0], None)
            except MultiFailed as error:
                known = error if isinstance(operation, Multi) else error.cause
                outcome = Outcome(None, known)
            except StoreError as error:
                outcome = Outcome(None, error)
        self._notify_all(rings)
        return outcome, late

    def end_session(self, store: "MemoryStore") -> None:
        with self.lock:
            if self._sessions.pop(store.session_id, None) is None:
                return
            store.owed_rings += self.drop_watches(store)
            write = self._new_write(store.session_id)
            write.end_session()
            rings = self._commit(write)
        self._notify_all(rings)

    def drop_watches(self, store: "MemoryStore") -> list[Ring]:
        """Forget what a session watches; returns its rings, which are due now."""
        dropped: list[Ring] = []
        with self.lock:
            for spot, watchers in list(self._watches.items()):
                for watcher in [known for known in watchers if known[0] == store.session_id]:
                    del watchers[watcher]
                    dropped.append(watcher[1])
                if not watchers:
                    del self._watches[spot]
        return dropped

    def _new_write(self, session_id: int) -> Write:
        self._zxid += 1
        return Write(self._tree, self._zxid, int(self.clock() * 1000), session_id)

    def _commit(self, write: Write) -> "list[tuple[MemoryStore, Ring]]":
        """Make a write the truth; the rings that it causes."""
        for path, znode in write.changes.items():
            if znode is None:
                self._tree.pop(path, None)
            else:
                self._tree[path] = znode
        rings: list[tuple[MemoryStore, Ring]] = []
        for spot in write.events:
            rings += [
                (self._sessions[watcher], ring) for watcher, ring in self._watches.pop(spot, {})
            ]
        return rings

    def _watch(
        self, store: "MemoryStore", read: Get | Exists | Children, tree: Tree
    ) -> Ring | None:
        """Arm the read's watch; if what it saw is not the truth any more, the ring is due at once."""
        if read.watch is None:
            return None
        kind = Watched.CHILDREN if isinstance(read, Children) else Watched.DATA
        if seen(kind, tree.get(read.path)) != seen(kind, self._tree.get(read.path)):
            return read.watch
        self._watches.setdefault((kind, read.path), {})[store.session_id, read.watch] = None
        return None

    def _notify_all(self, rings: "Iterable[tuple[MemoryStore, Ring]]") -> None:
        for store, ring in rings:
            self.notify(store, ring)


class MemoryStore:
    """One session with a `MemoryZooKeeper`: a `store.Store`.

    Requests wait in `_waiting` while suspended and are delivered one after the other, by whichever
    thread finds them. A request submitted from a `done` is delivered after that returns, so that a
    long chain does not nest.
    """

    def __init__(self, ensemble: MemoryZooKeeper, session_id: int, session_timeout: float) -> None:
        self.ensemble = ensemble
        self.session_id = session_id
        self.session_timeout = session_timeout
        self._lock = ensemble.lock
        self._state = SessionState.CONNECTED
        self._listeners: list[Callable[[SessionState], None]] = []
        self._waiting: deque[Request] = deque()
        self._under_way: dict[Request, None] = {}
        self._delivering = False
        self._last_acknowledged = ensemble.clock()
        self.owed_rings: list[Ring] = []  # the session has ended and its holder does not know

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
        error: StoreError | None = refusal(operation)
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


def _ring(_: MemoryStore, ring: Ring) -> None:
    ring()
