"""Virtual time, one source of chance, and a ZooKeeper whose every step takes some of both."""

import hashlib
from collections import Counter
from collections.abc import Callable
from heapq import heappop, heappush
from math import log
from random import Random
from typing import Protocol

from folkmoot.coordination.zookeeper.operations import (
    Children,
    Exists,
    Get,
    Operation,
    WatchCallback,
)
from folkmoot.coordination.zookeeper.session import Outcome
from tests.memory_zookeeper import MemorySession, MemoryZooKeeper, Tree

START = 1_000.0
LAST_LINES = 400
LAGGING_VERSIONS = 6


class Watcher(Protocol):
    """Sees every write that took effect, with the tree before and after, and all questions and answers."""

    def wrote(self, writer: str, operation: Operation | None, before: Tree, after: Tree) -> None:
        """`operation` is None for the end of a session."""
        ...

    def asked(self, who: str, operation: Operation) -> None:
        """Somebody asks ZooKeeper for something."""
        ...

    def told(self, who: str, operation: Operation, outcome: Outcome) -> None:
        """An answer has arrived."""
        ...


class World:
    """One history: what happens, when, and what it looked like. Same seed, same history."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = Random(seed)
        self.now = START
        self.faults = True
        self.lag = 0.0
        """How often a read is answered by a server that lags."""
        self.lost_rings = 0.0
        """How often a ring gets lost on its way."""
        self.seen: Counter[str] = Counter()
        self._notes: list[tuple[float, str | Callable[[], str]]] = []
        self.zookeeper = MemoryZooKeeper(clock=self.clock, notify=self._notify)
        self.watchers: list[Watcher] = []
        self.versions: list[Tree] = [self.zookeeper.snapshot()]
        self.first_version = 0
        self.ringers: dict[int, Callable[[WatchCallback], None]] = {}
        self._due: list[tuple[float, float, int, Callable[[], None]]] = []
        self._count = 0

    def clock(self) -> float:
        return self.now

    def after(self, delay: float, action: Callable[[], None]) -> None:
        """Do something later. What is due at the same time happens in an order left to chance."""
        self.at(self.now + delay, action)

    def at(self, time: float, action: Callable[[], None]) -> None:
        """The same, at exactly that time."""
        self._count += 1
        heappush(self._due, (time, self.random.random(), self._count, action))

    def run(self, until: float) -> None:
        while self._due and self._due[0][0] <= until:
            self.now, _, _, action = heappop(self._due)
            action()
        self.now = max(self.now, until)

    def delay(self) -> float:
        """Of a message or a thread: mostly short, at times not."""
        chance = self.random.random()
        return 10.0 * chance if chance < 0.03 else -0.002 * log((1.0 - chance) / 0.97)

    def note(self, text: str | Callable[[], str]) -> None:
        """A line of the history; as a function, it is put into words only for who wants to read it."""
        self._notes.append((self.now, text))

    def lines(self, last: int = LAST_LINES) -> list[str]:
        """What happened in the end."""
        return [
            f"{at - START:9.4f} {text if isinstance(text, str) else text()}"
            for at, text in self._notes[-last:]
        ]

    def hash(self) -> str:
        """Of all that happened: two histories are the same if and only if it is."""
        text = "\n".join(self.lines(len(self._notes)))
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    # -- the ensemble -----------------------------------------------------------------------------

    def execute(
        self, writer: str, session: MemorySession, operation: Operation, view: Tree | None
    ) -> tuple[Outcome, WatchCallback | None]:
        """Let an operation take effect now."""
        if isinstance(operation, Get | Exists | Children):
            return self.zookeeper.execute(session, operation, view)
        before = self.versions[-1]
        outcome, late = self.zookeeper.execute(session, operation, None)
        if outcome.error is None:
            self._written(writer, operation, before)
        return outcome, late

    def end_session(self, writer: str, session: MemorySession) -> None:
        before = self.versions[-1]
        self.zookeeper.end_session(session)
        self._written(writer, None, before)

    def _written(self, writer: str, operation: Operation | None, before: Tree) -> None:
        after = self.zookeeper.snapshot()
        self.versions.append(after)
        if len(self.versions) > LAGGING_VERSIONS:
            del self.versions[0]
            self.first_version += 1
        for watcher in self.watchers:
            watcher.wrote(writer, operation, before, after)

    @property
    def version(self) -> int:
        """The number of the newest tree."""
        return self.first_version + len(self.versions) - 1

    def view(self, at_least: int) -> int:
        """The number of a tree that a server may show to a session that has seen `at_least`."""
        oldest = max(self.first_version, at_least)
        if self.random.random() < self.lag:
            return self.random.randint(oldest, self.version)
        return self.version

    def tree(self, number: int) -> Tree:
        return self.versions[number - self.first_version]

    def _notify(self, session: MemorySession, ring: WatchCallback) -> None:
        self.ringers[session.session_id](ring)
