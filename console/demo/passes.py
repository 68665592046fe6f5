"""One pass of the flights through a topic, a group and a store, as its onlooker sees it."""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, NamedTuple, Self

from folkmoot.console.demo.checks import Consumed
from folkmoot.console.demo.cluster import Onlooker
from folkmoot.console.demo.direct import Sums
from folkmoot.console.demo.members import Members
from folkmoot.console.demo.report import Screen
from folkmoot.console.demo.store import ResultStore
from folkmoot.console.demo.story import DemoFailed
from folkmoot.console.demo.watch import Watch
from folkmoot.protocol.records import TopicPartition

PARTITIONS: Final = 12
LOOK_EVERY: Final = 0.25
DRAIN_TIMEOUT: Final = 90.0


class Where(NamedTuple):
    """The cluster's address, and the directory for results and logs."""

    zookeeper: str
    directory: Path


class Pass:
    """One topic, one group on it, one store of results. Leaving it kills members that still run."""

    def __init__(
        self, where: Where, topic: str, group: str, onlooker: Onlooker, screen: Screen
    ) -> None:
        self.zookeeper = where.zookeeper
        self.topic = topic
        self.group = group
        self.watch = Watch(PARTITIONS)
        self.members = Members(where.directory, where.zookeeper, group, topic)
        self.store = ResultStore(self.members.results)
        self._screen = screen
        self._onlooker = onlooker

    def __enter__(self) -> Self:
        self._onlooker.create_topic(self.topic, PARTITIONS)
        self.store.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.members.stop_at_once()
        self.store.close()

    def look(self) -> None:
        """Look at the members and the group, and show what is new."""
        self.members.look()
        for line in self.watch.see(self._onlooker.group(self.group)):
            self._screen.line(line)

    def all_own(self) -> bool:
        """Every member owns partitions, as planned."""
        return self.watch.settled and self.watch.shares.keys() == self.members.running.keys()

    def wait(self, until: Callable[[], bool], timeout: float, otherwise: str) -> None:
        """Look on until something is so."""
        deadline = time.monotonic() + timeout
        while True:
            self.look()
            if until():
                return
            if time.monotonic() > deadline:
                raise DemoFailed(f"{otherwise} within {timeout:g} s")
            time.sleep(LOOK_EVERY)

    def drain(self) -> None:
        """Until everything in the topic is committed by the group."""
        ends = self._onlooker.ends(self.topic, PARTITIONS)
        behind = {each: end for each, end in ends.items() if end}
        self.wait(
            lambda: behind.items() <= self.committed().items(),
            DRAIN_TIMEOUT,
            f"the group {self.group} did not commit all of {self.topic}",
        )

    def committed(self) -> Mapping[TopicPartition, int]:
        return self._onlooker.committed(self.group, self.topic)

    def consumed(self, total: int, expected: Mapping[str, Sums]) -> Consumed:
        """What is there, now that nobody works on it any more."""
        return Consumed(
            flights=total,
            expected=expected,
            carriers=self.store.carriers(),
            ends=self._onlooker.ends(self.topic, PARTITIONS),
            committed=self._onlooker.committed(self.group, self.topic),
            positions=self.store.positions(),
            members=self.store.members(),
        )
