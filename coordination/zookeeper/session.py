"""The face that ZooKeeper shows to the rest of Folkmoot: one session, a handful of operations.

Two implementations pass one contract suite: `zookeeper.ZooKeeperStore` (kazoo) and
`memory.MemoryStore`. A store is one ZooKeeper session. When the session is lost, the store is over
for good, and whoever needs another opens one: no write of an old session ever runs in a new one.
"""

import time
from collections.abc import Callable, Iterable
from enum import Enum
from functools import partial
from itertools import islice
from queue import SimpleQueue
from threading import Event
from typing import Any, Final, Protocol, TypeVar, runtime_checkable

import msgspec

from folkmoot.coordination.zookeeper.operations import (
    ConnectionLost,
    Create,
    NodeExists,
    NoNode,
    Operation,
    SessionLost,
    StoreError,
    Verb,
)
from folkmoot.protocol.errors import ZooKeeperUnreachable

_T = TypeVar("_T")

SIDE_BY_SIDE: Final = 200
"""So many verbs of `run_all` are under way at a time: more than the session has requests in flight."""


class SessionState(Enum):
    """What the holder may believe of its session.

    CONNECTED → SUSPENDED (no server answers; the session may live or not) → CONNECTED or LOST.
    CONNECTED → LOST and SUSPENDED → LOST end it.
    """

    CONNECTED = "connected"
    SUSPENDED = "suspended"
    LOST = "lost"


class Outcome(msgspec.Struct, frozen=True):
    """How an operation ended: `error` is None, or `result` is."""

    result: Any
    error: StoreError | None


class Store(Protocol):
    """One ZooKeeper session. All methods may be called from any thread."""

    @property
    def state(self) -> SessionState: ...

    @property
    def session_timeout(self) -> float:
        """Seconds without contact after which ZooKeeper ends the session, as negotiated."""
        ...

    def last_acknowledged(self) -> float:
        """`time.monotonic()` at which the last operation that was answered had been *sent*.

        The session cannot have ended before this plus the session timeout.
        """
        ...

    def listen(self, listener: Callable[[SessionState], None]) -> None:
        """Call `listener` on every change of state, on any thread; it may only ring a bell."""
        ...

    def submit(self, operation: Operation, done: Callable[[Outcome], None]) -> None:
        """Start an operation; `done` is called exactly once, on any thread, perhaps at once.

        Operations of one session take effect in the order submitted. While SUSPENDED they wait for
        the connection or the session's end. After LOST their outcome is SessionLost.
        """
        ...

    def close(self) -> None:
        """End the session now, and its ephemeral nodes with it. Never raises, never hangs."""
        ...


@runtime_checkable
class Guarded(Protocol):
    """A session that another process closes if this one dies (guardian.py)."""

    def note_death(self, *paths: str) -> None:
        """Have it make these nodes first, which say that the process died."""
        ...


Connect = Callable[[float], Store]
"""Opens a session with the session timeout given, in seconds. Raises ZooKeeperUnreachable."""


def perform(store: Store, operation: Operation, timeout: float | None = None) -> Any:
    """Carry an operation out and wait for its result. Raises what the operation raises.

    With a `timeout`, raises TimeoutError when there was no answer by then; it may still be done.
    """
    finished = Event()
    outcomes: list[Outcome] = []

    def done(outcome: Outcome) -> None:
        outcomes.append(outcome)
        finished.set()

    store.submit(operation, done)
    if not finished.wait(timeout):
        raise TimeoutError
    (outcome,) = outcomes
    if outcome.error is not None:
        raise outcome.error
    return outcome.result


def run(store: Store, verb: Verb[_T]) -> _T:
    """Carry a verb out, one operation after the other, and return its result."""
    try:
        operation = next(verb)
        while True:
            try:
                result = perform(store, operation)
            except StoreError as error:
                operation = verb.throw(error)
            else:
                operation = verb.send(result)
    except StopIteration as stop:
        returned: _T = stop.value
        return returned


def run_all(store: Store, verbs: Iterable[Verb[_T]], at_once: int = SIDE_BY_SIDE) -> list[_T]:
    """Carry out verbs that have nothing to do with each other, side by side → their results, in order.

    A thousand of them take about as long as ZooKeeper works, not a thousand round trips. Raises what
    the first one raises that fails; what others have asked for by then is done or not.
    """
    waiting = enumerate(verbs)
    answers: SimpleQueue[tuple[int, Verb[_T], Outcome | None]] = SimpleQueue()
    results: dict[int, _T] = {}
    under_way = 0

    def begin(count: int) -> None:
        nonlocal under_way
        for number, verb in islice(waiting, count):
            under_way += 1
            answers.put((number, verb, None))

    begin(at_once)
    while under_way:
        number, verb, outcome = answers.get()
        try:
            if outcome is None:
                operation = next(verb)
            elif outcome.error is not None:
                operation = verb.throw(outcome.error)
            else:
                operation = verb.send(outcome.result)
        except StopIteration as stop:
            results[number] = stop.value
            under_way -= 1
            begin(1)
        else:
            done = partial(_answered, answers, number, verb)
            store.submit(operation, done)
    return [results[number] for number in range(len(results))]


def _answered(
    answers: "SimpleQueue[tuple[int, Verb[_T], Outcome | None]]",
    number: int,
    verb: Verb[_T],
    outcome: Outcome,
) -> None:
    answers.put((number, verb, outcome))


def ask(store: Store, verb: Verb[_T], timeout: float) -> _T:
    """As `run`, with an end: it never waits for longer than `timeout`.

    For a verb that only reads, or that does no harm when it is left in the middle.

    Raises ZooKeeperUnreachable when there is no answer in time, or no session any more.
    """
    deadline = time.monotonic() + timeout
    try:
        operation = next(verb)
        while (left := deadline - time.monotonic()) > 0:
            try:
                result = perform(store, operation, left)
            except TimeoutError:
                break
            except SessionLost:
                raise ZooKeeperUnreachable("the ZooKeeper session was lost") from None
            except StoreError as error:
                operation = verb.throw(error)
            else:
                operation = verb.send(result)
    except StopIteration as stop:
        returned: _T = stop.value
        return returned
    raise ZooKeeperUnreachable(f"ZooKeeper did not answer within {timeout:g} s")


def ensure(path: str) -> Verb[None]:
    """Create a persistent node and its parents where missing; a lost reply is asked for again."""
    missing = [path]
    while missing:
        try:
            yield Create(missing[-1])
        except NodeExists:
            pass
        except NoNode:
            missing.append(missing[-1].rsplit("/", 1)[0])
            continue
        except ConnectionLost:
            continue
        missing.pop()
