"""The ZooKeeper in memory against the real one: the same random operations, the same answers.

Each round of random operations has its own seed, printed when it fails; FOLKMOOT_SEED=<seed> runs that
round alone.
"""

import os
import random
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from threading import Event
from typing import Any

import pytest

from folkmoot.coordination.zookeeper.execute import execute
from folkmoot.coordination.zookeeper.kazoo_adapter import KazooSession, connect
from folkmoot.coordination.zookeeper.operations import (
    ANY_VERSION,
    Check,
    Children,
    Create,
    Delete,
    Exists,
    Get,
    Multi,
    MultiFailed,
    Node,
    Operation,
    Set,
    Stat,
    Write,
)
from folkmoot.coordination.zookeeper.session import Outcome, Session, SessionState
from tests.contracts.backends import end_session, settle
from tests.memory_zookeeper import MemoryZooKeeper
from tests.waiting import eventually

STEPS = 120
SESSIONS = 3


class World:
    """One ZooKeeper with a few sessions, and what was seen of it, in terms that both worlds share."""

    def __init__(self, connect: Callable[[], Session], expire: Callable[[Session], None]) -> None:
        self._connect = connect
        self._expire = expire
        self._opened = 0
        self._owners = {0: "nobody"}
        self._fired: list[int] = []
        self._watchers: dict[int, int] = {}
        self.births: list[int] = []
        self.sessions = [self._open() for _ in range(SESSIONS)]

    def perform(self, session: int, operations: list[tuple[Operation, int]]) -> list[Any]:
        """Submit all at once; the answers. The number of an operation is that of its watch."""
        outcomes: dict[int, Outcome] = {}
        complete = Event()

        def keep(number: int, outcome: Outcome) -> None:
            assert number not in outcomes
            outcomes[number] = outcome
            if len(outcomes) == len(operations):
                complete.set()

        for operation, number in operations:
            self._watchers[number] = session
            self.sessions[session].submit(self._watched(operation, number), partial(keep, number))
        assert complete.wait(30)
        for _, number in operations:
            if outcomes[number].error is not None:
                # kazoo keeps the watch of a read that failed, and may call it once too often.
                del self._watchers[number]
        return [self._known(outcomes[number]) for _, number in operations]

    def end(self, session: int, *, by_close: bool) -> None:
        opened = self.sessions[session]
        if by_close:
            opened.close()
        else:
            self._expire(opened)
            eventually(lambda: opened.state is SessionState.LOST)
        # What fires at the end of a session is its own contract's matter.
        self._watchers = {watch: of for watch, of in self._watchers.items() if of != session}
        self.sessions[session] = self._open()

    def fired(self) -> list[int]:
        """Which watches have fired since the last call."""
        for opened in self.sessions:
            settle(opened)
        fired = sorted(number for number in self._fired if number in self._watchers)
        self._fired = []
        return fired

    def close(self) -> None:
        for opened in self.sessions:
            opened.close()

    def _open(self) -> Session:
        opened = self._connect()
        self._opened += 1
        execute(opened, Create(f"/who-{self._opened}", ephemeral=True))
        owner = execute(opened, Exists(f"/who-{self._opened}")).ephemeral_owner
        self._owners[owner] = f"session {self._opened}"
        return opened

    def _watched(self, operation: Operation, number: int) -> Operation:
        if isinstance(operation, Get | Exists | Children) and operation.watch is not None:
            return type(operation)(operation.path, lambda: self._fired.append(number))
        return operation

    def _known(self, outcome: Outcome) -> Any:
        error, result = outcome.error, outcome.result
        if isinstance(error, MultiFailed):
            return type(error), error.failed, type(error.cause)
        if error is not None:
            return type(error)
        if isinstance(result, Node):
            return result.data, self._known(Outcome(result.stat, None))
        if isinstance(result, Stat):
            self.births.append(result.czxid)
            return result.version, self._owners[result.ephemeral_owner]
        if isinstance(result, list):
            return sorted(result) if all(isinstance(name, str) for name in result) else result
        return result


class Chooser:
    """Random operations below `root`, few enough paths for them to meet."""

    def __init__(self, rng: random.Random, root: str) -> None:
        self._rng = rng
        self._paths = [root + path for path in ("/a", "/b", "/a/a", "/a/b", "/b/a", "/a/a/a")]
        self._paths += [root + "/a", root + "/b"]

    def remember(self, operation: Operation, answer: Any) -> None:
        """Paths that a sequence made are used again."""
        if isinstance(operation, Create) and operation.sequence and isinstance(answer, str):
            self._paths.append(answer)

    def operation(self) -> Operation:
        watch = (lambda: None) if self._rng.random() < 0.6 else None
        match self._rng.randrange(22):
            case 0 | 1 | 2:
                return Get(self._path(), watch)
            case 3 | 4 | 5:
                return Exists(self._path(), watch)
            case 6 | 7 | 8:
                return Children(self._path(), watch)
            case 9 | 10 | 11 | 12:
                count = self._rng.choice((1, 2, 2, 3, 5))
                return Multi(tuple(self._write_or_check() for _ in range(count)))
            case _:
                return self._write()

    def _write_or_check(self) -> Write:
        if self._rng.random() < 0.2:
            return Check(self._path(), self._version())
        return self._write()

    def _write(self) -> Create | Set | Delete:
        path, data = self._path(), self._rng.randbytes(self._rng.choice((0, 1, 9)))
        match self._rng.randrange(8):
            case 0 | 1 | 2:
                return Create(path, data)
            case 3:
                return Create(path, data, ephemeral=True)
            case 4:
                return Create(path + "-", data, self._rng.random() < 0.3, sequence=True)
            case 5 | 6:
                return Set(path, data, self._version())
            case _:
                return Delete(path, self._version())

    def _path(self) -> str:
        return self._rng.choice(self._paths)

    def _version(self) -> int:
        return self._rng.choice((ANY_VERSION, ANY_VERSION, 0, 0, 1, 2, 7))


class Worlds:
    """Both, in step."""

    def __init__(self, connect_string: str) -> None:
        memory = MemoryZooKeeper()

        def expire_real(opened: Session) -> None:
            assert isinstance(opened, KazooSession)
            end_session(connect_string, opened)

        self.real = World(lambda: connect(connect_string, 10.0), expire_real)
        self.memory = World(memory.connect, memory.expire)  # type: ignore[arg-type]
        self.seen: Counter[Any] = Counter()
        self._number = 0

    def round(self, seed: int, root: str) -> None:
        """One round, on a tree of its own."""
        rng = random.Random(seed)
        chooser = Chooser(rng, root)
        for world in (self.real, self.memory):
            execute(world.sessions[0], Create(root))
        for step in range(STEPS):
            session = rng.randrange(SESSIONS)
            where = f"seed {seed}, step {step}, session {session}"
            if rng.random() < 0.02:
                by_close = rng.random() < 0.7
                self.real.end(session, by_close=by_close)
                self.memory.end(session, by_close=by_close)
                self.seen["ended sessions"] += 1
                done: Any = "end of session"
            else:
                done = self._operations(rng, chooser, session, where)
            fired, fired_in_memory = self.real.fired(), self.memory.fired()
            assert fired == fired_in_memory, f"{where}: {done} fired differently"
            self.seen["watches"] += len(fired)
        self._compare_births(seed)

    def close(self) -> None:
        self.real.close()
        self.memory.close()

    def _operations(
        self, rng: random.Random, chooser: Chooser, session: int, where: str
    ) -> list[Operation]:
        operations = [chooser.operation() for _ in range(rng.choice((1, 1, 1, 4)))]
        numbered = [(operation, self._number + i) for i, operation in enumerate(operations)]
        self._number += len(operations)
        answers = self.real.perform(session, numbered)
        answers_of_memory = self.memory.perform(session, numbered)
        for operation, answer, of_memory in zip(
            operations, answers, answers_of_memory, strict=True
        ):
            assert answer == of_memory, f"{where}: {operation}"
            chooser.remember(operation, answer)
            self.seen[_kind(answer)] += 1
        return operations

    def _compare_births(self, seed: int) -> None:
        """Transaction numbers differ between the worlds; their order does not."""
        pairs = sorted(set(zip(self.real.births, self.memory.births, strict=True)))
        for (real, memory), (later_real, later_memory) in pairwise(pairs):
            assert real < later_real, f"seed {seed}: births {pairs}"
            assert memory < later_memory, f"seed {seed}: births {pairs}"


def _kind(answer: Any) -> str:
    if isinstance(answer, type):
        return answer.__name__
    if isinstance(answer, tuple) and answer[0] is MultiFailed:
        return f"MultiFailed {answer[2].__name__}"
    return "done"


@pytest.fixture
def worlds(empty_chroot: str) -> Iterator[Worlds]:
    both = Worlds(empty_chroot)
    yield both
    both.close()


@pytest.mark.parametrize("rounds", [10, pytest.param(100, marks=pytest.mark.slow)])
def test_memory_answers_and_fires_as_zookeeper_does(worlds: Worlds, rounds: int) -> None:
    replayed = os.environ.get("FOLKMOOT_SEED")
    if replayed is not None:
        worlds.round(int(replayed), f"/round-{replayed}")
        return
    first = random.SystemRandom().randrange(10**9)
    print(f"seeds from {first}")
    refusals = ("NoNode", "NodeExists", "BadVersion", "NotEmpty", "ZooKeeperError")
    expected = ["done", "watches", "ended sessions", *refusals]
    expected += [f"MultiFailed {name}" for name in refusals[:4]]
    number = 0
    # Until it has looked at what it is about.
    while number < rounds or (number < 10 * rounds and not worlds.seen.keys() >= set(expected)):
        worlds.round(first + number, f"/round-{number}")
        number += 1
    print(f"{number} rounds: {dict(worlds.seen)}")
    assert [kind for kind in expected if not worlds.seen[kind]] == []
