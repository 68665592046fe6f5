"""One ZooKeeper session of a simulated process: a `Session` whose every message takes time."""

from collections import deque
from collections.abc import Callable
from functools import partial

from folkmoot.coordination.zookeeper.operations import (
    Children,
    ConnectionLost,
    Exists,
    Get,
    Multi,
    Operation,
    SessionLost,
    WatchCallback,
    Write,
)
from folkmoot.coordination.zookeeper.session import Outcome, SessionState
from tests.memory_zookeeper import Tree
from tests.simulation.world import World


# Made anew each time: an error keeps the frames through which it went, and by these whole histories.
def _over() -> Outcome:
    return Outcome(None, SessionLost("the session is over"))


def _broken() -> Outcome:
    return Outcome(None, ConnectionLost("the connection broke"))


class _Call:
    """An operation on its way there, or its answer on the way back."""

    def __init__(self, operation: Operation, callback: Callable[[Outcome], None]) -> None:
        self.operation = operation
        self.callback = callback
        self.sent = 0.0
        self.outcome = _broken()


class Line:
    """Operations go up in their order; answers and rings come down in the order of the server.

    When the connection breaks, some of what was on its way up has taken effect and some has not; all
    of it ends with ConnectionLost, and all rings ring. A *zombie* is a holder that goes on after the
    end of its session, by a client that sends its writes in a new one: they reach the tree. What it
    reads then is the tree of the moment, or, `blind`, the tree as it was at the end.
    """

    def __init__(self, world: World, owner: str, session_timeout: float) -> None:
        self.world = world
        self.owner = owner
        self.session_timeout = session_timeout
        self.chroot = ""
        self.state = SessionState.CONNECTED
        self.holder_hears: Callable[[], None] = _nobody
        """Called when the holder has something to do."""
        self.ambush: Callable[[], None] | None = None
        """Happens in the place of the answer to the next write, which may have been carried out."""
        self.ended = False
        self._session = world.zookeeper.connect(session_timeout)
        self._ghost = world.zookeeper.connect(session_timeout)
        self._zombie = False
        self._last_sight: Tree | None = None
        self._seen = 0
        self._waiting: deque[_Call] = deque()
        self._up: deque[_Call] = deque()
        self._down: deque[_Call | WatchCallback] = deque()
        self._connection = 0
        self._up_clear = self._down_clear = 0.0
        self._last_acknowledged = world.now
        self._listeners: list[Callable[[SessionState], None]] = []
        for store in (self._session, self._ghost):
            world.ringers[store.session_id] = self._ring

    # -- for the member: `Session` --------------------------------------------------------------

    def last_acknowledged(self) -> float:
        return self._last_acknowledged

    def listen(self, listener: Callable[[SessionState], None]) -> None:
        self._listeners.append(listener)

    def submit(self, operation: Operation, callback: Callable[[Outcome], None]) -> None:
        call = _Call(operation, callback)
        for watcher in self.world.watchers:
            watcher.asked(self.owner, operation)
        if self.state is SessionState.LOST:
            callback(_over())
        elif self.state is SessionState.SUSPENDED:
            self._waiting.append(call)
        else:
            self._send(call)

    def close(self) -> None:
        if self.state is SessionState.CONNECTED and not self._zombie:
            self.expire()
        elif not self.ended:
            self.world.after(self.session_timeout, self._end)
        self.lose()

    @property
    def is_sound(self) -> bool:
        """What is sent arrives, and in the session that it was sent in."""
        return self.state is SessionState.CONNECTED and not self.ended

    # -- messages ---------------------------------------------------------------------------------

    def _send(self, call: _Call) -> None:
        call.sent = self.world.now
        self._up.append(call)
        self._up_clear = max(self._up_clear, self.world.now + self.world.delay())
        self._at(self._up_clear, self._arrive)

    def _at(self, time: float, action: Callable[[], None]) -> None:
        """Do it then, if it is still the same connection."""
        connection = self._connection

        def act() -> None:
            if connection == self._connection:
                action()

        self.world.at(time, act)

    def _arrive(self) -> None:
        if self.ended and not self._zombie:
            self.lose()
            return
        ambush = self.ambush
        is_write = not isinstance(self._up[0].operation, Get | Exists | Children)
        if ambush is not None and is_write and self.world.faults:
            self.ambush = None
            if self.world.random.random() < 0.5:
                call = self._up.popleft()
                self._execute(call)
                self._down.append(call)
            ambush()
            return
        call = self._up.popleft()
        late = self._execute(call)
        self._deliver(call)
        if late is not None:
            self._deliver(late)

    def _execute(self, call: _Call) -> WatchCallback | None:
        world, operation = self.world, call.operation
        view: Tree | None = None
        if isinstance(operation, Get | Exists | Children):
            if self._last_sight is not None:
                view = self._last_sight
            else:
                self._seen = world.view(self._seen)
                view = world.tree(self._seen)
        else:
            self._seen = world.version + 1
        store = self._ghost if self._zombie else self._session
        call.outcome, late = world.execute(self.owner, store, operation, view)
        self._seen = min(self._seen, world.version)
        error = call.outcome.error
        answer = "ok" if error is None else type(error).__name__
        world.seen[f"{type(operation).__name__} {answer}"] += 1
        world.note(partial(_told, self.owner, operation, answer))
        return late

    def _deliver(self, item: _Call | WatchCallback) -> None:
        self._down.append(item)
        self._down_clear = max(self._down_clear, self.world.now + self.world.delay())
        self._at(self._down_clear, self._receive)

    def _receive(self) -> None:
        item = self._down.popleft()
        if isinstance(item, _Call):
            self._last_acknowledged = max(self._last_acknowledged, item.sent)
            for watcher in self.world.watchers:
                watcher.told(self.owner, item.operation, item.outcome)
            item.callback(item.outcome)
        else:
            item()
        self.holder_hears()

    def _ring(self, ring: WatchCallback) -> None:
        if self.state is not SessionState.CONNECTED:
            return
        if self.world.faults and self.world.random.random() < self.world.lost_rings:
            self.world.seen["fault lost ring"] += 1
            return
        self._deliver(ring)

    # -- faults -----------------------------------------------------------------------------------

    def break_off(self, pause: float) -> None:
        """The connection breaks: part of what is under way was done, nobody knows which part."""
        if self.state is not SessionState.CONNECTED:
            return
        world = self.world
        for _ in range(world.random.randint(0, len(self._up))):
            if self.ended and not self._zombie:
                break
            call = self._up.popleft()
            self._execute(call)
            self._down.append(call)
        broken = [item for item in (*self._down, *self._up) if isinstance(item, _Call)]
        rings = self._drop_watches() + [item for item in self._down if not isinstance(item, _Call)]
        self._reset(SessionState.SUSPENDED)
        world.seen["lost replies"] += len(broken)
        for call in broken:
            call.callback(_broken())
        for ring in rings:
            ring()
        self._tell()
        world.after(pause, self._reconnect)
        if pause > self.session_timeout:
            world.after(self.session_timeout, self.expire)

    def _reconnect(self) -> None:
        if self.state is not SessionState.SUSPENDED:
            return
        if self.ended and not self._zombie:
            self.lose()
            return
        self.state = SessionState.CONNECTED
        self._tell()
        while self._waiting:
            self._send(self._waiting.popleft())

    def expire(self, zombie: bool = False, blind: bool = False) -> None:
        """The ensemble ends the session. The holder hears of it by its next message, or not."""
        if self.ended:
            return
        self._zombie = zombie
        if blind:
            self._last_sight = self.world.versions[-1]
        self.world.note(f"{self.owner} session ends{' unnoticed' if zombie else ''}")
        self._end()
        if self.state is SessionState.CONNECTED and not zombie:
            self._at(self.world.now + self.world.delay(), self.lose)

    def expire_unheard(self) -> None:
        """The ensemble ends the session; the holder hears of it when it does something next."""
        if not self.ended:
            self._end()

    def _end(self) -> None:
        self.ended = True
        self.world.end_session(self.owner, self._session)

    def lose(self) -> None:
        """The holder hears that the session is over."""
        if self.state is SessionState.LOST:
            return
        unfinished = (*self._down, *self._up, *self._waiting)
        self._drop_watches()
        self._zombie = False
        self.world.end_session(self.owner, self._ghost)
        self._waiting.clear()
        self._reset(SessionState.LOST)
        for item in unfinished:
            if isinstance(item, _Call):
                item.callback(_over())
        self._tell()

    def vanish(self, guarded: bool = False) -> None:
        """The process dies: nothing more is sent or heard; what was sent may still arrive."""
        if self.state is SessionState.CONNECTED and not self.ended:
            for _ in range(self.world.random.randint(0, len(self._up))):
                self._execute(self._up.popleft())
        self._drop_watches()
        self._reset(SessionState.LOST)
        self._listeners.clear()
        self.holder_hears = _nobody
        patience = self.world.delay() if guarded else self.session_timeout
        self.world.after(patience, self._end)
        self.world.end_session(self.owner, self._ghost)

    def _reset(self, state: SessionState) -> None:
        self._connection += 1
        self.state = state
        self._up.clear()
        self._down.clear()
        self._up_clear = self._down_clear = self.world.now

    def _drop_watches(self) -> list[WatchCallback]:
        zookeeper = self.world.zookeeper
        return zookeeper.drop_watches(self._session) + zookeeper.drop_watches(self._ghost)

    def _tell(self) -> None:
        for listener in self._listeners:
            listener(self.state)
        self.holder_hears()


def _nobody() -> None:
    pass


def _told(who: str, operation: Operation, answer: str) -> str:
    return f"{who} {_short(operation)} {answer}"


def _short(operation: Operation | Write) -> str:
    if isinstance(operation, Multi):
        return "Multi(" + " ".join(_short(each) for each in operation.writes) + ")"
    name, path = type(operation).__name__, operation.path.removeprefix("/groups/g")
    data = getattr(operation, "data", b"").decode(errors="replace")
    version = getattr(operation, "version", "")
    return f"{name} {path} {data} {version}".rstrip()
