"""Many members of a Folkmoot group in one process, and one that owns everything and commits.

What is asked of ZooKeeper is counted where each operation is submitted, by its kind.
"""

import sys
import threading
import time
from collections import Counter
from typing import Any, Final

from benchmarks.clients.program import Parameters, main, tell
from folkmoot import Consumer, TopicPartition
from folkmoot.coordination.zookeeper.kazoo_adapter import KazooSession
from folkmoot.coordination.zookeeper.operations import Operation

TURN: Final = 0.25

_asked: Counter[str] = Counter()


def _count() -> None:
    """Has every session of this process count from now on."""
    submit = KazooSession.submit

    def counted(self: KazooSession, operation: Operation, done: Any) -> None:
        _asked[type(operation).__name__] += 1
        submit(self, operation, done)

    KazooSession.submit = counted  # type: ignore[method-assign]


class _Person:
    """A member in a thread of its own, which owns its consumer."""

    def __init__(self, given: Parameters) -> None:
        self.owned: frozenset[TopicPartition] = frozenset()
        self.changed = 0.0
        """When it was last given a partition."""
        self.leave = threading.Event()
        self._given = given
        self._thread = threading.Thread(target=self._live)

    def start(self) -> None:
        self._thread.start()

    def gone(self) -> None:
        self.leave.set()
        self._thread.join()

    def _live(self) -> None:
        given = self._given
        with Consumer(
            zookeeper=given["address"],
            group=given["group"],
            topics=[given["topic"]],
            on_assign=self._assigned,
        ) as consumer:
            while not self.leave.is_set():
                consumer.poll(TURN)
                self.owned = consumer.assignment()

    def _assigned(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self.changed = time.monotonic()
        self.owned = consumer.assignment()


def crowd(given: Parameters) -> None:
    """Joins at the word to go; then tells how it stands, or has its first member leave, as it is told."""
    _count()
    people = [_Person(given) for _ in range(given["members"])]
    tell("ready")
    sys.stdin.readline()
    for person in people:
        person.start()
    for line in sys.stdin:
        if line.strip() == "leave":
            people.pop(0).gone()
        if line.strip() == "end":
            break
        tell(
            "standing",
            shares=[len(person.owned) for person in people],
            changed=max(person.changed for person in people),
            asked=dict(_asked),
            at=time.monotonic(),
        )
    for person in people:
        person.leave.set()
    tell("done")


def commit(given: Parameters) -> None:
    """Owns all partitions and commits an offset of each, again and again."""
    topic, partitions = given["topic"], given["partitions"]
    with Consumer(
        zookeeper=given["address"], group=given["group"], topics=[topic], auto_commit=False
    ) as consumer:
        while len(consumer.assignment()) < partitions:
            consumer.poll(TURN)
        mine = sorted(consumer.assignment())
        tell("ready")
        sys.stdin.readline()
        took = []
        cpu = time.process_time()
        for offset in range(1, given["times"] + 1):
            begun = time.perf_counter()
            consumer.commit(dict.fromkeys(mine, offset))
            took.append(time.perf_counter() - begun)
        tell("done", took=took, cpu=(time.process_time() - cpu) / given["times"])


if __name__ == "__main__":
    main({"crowd": crowd, "commit": commit})
